"""The wire: messages, value codec, keys, connection files, limits, errors."""
