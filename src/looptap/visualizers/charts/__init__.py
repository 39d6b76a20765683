"""Charts: the choice of a kind by the values, and the data that it shows."""
