"""I/O thread: reactor, sockets, and authentication."""
