"""The tensors that are alive, by the names that the job has for them.

Training thread, at an event. Elsewhere it would not be harmless: while another thread reads the list of all objects, it
keeps each of them alive, and a tensor may be resized or its gradient replaced beneath the one who looks.
"""

from __future__ import annotations

import gc
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import compress
from typing import Any

from looptap.agent.loop.sight.frames import USER, bindings, kind_of_file
from looptap.protocol.statistics import LiveTensors
from looptap.streams.events import Event, FoundObservables, Lazy, held
from looptap.streams.harmless.plain import is_module
from looptap.streams.values.modules.named_modules import walk

MAX_NAMED_OBJECTS = 50_000
"""Objects that are looked through for the names of tensors."""
MAX_DEPTH = 4
"""Containers and attributes in one another that are looked through."""
MAX_KEYS_COUNT = 32
"""Items of a dict that have names of their own; those of a larger one have one name."""
_SEQUENCES = (list, tuple, set, frozenset, deque)


def live_tensors(event: Event) -> tuple[list[LiveTensors], dict[str, int]]:
    """Return all tensors that are alive, the largest first, and bytes by device.

    Tensors with the same name, or without one of the same form, are one entry. A storage counts once. What only torch
    itself holds, such as what a graph has saved for its backward pass, is no object of Python and not listed.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return [], {}
    with torch._C.DisableTorchFunction():
        names = dict(_named(torch, event))
        return _grouped(_with_gradients(torch, _objects(torch), names), names)


def _objects(torch: Any) -> list[Any]:
    """Return all tensors that Python knows; no bytecode runs for each object."""
    kinds, found = set[int](), [torch.Tensor]
    while found:
        kind = found.pop()
        if id(kind) not in kinds and not hasattr(kind, "__tensor_flatten__"):  # those have their parts in others
            kinds.add(id(kind))
            found += type.__subclasses__(kind)
    things = gc.get_objects()
    return list(compress(things, map(kinds.__contains__, map(id, map(type, things)))))


def _with_gradients(torch: Any, tensors: list[Any], names: dict[int, str]) -> Iterator[Any]:
    """Yield the tensors, and gradients, which may be no objects of Python so far."""
    known = {*map(id, tensors)}
    for tensor in tensors:
        yield tensor
        gradient = tensor.grad if tensor.is_leaf and tensor.requires_grad else None
        if gradient is not None and id(gradient) not in known:
            if id(tensor) in names:
                names.setdefault(id(gradient), f"{names[id(tensor)]}.grad")
            yield gradient


def _grouped(tensors: Iterable[Any], names: Mapping[int, str]) -> tuple[list[LiveTensors], dict[str, int]]:
    storages: dict[int, tuple[int, tuple[str, tuple[int, ...], str, str]]] = {}
    for tensor in tensors:
        try:
            storage = tensor.untyped_storage()
            key, size, device = storage._cdata, storage.nbytes(), str(tensor.device)
        except Exception:  # a sparse one, whose parts are tensors; or one of a transform
            continue
        name = names.get(id(tensor), "")
        if size and tensor.device.type != "meta" and (key not in storages or (name and not storages[key][1][0])):
            form = (name, tuple(map(int, tensor.shape)), str(tensor.dtype).removeprefix("torch."), device)
            storages[key] = size, form
    counts: dict[tuple[str, tuple[int, ...], str, str], tuple[int, int]] = {}
    devices: dict[str, int] = {}
    for size, form in storages.values():
        count, total = counts.get(form, (0, 0))
        counts[form] = count + 1, total + size
        devices[form[3]] = devices.get(form[3], 0) + size
    listed = [
        LiveTensors(name=name, shape=shape, dtype=dtype, device=device, count=count, size=total)
        for (name, shape, dtype, device), (count, total) in counts.items()
    ]
    return sorted(listed, key=lambda one: (-one.size, one.name)), devices


# ---------------------------------------------------------------- names


def _named(torch: Any, event: Event) -> Iterator[tuple[int, str]]:
    """Yield the ids of named tensors with their names; the first one counts."""
    found: dict[int, str] = {}
    seen = set[int]()
    known = [*_exposed(event), *_in_sight()]
    models = [(name, thing) for name, thing in known if is_module(thing)]
    for name, model in models:
        for one in walk(model):
            if id(one.inside) not in seen:
                seen.add(id(one.inside))
                for key, tensor in [*one.inside._parameters.items(), *one.inside._buffers.items()]:
                    if tensor is not None:
                        found.setdefault(id(tensor), ".".join(filter(None, (name, one.name, key))))
                        if tensor.is_leaf and tensor.requires_grad and tensor.grad is not None:
                            found.setdefault(id(tensor.grad), f"{found[id(tensor)]}.grad")
    left = deque((name, thing, 0) for name, thing in known)
    optimizer = torch.optim.Optimizer
    for _ in range(MAX_NAMED_OBJECTS):
        if not left:
            break
        name, thing, depth = left.popleft()
        kind = type(thing)
        if issubclass(kind, torch.Tensor):
            found.setdefault(id(thing), name)
        elif id(thing) not in seen and depth < MAX_DEPTH:
            seen.add(id(thing))
            if issubclass(kind, optimizer):
                _name_states(name, thing, found)
            else:
                left.extend((inner, value, depth + 1) for inner, value in _inside(name, thing))
    yield from found.items()


def _exposed(event: Event) -> list[tuple[str, Any]]:
    """Return what the job exposes or passes to this event, by name."""
    observables: Any = vars(event)
    exposed = [(name, held(value)) for name, value in [*event.__looptap_exposed__().items()]]
    if type(observables) is FoundObservables:  # of a script as it is, they are what is in sight
        observables.load(("model", "optimizer"))
    return [(name, thing) for name, thing in [*exposed, *observables.items()] if type(thing) is not Lazy]


def _in_sight() -> list[tuple[str, Any]]:
    """Return the variables of the job's running functions, and of its modules."""
    return [*dict(reversed([*bindings(sys._getframe())])).items()][::-1]


def _name_states(name: str, optimizer: Any, found: dict[int, str]) -> None:
    """Name the state tensors of an optimizer after their parameters."""
    for parameter, kept in [*optimizer.state.items()]:
        if issubclass(type(kept), dict):
            of = found.get(id(parameter), "…")
            for key, value in [*kept.items()]:
                found.setdefault(id(value), f"{name}.state[{of}].{key}")


def _inside(name: str, thing: Any) -> Iterator[tuple[str, Any]]:
    """Yield the items of a container, or the attributes of a user's object."""
    kind = type(thing)
    if issubclass(kind, dict):
        items = [*dict.items(thing)]
        for key, value in items:
            plain = len(items) <= MAX_KEYS_COUNT and type(key) is str
            yield f"{name}[{key!r:.40}]" if plain else f"{name}[…]", value
    elif issubclass(kind, _SEQUENCES):
        base = next(one for one in _SEQUENCES if issubclass(kind, one))
        for value in [*base.__iter__(thing)]:
            yield f"{name}[…]", value
    elif kind_of_file(getattr(sys.modules.get(kind.__module__), "__file__", None) or "<frozen") == USER:
        try:
            attributes = object.__getattribute__(thing, "__dict__")
        except AttributeError:
            return
        for key, value in [*attributes.items()]:
            if not (is_module(thing) and key in ("_parameters", "_buffers", "_modules")):
                yield f"{name}.{key}", value
