"""Starting looptap inside a running Python process that has none."""
