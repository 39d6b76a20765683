"""The profiler that a client has asked for."""
