"""`panel_of`: the charts that a class declares for its objects, as plain data."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

MAX_PANEL_ROWS = 24
"""The most charts of a panel."""
_SELF = re.compile(r"\bself(?=\.)")


class PanelChart(NamedTuple):
    """One chart of a panel."""

    title: str
    query: str
    chart: str = ""
    """Its kind; empty: the first value decides."""
    seconds: float = 0.5
    """The least time between two values."""


def panel_of(name: str, thing: Any) -> tuple[PanelChart, ...]:
    """Return the charts for ``thing``, which queries know by ``name``.

    There are none unless its class has ``__looptap_panel__``: for each chart a title, a query in which ``self`` is the
    object, and, where they matter, the kind of chart and the least seconds between two values. Raises TypeError and
    ValueError for anything else.

    >>> class Meter:
    ...     __looptap_panel__ = (("speed", "self.speed"), ("speeds so far", "self.all", "histogram", 2.0))
    >>> panel_of("meter", Meter())[0]
    PanelChart(title='speed', query='meter.speed', chart='', seconds=0.5)
    """
    hint = getattr(type(thing), "__looptap_panel__", ())
    found = []
    for entry in hint:
        one = PanelChart(*entry)
        if not all(isinstance(text, str) for text in one[:3]):
            raise TypeError(f"{entry!r:.120} must be a title, a query, and perhaps a kind of chart and seconds.")
        found.append(one._replace(query=_SELF.sub(name, one.query), seconds=float(one.seconds)))
    return tuple(found[:MAX_PANEL_ROWS])
