"""The command line: `looptap ls`, `looptap watch`, `looptap demo` and others."""

from looptap.cli.entry_point import main

__all__ = ["main"]
