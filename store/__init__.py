"""A run on disk: the SQLite file of a run, its writer, its reader, exports and imports."""
