"""The recorded curves of many kinds of training, and their file format.

``kinds.json`` has the seeds for development, ``kinds-kept.json`` those that are judged once, at the end. Each is a list
of runs, one per line:

- ``kind``, ``seed``; ``reports``: what is validated ("F1"), ``metric``: its kind for `Progress` ("accuracy"),
  ``schedule``: that of the learning rate; ``min_delta``: a usual one for this metric
- ``values``: the result of each validation until the last that the run may have, whatever a rule would say, so that any
  rule can be replayed; null: not a number
- ``checked``: instances of one validation
- ``steps``: training steps before each validation; one number if always the same
- ``sizes``: instances in a step; one number, or one for each part (see ``train``) where they vary
- ``train``: processor time of training before each validation, `PARTS` equal parts of its steps each, in units of 10 µs
- ``check``: processor time of each validation, in the same unit
- ``rates``: the mean learning rate before each validation over the first; null if it cannot be known ahead

Recorded is processor time, since the machine was shared; the judge plays it as wall time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

PARTS = 5
"""Into how many parts the steps between two validations are divided."""
UNIT_SECONDS = 1e-5
DEVELOPMENT_FILE = Path(__file__).with_name("kinds.json")
KEPT_FILE = Path(__file__).with_name("kinds-kept.json")
DEVELOPMENT_SEEDS, KEPT_SEEDS = (*range(4), *range(40, 44)), range(50, 54)  # those of 40 on were kept at first


@dataclass
class KindCurve:
    """One recorded run; the fields are those of the file, see above."""

    kind: str
    seed: int
    reports: str
    metric: str
    schedule: str
    min_delta: float
    values: list[float]
    checked: int
    steps: list[int]
    sizes: list[float]
    train: list[int]
    check: list[int]
    rates: list[float] | None

    @property
    def name(self) -> str:
        """The kind and the seed."""
        return f"{self.kind}, {self.seed}"


def read(path: Path) -> list[KindCurve]:
    """Return the runs of a file; none if it does not exist."""
    return [_opened(one) for one in json.loads(path.read_text())] if path.exists() else []


def write(path: Path, curves: Iterable[KindCurve]) -> None:
    """Write the runs to a file."""
    path.write_text("[\n" + ",\n".join(_packed(curve) for curve in curves) + "\n]\n")


def _packed(curve: KindCurve) -> str:
    found = asdict(curve)
    found["values"] = [float(f"{value:.6g}") if math.isfinite(value) else None for value in curve.values]
    for name in ("steps", "sizes"):
        if len(set(found[name])) == 1:
            found[name] = found[name][0]
    if curve.rates is not None:
        found["rates"] = [float(f"{rate:.4g}") for rate in curve.rates]
    return json.dumps(found, separators=(",", ":"))


def _opened(found: dict[str, object]) -> KindCurve:
    curve = KindCurve(**found)  # type: ignore[arg-type]
    curve.values = [math.nan if value is None else value for value in curve.values]
    points = len(curve.values)
    if isinstance(curve.steps, int):
        curve.steps = [curve.steps] * points
    if not isinstance(curve.sizes, list):
        curve.sizes = [curve.sizes] * (points * PARTS)
    return curve
