"""The stages of a compiled query, pushed one event at a time."""
