"""The modules of models by name, and which of them a hook can watch.

Wrappers have no names of their own: the modules of a model inside `DistributedDataParallel`, `torch.compile`, FSDP or
a checkpoint wrapper have the names that they have without it. Reads only, from any thread.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from looptap.streams.errors import QueryError
from looptap.streams.expressions import nearest
from looptap.streams.harmless.plain import is_module
from looptap.streams.values.modules.module_read import WILDCARDS

MAX_MODULES = 20_000
"""Modules of a model that are walked over."""
MAX_MATCHES_COUNT = 256
"""Modules that one call of a query may match."""
_WRAPPED = {
    "OptimizedModule": "_orig_mod",
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "DeepSpeedEngine": "module",
    "AveragedModel": "module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
    "OffloadWrapper": "_checkpoint_wrapped_module",
    "_FabricModule": "_forward_module",
}
"""The attribute of the module inside, by the name of the wrapper's class."""

COMPILED = (
    "it is inside torch.compile, where hooks are not called. Query the compiled module as a whole, or a "
    "module around it"
)
SCRIPTED = "it is compiled by TorchScript, where hooks are not called"
FAST_PATH = (
    "a hook in nn.TransformerEncoderLayer switches torch's fast path off, which changes the last bits of the model's "
    "output in evaluation. Query a module outside, or call torch.backends.mha.set_fastpath_enabled(False) in the job"
)


class NamedModule(NamedTuple):
    """A module with its name, and why no hook can watch it ("" if one can)."""

    name: str
    module: Any
    problem: str
    inside: Any
    """The module inside all wrappers; often the same."""


def walk(model: Any) -> Iterator[NamedModule]:
    """Yield the model, named "", and all modules below, as often as they have names."""
    for place, found in enumerate(_below("", model, "", ())):
        if place >= MAX_MODULES:
            return
        yield found


def _below(name: str, module: Any, problem: str, above: tuple[int, ...]) -> Iterator[NamedModule]:
    if id(module) in above:  # a module that contains itself
        return
    outer, (problem, inside) = module, _problems(module, problem)
    above = (*above, id(module))
    while (inner := _wrapped(module)) is not None and id(inner) not in above:
        module, above = inner, (*above, id(inner))
        _, inside = _problems(module, inside)
    yield NamedModule(name, outer, problem, module)
    for child, below in _children(module):
        if below is not None:
            yield from _below(f"{name}.{child}" if name else child, below, inside, above)


def _children(module: Any) -> list[tuple[str, Any]]:
    """Return the modules right below one; Keras has layers that torch does not know."""
    children = list(module._modules.items())
    layers = vars(module).get("_layers")
    if not isinstance(layers, list) or not any(kind.__module__.startswith("keras.") for kind in type(module).__mro__):
        return children
    known = {id(below) for _, below in children}
    own = [(layer.name, layer) for layer in [*layers] if is_module(layer) and id(layer) not in known]
    return own + [(name, below) for name, below in children if name != "_functional"]  # the same layers once more


def _problems(module: Any, problem: str) -> tuple[str, str]:
    """Return why no hook can watch this module, and why none can watch those inside."""
    if problem:
        return problem, problem
    names = {kind.__name__ for kind in type(module).__mro__}
    if "OptimizedModule" in names:
        return "", COMPILED
    if getattr(module, "_compiled_call_impl", None) is not None:
        return COMPILED, COMPILED
    if "ScriptModule" in names:
        return SCRIPTED, SCRIPTED
    if "TransformerEncoderLayer" in names and _has_fast_path(module):
        return FAST_PATH, FAST_PATH
    return "", ""


def _has_fast_path(layer: Any) -> bool:
    """Return True unless this layer never takes the fast path, which hooks forbid."""
    enabled = getattr(getattr(sys.modules["torch"].backends, "mha", None), "get_fastpath_enabled", None)
    attention = getattr(layer, "self_attn", None)
    if enabled is None or not enabled() or attention is None:
        return False
    usual = getattr(attention, "batch_first", True) and getattr(attention, "in_proj_bias", 0) is not None
    return bool(usual and not getattr(attention, "num_heads", 2) % 2 and getattr(layer, "activation_relu_or_gelu", 1))


def _wrapped(module: Any) -> Any:
    for kind in type(module).__mro__:
        if name := _WRAPPED.get(kind.__name__):
            inner = getattr(module, name, None)
            return inner if is_module(inner) else None
    return None


def find_modules(models: Mapping[str, Any], patterns: Iterable[str]) -> dict[str, Any]:
    """Return the modules that match ``patterns``, by name.

    ``models`` are those of an event by the names of the observables; such a name may precede that of a module, and
    alone is the whole model, as is "". A name without a wildcard is that of one module. Raises QueryError if a pattern
    matches none, or none that a hook can watch, or too many.
    """
    if not models:
        raise QueryError(
            "no model is exposed, nor passed to this event.", hint="In the job: agent.expose(model=model)."
        )
    known = [(root, list(walk(model))) for root, model in models.items()]
    problems = {id(one.module): one.problem for _, modules in known for one in modules if one.problem}
    found: dict[str, Any] = {}
    for pattern in patterns:
        found |= _watchable(known, problems, pattern)
    if len(found) > MAX_MATCHES_COUNT:
        raise QueryError(
            f"{len(found):,} modules match, and {MAX_MATCHES_COUNT} may.", hint="A longer pattern matches fewer."
        )
    return found


def _watchable(known: list[tuple[str, list[NamedModule]]], problems: Mapping[int, str], pattern: str) -> dict[str, Any]:
    """Return the modules of a pattern that can be watched. Raises QueryError."""
    matches, plain = _matches(known, pattern), WILDCARDS.isdisjoint(pattern)
    if not matches:
        names = [name for root, modules in known for one in modules for name in (one.name, f"{root}.{one.name}")]
        raise QueryError(
            f"no module {pattern!r:.120} in {', '.join(root for root, _ in known)}.",
            hint=nearest(pattern, names) or "run.modules() and looptap modules RUN list them.",
        )
    if plain and len(set(map(id, matches.values()))) > 1:
        raise QueryError(f"{pattern!r:.120} is a module of several models.", hint=f"Say which: {min(matches)!r}.")
    watched = {name: module for name, module in matches.items() if id(module) not in problems}
    if not watched:
        name, module = next(iter(matches.items()))
        raise QueryError(f"no hook can watch {name!r:.120}: {problems[id(module)]}.")
    name, module = next(iter(watched.items()))
    return {pattern or name: module} if plain else watched


def _matches(known: list[tuple[str, list[NamedModule]]], pattern: str) -> dict[str, Any]:
    """Return the modules that match one pattern, by names that are unique."""
    seen: set[int] = set()
    models: dict[str, dict[str, Any]] = {}
    for root, modules in known:  # two observables may hold the same model, one of them in a wrapper
        by_name = {one.name: one.module for one in modules if _fits(one.name, root, pattern)}
        fresh = {name: module for name, module in by_name.items() if id(module) not in seen}
        seen.update(map(id, by_name.values()))
        if fresh:
            models[root] = fresh
    if len(models) == 1:
        return {name or root: module for root, by_name in models.items() for name, module in by_name.items()}
    return {f"{root}.{name}" if name else root: module for root, by in models.items() for name, module in by.items()}


def _fits(name: str, root: str, pattern: str) -> bool:
    """Return True if a pattern matches a module's name, or ``model.name``."""
    names = name, f"{root}.{name}" if name else root
    if WILDCARDS.isdisjoint(pattern):
        return pattern in names
    return bool(name) and any(fnmatchcase(one, pattern) for one in names)
