"""The commands that change a run, or list what was changed."""
