"""In the user's process: find a run, attach to it, read its streams, command it."""
