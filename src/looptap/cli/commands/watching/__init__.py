"""The commands that show live runs."""
