"""The query language: text or a function in, a compiled query out."""
