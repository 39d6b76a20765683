"""Files that processes and people exchange: connection files, command lists, YAML documents."""
