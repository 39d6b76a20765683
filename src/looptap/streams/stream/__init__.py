"""Streams: the buffer, its readers, and derived streams."""
