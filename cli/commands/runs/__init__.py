"""The commands about runs as a whole: stored files, sharing, connections, the demo."""
