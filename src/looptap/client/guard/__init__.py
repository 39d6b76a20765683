"""Rules that watch many runs and act."""
