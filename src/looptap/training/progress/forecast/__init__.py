"""Forecast where early stopping will end a run: rules and learning curves."""
