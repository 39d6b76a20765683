"""How long a client waits for an answer, unless a call says otherwise."""

from __future__ import annotations

import logging
import math
import os

VARIABLE = "LOOPTAP_TIMEOUT"
"""Environment variable: seconds to wait for an answer of a run, where 5 are too few, as on a busy machine."""
_DEFAULT_SECONDS = 5.0
_MAX_WAIT_FACTOR = 12

logger = logging.getLogger(__name__)


def reply_seconds(text: str | None) -> float:
    """Return the seconds that the variable gives; without it, or where it is none, 5.

    >>> reply_seconds("20"), reply_seconds(None)
    (20.0, 5.0)
    """
    if not text:
        return _DEFAULT_SECONDS
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if 0 < seconds < math.inf:
        return seconds
    logger.warning("%s=%r is not a number of seconds above 0; waiting for %g s.", VARIABLE, text, _DEFAULT_SECONDS)
    return _DEFAULT_SECONDS


class Silence(float):
    """A timeout in seconds of silence, without a sign of life of the agent.

    On a busy machine, an agent that is well answers late. What a caller gives as a plain number is exact.

    >>> Silence(5.0).left(waited=9.0, silence=1.0), Silence(5.0).left(waited=6.0, silence=8.0)
    (4.0, 0.0)
    """

    def left(self, waited: float, silence: float) -> float:
        """Return for how many seconds to wait still; at most twelve times as long in all."""
        return max(0.0, self - min(waited, silence)) if waited < _MAX_WAIT_FACTOR * self else 0.0


REPLY_SECONDS = Silence(reply_seconds(os.environ.get(VARIABLE)))
"""Seconds in which a run answers, unless it is alive."""
COMMAND_SECONDS = max(30.0, REPLY_SECONDS)
"""Seconds in which the loop carries out a command."""
