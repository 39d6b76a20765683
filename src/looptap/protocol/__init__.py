"""The wire: messages, codec, keys, connection files, limits, errors, wakeups."""
