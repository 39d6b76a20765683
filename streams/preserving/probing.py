"""Probe a model: a forward pass that does not affect the training loop.

Evaluation mode, no gradients, no hooks, no compilation, no collective; random numbers, buffers, training flags and
attributes of the modules are restored afterwards.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from functools import cache
from types import TracebackType
from typing import Any, Self

import numpy as np

from looptap.streams.errors import QueryError
from looptap.streams.forwarding import facade
from looptap.streams.preserving.interrupts import complete
from looptap.streams.preserving.module_state import ModuleState, unwrapped
from looptap.streams.preserving.torch_state import TorchStateGuard, run_eagerly


def probe(model: Any, /, *inputs: Any, gradient: bool = False, hooks: bool = False, **named: Any) -> Any:
    """Return the model's output for the inputs, without effects on model or loop.

    The model runs in evaluation mode, without gradients, on copies of the inputs and of its buffers. Inside
    `torch.compile` or `DistributedDataParallel`, the wrapped module runs directly: nothing is compiled, no rank waits.

    Args:
        model: A module.
        inputs: The inputs of its forward pass, on its device.
        gradient: True gives the output a graph, over aliases of the parameters, and over an input that is a leaf and
            requires a gradient; the parameters' own ``.grad`` stays unchanged.
        hooks: True lets the user's hooks fire.
        named: Inputs by name.

    Raises QueryError for a model that cannot be probed, for inputs on another device, and if the model changed its
    parameters in place; otherwise whatever the model raises.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Dropout(0.5))
    >>> probe(model, torch.zeros(4, 2)).argmax(1).shape
    torch.Size([4])
    >>> model.training
    True
    """
    asked = probing(model, gradient=gradient, hooks=hooks)
    try:
        asked.begin()
        return asked(*inputs, **named)
    finally:
        complete(asked.end)  # the loop is whole before a Ctrl-C is passed on


class untouched:  # noqa: N801  # a context is named like a function, as torch.no_grad is
    """A context that preserves a model, torch's modes and random numbers.

    For code of the loop's own, which chooses the model's modes itself.

    >>> import torch
    >>> model = torch.nn.BatchNorm1d(2)
    >>> with untouched(model):
    ...     answer = model.train()(torch.ones(4, 2))
    >>> model.running_mean
    tensor([0., 0.])
    """

    def __init__(self, model: Any) -> None:
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(model, torch.nn.Module):
            raise QueryError(f"probe takes a torch.nn.Module, not {type(model).__name__}.")
        self._torch: Any = torch
        self.model = model
        self._before = TorchStateGuard()
        self._state: ModuleState | None = None
        self._open = False

    def begin(self) -> None:
        """Begin; `end` must follow, even if this raises."""
        self._open = True
        self._before.__enter__()
        self._set_modes()
        self._state = self._modules()
        self._state.swap_in()

    def end(self) -> None:
        """Restore everything; may be called again after an interrupt."""
        if self._state is not None:
            self._state.put_back()
        self._before.restore()
        self._open = False

    def changed(self) -> str:
        """Return the name of a parameter or large buffer changed in place, or ""."""
        return "" if self._state is None else self._state.changed()

    def __enter__(self) -> Self:
        try:
            self.begin()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.end()

    def _set_modes(self) -> None:
        """Set the modes in which the model runs; `end` restores them."""

    def _modules(self) -> ModuleState:
        return ModuleState(self.model)


@facade
class probing(untouched):  # noqa: N801  # as above
    """A context in which a model can be probed several times; see `probe`.

    Call its value like the model. Its ``model`` is the module inside all wrappers, in evaluation mode.

    Args:
        model: A module.
        gradient: As in `probe`.
        hooks: As in `probe`.

    >>> import torch
    >>> with probing(torch.nn.Linear(2, 1)) as ask:
    ...     answers = ask(torch.zeros(4, 2)), ask(torch.ones(4, 2))
    """

    def __init__(self, model: Any, *, gradient: bool = False, hooks: bool = False) -> None:
        super().__init__(unwrapped(model))
        self._gradient, self._hooks = gradient, hooks
        self._with_versions: Any = None
        """The guard that ends inference mode, in which there are no gradients."""

    def end(self) -> None:
        """Restore everything; may be called again after an interrupt."""
        if self._with_versions is not None:
            self._with_versions.__exit__(None, None, None)
        super().end()

    def _set_modes(self) -> None:
        torch = self._torch
        if self._gradient and torch.is_inference_mode_enabled():
            self._with_versions = torch._C._InferenceMode(False)
            self._with_versions.__enter__()
        torch._C._set_grad_enabled(self._gradient)
        # Under autocast the loop finds in the cache what was cast without a gradient, and trains nothing.
        torch.set_autocast_cache_enabled(False)
        run_eagerly()
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            _no_collectives(torch)().__enter__()

    def _modules(self) -> ModuleState:
        return ModuleState(self.model, asking=True, gradient=self._gradient, hooks=self._hooks)

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Return the model's output for copies of the inputs."""
        state = self._state
        if state is None or not self._open:
            raise QueryError("call the model inside the context: with probing(model) as ask: ask(x).")
        given = [self._copied(one) for one in inputs], {name: self._copied(one) for name, one in named.items()}
        try:
            answer = self.model(*given[0], **given[1])
        except RuntimeError as error:
            devices = {tensor.device for tensor in _tensors(self._torch, [*given[0], *given[1].values()])}
            own = state.devices()
            if own and not devices <= own:
                raise QueryError(
                    f"the model is on {_shown(own)} and its input on {_shown(devices - own)}.",
                    hint=f"Ask with x.to({_shown(own)!r}).",
                ) from error
            raise
        if name := self.changed():
            raise QueryError(
                f"the model changed its {name} in place while a query ran it in evaluation mode: the loop "
                "continues with the changed value."
            )
        return answer

    def _copied(self, given: Any) -> Any:
        """Return a copy of an input, which the model may change in place."""
        if isinstance(given, self._torch.Tensor):
            keep = self._gradient and given.is_leaf and given.requires_grad
            return (given if keep else given.detach()).clone()
        if isinstance(given, np.ndarray):
            return given.copy()
        if type(given) in (list, dict) or isinstance(given, tuple):
            items = list(given.values() if isinstance(given, dict) else given)
            copies = [self._copied(item) for item in items]
            if isinstance(given, dict):
                return dict(zip(given, copies, strict=True))
            return given._make(copies) if hasattr(given, "_make") else type(given)(copies)
        return given


@cache
def _no_collectives(torch: Any) -> Any:
    """Return a mode in which collectives raise: the other ranks would not join."""

    class NoCollectives(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[misc]  # torch is not imported here
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if "c10d" in func.namespace:
                raise QueryError(
                    f"the model starts a collective ({func}), but the query does not run on the other "
                    "ranks: it was not started."
                )
            return func(*args, **(kwargs or {}))

    return NoCollectives


def _tensors(torch: Any, values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(torch, value)
        elif isinstance(value, dict):
            yield from _tensors(torch, value.values())


def _shown(devices: Iterable[Any]) -> str:
    return ", ".join(sorted(map(str, devices)))
