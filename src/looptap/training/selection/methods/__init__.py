"""The methods of selection, by name."""
