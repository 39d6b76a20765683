"""Where early stopping will end a run: rules and learning-curve forecasts."""
