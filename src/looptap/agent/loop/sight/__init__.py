"""What a job itself calls its values: the names in its running functions."""
