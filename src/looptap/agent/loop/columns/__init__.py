"""The pending events of one type, in columns."""
