"""The client's side: find a run, attach to it, read its streams, command it."""
