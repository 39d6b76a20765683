"""The path of the file of a run, its tables and columns."""
