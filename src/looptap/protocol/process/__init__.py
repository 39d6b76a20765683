"""This process: its identity, its limits, and wakeups of its threads."""
