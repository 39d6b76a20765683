"""Facts about modules, and copies of the state that they hold."""

from __future__ import annotations

import copy
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from functools import lru_cache
from typing import Any, NamedTuple

MOST_BYTES = 64 * 1024 * 1024
"""Bytes of a model's tensors that are copied; those beyond are shared."""
MOST_ITEMS = 1000
"""Maximum items of a container that is copied with its module."""
MAX_DEPTH = 10
"""Containers in each other that are copied."""

HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks_with_kwargs",
)
"""The attributes of a module that have its hooks."""
CONTAINERS = (list, dict, set, deque, OrderedDict, defaultdict, Counter)
"""Types of containers that are copied with what holds them."""
_CONTAINERS = frozenset(map(id, CONTAINERS))  # by identity: the hash of a class may be code of the job
_IMMUTABLE = frozenset(map(id, (bool, int, float, complex, str, bytes, type(None))))
_GENERATORS = frozenset({"random.Random", "numpy.random._generator.Generator", "numpy.random.mtrand.RandomState"})
"""Types of generators by their names: numpy loads numpy.random on first use, which takes 10 ms."""


def is_container(value: Any) -> bool:
    """Return True for exactly a container that is copied with what holds it."""
    return id(type(value)) in _CONTAINERS


class Kind(NamedTuple):
    """The facts that a class determines about its modules."""

    wraps: str = ""
    """The attribute of a wrapper that is the module inside."""
    sharded: bool = False
    script: bool = False
    of_torch: bool = False
    """Whether the class is torch's own: its forward pass changes nothing but buffers."""


@lru_cache(maxsize=1024)
def module_kind(cls: type) -> Kind:
    """Return the facts that a class determines about its modules."""
    names = {c.__name__ for c in cls.__mro__}
    if "OptimizedModule" in names:
        return Kind(wraps="_orig_mod")
    if names & {"DistributedDataParallel", "DataParallel", "DeepSpeedEngine"}:
        return Kind(wraps="module")
    return Kind(
        sharded=bool(names & {"FullyShardedDataParallel", "FSDPModule"}),
        script="ScriptModule" in names,
        of_torch=all(c.__module__.startswith("torch.nn.") for c in cls.__mro__[:-1]),
    )


def unwrapped(module: Any) -> Any:
    """Return the module inside `torch.compile`, `DistributedDataParallel`, etc."""
    cls: Any = type(module)
    wraps = module_kind(cls).wraps
    inner = module.__dict__["_modules"].get(wraps) if wraps else None
    return module if inner is None else unwrapped(inner)


class StateCopier:
    """One pass of copies: of containers, tensors and generators; the rest is shared."""

    def __init__(self) -> None:
        self.torch: Any = sys.modules["torch"]
        self.made: dict[int, tuple[Any, Any]] = {}
        """The originals, so that no identity is taken twice, with their copies."""
        self.beyond: list[Any] = []
        """Tensors that are shared, since they are beyond `MOST_BYTES`."""
        self.structure: Any = self.torch.nn.Module.__annotations__
        """The names of the attributes that every module has."""
        self._bytes = 0

    def attributes(self, module: Any) -> dict[str, Any]:
        """Return the attributes of a copy of a module with the same parts."""
        held = {
            name: one.copy() if name in self.structure and is_container(one) else self.copied(one)
            for name, one in module.__dict__.items()
        }
        return {**held, **self.buffers(module)}

    def buffers(self, module: Any) -> dict[str, Any]:
        """Return the attribute of a module that has its buffers, copied."""
        return {"_buffers": {name: self.copied(one) for name, one in module._buffers.items()}}

    def keep(self, original: Any, made: Any) -> Any:
        """Return a copy, which is that of ``original`` from now on."""
        self.made[id(original)] = original, made
        return made

    def copied(self, value: Any, depth: int = 0) -> Any:
        """Return a copy of what may be changed in place; anything else as it is."""
        kind = type(value)
        if id(kind) in _IMMUTABLE:
            return value
        if id(value) in self.made:
            return self.made[id(value)][1]
        if is_container(value):
            return self._container(value, depth) if len(value) <= MOST_ITEMS and depth < MAX_DEPTH else value
        if kind is tuple and len(value) <= MOST_ITEMS and depth < MAX_DEPTH:
            return tuple(self.copied(one, depth + 1) for one in value)
        if issubclass(kind, self.torch.Tensor):
            return self.parameter(value) if issubclass(kind, self.torch.nn.Parameter) else self.tensor(value)
        if kind is self.torch.Generator:
            made = self.torch.Generator(device=value.device)
            made.set_state(value.get_state())
            return self.keep(value, made)
        return self.other(value, depth)

    def parameter(self, parameter: Any) -> Any:
        """Return a parameter, which all copies share."""
        return parameter

    def other(self, value: Any, depth: int) -> Any:
        """Return a copy of a generator of random numbers; any other object as it is."""
        kind = type(value)
        is_generator = f"{kind.__module__}.{kind.__qualname__}" in _GENERATORS
        return self.keep(value, copy.deepcopy(value)) if is_generator else value

    def tensor(self, tensor: Any) -> Any:
        """Return a copy of a tensor, unless it is beyond the limit."""
        if self._bytes + tensor.nbytes > MOST_BYTES:
            self.beyond.append(tensor)
            return tensor
        self._bytes += tensor.nbytes
        return self.keep(tensor, tensor.detach().clone())

    def _container(self, value: Any, depth: int) -> Any:
        made = self.keep(value, value.copy())
        if isinstance(value, dict):
            for key, one in value.items():
                made[key] = self.copied(one, depth + 1)
        elif not isinstance(value, set):
            for place, one in enumerate(value):
                made[place] = self.copied(one, depth + 1)
        return made
