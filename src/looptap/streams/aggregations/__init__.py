"""The aggregations of the query language: bounded memory, mergeable state."""
