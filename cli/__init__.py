"""The command line: `looptap ls`, `looptap watch`, `looptap call`, `looptap demo`."""

from looptap.cli.start import main

__all__ = ["main"]
