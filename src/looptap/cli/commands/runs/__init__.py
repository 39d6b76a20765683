"""The commands about whole runs: stored files, sharing, connections, the demo."""
