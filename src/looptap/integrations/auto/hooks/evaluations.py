"""What an evaluation has computed: the variables that it has changed.

An event `evaluation` may come as late as the next backward pass, when the variables in sight are those of the next
update. Its ``loss`` is therefore only a variable that has changed meanwhile, and that is none of the update's.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

from looptap.agent.loop.sight.frames import variables_in_sight
from looptap.integrations.auto.sight.found_names import UnknownValue

MAX_NAMED_COUNT = 8
"""Variables that the sentence on a missing loss names."""
_PLAIN = frozenset({int, float, str, bool, complex, type(None)})


class Evaluation:
    """An evaluation; ``frame`` is where it began, None if no query asks."""

    def __init__(self, frame: FrameType | None) -> None:
        self.iterator: Callable[[], Any] = _unknown
        """Returns what fetches its batches; None if that is unknown, or gone."""
        self.batches = 0
        """Batches that it has fetched from a DataLoader."""
        self.sure = False
        """False while all that is known are batches with gradients on, which may be for an update."""
        self._before = None if frame is None else {name: _mark(one) for name, one in variables_in_sight(frame).items()}

    def fetches_from(self, iterator: Any, renews: bool = False) -> bool:
        """Note a batch; return False if it belongs to the next evaluation.

        The iterator of this one is gone then, unless it ``renews`` it.
        """
        if self.batches and self.iterator() is None:
            return False
        self.iterator = _unknown if renews else weakref.ref(iterator)
        self.batches = 0 if renews else self.batches + 1
        return True

    def loss(self, name: str, frame: FrameType, late: bool) -> Any:
        """Return a variable that the evaluation has set. Raises UnknownValue.

        ``late`` says that variables of the next update are in sight: what needs a gradient is of that.
        """
        changed = self._changed(frame)
        if late:
            changed = {key: value for key, value in changed.items() if not _needs_gradient(value)}
        if name in changed:
            return changed[name]
        names = [key for key in changed if not key.startswith("_")][:MAX_NAMED_COUNT]
        since = f" Since it began these variables have changed: {', '.join(names)}." if names else ""
        raise UnknownValue(f"this evaluation has set no variable {name!r}: what has that name is of an update.{since}")

    def _changed(self, frame: FrameType) -> dict[str, Any]:
        """Return the variables that have been set since it began."""
        before = self._before
        if before is None:
            return {}
        found = variables_in_sight(frame).items()
        return {key: one for key, one in found if key not in before or _differs(before[key], _mark(one))}


def _unknown() -> Any:
    return None


def _mark(value: Any) -> Any:
    """Return what differs for another value, without keeping the value alive."""
    kind = type(value)
    if kind in _PLAIN:
        return kind, value
    torch: Any = sys.modules["torch"]
    version = value._version if kind is torch.Tensor and not value.is_inference() else 0
    return id(value), version, weakref.ref(value) if kind.__weakrefoffset__ else None


def _differs(before: Any, now: Any) -> bool:
    """Return True if two marks are not of one value; an address may be used again."""
    return bool(before[:2] != now[:2] or (len(now) == 3 and now[2] is not None and before[2]() is None))


def _needs_gradient(value: Any) -> bool:
    return type(value) is sys.modules["torch"].Tensor and value.requires_grad
