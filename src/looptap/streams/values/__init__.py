"""Values: snapshots, sizes, tables, and the helpers that queries call."""
