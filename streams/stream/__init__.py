"""Streams: the buffer, readers that follow it, and derived streams."""
