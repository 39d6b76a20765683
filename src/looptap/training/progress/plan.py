"""The work of a run: training and validation instances up to a stopping point."""

from __future__ import annotations

from dataclasses import dataclass, field

_SAME_POINT_SHARE = 0.2  # of the way to the next raw point


@dataclass
class TrainingPlan:
    """The work of a run, with a raw point of validation each ``point`` instances.

    A validation has ``validation`` instances; ``left`` instances of training remain if nothing stops the run. Before
    raw point j + 1 there are ``ahead[j]`` inserted validations of ``subset`` instances each. Source: Dong & Luo 2024,
    III; counted from the last raw point instead of the first, so that a change in mid-run affects only future work.
    """

    point: float
    left: float
    validation: float = 0.0
    subset: float = 0.0
    ahead: list[int] = field(default_factory=list)
    done: int = 0
    """Raw points reached so far."""
    since: float = 0.0
    """Training instances since the last raw point."""
    checked: float = 0.0
    """Validation instances since then."""

    @property
    def last(self) -> int:
        """The number of raw points if nothing stops the run."""
        return self.done + max(0, int((self.left + self.since) / self.point + 1e-6))

    def trained(self, instances: float) -> None:
        """Count ``instances`` more instances as trained."""
        self.since += instances
        self.left = max(0.0, self.left - instances)

    def reached(self) -> None:
        """Count a validation at a raw point."""
        self.done, self.since, self.checked = self.done + 1, 0.0, 0.0

    def checked_at_point(self) -> float:
        """Return the instances of the validation just ended, without inserted ones."""
        return max(0.0, self.checked - self.subset * self.inserted(self.done, self.done + 1))

    def inserted(self, first: float, last: float) -> int:
        """Return how many validations are inserted between two raw points."""
        return sum(self.ahead[int(first) : int(last)])

    def remaining(self, stop: float) -> tuple[float, float]:
        """Return the remaining training and validation instances for a ``stop``.

        Training left after the last raw point belongs to the run.
        """
        points = max(0.0, stop - self.done)
        train = self.left if stop >= self.last else min(self.point * points - self.since, self.left)
        inserted = self.subset * self.inserted(self.done, stop)
        return max(0.0, train), max(0.0, self.validation * points + inserted - self.checked)


def point_near(place: float) -> float:
    """Return the raw point at ``place``; between two of them, that place.

    After a resume places follow from lengths that may have changed.

    >>> point_near(2.03), point_near(2.5)
    (2, 2.5)
    """
    return round(place) if abs(place - round(place)) < _SAME_POINT_SHARE else place


def insertion(point: float, batch: float, validation: float, validation_batch: float, cost: float) -> tuple[int, int]:
    """Return how many validations to insert before the first raw point, and the size.

    ``point`` instances of training lie before it, ``batch`` in a step; ``cost`` is C = 20,000 for each processor used.
    Validating one instance is assumed to cost a third of training one. (0, 0) inserts nothing. Source: n_0 and V' of
    Dong & Luo 2024.
    """
    whole = point + validation / 3
    least = min(validation, max(100.0, 2 * validation_batch))
    if not least:
        return 0, 0
    batches = point / batch
    cap = int(max(0, min(batches // 2 - 1, 3 * whole * 0.05 // least)))

    def subset(n: int) -> float:
        return min(max(float(int(3 * whole * 0.05 / n)), least), validation) if n else 0.0

    def four(n: int) -> float:
        spent, points = 0.0, 0
        for j in range(4):
            here = round(0.8**j * n)
            for _ in range(here):
                spent += point / (here + 1) + subset(n) / 3
                points += 1
                if points == 4:
                    return spent
            spent += point / (here + 1) + validation / 3
            points += 1
            if points == 4:
                return spent
        return spent

    chosen = next((n for n in range(cap + 1) if four(n) <= cost), cap)
    return chosen, int(subset(chosen))
