"""The query language and its pipelines, windows, reducers, snapshots, streams. No I/O, no threads."""
