"""The commands that look at runs while they go on."""
