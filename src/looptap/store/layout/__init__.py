"""The path of a run's file, its tables and columns."""
