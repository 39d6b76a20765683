"""The commands: one module each, with its options, its help and its work."""
