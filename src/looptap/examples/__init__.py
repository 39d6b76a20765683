"""Training jobs to attach to, as in `python -m looptap.examples.digits`."""
