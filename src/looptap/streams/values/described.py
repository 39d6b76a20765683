"""What stands for an object that cannot leave a job: a table, line or picture."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from looptap.streams.values.held import held_modules
from looptap.streams.values.torch_interop import is_tensor

_MAX_LINE_CHARACTERS = 1000
_PLAIN = (bool, int, float, str)


class Image(msgspec.Struct, frozen=True):
    """A picture as PNG bytes with its size in pixels; a notebook shows it."""

    png: bytes
    width: int
    height: int

    def _repr_png_(self) -> bytes:
        return self.png

    def __repr__(self) -> str:
        return f"<Image {self.width} × {self.height}, {len(self.png):,} bytes>"


def described(kind: type) -> Callable[[Any], Any] | None:
    """Return the function that describes objects of a class in plain values, or None.

    An optimizer is its groups, a model its layers, a scheduler its rates; an object with a panel is its ``repr``, for a
    client draws what its class declares.
    """
    if hasattr(kind, "__looptap_panel__"):
        return line
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "optim") or not hasattr(torch, "nn"):  # while another thread imports torch
        return None
    if issubclass(kind, torch.optim.Optimizer):
        return groups
    if issubclass(kind, torch.nn.Module):
        return summary
    schedulers = getattr(torch.optim, "lr_scheduler", None)
    if schedulers is not None and issubclass(kind, getattr(schedulers, "LRScheduler", ())):
        return rates
    return None


def line(thing: Any) -> str:
    """Return an object's ``repr`` in one bounded line."""
    return f"{thing!r:.{_MAX_LINE_CHARACTERS}}"


def groups(optimizer: Any) -> list[dict[str, Any]]:
    """Return a row for each group of an optimizer: settings and parameters."""
    rows = []
    for place, group in enumerate(optimizer.param_groups):
        settings = {name: _setting(value) for name, value in group.items() if name not in ("params", "param_names")}
        shown = {name: value for name, value in settings.items() if value is not None and value is not False}
        parameters = sum(parameter.numel() for parameter in group["params"])
        rows.append({"group": place, **shown, "tensors": len(group["params"]), "parameters": parameters})
    names = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name) for name in names} for row in rows]


def rates(scheduler: Any) -> list[dict[str, Any]]:
    """Return a row for each group of a learning rate's schedule."""
    found = [_setting(rate) for rate in scheduler.get_last_lr()]
    return [{"group": place, "lr": rate, "step": scheduler.last_epoch} for place, rate in enumerate(found)]


def _setting(value: Any) -> Any:
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, tuple | list) and len(value) <= 4 and all(isinstance(one, _PLAIN) for one in value):
        return tuple(value)
    return value.detach() if is_tensor(value) and value.numel() == 1 else None


def summary(model: Any) -> list[dict[str, Any]]:
    """Return a row for each layer of a model that has parameters, and their sum.

    A row has the layer's name, its type, the shape of its weight, its number of parameters and how many of them are
    trained. Parameters that layers share are counted once.
    """
    rows: list[dict[str, Any]] = []
    seen: set[int] = set()
    for name, module in held_modules(model):
        own = {key: one for key, one in module._parameters.items() if one is not None}  # torch's
        if not own:
            continue
        fresh = [one for one in own.values() if id(one) not in seen]
        seen.update(map(id, fresh))
        trained = sum(one.numel() for one in fresh if one.requires_grad)
        rows.append(_layer(name or "(model)", type(module).__name__, own, sum(one.numel() for one in fresh), trained))
    total = {key: sum(row[key] for row in rows) for key in ("parameters", "trained")}
    return [*rows, {"layer": "all", "type": type(model).__name__, "weight": "", **total}]


def _layer(name: str, kind: str, own: Mapping[str, Any], count: int, trained: int) -> dict[str, Any]:
    weight = own.get("weight", next(iter(own.values())))
    shape = " × ".join(map(str, weight.shape)) or "1"
    return {"layer": name, "type": kind, "weight": shape, "parameters": count, "trained": trained}
