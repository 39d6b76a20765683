"""Numbers, pixels and words: the values of a stream as data for charts."""
