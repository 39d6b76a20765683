"""Commands, controls, and shares of a run."""
