"""A watch over one run: a judge for each rule, which checks new values.

All of it runs on the guard's thread, but for the attach. No event is skipped silently: values are numbered, a
query that yields at each event is checked by the numbers of its events too, and missing ones are reported.
"""

from __future__ import annotations

import functools
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from looptap.client.directory.listing import RunListing
from looptap.client.guard.rules import Rule
from looptap.client.run import Run
from looptap.client.session.session import OPEN
from looptap.protocol.errors import LimitReached
from looptap.streams.errors import QueryError
from looptap.streams.stream.state_and_cost import FAILED, LIVE
from looptap.streams.stream.stream import Record
from looptap.streams.text import last_line

MAX_BUFFERED_VALUES = 20_000
"""Values of a query that may wait for the next check."""
MAX_COMPARED_STEPS = 1_000
"""Steps at which runs are compared with their siblings; those before are forgotten."""


class Judgement(NamedTuple):
    """A rule that is true at ``event``, or a gap or problem (``kind``) in judging it."""

    event: int | None
    value: Any
    kind: str = ""


class Judge(Protocol):
    """A check of one run by one rule."""

    rule: Rule
    judged: int
    missing: int
    over: bool

    def new_judgements(self) -> Iterator[Judgement]:
        """Yield new judgements since the last call."""


class SiblingComparison:
    """The values of all runs at each step, which finds runs worse than the rest."""

    def __init__(self, rule: Rule) -> None:
        assert rule.compared is not None
        self._comparison, self._lasting = rule.compared, int(rule.lasting)
        self._steps: dict[float, dict[str, tuple[float, float, int]]] = {}  # badness, value and event
        self._worse: dict[str, dict[float, bool]] = {}
        self._new_judgements: dict[str, list[Judgement]] = {}
        self._changed: set[float] = set()

    def take(self, run: str, record: Record) -> tuple[bool, float]:
        """Add a value of ``run``: its step and its number. It is judged later."""
        step, value = map(float, record.value)
        self.add(run, step, value, record.event)
        return False, value

    def add(self, run: str, step: float, value: float, event: int) -> None:
        """Add what ``run`` had at ``step``."""
        badness = math.inf if math.isnan(value) else -value if self._comparison.higher_is_better else value
        self._steps.setdefault(step, {})[run] = badness, value, event
        self._changed.add(step)
        while len(self._steps) > MAX_COMPARED_STEPS:
            oldest = next(iter(self._steps))
            del self._steps[oldest]
            self._changed.discard(oldest)
            for verdicts in self._worse.values():
                verdicts.pop(oldest, None)

    def new_judgements(self, run: str) -> list[Judgement]:
        """Return new judgements of ``run`` since the last call."""
        if self._changed:
            for step in sorted(self._changed):
                self._check(step)
            self._changed.clear()
        return self._new_judgements.pop(run, [])

    def _check(self, step: float) -> None:
        """Compare all runs with a value at ``step``."""
        there = self._steps[step]
        ranking = sorted(badness for badness, _, _ in there.values())
        enough = len(ranking) > self._comparison.at_least
        for run, (own, value, event) in there.items():
            worse = self._worse.setdefault(run, {})
            worse[step] = enough and self._is_worse(own, ranking)
            if worse[step] and self._is_lasting(worse, step):
                self._new_judgements.setdefault(run, []).append(Judgement(event, value))

    def _is_worse(self, own: float, ranking: Sequence[float]) -> bool:
        """Return True if ``own``, one of ``ranking``, is beyond the others' bound."""
        place, others = bisect_left(ranking, own), len(ranking) - 1
        low, high = (ranking[k + (k >= place)] for k in ((others - 1) // 2, others // 2))
        middle = (low + high) / 2
        return own > middle + (self._comparison.by - 1) * abs(middle)

    def _is_lasting(self, worse: dict[float, bool], step: float) -> bool:
        """Return True if the run is worse at enough steps in a row around ``step``."""
        steps = list(worse)
        first = last = steps.index(step)
        while first and worse[steps[first - 1]]:
            first -= 1
        while last + 1 < len(steps) and worse[steps[last + 1]]:
            last += 1
        return last - first + 1 >= self._lasting


class StreamJudge:
    """A judge of the values of a query."""

    def __init__(self, rule: Rule, run: Run, siblings: SiblingComparison | None) -> None:
        self.rule, self.run = rule, run
        self._verdict: Callable[[Record], tuple[bool, Any]] = lambda record: rule.verdict(record.value)
        self._by_siblings: Callable[[], Iterable[Judgement]] = tuple
        if siblings is not None:
            self._verdict = functools.partial(siblings.take, run.id)
            self._by_siblings = functools.partial(siblings.new_judgements, run.id)
        self.stream = run.stream(
            rule.asked,
            on=rule.on,
            window=rule.window,
            every=int(rule.every),
            budget=rule.budget,
            buffer=MAX_BUFFERED_VALUES,
            name=rule.name,
            unsafe=rule.unsafe,
        )
        self.judged = self.missing = 0
        self.over = False
        self._by_event = self.stream.mapped and rule.every_event
        self._number = self._event = self._true_in_a_row = self._reported_missing = 0
        self._problem_reported = False

    def new_judgements(self) -> Iterator[Judgement]:
        """Yield new judgements since the last call."""
        if self.over or (self.stream.state == LIVE and self.stream.newest == self._number):
            yield from self._by_siblings()
            return
        ended = self.stream.state != LIVE  # before the look: what came before the end is judged
        for record in self.stream.records_after(self._number):
            yield from self._report_missing(record.event, *self._count_missing(record))
            self._number, self._event = record.number, record.event
            yield from self._check(record)
        yield from self._by_siblings()
        if self.stream.traceback:
            yield from self._problem(self.stream.feed.first_error())
        if ended:
            self.over = True
            lost = [gap.missing for gap in self.stream.gaps if gap.after >= self._number]
            more = lost.count(None) > self.stream.broken_off  # that a run was killed is not news of the rule
            yield from self._report_missing(None, sum(filter(None, lost)), more)
            if self.stream.state == FAILED and self.run.state in OPEN:  # else the run has ended
                yield Judgement(None, self.stream.reason, "problem")

    def _check(self, record: Record) -> Iterator[Judgement]:
        before, self._true_in_a_row = self._true_in_a_row, 0
        if record.error is not None:
            yield from self._problem(last_line(record.error))
            return
        try:
            true, value = self._verdict(record)
        except Exception as error:
            yield from self._problem(f"its value cannot be judged: {type(error).__name__}: {error}")
            return
        self.judged += 1
        if true:
            self._true_in_a_row = before + 1
            if self._true_in_a_row >= self.rule.lasting:
                yield Judgement(record.event, value)

    def _count_missing(self, record: Record) -> tuple[int, bool]:
        """Return how many values are missing before ``record``, and if there may be more."""
        missing = record.number - self._number - 1
        if self._by_event and self._number:
            missing = max(missing, (record.event - self._event) // int(self.rule.every) - 1)
            return missing, False
        gaps = self.stream.gaps if self.stream.dropped or not self.stream.mapped else ()
        return missing, any(gap.missing is None and self._number <= gap.after < record.number for gap in gaps)

    def _report_missing(self, event: int | None, count: int, more: bool) -> Iterator[Judgement]:
        if count <= 0 and not more:
            return
        self.missing += max(0, count)
        self._true_in_a_row = 0
        if self.missing < 2 * self._reported_missing and not more:  # a gap at each event is not worth a line at each
            return
        self._reported_missing = self.missing
        stream = self.stream
        reason = stream.feed.first_error() if stream.traceback else "".join(stream.limits[-1:])
        if not reason and self.run.losses:  # as where a busy machine leaves one side without a turn for 4 s
            reason = f"the link was lost ({self.run.losses} times so far) with what was on its way"
        reason = reason or "they never came"
        unknown = " at least" if more else ""
        yield Judgement(event, f"{self.missing:,} values{unknown} are missing so far: {reason}", "gap")

    def _problem(self, text: str) -> Iterator[Judgement]:
        if not self._problem_reported:
            self._problem_reported = True
            yield Judgement(self._event or None, text, "problem")


class StallJudge:
    """A judge of how long there was no event."""

    def __init__(self, rule: Rule, run: Run) -> None:
        self.rule, self.run = rule, run
        self.judged = self.missing = 0
        self.over = self._reported = False

    def new_judgements(self) -> Iterator[Judgement]:
        """Yield new judgements since the last call."""
        self.over = self.run.state not in OPEN
        if self.run.state == LIVE:
            self.judged, self._reported = self.judged + 1, False
            if not self.run.paused and self.run.idle > self.rule.quiet:
                yield Judgement(None, round(self.run.idle, 1))
        elif not self.over and self.run.silence > self.rule.quiet and not self._reported:
            self._reported = True
            yield Judgement(None, f"whether it stands still is not known: {self.run.reason}", "problem")


class RunWatch:
    """An attached run and its judges. Raises LinkError if it cannot be attached to."""

    def __init__(
        self, listed: RunListing, rules: Sequence[Rule], siblings: dict[int, SiblingComparison], timeout: float
    ) -> None:
        self.process, self.run = listed.usable().process, listed.attach(timeout)
        self.judges: list[tuple[int, Judge]] = []
        self.problems: list[tuple[int, Judgement]] = []
        """Rules that cannot be checked on this run."""
        try:
            for index, rule in enumerate(rules):
                try:
                    self.judges.append((index, _judge_of(rule, self.run, siblings.get(index))))
                except (QueryError, LimitReached) as error:
                    self.problems.append((index, Judgement(None, str(error), "problem")))
        except BaseException:
            self.run.close()
            raise

    @property
    def over(self) -> bool:
        """True if the run has ended and all its values were judged."""
        return self.run.state not in OPEN and all(judge.over for _, judge in self.judges)


def _judge_of(rule: Rule, run: Run, siblings: SiblingComparison | None) -> Judge:
    return StallJudge(rule, run) if rule.quiet else StreamJudge(rule, run, siblings)
