"""Who may send what: one table of message type and role, and what is not in it is denied."""

from __future__ import annotations

from typing import get_args

from looptap.protocol.keys import OPERATOR, VIEWER
from looptap.protocol.messages import (
    Agree,
    Ask,
    Attach,
    Beat,
    Call,
    CloseWindow,
    Command,
    CreateShare,
    Detach,
    FromClient,
    Got,
    Grant,
    Hello,
    Leave,
    Look,
    Read,
    Revoke,
    Stand,
)

_BOTH = frozenset({OPERATOR, VIEWER})
_OPERATOR = frozenset({OPERATOR})

ALLOWED: dict[type, frozenset[str]] = {
    Hello: _BOTH,
    Beat: _BOTH,
    Got: _BOTH,
    Leave: _BOTH,
    Look: _BOTH,
    Read: _BOTH,
    Detach: _BOTH,
    Attach: _OPERATOR,
    CloseWindow: _OPERATOR,
    Grant: _OPERATOR,
    Call: _OPERATOR,
    Command: _OPERATOR,
    Agree: _OPERATOR,
    Ask: _OPERATOR,
    Stand: _OPERATOR,
    CreateShare: _OPERATOR,
    Revoke: _OPERATOR,
}
"""The roles that may send each type of message. A viewer reads what is exported: no message of his bears code."""

FROM_CLIENT: tuple[type, ...] = get_args(FromClient)
"""Every type of message that a client can send."""


def may_send(role: str, message: object) -> bool:
    """Whether a client of ``role`` may send ``message``; False for whatever is not in `ALLOWED`.

    >>> may_send("operator", Leave()), may_send("viewer", Leave()), may_send("", Leave())
    (True, True, False)
    """
    return role in ALLOWED.get(type(message), ())


def refusal(role: str, message: object) -> str:
    """Why a client of ``role`` may not send ``message``, in a sentence."""
    what = _CALLED.get(type(message), type(message).__name__)
    if role == VIEWER:
        return f"A viewer may not {what}: it reads the streams that are exported to it (run.streams), and nothing else."
    return f"The role {role!r} may not {what}."


_CALLED: dict[type, str] = {
    Attach: "ask a query of the job",
    CloseWindow: "close a window",
    Grant: "grant a query more time",
    Call: "run code in the job",
    Command: "change the job",
    Ask: "ask for the counters, stacks, controls, commands or shares of the job",
    Stand: "export or keep a stream",
    CreateShare: "share the run",
    Revoke: "end a share",
}
