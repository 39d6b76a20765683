"""The commands that do something to a run, or ask what was done."""
