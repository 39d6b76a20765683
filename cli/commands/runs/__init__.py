"""The commands about runs as a whole: their files, who sees them, how they are reached."""
