"""Where the file of a run lies, and its tables and columns."""
