"""I/O thread: the reactor, the sockets, and who may connect."""
