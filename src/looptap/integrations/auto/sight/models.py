"""Finds what belongs to an optimizer: its model, its name, its scheduler."""

from __future__ import annotations

import re
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any

from looptap.agent.control.knobs.optimizer_controls import drives_optimizer
from looptap.agent.loop.sight.frames import bindings, is_argument, path_of
from looptap.integrations.auto.sight.attributes import own_attributes

MAX_OBJECTS_COUNT = 5000
"""Values in sight that a search looks at."""
RETRY_EVENTS = 20
"""Events until the model of a loop without a known optimizer is searched for again."""
MAX_MODULES_COUNT = 64
"""Modules in sight of which the parameters are counted."""
MAX_PARTS_COUNT = 8
"""Modules that one optimizer may train."""
MAX_ATTRIBUTES_COUNT = 1000
"""Attributes of an object that are looked at; of one with more, none."""
_PLAIN_NAMES = frozenset({"optimizer", "optim", "opt", "model", "net", "module"})
_PARTS = re.compile(r"[^.\[\]']+")


def models_trained_by(optimizer: Any, frame: FrameType | None) -> list[tuple[str, Any]]:
    """Return the modules in sight that have an optimizer's parameters, by name.

    Usually it is one. Of several with the same ones it is that with the fewest others, then what `torch.compile` made
    of a module, for hooks inside that are not called, then the one that is called ``model``, then the first. Where none
    has all, such as an encoder and a decoder, there are more.
    """
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    found, parts = [*modules_in_sight(frame)], list[tuple[str, Any]]()
    while held and len(parts) < MAX_PARTS_COUNT and (best := _holder_of(held, found)) is not None:
        parts.append(best)
        held -= {id(parameter) for parameter in best[1].parameters()}
    return parts


class ModelInSight:
    """The model of a loop whose optimizer is not known: it has most of the gradients.

    It is held weakly, and searched for again every `RETRY_EVENTS` events that ask for it.
    """

    def __init__(self) -> None:
        self._model: Callable[[], Any] = _nothing
        self._search_in = 0

    def get(self, frame: FrameType | None) -> Any:
        """Return the model, or the first module in sight if none has gradients, or None."""
        model = self._model()
        self._search_in -= 1
        if model is None or self._search_in < 0:
            self._search_in = RETRY_EVENTS
            found = [*modules_in_sight(frame)]
            parameters = [one for _, module in found for one in module.parameters()]
            held = {id(one) for one in parameters if one.is_leaf and one.grad is not None}
            _, model = _holder_of(held, found) or next(iter(found), ("", None))
            self._model = _nothing if model is None else weakref.ref(model)
        return model


def _nothing() -> None:
    return None


def _holder_of(held: set[int], modules: Iterable[tuple[str, Any]]) -> tuple[str, Any] | None:
    """Return the module that has most of these parameters, and its name, or None."""
    best, rank = None, (0, 0, False, False)
    for name, module in modules:
        ids = {id(parameter) for parameter in module.parameters()}
        mine = (len(ids & held), -len(ids - held), "_orig_mod" in module._modules, name == "model")
        if mine[0] and mine > rank:
            best, rank = (name, module), mine
    return best


def modules_in_sight(frame: FrameType | None) -> Iterator[tuple[str, Any]]:
    """Yield the modules in sight, and those that objects in sight have as attributes."""
    kind = sys.modules["torch"].nn.Module
    seen: set[int] = set()
    for name, value in _with_attributes(frame):
        if issubclass(type(value), kind) and id(value) not in seen:
            seen.add(id(value))
            yield name, value
            if len(seen) >= MAX_MODULES_COUNT:
                return


def name_in_job(thing: Any, frame: FrameType | None, otherwise: str = "optimizer") -> str:
    """Return the name that the job has for an optimizer or a model.

    That is a variable, else the attribute that holds it. A name that only says what it is, such as the parameter of a
    helper function, comes last; such an attribute gets the name of what has it: ``actor.optimizer``.
    """
    names = [name for name, value in bindings(frame) if value is thing and name != "self"]
    said = [name for name in names if name not in _PLAIN_NAMES or not is_argument(frame, name)]
    if found := next(iter(said), "") or _name_in_path(thing, frame) or next(iter(names), ""):
        return found
    return next((name for name, value in _with_attributes(frame) if value is thing and name != "self"), otherwise)


def _name_in_path(thing: Any, frame: FrameType | None) -> str:
    """Return the name of an attribute in sight, with that of what has it if need be."""
    parts = _PARTS.findall(path_of(frame, thing))
    if len(parts) == 2 and parts[0] != "self":  # what has it is a variable here, and may be an attribute elsewhere
        holder = next(value for name, value in bindings(frame) if name == parts[0])
        parts = [*(_PARTS.findall(path_of(frame, holder)) or parts[:1]), parts[-1]]
    holders = parts[parts[:1] == ["self"] : -1]
    return ".".join(parts[-2:] if holders and parts[-1] in _PLAIN_NAMES else parts[-1:])


def scheduler_of(optimizer: Any, frame: FrameType | None) -> Any:
    """Return the schedule in sight that drives an optimizer, or None."""
    kind = sys.modules["torch"].optim.lr_scheduler.LRScheduler
    for _, value in _with_attributes(frame):
        if issubclass(type(value), kind) and drives_optimizer(value, optimizer):
            return value
    return None


def optimizers_exist() -> bool:
    """Return True if an optimizer of torch's kind has ever been made.

    The first one of a class marks the class's ``step``.
    """
    kinds = [sys.modules["torch"].optim.Optimizer]
    while kinds:
        kind = kinds.pop()
        if getattr(kind.step, "hooked", False):
            return True
        kinds += type.__subclasses__(kind)
    return False


def _with_attributes(frame: FrameType | None) -> Iterator[tuple[str, Any]]:
    """Yield names in sight and values, and then the attributes of plain objects.

    Attributes are read from the objects' own dicts: no code of the job's runs.
    """
    objects: dict[int, Any] = {}
    for name, value in bindings(frame):
        if len(objects) >= MAX_OBJECTS_COUNT:
            return
        if id(value) not in objects:
            objects[id(value)] = value
            yield name, value
            yield from _items(name, value)
    for value in objects.values():
        if len(attributes := own_attributes(value)) <= MAX_ATTRIBUTES_COUNT:
            yield from ((name, one) for name, one in attributes if isinstance(name, str))


def _items(name: str, value: Any) -> Iterable[tuple[str, Any]]:
    """Return the items of a short list or dict: those of a list by its name."""
    kind = type(value)
    if kind not in (list, tuple, dict) or len(value) > MAX_MODULES_COUNT:
        return ()
    return [(str(key), item) for key, item in [*value.items()]] if kind is dict else [(name, item) for item in value]
