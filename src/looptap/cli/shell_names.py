"""Translates the hints in error messages from Python calls to shell commands."""

from __future__ import annotations

import re
from collections.abc import Callable

from looptap.protocol.errors import RemoteError
from looptap.streams.errors import LooptapError, QueryError

_OPTIONS = "on|of|when|window|every|before|after|budget|throttle|combine|ranks|schedule|timeout|expires"
SPELLINGS: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (
        r"To ask for its outcome, (?:run\.outcome\('(.+?)'\)|call again with id='(.+?)'): it never runs twice\.",
        r"To ask for its outcome, give the same command with --id \1\2: it never runs twice.",
    ),
    (r"run\.outcome\('(.+?)'\): it never runs twice\.", r"give that command with --id \1: it never runs twice."),
    (r"run\.cancel\('(.+?)'\)", r"looptap cancel RUN \1"),
    (r"run\.export\(stream, name='another'\) names it", "--name another names it"),
    (r"run\.commands lists", "looptap commands RUN lists"),
    (r"run\.resume\(\)", "looptap resume"),
    (r"run\.stacks\(\)", "looptap stacks"),
    (r"\(run\.streams lists them\)", "(looptap streams lists them)"),
    (r"\(run\.streams\)", "(looptap streams lists them)"),
    (r"; a query of your own runs on this side: run\.stream\(name\)\.query\(…\)\.", "."),
    (r"\bshare\(endpoint='tcp'\)", "looptap share --tcp 127.0.0.1"),
    (r"looptap\.attach\('(.+?)'\)", r"looptap watch \1"),
    (r"\bbudget=math\.inf", "--budget inf"),
    (r"\bunsafe=True", "--unsafe"),
    (r"; history=True begins with the values in its history, .* so far$", "; its history is not read"),
    (r"\branks=\[([\d, ]+)\]", lambda found: f"--ranks {found[1].replace(' ', '')}"),
    (rf"\b({_OPTIONS})=(?:'([^']*)'|([\w.:-]*\w))?", lambda found: _option(found)),
)
"""Patterns of hints for Python, and their replacements for the shell."""


def in_shell(error: LooptapError) -> str:
    """Return an error's text with hints for the shell; a job's words are unchanged.

    >>> in_shell(LooptapError("The loop is paused; run.resume() ends that."))
    'The loop is paused; looptap resume ends that.'
    >>> in_shell(LooptapError("schedule='freeze' keeps the new value."))
    '--schedule freeze keeps the new value.'
    >>> print(in_shell(QueryError("there is no 'error'.", "error", None, "'epoch' events have it: on='epoch'.")))
    there is no 'error'.
        error
    'epoch' events have it: --on epoch.
    """
    if isinstance(error, QueryError):  # its source is the user's own words
        return str(QueryError(hint_in_shell(error.reason), error.source, error.column, hint_in_shell(error.hint)))
    return str(error) if isinstance(error, RemoteError) else hint_in_shell(str(error))


def hint_in_shell(text: str) -> str:
    """Return a sentence with its hints for the shell."""
    for python, shell in SPELLINGS:
        text = re.sub(python, shell, text)
    return text


def _option(found: re.Match[str]) -> str:
    """Return a keyword argument as an option, unless it stands in a call."""
    before = found.string[: found.start()]
    if re.search(r"\w\([^)]*$", before):
        return found[0]
    return f"--{found[1]} {found[2] or found[3] or ''}".rstrip()
