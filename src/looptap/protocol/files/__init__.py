"""Files shared by processes and people: connections, commands, YAML documents."""
