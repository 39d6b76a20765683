"""The aggregations of the query language, in bounded memory, with mergeable state."""
