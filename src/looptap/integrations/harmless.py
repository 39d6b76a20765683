"""Calls on behalf of looptap that never raise into the job."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

MAX_COMPLAINTS_COUNT = 10
"""Kinds of errors that are logged in one process."""

log = logging.getLogger("looptap")
_said: set[str] = set()


def harmlessly(call: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a call returns; None if it raises, which is logged once of a kind.

    KeyboardInterrupt is the user's and goes through.

    >>> harmlessly(lambda: 1 + 1)
    2
    """
    try:
        return call(*arguments)
    except Exception as error:
        say_once(error)
        return None


def say_once(error: Exception) -> None:
    """Log an error that the job does not need to know of, once of each kind."""
    text = f"{type(error).__name__}: {error}"
    if text not in _said and len(_said) < MAX_COMPLAINTS_COUNT:
        _said.add(text)
        log.warning("looptap: %s (said once; the job continues)", text)
