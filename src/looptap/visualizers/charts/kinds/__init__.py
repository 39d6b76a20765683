"""The built-in kinds of charts, a module for each family."""
