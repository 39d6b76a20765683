"""I/O thread: the numbers that events carry, from the first event on."""
