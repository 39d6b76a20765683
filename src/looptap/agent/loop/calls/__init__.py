"""Functions of the job that queries name: an event after each of their calls."""
