"""`Rule`: a condition on runs and its actions; `Firing`: what happened."""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple, TypeAlias

from looptap.protocol.values.number_checks import is_real, is_whole
from looptap.streams.errors import QueryError
from looptap.streams.language.compiler import QuerySpec, compile_query
from looptap.streams.operators.windows import as_window

PLAIN = ("log", "desktop", "checkpoint", "stop")
"""Actions that are one word."""
PREFIXES = ("http://", "https://", "shell:", "call:")
"""Prefixes of the other actions."""
_LEAST = {"lasting": 1, "every": 1, "again": 0, "kill": 0}
"""The least number of these arguments."""


class Firing(NamedTuple):
    """One action of a rule in one run, or a ``gap`` or ``problem`` in judging it.

    ``time`` is in seconds since the epoch, ``run`` is an id, ``rule`` a name, ``event`` the number of the event (None
    without one), ``value`` the value that made the rule true, ``action`` the action and ``outcome`` its result, as
    text.
    """

    time: float
    run: str
    rule: str
    event: int | None
    value: Any
    action: str
    outcome: str


Action: TypeAlias = str | Callable[[Firing], object]


class Comparison(NamedTuple):
    """The comparison of a run with its siblings: other runs at the same step."""

    step: str
    by: float
    at_least: int
    higher_is_better: bool


@dataclass(frozen=True)
class Rule:
    """A condition over a run's events, and the actions when it becomes true.

    Args:
        query: A text of the query language. Without a bound it is a condition; with ``above`` or ``below`` the rule is
            true while the value is beyond that bound.
        on: The event type at which it is evaluated.
        lasting: The number of times in a row that it must be true. A missing event, or one at which the query fails,
            ends the series.
        window: The window that a reduction aggregates over, as in `Run.stream`.
        every: Evaluate at every n-th event only.
        above: It is true while the value is greater.
        below: It is true while the value is less.
        show: What to report as the value; by default the left side of a comparison.
        actions: What is done, in order, once for each run and rule: "log", "desktop" (notify-send), a URL (a POST of
            JSON), "shell: …" (with LOOPTAP_RUN, LOOPTAP_RULE, LOOPTAP_VALUE, LOOPTAP_PID and LOOPTAP_HOST),
            "checkpoint", "stop" (a request, at the next event), "call: …" (code that runs once in the loop), or a
            function of a `Firing`.
        again: Seconds after which the actions run again if the condition is still true.
        kill: Seconds after a firing with "stop", at which the process gets SIGTERM if it has not ended and is on this
            machine. A loop that hangs never reads the request to stop.
        budget: The share of the loop's time that the query may take, as in `Run.stream`. A query that exceeds it is
            evaluated less often, which is reported as a gap.
        unsafe: True runs the query as it is, on record like a command, even if it may change the job.
        name: The name in firings; by default the query.
        quiet: Seconds without an event, for a rule made by `stalled`.
        compared: The comparison of a rule made by `worse_than_siblings`.

    Raises QueryError for an invalid rule.

    >>> Rule("loss > 5", on="epoch", lasting=3).name
    'loss > 5'
    >>> Rule("mean(e.loss for e in events)", window=100, above=2).name
    'mean(e.loss for e in events) above 2'
    """

    query: str | Callable[..., Any]
    on: str = "batch"
    _: KW_ONLY
    lasting: int = 1
    window: Any = None
    every: int = 1
    above: float | None = None
    below: float | None = None
    show: str = ""
    actions: Sequence[Action] = ("log",)
    again: float | None = None
    kill: float | None = None
    budget: float | None = None
    unsafe: bool = False
    name: str = ""
    quiet: float = 0.0
    """Seconds without an event, for a rule made by `stalled`."""
    compared: Comparison | None = None
    """The comparison of a rule made by `worse_than_siblings`."""

    @classmethod
    def stalled(
        cls,
        minutes: float = 10.0,
        *,
        actions: Sequence[Action] = ("log",),
        again: float | None = None,
        kill: float | None = None,
        name: str = "",
    ) -> Rule:
        """Return a rule: no event of any type for ``minutes``, to about a second.

        A pause is not a stall, and neither is a lost connection. A loop that hangs does not reach the event at which
        "stop" and "checkpoint" run; "stop" with ``kill=30`` ends it after 30 s, on the machine where it runs.

        Args:
            minutes: The time without an event, above 0.
            actions: As in `Rule`.
            again: As in `Rule`, in seconds.
            kill: As in `Rule`, in seconds.
            name: The name in firings.

        >>> Rule.stalled(minutes=10).name
        'no event for 10 min'
        """
        if not (is_real(minutes) and 0 < minutes < math.inf):
            raise QueryError(f"Rule.stalled(minutes={minutes!r}) must be a number above 0.")
        shown = f"{minutes:g} min" if minutes >= 1 else f"{60 * minutes:g} s"
        name = name or f"no event for {shown}"
        return cls("", actions=actions, again=again, kill=kill, name=name, quiet=60.0 * minutes)

    @classmethod
    def worse_than_siblings(
        cls,
        value: str,
        *,
        step: str = "step",
        on: str = "epoch",
        by: float = 1.5,
        at_least: int = 3,
        lasting: int = 1,
        higher_is_better: bool = False,
        actions: Sequence[Action] = ("log",),
        again: float | None = None,
        kill: float | None = None,
        budget: float | None = None,
        unsafe: bool = False,
        name: str = "",
    ) -> Rule:
        """Return a rule: ``value`` is ``by`` times worse than the siblings' median.

        Siblings are the other runs of the guard, including ended ones. Worse means higher; NaN is worse than any
        number. The bound for a median m is ``m ± (by - 1)·|m|``. A run that is ahead is judged when its siblings reach
        its step.

        Args:
            value: A query that yields a number.
            step: The observable by which runs are compared.
            on: The event type.
            by: The factor, 1 or more.
            at_least: The number of siblings that must have reached that step, 1 or more.
            lasting: The number of times in a row.
            higher_is_better: True if worse means lower, as for an accuracy.
            actions: As in `Rule`.
            again: As in `Rule`, in seconds.
            kill: As in `Rule`, in seconds.
            budget: As in `Rule`.
            unsafe: As in `Rule`.
            name: The name in firings.

        >>> Rule.worse_than_siblings("loss", step="epoch", lasting=3).name
        'loss worse than its siblings'
        """
        if not (isinstance(by, int | float) and 1 <= by < math.inf):
            raise QueryError(f"by={by!r} must be a factor, 1 or more.")
        if not (is_whole(at_least) and at_least >= 1):
            raise QueryError(f"at_least={at_least!r} must be a whole number of siblings, 1 or more.")
        return cls(
            value,
            on,
            lasting=lasting,
            actions=actions,
            again=again,
            kill=kill,
            budget=budget,
            unsafe=unsafe,
            name=name or f"{value} worse than its siblings",
            compared=Comparison(step, by, at_least, higher_is_better),
        )

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Rule:
        """Build a rule from an entry of a rules file. Raises QueryError.

        Args:
            table: The entry: ``query``, ``stalled`` or ``worse_than_siblings``, and other arguments by name.

        >>> Rule.of({"query": "isnan(loss)", "actions": ["stop"]}).actions
        ['stop']
        >>> Rule.of({"stalled": 10}).quiet
        600.0
        """
        if not isinstance(table, Mapping):
            raise QueryError(f"A rule is a table with a query, not {table!r:.80}.")
        makers: dict[str, Callable[..., Rule]] = {
            "stalled": cls.stalled,
            "worse_than_siblings": cls.worse_than_siblings,
            "query": cls,
        }
        kinds = [kind for kind in makers if kind in table]
        if len(kinds) != 1:
            raise QueryError(f"A rule has either a query, stalled or worse_than_siblings; not {dict(table)!r:.99}.")
        (kind,) = kinds
        known = [name for name in inspect.signature(makers[kind]).parameters if name not in ("quiet", "compared")][1:]
        unknown = [name for name in table if name not in (kind, *known)]
        if unknown:
            raise QueryError(f"A rule with {kind} knows no {unknown[0]!r}; it knows {', '.join(known)}.")
        return makers[kind](table[kind], **{name: value for name, value in table.items() if name != kind})

    def __post_init__(self) -> None:
        if isinstance(self.actions, str) or not self.actions:
            raise QueryError(f"actions={self.actions!r} must be a list of one action or more.")
        for action in self.actions:
            _check_action(action)
        if self.kill is not None and "stop" not in self.actions:
            raise QueryError(f"kill={self.kill!r} is for runs that ignore a 'stop', which is not among the actions.")
        for name, least in _LEAST.items():
            number = getattr(self, name)
            if number is not None and not (is_real(number) and number >= least):
                raise QueryError(f"{name}={number!r} must be a number, {least} or more.")
        if not isinstance(self.unsafe, bool):
            raise QueryError(f"unsafe={self.unsafe!r:.80} must be true or false.")
        if not self.quiet:
            self._check_query()

    @property
    def _bounds(self) -> dict[str, float]:
        """Those of ``above`` and ``below`` that are given."""
        bounds = {"above": self.above, "below": self.below}
        return {side: bound for side, bound in bounds.items() if bound is not None}

    def _check_query(self) -> None:
        bounds = self._bounds
        for side, bound in bounds.items():
            if not is_real(bound):
                raise QueryError(f"{side}={bound!r:.80} must be a number.")
        if not self.name:
            sides = [f"{side} {bound:g}" for side, bound in bounds.items()]
            text = self.query if isinstance(self.query, str) else getattr(self.query, "__name__", "a function")
            object.__setattr__(self, "name", f"{text} {' or '.join(sides)}".strip())
        window = as_window(self.window)
        compile_query(QuerySpec(self.query, window, int(self.every)))
        if not (self.show or bounds or self.compared):
            object.__setattr__(self, "show", _left(self.query))
        compile_query(QuerySpec(self.asked, window, int(self.every)))

    @property
    def asked(self) -> str | Callable[..., Any]:
        """The query that is attached: what the rule judges by, and what it shows."""
        if self.compared is not None:
            return f"({self.compared.step}), ({self.query})"
        return f"({self.query}), ({self.show})" if self.show else self.query

    @property
    def every_event(self) -> bool:
        """True if a mapped query yields at each event: then event numbers show gaps."""
        found = _parsed(self.query)
        if found is None:
            return not isinstance(self.query, str)
        return all(not isinstance(node, ast.Name) or node.id != "events" for node in ast.walk(found))

    def verdict(self, value: Any) -> tuple[bool, Any]:
        """Return whether ``value`` makes the rule true, and what to show."""
        judged, shown = value if self.show else (value, value)
        bounds = self._bounds
        if not bounds:
            return bool(judged), shown
        number = float(judged)
        return number > bounds.get("above", math.inf) or number < bounds.get("below", -math.inf), shown


def _check_action(action: object) -> None:
    text = action if isinstance(action, str) else ""
    if callable(action) or text in PLAIN or (text.startswith(PREFIXES) and text.partition(":")[2].strip(" /")):
        return
    raise QueryError(
        f"{action!r:.80} is no action. There are {', '.join(PLAIN)}, a URL (https://…), 'shell: command', 'call: code' "
        "and, in Python, functions."
    )


def _parsed(query: str | Callable[..., Any]) -> ast.expr | None:
    """Return a query in text as an expression; None for a function, and for a def."""
    try:
        return ast.parse(query.strip(), mode="eval").body if isinstance(query, str) else None
    except SyntaxError:
        return None


def _left(query: str | Callable[..., Any]) -> str:
    """Return the left side of a comparison; empty if ``query`` is none."""
    found = _parsed(query)
    if not isinstance(found, ast.Compare) or len(found.ops) != 1:
        return ""
    side = found.comparators[0] if isinstance(found.left, ast.Constant) else found.left
    return "" if isinstance(side, ast.Constant) else ast.unparse(side)
