"""Objects shared by the training thread and the I/O thread."""
