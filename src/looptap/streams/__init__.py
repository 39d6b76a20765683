"""The query language: pipelines, windows, reducers, snapshots and streams.

No I/O, no threads.
"""
