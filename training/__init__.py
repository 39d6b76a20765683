"""Systems that measure or speed up training. Each is useful without an agent; one reads their attributes."""
