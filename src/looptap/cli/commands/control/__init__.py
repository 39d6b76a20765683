"""The commands that change a run, or list changes."""
