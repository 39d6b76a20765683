"""The runs there are, and which one a name means."""
