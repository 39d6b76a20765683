"""An agent for scripts as they are: events from torch, observables by name."""
