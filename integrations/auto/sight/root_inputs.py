"""The inputs of a model's last forward pass under gradient, while queries ask.

In a loop that fetches the next batch before the step, the variables of the loop hold the next batch; what the model was
called with is this step's. A hook on the model itself notes it. The hook is there only while queries read ``x``, ``y``
or ``inputs``, and it is in no copy and in no file of the model.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

from looptap.agent.loop.hooks.unsaved_hook import UnsavedHook, leave_out

NAMES = frozenset({"x", "y", "inputs"})
"""What queries can read: the first tensor, the target, and all that the model was called with."""
IDLE_EVENTS = 1000
"""Events after which nothing is noted any more, if no query has read it."""
MAX_AWAITED_EVENTS = 2
"""Events without a forward pass after which a model's inputs count as missing."""
_TARGETS = ("labels", "label", "targets", "target", "y")


class ModelInputs:
    """The inputs of each model of the job."""

    def __init__(self) -> None:
        self._by_model: weakref.WeakKeyDictionary[Any, RootInputs] = weakref.WeakKeyDictionary()

    def of(self, model: Any) -> RootInputs:
        """Return what is known of the inputs of a model."""
        found = self._by_model.get(model)
        if found is None:
            found = self._by_model[model] = RootInputs(model)
        return found

    def forget(self, trained: Callable[[Any], bool]) -> None:
        """Release the inputs of this step of the models that ``trained`` says were."""
        for model, inputs in [*self._by_model.items()]:
            if trained(model):
                inputs.forget()

    def __bool__(self) -> bool:
        return bool(self._by_model)


class RootInputs:
    """What one model was last called with under gradient."""

    def __init__(self, model: Any) -> None:
        self._model = weakref.ref(model)
        self._idle = 0
        self._given: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self._handle: Any = None
        self._awaited = MAX_AWAITED_EVENTS

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
        self._given, self._awaited = (arguments, keywords), 0

    def read(self, name: str) -> Any:
        """Return ``x``, ``y`` or ``inputs``. Raises KeyError if they are not known."""
        if self._given is None:
            raise KeyError(name)
        arguments, keywords = self._given
        if name == "inputs":
            return (*arguments, *keywords.values()) if not keywords else {**dict(enumerate(arguments)), **keywords}
        fields = arguments[0] if len(arguments) == 1 and isinstance(arguments[0], dict) else keywords
        target = next((fields[word] for word in _TARGETS if word in fields), None)
        tensors = [one for one in (*arguments, *fields.values()) if _is_tensor(one) and one is not target]
        if name == "y":
            given = [one for one in arguments if _is_tensor(one)]  # a second one with a name is a mask or the like
            found = target if target is not None else given[1] if len(given) > 1 else None
        else:
            found = tensors[0] if tensors else arguments[0] if arguments else None
        if found is None:
            raise KeyError(name)
        return found

    def forget(self) -> None:
        """Release the inputs of this step; take the hook out if they are not asked for."""
        self._given = None
        self._idle += 1
        if self._idle > IDLE_EVENTS and self._handle is not None:
            self._handle.remove()
            self._handle = None


class _ForwardNote(UnsavedHook):
    """The hook on a model."""

    def __init__(self, inputs: RootInputs) -> None:
        self._inputs = inputs

    def __call__(self, module: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        torch = sys.modules["torch"]
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            self._inputs.note(arguments, keywords)


def _is_tensor(value: Any) -> bool:
    return issubclass(type(value), sys.modules["torch"].Tensor)
