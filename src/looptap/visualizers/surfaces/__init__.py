"""Where charts appear: a window, a page, a terminal, a file, a notebook."""
