"""Training jobs to attach to: `python -m looptap.examples.digits`, `python -m looptap.examples.diverging`."""
