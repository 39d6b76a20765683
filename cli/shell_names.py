"""Translates the hints in error messages from Python calls to shell commands."""

from __future__ import annotations

import re

from looptap.protocol.errors import RemoteError
from looptap.streams.errors import LooptapError, QueryError

SPELLINGS = (
    (r"To ask for its outcome, (?:run\.outcome\('(.+?)'\)|call again with id='(.+?)'): it never runs twice\.",
     r"To ask for its outcome, give the same command with --id \1\2: it never runs twice."),
    (r"run\.outcome\('(.+?)'\): it never runs twice\.", r"give that command with --id \1: it never runs twice."),
    (r"run\.cancel\('(.+?)'\)", r"looptap cancel RUN \1"),
    (r"run\.resume\(\)", "looptap resume"),
    (r"run\.stacks\(\)", "looptap stacks"),
    (r"\(run\.streams lists them\)", "(looptap streams lists them)"),
    (r"\(run\.streams\)", "(looptap streams lists them)"),
    (r"; a query of your own runs on this side: run\.stream\(name\)\.query\(…\)\.", "."),
    (r"\bshare\(endpoint='tcp'\)", "looptap share --tcp 127.0.0.1"),
    (r"looptap\.attach\('(.+?)'\)", r"looptap watch \1"),
    (r"ranks=('?)(\w+)\1", r"--ranks \2"),
)  # fmt: skip
"""Patterns of hints for Python, and their replacements for the shell."""


def in_shell(error: LooptapError) -> str:
    """Return an error's text with hints for the shell; a job's words are unchanged.

    >>> in_shell(LooptapError("The loop pauses; run.resume() ends that."))
    'The loop pauses; looptap resume ends that.'
    """
    text = str(error)
    if not isinstance(error, RemoteError | QueryError):
        for python, shell in SPELLINGS:
            text = re.sub(python, shell, text)
    return text
