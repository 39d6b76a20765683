"""The objects that both the training thread and the I/O thread touch."""
