"""What a query reads of a script, found by name when it is read."""
