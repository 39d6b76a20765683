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
    Detach,
    FromClient,
    Got,
    Grant,
    Hello,
    Leave,
)

_BOTH = frozenset({OPERATOR, VIEWER})
_OPERATOR = frozenset({OPERATOR})

ALLOWED: dict[type, frozenset[str]] = {
    Hello: _BOTH,
    Beat: _BOTH,
    Got: _BOTH,
    Leave: _BOTH,
    Attach: _OPERATOR,
    Detach: _OPERATOR,
    CloseWindow: _OPERATOR,
    Grant: _OPERATOR,
    Call: _OPERATOR,
    Command: _OPERATOR,
    Agree: _OPERATOR,
    Ask: _OPERATOR,
}
"""The roles that may send each type of message. A viewer reads what is exported to it, and sends no code."""

FROM_CLIENT: tuple[type, ...] = get_args(FromClient)
"""Every type of message that a client can send."""


def may_send(role: str, message: object) -> bool:
    """Whether a client of ``role`` may send ``message``; False for whatever is not in `ALLOWED`.

    >>> may_send("operator", Leave()), may_send("viewer", Leave()), may_send("", Leave())
    (True, True, False)
    """
    return role in ALLOWED.get(type(message), ())
