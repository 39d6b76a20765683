"""The SQLite file of a run: writer, reader, exports and imports."""
