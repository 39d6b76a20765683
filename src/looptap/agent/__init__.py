"""The training process's side: events, queries attached to them, the I/O thread."""
