"""Lists the modules of the job's models. Reads only. I/O thread."""

from __future__ import annotations

import time
from fnmatch import fnmatchcase
from typing import Any

from looptap.agent.loop.event_sources import EventSources
from looptap.agent.loop.hooks.query_hooks import models_among
from looptap.protocol.replies import ModuleInfo, ModuleReport
from looptap.streams.values.modules.module_read import WILDCARDS
from looptap.streams.values.modules.named_modules import NamedModule, walk

MAX_LISTED_MODULES = 5_000
"""Modules of one reply."""
MODULES_AT_ONCE_COUNT = 50
"""Modules after which the interpreter lock is offered to the loop."""


def module_report(sources: EventSources, pattern: str = "") -> ModuleReport:
    """Return the modules whose names match ``pattern``.

    Without wildcards it is a part of a name.
    """
    exposed = models_among(sources.exposed)
    models = exposed | {name: model for name, model in _seen(sources).items() if name not in exposed}
    listed: list[ModuleInfo] = []
    left_out = 0
    seen: set[int] = set()
    for root, model in models.items():
        if id(model) in seen:  # under another name
            continue
        seen.add(id(model))
        for info in _described(root, model, several=len({*map(id, models.values())}) > 1):
            if not _matches(info.name, pattern):
                continue
            if len(listed) < MAX_LISTED_MODULES:
                listed.append(info)
            else:
                left_out += 1
    return ModuleReport(modules=listed, models=tuple(models), left_out=left_out)


def _seen(sources: EventSources) -> dict[str, Any]:
    """Return the living models that looks have seen at events, by observable."""
    seen = [item for source in list(sources.by_name.values()) for item in list(source.origin.models.items())]
    return {name: model for name, weak in seen if (model := weak()) is not None}


def _matches(name: str, pattern: str) -> bool:
    return pattern in name if WILDCARDS.isdisjoint(pattern) else fnmatchcase(name, pattern)


def _described(root: str, model: Any, several: bool) -> list[ModuleInfo]:
    modules = list(walk(model))
    totals = _totals(modules)
    found = []
    for one in modules:
        name = (f"{root}.{one.name}" if several else one.name) if one.name else root
        own = {key: _shape(parameter) for key, parameter in _own(one)}
        count, trained = totals.get(one.name, (0, 0))
        found.append(
            ModuleInfo(
                name=name,
                kind=_kind(one),
                parameters=count,
                trained=trained,
                shapes=own,
                training=bool(getattr(one.module, "training", False)),
                problem=one.problem,
            )
        )
    return found


def _totals(modules: list[NamedModule]) -> dict[str, tuple[int, int]]:
    """Return for each module the total and the trained parameters of its subtree."""
    totals: dict[str, tuple[int, int]] = {}
    seen: set[int] = set()
    for place, one in enumerate(modules):
        if place % MODULES_AT_ONCE_COUNT == 0:
            time.sleep(0)
        count = trained = 0
        for _, parameter in _own(one):
            if id(parameter) in seen:
                continue
            seen.add(id(parameter))
            size = _size(parameter)
            count += size
            trained += size if parameter.requires_grad else 0
        name = one.name
        while True:
            before = totals.get(name, (0, 0))
            totals[name] = before[0] + count, before[1] + trained
            if not name:
                break
            name = name.rpartition(".")[0]
    return totals


def _own(one: NamedModule) -> list[tuple[str, Any]]:
    """Return the parameters of the module itself, those of a wrapper first."""
    modules = (one.module, one.inside) if one.module is not one.inside else (one.module,)
    found = [item for module in modules for item in list(module._parameters.items())]
    return [(name, parameter) for name, parameter in found if parameter is not None]


def _kind(one: NamedModule) -> str:
    """Return the name of the class, of a wrapper with the class of what is inside."""
    kind = type(one.module).__name__
    return kind if one.module is one.inside else f"{kind}({type(one.inside).__name__})"


def _shape(parameter: Any) -> tuple[int, ...]:
    try:
        return tuple(map(int, parameter.shape))
    except Exception:  # of a lazy module that has seen no input yet
        return ()


def _size(parameter: Any) -> int:
    try:
        return int(parameter.numel())
    except Exception:
        return 0
