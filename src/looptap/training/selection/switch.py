"""`Switch`: has instances selected while the gain pays for what selection costs."""

from __future__ import annotations

import math
from collections import deque
from statistics import median
from typing import Any

from looptap.training.saved_state import require_state

AUTO, ON, OFF = "auto", "on", "off"
SWITCH_POSITIONS = (AUTO, ON, OFF)
"""Positions of the switch: as measured, always, never."""
ON_FROM_FACTOR, OFF_BELOW_FACTOR = 1.05, 1.02
"""Net gains at which it turns on, and below which it turns off."""
_TEST_EVERY_STEPS = 25
_IDLE_COST_SHARE = 0.01  # of a step: what scores may cost while it is off
_MAX_TIMES = 31  # of steps, of which the median is taken
_MAX_HELD_TIMES = 7  # of steps that are scored together
_MIN_COSTS = 5  # before the median is relied on: the first cost has the import of torch's parts in it
_MEDIAN_EVERY_STEPS = 10


class Switch:
    """Decides whether to select, from times and gains.

    ``net = G * t / (t + o)``: G is the gain, t are the seconds of a step without and o those of selection. It is off in
    the first epoch, on from a net gain of 1.05, off below 1.02. While it is off, only so many steps are scored that
    they cost 1%.
    """

    def __init__(self, most_idle: int = 0) -> None:
        self.on = False
        self.why = "plain sampling in the first epoch"
        self.net = math.nan
        """The net gain at the last test; NaN before it."""
        self.step_seconds = math.nan
        """Seconds of a step without selection; NaN before the first."""
        self.cost_seconds = math.nan
        """Seconds of selection a step, with scores: as of when it was on last, else as while off; NaN before."""
        self._idle_cost = math.nan  # seconds of a step that is scored while it is off; NaN before
        self.idle = 0
        """How many of the coming steps need not be recorded at all, at most ``most_idle``."""
        self.idled = 0
        """How many were not, since the last one that was."""
        self._most_idle = most_idle
        self._until_test, self._since = _TEST_EVERY_STEPS, 0
        self._untaken = 0  # steps since the medians were taken
        self._steps, self._costs_on, self._costs_off = (deque[float](maxlen=_MAX_TIMES) for _ in range(3))
        self._costs_held = deque[float](maxlen=_MAX_HELD_TIMES)

    def timed(self, step: float, cost: float | None) -> None:
        """Record the seconds of a step, and what selection cost in it if it was scored.

        They are the mean of those that were not recorded, and of the last one.
        """
        self._steps.append(step)
        if cost is not None:
            (self._costs_on if self.on else self._costs_off).append(cost)
        self._untaken += 1 + self.idled
        if len(self._steps) < _MAX_TIMES or self._untaken >= _MEDIAN_EVERY_STEPS:
            self._untaken = 0
            self.step_seconds = median(self._steps)
            self.cost_seconds = median(self._costs_on or self._costs_off or (math.nan,))
            self._idle_cost = median(self._costs_held or self._costs_off or self._costs_on or (math.nan,))

    @property
    def holds(self) -> bool:
        """Whether the scores of a step may be computed later, with those of others.

        The first ones are not, for the cost that they have while it is on.
        """
        return not self.on and len(self._costs_on) + len(self._costs_off) >= _MIN_COSTS

    def hold(self, possible: bool) -> None:
        """Say whether it was possible.

        When it first was, each step is held until it is known what that costs.
        """
        if not possible:
            self._costs_held.clear()
        elif not self._costs_held:
            self.held(0.0)

    def held(self, cost: float) -> None:
        """Record what each of some steps cost, in seconds, that were scored together."""
        self._costs_held.append(cost)
        self._idle_cost = median(self._costs_held)

    def passed(self) -> bool:
        """Count a step that is not recorded; return whether to hold it."""
        self.idle -= 1
        self.idled += 1
        self._since += 1
        if not self._costs_held or self._too_soon():
            return False
        self._since = 0
        return True

    def scores(self) -> bool:
        """Return whether the coming step is to be scored."""
        self._since += 1
        if self.holds and self._too_soon():
            return False
        self._since = 0
        return True

    def _too_soon(self) -> bool:
        """Return whether another score would cost more than its share."""
        return self._since * _IDLE_COST_SHARE * self.step_seconds < self._idle_cost

    @property
    def is_due(self) -> bool:
        """Whether the coming call of `tested` is a test."""
        return self._until_test <= 1 + self.idled

    def tested(self, gain: float, first_epoch: bool, position: str) -> bool:
        """Count a step; return whether it is on.

        It decides every 25 steps, or at once if ``position`` says so.
        """
        self._until_test -= 1 + self.idled
        if position != AUTO:
            self._turn(position == ON, f"turned {position} by hand")
        elif first_epoch:
            self._turn(False, "plain sampling in the first epoch")
        elif self._until_test <= 0:
            self._test(gain)
        if self._until_test <= 0:
            self._until_test = _TEST_EVERY_STEPS
        self.idle, self.idled = self._idle_steps(), 0
        return self.on

    def _idle_steps(self) -> int:
        """Return how many steps from here are neither scored nor tested."""
        budget = _IDLE_COST_SHARE * self.step_seconds
        if not self.holds or not budget > 0:
            return 0
        until_score = _TEST_EVERY_STEPS  # or rather, they are held while idle
        if not self._costs_held:
            until_score = math.ceil(min(self._idle_cost / budget, _TEST_EVERY_STEPS)) - 1 - self._since
        return max(0, min(until_score, self._until_test - 1, self._most_idle))

    def _test(self, gain: float) -> None:
        whole = self.step_seconds + self.cost_seconds
        paid = self.step_seconds / whole if whole > 0 else math.nan  # a clock may stand still
        self.net = gain * paid
        if math.isnan(self.net):
            self._turn(False, "no gain is known yet")
        elif self.net >= ON_FROM_FACTOR or (self.on and self.net >= OFF_BELOW_FACTOR):
            self._turn(True, f"gain {gain:.2f}, {paid:.0%} of the time left for training")
        else:
            self._turn(False, f"gain {gain:.2f} does not pay, {paid:.0%} of the time left for training")

    def state_dict(self) -> dict[str, Any]:
        """Return the state; times are measured again."""
        return {"on": self.on, "why": self.why, "until_test": self._until_test - self.idled}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned. Raises ValueError."""
        require_state(state, self.state_dict(), "a Switch")
        self.on, self.why, self._until_test = state["on"], state["why"], state["until_test"]

    def fail(self, why: str) -> None:
        """Turn it off for the 25 steps up to the next test."""
        self._until_test, self.idle = _TEST_EVERY_STEPS + 1, 0  # the step that failed is counted yet
        self._turn(False, why)

    def _turn(self, on: bool, why: str) -> None:
        self.on, self.why = on, why


class StepTimes:
    """The seconds of steps, and what selection takes and saves of them."""

    def __init__(self, gate: Switch, batch_size: int) -> None:
        self._gate, self._batch_size = gate, batch_size
        self.spent = self.saved = 0.0
        self.skipped = 0
        """Instances that were skipped before the last step."""
        self._mark = 0.0  # when that ended; 0: none in this epoch
        self._held = 0.0  # seconds of selection in the steps that are held

    @property
    def seconds(self) -> dict[str, float]:
        """What was saved and spent so far."""
        return {"saved": self.saved, "spent": self.spent}

    def begin(self) -> None:
        """Begin an epoch: what comes before its first step is no time of one."""
        self._mark = self._held = 0.0

    def hold(self, seconds: float) -> None:
        """Add what it took to hold the outputs of a step."""
        self._held += seconds

    def ended(self, now: float, cost: float, *, scored: bool, held: bool, together: int, skipped: int) -> None:
        """Record a step that ended ``now``, and what selection cost in it.

        ``scored``: that paid for its scores, or for those of as many steps as worked on ``together``, unless it is
        ``held`` for later.
        """
        gate = self._gate
        self.spent += cost
        if held or together:
            self._held += cost
        if together:
            gate.held(self._held / together)
            self._held = 0.0
        if self._mark:
            gate.timed(max(0.0, now - self._mark - cost) / (1 + gate.idled), cost if scored and not held else None)
            self.saved += (skipped - self.skipped) / self._batch_size * gate.step_seconds
            self.skipped = skipped
        self._mark = now
