"""The command line: `looptap ls`, `looptap watch`, `looptap call`, `looptap demo`."""

from looptap.cli.entry_point import main

__all__ = ["main"]
