"""Connects looptap to code that knows nothing of it: scripts, frameworks."""
