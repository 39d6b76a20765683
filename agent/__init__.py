"""In the training process: events, queries attached to them, the I/O thread."""
