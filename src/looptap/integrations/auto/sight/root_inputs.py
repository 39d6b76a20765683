"""The inputs of a model's last forward pass under gradient, while queries ask.

In a loop that fetches the next batch before the step, the variables of the loop hold the next batch; what the model was
called with is this step's. A hook on the model itself notes it. The hook is there only while queries read ``x``, ``y``
or ``inputs``, and it is in no copy and in no file of the model.
"""

from __future__ import annotations

import itertools
import math
import sys
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from looptap.agent.loop.hooks.unsaved_hook import UnsavedHook, leave_out
from looptap.integrations.auto.sight.attributes import own_attributes

IDLE_EVENTS = 1000
"""Events after which nothing is noted any more, if no query has read it."""
MAX_AWAITED_EVENTS = 2
"""Events without a forward pass after which a model's inputs count as missing."""
MAX_DEPTH = 3
"""Levels of a batch whose fields are looked through."""
MAX_FIELDS_COUNT = 100
"""Fields of one level."""
_calls = itertools.count(1)
_TARGETS = ("labels", "label", "targets", "target", "y")


class ModelInputs:
    """The inputs of each model of the job."""

    def __init__(self) -> None:
        self._by_model: weakref.WeakKeyDictionary[Any, RootInputs] = weakref.WeakKeyDictionary()

    def of(self, parts: list[Any]) -> PartInputs:
        """Return what is known of the inputs of a model, which may have several parts."""
        for model in parts:
            if self._by_model.get(model) is None:
                self._by_model[model] = RootInputs(model)
        return PartInputs([self._by_model[model] for model in parts])

    def forget(self, trained: Callable[[Any], bool]) -> None:
        """Release the inputs of this step of the models that ``trained`` says were."""
        for model, inputs in [*self._by_model.items()]:
            if trained(model) and inputs.forget():
                del self._by_model[model]

    def __bool__(self) -> bool:
        return bool(self._by_model)


class PartInputs(NamedTuple):
    """The inputs of a model: those of the part that a step calls first."""

    parts: list[RootInputs]

    def ask(self) -> bool:
        """Note the next forward passes; return False while the first is awaited."""
        return all([inputs.ask() for inputs in self.parts])

    def read(self, name: str) -> Any:
        """Return ``x``, ``y`` or ``inputs``. Raises KeyError if they are not known."""
        return min(self.parts, key=lambda inputs: inputs.first_call or math.inf).read(name)


class RootInputs:
    """What one model was last called with under gradient."""

    def __init__(self, model: Any) -> None:
        self._model = weakref.ref(model)
        self._idle = 0
        self._given: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self._handle: Any = None
        self._awaited = MAX_AWAITED_EVENTS
        self.first_call = 0
        """A number that is smaller for models that were called earlier in this step; 0 if it was not."""

    def ask(self) -> bool:
        """Note the next forward passes; return False while the first is awaited."""
        self._idle = 0
        model = self._model()
        if self._handle is not None or model is None or getattr(model, "_compiled_call_impl", None) is not None:
            self._awaited -= 1
            return self._awaited < 0  # a hook of a model that is compiled in place would be compiled with it
        leave_out(model)
        self._handle = model.register_forward_pre_hook(_ForwardNote(self), with_kwargs=True)
        return False

    def note(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Note what the model is called with."""
        self._given, self._awaited = (tuple(map(_as_given, arguments)), keywords), 0
        self.first_call = self.first_call or next(_calls)

    def read(self, name: str) -> Any:
        """Return ``x``, ``y`` or ``inputs``. Raises KeyError if they are not known."""
        if self._given is None:
            raise KeyError(name)
        arguments, keywords = self._given
        if name == "inputs":
            return (*arguments, *keywords.values()) if not keywords else {**dict(enumerate(arguments)), **keywords}
        given = [one for one in arguments if _is_tensor(one)]
        fields = {**tensors_in(arguments[0]), **keywords} if arguments and not given else keywords
        target = next((fields[word] for word in _TARGETS if word in fields), None)
        if name == "y":  # a second one with a name is a mask or the like
            found = next(iter(given[1:]), None) if target is None else target
        elif given:
            found = given[0]
        else:
            found = _input_in(fields, target, arguments)
        if found is None:
            raise KeyError(name)
        return found

    def forget(self) -> bool:
        """Release the inputs of this step; return True if they are no longer asked for."""
        self._given, self.first_call = None, 0
        self._idle += 1
        if self._idle > IDLE_EVENTS and self._handle is not None:
            self._handle.remove()
            self._handle = None
        return self._idle > IDLE_EVENTS


class _ForwardNote(UnsavedHook):
    """The hook on a model."""

    def __init__(self, inputs: RootInputs) -> None:
        self._inputs = inputs

    def __call__(self, module: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        torch = sys.modules["torch"]
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            self._inputs.note(arguments, keywords)


def _input_in(fields: dict[str, Any], target: Any, arguments: tuple[Any, ...]) -> Any:
    """Return the input among named values; of a batch in one object, the largest."""
    others = [one for one in fields.values() if _is_tensor(one) and one is not target]
    if others and not arguments:
        return others[0]
    if "x" in fields:
        return fields["x"]
    return max(others, key=_size, default=next(iter(arguments), None))


def tensors_in(batch: Any) -> dict[str, Any]:
    """Return the tensors of a batch that is a dict or an object, by their own names.

    No code of the batch runs: attributes are read from its dict.
    """
    found: dict[str, Any] = {}
    level = [batch]
    for _ in range(MAX_DEPTH):
        held = [one for holder in level for one in _items(holder)[:MAX_FIELDS_COUNT]]
        for name, value in held:
            if _is_tensor(value):
                found.setdefault(str(name), value)
        level = [value for _, value in held if not _is_tensor(value)][:MAX_FIELDS_COUNT]
    return found


def _items(holder: Any) -> list[tuple[Any, Any]]:
    """Return what a dict, an object or a named tuple holds, by name."""
    kind = type(holder)
    if issubclass(kind, dict):
        return [*dict.items(holder)]
    if issubclass(kind, tuple) and isinstance(names := getattr(kind, "_fields", None), tuple):
        return [*zip(names, tuple.__iter__(holder), strict=False)]
    return own_attributes(holder)


def _as_given(argument: Any) -> Any:
    """Return a copy of a plain dict, to which the model may add its outputs."""
    return argument.copy() if type(argument) is dict else argument


def _size(tensor: Any) -> int:
    with sys.modules["torch"]._C.DisableTorchFunction():
        return int(tensor.numel())


def _is_tensor(value: Any) -> bool:
    return issubclass(type(value), sys.modules["torch"].Tensor)
