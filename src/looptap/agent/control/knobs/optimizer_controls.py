"""Controls of an exposed optimizer, and of a schedule that drives one.

When a learning rate is set, ``scale`` multiplies the whole schedule by the same factor, so that it continues from the
new value; ``freeze`` keeps the learning rate while the schedule continues unseen, until a later ``scale`` resumes it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

from looptap.streams.control import Control
from looptap.streams.errors import ControlError

SCALE, FREEZE, THAW = "scale", "freeze", "thaw"
"""Treatments of a schedule when its learning rate is set; the last, of an undo, resumes it where it is by then."""

_LR = Control(float, minimum=0, doc="the learning rate of all parameter groups, or of one")
_DECAY = Control(float, minimum=0, doc="the weight decay of all parameter groups, or of one")
_MOMENTUM = Control(float, minimum=0, maximum=1, doc="the momentum (of Adam and the like: the first beta)")
_SETTINGS = (("lr", _LR), ("weight_decay", _DECAY), ("momentum", _MOMENTUM), ("wd", _DECAY), ("mom", _MOMENTUM))
"""What is set of a group; the last two are fastai's names."""
_GROUP_SCALES = ("initial_lr", "max_lr", "min_lr")
_LIST_SCALES = ("base_lrs", "max_lrs", "_last_lr")
_MAX_WRAPPERS_COUNT = 4

Found = tuple[str, Control, Callable[[], Any], Callable[[Any, str], object], "str | None", str, Callable[[], bool]]
"""Path, declaration, getter, setter, what drives it (None: nothing ever does), why it cannot be set, if so, and
whether what drives it is frozen."""


def controls_of_optimizer(name: str, thing: Any, exposed: dict[str, Any]) -> Iterator[Found]:
    """Yield the controls of an optimizer: for all groups, and for each of several."""
    if (groups := groups_of(thing)) is None:
        return
    torch: Any = sys.modules["torch"]
    kind = torch.optim.lr_scheduler.LRScheduler
    schedulers = [s for s in exposed.values() if isinstance(s, kind) and drives_optimizer(s, thing)]
    drives = ", ".join(type(s).__name__ for s in schedulers)
    hidden = not schedulers and hasattr(thing.step, "_wrapped_by_lr_sched")
    refusal = (
        f"a scheduler drives the learning rate of {name!r} and would overwrite it; have the job expose it too, as in "
        "agent.expose(scheduler=scheduler)."
        if hidden
        else ""
    )
    count = len(groups)
    for label, control in _SETTINGS:
        if not all(_has(group, label) for group in groups):
            continue
        picks = [list(range(count)), *([i] for i in range(count) if count > 1)]
        for at, picked in enumerate(picks):
            path = f"{name}.{label}" + (f"[{at - 1}]" if at else "")
            get = _reader(thing, label, picked)
            if label == "lr":
                frozen = _frozen_reader(picked, schedulers)
                yield path, control, get, _lr_setter(thing, picked, schedulers), drives, refusal, frozen
            else:
                yield path, control, get, _setter(thing, label, picked), None, "", lambda: False


def groups_of(thing: Any) -> Any:
    """Return an optimizer's settings, a dict for each group; None for another thing.

    Optimizers are torch's and fastai's.
    """
    torch: Any = sys.modules.get("torch")
    fastai: Any = sys.modules.get("fastai.optimizer")
    if torch is not None and hasattr(torch, "optim") and isinstance(thing, torch.optim.Optimizer):
        return thing.param_groups
    if fastai is not None and isinstance(thing, fastai.Optimizer):
        return thing.hypers
    return None


def drives_optimizer(scheduler: Any, optimizer: Any) -> bool:
    """Return True if a schedule drives an optimizer, itself or by wrappers.

    Accelerate's wrapper keeps it as ``optimizer``; it is read from the objects' own dicts, so that no code runs.
    """
    driven = scheduler
    for _ in range(_MAX_WRAPPERS_COUNT):
        driven = getattr(driven, "__dict__", {}).get("optimizer")
        if driven is optimizer:
            return True
    return False


def _has(group: dict[str, Any], label: str) -> bool:
    return label in group or (label == "momentum" and "betas" in group)


def _read(group: dict[str, Any], label: str) -> float:
    return float(group[label] if label in group else group["betas"][0])


def _reader(optimizer: Any, label: str, groups: list[int]) -> Callable[[], Any]:
    def get() -> Any:
        values = [_read(groups_of(optimizer)[i], label) for i in groups]
        return values[0] if len(set(values)) == 1 else values

    return get


def _setter(optimizer: Any, label: str, groups: list[int]) -> Callable[[Any, str], object]:
    def set(value: Any, schedule: str) -> None:
        for one, i in zip(_each(value, groups), groups, strict=True):
            group = groups_of(optimizer)[i]
            if label not in group:
                group["betas"] = (one, *group["betas"][1:])
            else:
                group[label] = _as(group[label], one)

    return set


def _each(value: Any, groups: list[int]) -> list[float]:
    """Return a value for each group; a list restores the former values."""
    return list(value) if isinstance(value, list) else [value] * len(groups)


def _as(now: Any, value: float) -> Any:
    """Return ``value`` as the optimizer keeps it: a tensor stays that tensor."""
    if not hasattr(now, "fill_"):
        return value
    now.detach().fill_(value)
    return now


# ---------------------------------------------------------------- under a schedule


def _lr_setter(optimizer: Any, groups: list[int], schedulers: list[Any]) -> Callable[[Any, str], object]:
    def set(value: Any, schedule: str) -> None:
        values = dict(zip(groups, _each(value, groups), strict=True))
        now = {i: _read(groups_of(optimizer)[i], "lr") for i in groups}
        for scheduler in schedulers:
            now |= {i: seen for i, seen in _unseen(scheduler).items() if i in now}
        if schedule == THAW:
            values = dict(now)
        if schedulers and schedule != FREEZE:
            if any(n == 0 != values[i] for i, n in now.items()):
                raise ControlError(
                    "the schedule has the learning rate at 0 now, and no factor leads from there to another one; set "
                    f"it at a later event, or with schedule={FREEZE!r}."
                )
            factors = {i: values[i] / n if n else 1.0 for i, n in now.items()}
            for scheduler in schedulers:
                _thaw(scheduler, values)
            for i, factor in factors.items():
                _scale(groups_of(optimizer)[i], factor)
            whole = len(groups_of(optimizer)) == len(factors) and len({*factors.values()}) == 1
            for scheduler in schedulers:
                _scale_all(scheduler, factors, whole)
        elif not schedulers:
            for i in groups:
                group = groups_of(optimizer)[i]
                if "initial_lr" in group:
                    group["initial_lr"] = values[i]
        for i, one in values.items():
            group = groups_of(optimizer)[i]
            group["lr"] = _as(group["lr"], one)
        for scheduler in schedulers:
            if schedule == FREEZE:
                _freeze(scheduler, values, now)
            _tell(scheduler, values)

    return set


def _frozen_reader(groups: list[int], schedulers: list[Any]) -> Callable[[], bool]:
    return lambda: any(i in _unseen(scheduler) for scheduler in schedulers for i in groups)


def _scale(group: dict[str, Any], factor: float) -> None:
    for key in _GROUP_SCALES:
        if key in group:
            group[key] = group[key] * factor


def _scale_all(scheduler: Any, factors: dict[int, float], whole: bool) -> None:
    """Scale the numbers that a scheduler computes from.

    A floor common to all groups is scaled only if all get the same factor.
    """
    for inner in getattr(scheduler, "_schedulers", ()):
        _scale_all(inner, factors, whole)
    for name in _LIST_SCALES:
        if isinstance(values := getattr(scheduler, name, None), list):
            values[:] = [v * factors.get(i, 1.0) for i, v in enumerate(values)]
    if whole and hasattr(scheduler, "eta_min"):
        scheduler.eta_min *= next(iter(factors.values()))


def _tell(scheduler: Any, values: dict[int, float]) -> None:
    """Set the result of `get_last_lr` to the present learning rates."""
    if isinstance(last := getattr(scheduler, "_last_lr", None), list):
        for i, value in values.items():
            last[i] = value


class _Frozen:
    """The class of a frozen scheduler: its steps do not reach the optimizer.

    The scheduler's ``__class__`` is exchanged; an attribute would show in its `state_dict`.
    """

    _looptap_class: type
    _looptap_lr: dict[int, tuple[float, float]]

    def step(self, *arguments: Any, **options: Any) -> None:
        this: Any = self
        groups, held = this.optimizer.param_groups, type(self)._looptap_lr
        for i, (_, seen) in held.items():
            groups[i]["lr"] = _as(groups[i]["lr"], seen)
        try:
            type(self)._looptap_class.step(this, *arguments, **options)  # type: ignore[attr-defined]
        finally:
            for i, (shown, _) in list(held.items()):
                held[i] = (shown, float(groups[i]["lr"]))
                groups[i]["lr"] = _as(groups[i]["lr"], shown)
            _tell(this, {i: shown for i, (shown, _) in held.items()})


def _freeze(scheduler: Any, values: dict[int, float], now: dict[int, float]) -> None:
    kind = type(scheduler)
    if not issubclass(kind, _Frozen):
        members = {"_looptap_class": kind, "_looptap_lr": {}, "__module__": kind.__module__}
        kind = scheduler.__class__ = type(kind.__name__, (_Frozen, kind), members)
    kind._looptap_lr.update({i: (value, now[i]) for i, value in values.items()})


def _unseen(scheduler: Any) -> dict[int, float]:
    """Return the learning rates that the schedule has reached for frozen groups."""
    kind = type(scheduler)
    return {i: seen for i, (_, seen) in kind._looptap_lr.items()} if issubclass(kind, _Frozen) else {}


def _thaw(scheduler: Any, groups: Any) -> None:
    """Let the schedule drive these groups again, from where it is now."""
    kind = type(scheduler)
    if not issubclass(kind, _Frozen):
        return
    for i in groups:
        if i in kind._looptap_lr:
            group = scheduler.optimizer.param_groups[i]
            group["lr"] = _as(group["lr"], kind._looptap_lr.pop(i)[1])
    if not kind._looptap_lr:
        scheduler.__class__ = kind._looptap_class
