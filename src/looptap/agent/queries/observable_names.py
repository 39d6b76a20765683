"""Refuses a query that names what its events never have; says what was meant.

Events have carried names since the job began, so a slip is known before the first event that would fail. What may
still come is not refused: a name that no other type of events has, and that resembles none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from looptap.streams.errors import QueryError
from looptap.streams.events import types_with
from looptap.streams.expressions import nearest
from looptap.streams.text import is_typo

CERTAIN_AFTER_EVENTS = 10
"""Events of a type after which every name that resembles one of theirs, and is none of them, is taken for a slip."""
MAX_TYPO_CHARACTERS = 2
"""Characters inserted, left out, changed or swapped, that still make a slip."""


def check_names(
    read: Collection[str],
    text: str,
    on: str,
    count: int,
    carried: Mapping[str, Collection[str]],
    exposed: Collection[str] = (),
) -> None:
    """Raise QueryError for a name in ``read`` that ``count`` events ``on`` never had.

    ``carried`` are the names that the events of each type have had, ``exposed`` those that all of them have.

    >>> check_names(["error"], "error", "batch", 5, {"batch": {"loss"}, "epoch": {"error"}})
    Traceback (most recent call last):
        ...
    looptap.streams.errors.QueryError: no 'batch' event has had an observable 'error'; they have loss.
        error
    'epoch' events have it: on='epoch'.
    """
    own = carried.get(on)
    if not own or not count:
        return
    for name in read:
        if name in own:
            continue
        way_out = types_with(name, on, carried)
        if not way_out:
            meant = is_slip if count >= CERTAIN_AFTER_EVENTS else is_typo
            near = sorted(one for one in {*frozenset(own), *exposed} if meant(name, one))
            way_out = nearest(name, near) or (f"Did you mean {near[0]!r}?" if near else "")
        if way_out:
            there = ", ".join(sorted(frozenset(own)))
            raise QueryError(
                f"no {on!r} event has had an observable {name!r}; they have {there:.300}.", text, None, way_out
            )


def is_slip(name: str, meant: str) -> bool:
    """Return True if ``name`` is ``meant`` with a slip or two of the fingers.

    >>> is_slip("los", "loss"), is_slip("lsos", "loss"), is_slip("loss_val", "loss"), is_slip("x", "y")
    (True, True, False, False)
    """
    if abs(len(name) - len(meant)) > MAX_TYPO_CHARACTERS or min(len(name), len(meant)) < 3:
        return False
    before: list[int] = []
    row = list(range(len(meant) + 1))
    for i, a in enumerate(name, 1):
        above, before, row = before, row, [i]
        for j, b in enumerate(meant, 1):
            cost = min(row[j - 1] + 1, before[j] + 1, before[j - 1] + (a != b))
            if i > 1 and j > 1 and a == meant[j - 2] and name[i - 2] == b:
                cost = min(cost, above[j - 2] + 1)
            row.append(cost)
    return row[-1] <= (1 if min(len(name), len(meant)) < 6 else MAX_TYPO_CHARACTERS)
