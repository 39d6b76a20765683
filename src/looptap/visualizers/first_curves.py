"""Which curves of a job a screen opens with, when no query was given.

The loss first, then accuracy, learning rate, a gradient norm and the speed, then the other numbers that events carry;
each over the step that its events carry, if they do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from looptap.streams.counts import counts
from looptap.visualizers.charts.reading.schemas import x_of

SPEED = "events_per_second"
"""The name of the speed of a type of events in `Run.scalars`."""
GRADIENT_NORM = "math.sqrt(sum(norm * norm for norm in layer_norms(model, 'grad').values()))"
"""The query of the norm of all gradients, for a job that exposes ``model`` and whose events carry no such norm."""
MAX_FIRST_CURVES_COUNT = 6
"""Curves that a screen opens with."""

_ORDER = (
    r"loss|nll|entropy|perplexity|\bppl|objective|elbo|\bmse|\bmae|\brmse|error|\bwer|\bcer",
    r"acc|top_?[15]|\bf1|auc|precision|recall|\biou|dice|bleu|rouge|reward|return|score|\bmap\b",
    r"(^|[._/ ])lr\b|learning_?rate",
    r"grad\w*norm|gnorm|norm\w*grad",
)
_SPEED_RANK = len(_ORDER)


class KeptName(Protocol):
    """An entry of `Run.scalars`, as far as the order of curves goes."""

    @property
    def name(self) -> str:
        """The name of the number."""

    @property
    def on(self) -> str:
        """The type of its events."""

    @property
    def value(self) -> object:
        """The newest value; one that is True or False is a flag, and no curve."""

    @property
    def points(self) -> int:
        """How many values are kept."""


class DeclaredName(Protocol):
    """An entry of `Run.streams`, as far as it stands for a curve."""

    @property
    def name(self) -> str:
        """The name of the stream."""

    @property
    def query(self) -> str:
        """Its query."""


class Curve(NamedTuple):
    """A query whose values have a history, the type of its events, and its title."""

    query: str
    on: str = ""
    name: str = ""


def first_curves(scalars: Sequence[KeptName], declared: Iterable[DeclaredName] = ()) -> list[Curve]:
    """Return the curves to open with, besides ``declared``, the best first.

    >>> from looptap.testing import pair
    >>> agent, run = pair("doctest", history=True)
    >>> agent.emit("batch", step=0, acc=0.5, x=[1], train_loss=2.5)
    >>> first_curves(run.scalars)
    [Curve(query='step, train_loss', on='batch', name='train_loss'), Curve(query='step, acc', on='batch', name='acc')]
    """
    words = {word for one in declared for word in (one.name, *re.findall(r"\w+", one.query))}
    known = (one for one in scalars if not (one.name in words or counts(one.name) or one.name == SPEED))
    found = [one for one in known if not isinstance(one.value, bool)]
    if not found:
        return []
    busiest = max(scalars, key=lambda one: one.points).on
    speed = [one for one in scalars if one.name == SPEED and one.on == busiest and one.points > 1]
    ranked = sorted((*found, *speed), key=lambda one: rank(one.name))
    return [
        Curve(_over(one, scalars), one.on, "events per second" if one.name == SPEED else one.name)
        for one in ranked[:MAX_FIRST_CURVES_COUNT]
    ]


def rank(name: str) -> int:
    """Return the place of a name among the curves: loss first.

    >>> sorted(["momentum", "lr", "val/acc", "loss"], key=rank)
    ['loss', 'val/acc', 'lr', 'momentum']
    """
    if name == SPEED:
        return _SPEED_RANK
    places = (place for place, words in enumerate(_ORDER) if re.search(words, name, re.IGNORECASE))
    return next(places, _SPEED_RANK + 1)


def has_gradient_norm(scalars: Iterable[KeptName]) -> bool:
    """Return whether events carry the norm of the gradients."""
    return any(rank(one.name) == len(_ORDER) - 1 for one in scalars)


def _over(one: KeptName, scalars: Sequence[KeptName]) -> str:
    """Return the query of a name over the step of its events."""
    if one.name == SPEED:
        return one.name
    beside = [other.name for other in scalars if other.on == one.on and counts(other.name)]
    x = x_of(beside)
    return one.name if x is None else f"{beside[x]}, {one.name}"
