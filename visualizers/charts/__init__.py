"""Charts: choosing a kind from the values, and collecting what it shows."""
