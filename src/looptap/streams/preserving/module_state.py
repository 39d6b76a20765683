"""Run a torch model on copies of its state, and restore the originals afterwards.

The originals are set aside and not written to: no version counter changes, and a pending backward pass finds what it
saved. One call of C restores all modules: no Ctrl-C comes between them.
"""

from __future__ import annotations

import copy
import operator
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

MOST_BYTES = 64 * 1024 * 1024
"""Bytes of a model's buffers that are copied; those beyond are only watched."""
MOST_ITEMS = 1000
"""Maximum items of a container that is copied with its module."""

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_STRUCTURE = ("_parameters", "_buffers", "_modules")
_IMMUTABLE = frozenset({bool, int, float, complex, str, bytes, type(None)})
CONTAINERS = (list, dict, set, deque, OrderedDict, defaultdict, Counter)
_GENERATORS = frozenset({"random.Random", "numpy.random._generator.Generator", "numpy.random.mtrand.RandomState"})
"""Types of generators by their names: numpy loads numpy.random on first use, which takes 10 ms."""


class Kind(NamedTuple):
    """The facts that a class determines about its modules."""

    wraps: str = ""
    """The attribute of a wrapper that is the module inside."""
    sharded: bool = False
    script: bool = False
    builtin: bool = False
    """Whether the class is torch's own: in evaluation mode its forward pass changes nothing."""


@lru_cache(maxsize=1024)
def kind_of(cls: type) -> Kind:
    """Return the facts that a class determines about its modules."""
    classes = [c for c in cls.__mro__ if c is not object]
    names = {c.__name__ for c in classes}
    if "OptimizedModule" in names:
        return Kind(wraps="_orig_mod")
    if names & {"DistributedDataParallel", "DataParallel", "DeepSpeedEngine"}:
        return Kind(wraps="module")
    return Kind(
        sharded=bool(names & {"FullyShardedDataParallel", "FSDPModule"}),
        script="ScriptModule" in names,
        builtin=all(c.__module__.startswith("torch.nn.") for c in classes),
    )


def unwrapped(module: Any) -> Any:
    """Return the module inside `torch.compile`, `DistributedDataParallel`, etc."""
    cls: Any = type(module)
    wraps = kind_of(cls).wraps
    inner = module.__dict__["_modules"].get(wraps) if wraps else None
    return module if inner is None else unwrapped(inner)


class ModuleState:
    """The state of a model's modules: `swap_in` runs them on copies until `put_back`.

    Buffers are copied, and in modules of the user's own classes also tensors, plain containers and random generators
    that they hold; other attributes, hooks and training flags are restored by reference. The constructor changes
    nothing.
    """

    def __init__(self, model: Any) -> None:
        self._torch: Any = sys.modules["torch"]
        self.model = model
        self._copies: dict[int, Any] = {}  # by the id of the original, which lives as long as `_saved`
        self._bytes = 0
        self._dicts: list[dict[str, Any]] = []
        self._replacements: list[dict[str, Any]] = []
        self._saved: list[dict[str, Any]] = []
        self._scripts: list[tuple[Any, bool]] = []
        self._path = ""
        self._watched: list[Any] = []
        self._with_gradients: list[Any] = []
        self._named: list[tuple[str, dict[str, Any]]] = []
        for path, module, kind in self._modules():
            self._prepare(path, module, kind)
        self._before, self._gradients = self._versions(), self._gradient_versions()

    def swap_in(self) -> None:
        """Replace the modules' state with copies."""
        deque(map(dict.update, self._dicts, self._replacements), 0)

    def put_back(self) -> None:
        """Restore the originals; may be called again after an interrupt."""
        deque(map(dict.update, self._dicts, self._saved), 0)
        for attributes, saved in zip(self._dicts, self._saved, strict=True):
            if len(attributes) > len(saved):
                for name in [name for name in attributes if name not in saved]:
                    attributes.pop(name, None)
        for module, flag in self._scripts:
            module.training = flag

    def changed(self) -> str:
        """Return the name of the first tensor changed in place despite this, or ""."""
        for tensor, before, now in zip(self._watched, self._before, self._versions(), strict=True):
            if before != now:
                return self._name(tensor)
        for (tensor, grad, version), (_, grad_now, version_now) in zip(
            self._gradients, self._gradient_versions(), strict=True
        ):
            if grad is not grad_now or version != version_now:
                return f"{self._name(tensor)}.grad"
        return ""

    # ------------------------------------------------------------ copies

    def _modules(self) -> Iterator[tuple[str, Any, Kind]]:
        """Yield each module once, with its path and kind."""
        waiting: list[tuple[str, Any]] = [("", self.model)]
        seen: set[int] = set()
        while waiting:
            path, module = waiting.pop()
            if id(module) not in seen:
                seen.add(id(module))
                kind = kind_of(module.__class__)
                yield path, module, kind
                if not kind.script:
                    for name, child in reversed(module._modules.items()):
                        if child is not None:
                            waiting.append((f"{path}.{name}" if path else name, child))

    def _prepare(self, path: str, module: Any, kind: Kind) -> None:
        if kind.script:
            self._scripts += [(each, each.training) for each in module.modules()]
            self._watch(path, dict(module.named_parameters()), dict(module.named_buffers()))
            return
        attributes = module.__dict__
        work: dict[str, Any] = {}
        self._path = f"{path}." if path else ""
        if attributes["_buffers"]:
            work["_buffers"] = {name: self._copy(one, name) for name, one in attributes["_buffers"].items()}
        self._watch(path, attributes["_parameters"], {})
        # A hook of torch's computes a weight and sets it.
        if not kind.builtin or "forward" in attributes or any(attributes[name] for name in _HOOKS):
            self._hold(attributes, work)
            for name in _STRUCTURE:
                work.setdefault(name, attributes[name].copy())
        self._dicts.append(attributes)
        self._replacements.append(work)
        self._saved.append(attributes.copy())

    def _hold(self, attributes: dict[str, Any], work: dict[str, Any]) -> None:
        """Replace the state that the module itself holds with copies."""
        structure = module_attributes()
        for name, value in attributes.items():
            if name not in structure and name not in work:
                copied = self._copy(value, name)
                if copied is not value:
                    work[name] = copied

    def _copy(self, value: Any, name: str) -> Any:
        """Return a copy if a module may change it in place; anything else as it is."""
        kind = type(value)
        if kind in _IMMUTABLE:
            return value
        known = self._copies.get(id(value))
        if known is not None:
            return known
        if kind in CONTAINERS:
            return self._container(value, name) if len(value) <= MOST_ITEMS else value
        if kind is tuple and len(value) <= MOST_ITEMS:
            items = tuple(self._copy(item, name) for item in value)
            return items if any(map(operator.is_not, items, value)) else value
        if isinstance(value, self._torch.nn.Parameter):
            return value
        if isinstance(value, self._torch.Tensor):
            return self._tensor(value, name)
        if f"{kind.__module__}.{kind.__qualname__}" in _GENERATORS:
            made: Any = copy.deepcopy(value)
        elif kind is self._torch.Generator:
            made = self._torch.Generator(device=value.device)
            made.set_state(value.get_state())
        else:
            return value
        self._copies[id(value)] = made
        return made

    def _container(self, value: Any, name: str) -> Any:
        made = self._copies[id(value)] = copy.copy(value)
        if isinstance(value, dict):
            for key, item in value.items():
                made[key] = self._copy(item, name)
        elif not isinstance(value, set):
            for place, item in enumerate(value):
                made[place] = self._copy(item, name)
        return made

    def _tensor(self, tensor: Any, name: str) -> Any:
        if self._bytes + tensor.nbytes > MOST_BYTES:
            self._watch(self._path, {}, {name: tensor})
            return tensor
        self._bytes += tensor.nbytes
        made = self._copies[id(tensor)] = tensor.detach().clone()
        return made

    # ------------------------------------------------------------ versions

    def _watch(self, path: str, parameters: dict[str, Any], others: dict[str, Any]) -> None:
        own = [one for one in parameters.values() if one is not None]
        self._with_gradients += own
        self._watched += own
        self._watched += [one for one in others.values() if one is not None]
        self._named += [(path, parameters), (path, others)]

    def _versions(self) -> list[int]:
        try:
            return [tensor._version for tensor in self._watched]
        except RuntimeError:  # tensors created in inference mode have no versions
            self._watched = [tensor for tensor in self._watched if not tensor.is_inference()]
            return [tensor._version for tensor in self._watched]

    def _gradient_versions(self) -> list[tuple[Any, Any, int]]:
        grads = [(one, one.grad) for one in self._with_gradients if one.is_leaf]
        return [(one, grad, 0 if grad is None else grad._version) for one, grad in grads]

    def _name(self, tensor: Any) -> str:
        found = (f"{path}.{n}" if path else n for path, named in self._named for n, t in named.items() if t is tensor)
        return next(found, "state")


@lru_cache(maxsize=1)
def module_attributes() -> frozenset[str]:
    """Return the attributes that every module has."""
    return frozenset(vars(sys.modules["torch"].nn.Module()))
