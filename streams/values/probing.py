"""Asking a model: a forward pass of which the training loop notices nothing.

Evaluation mode, no gradients, no hooks, no compilation, no collective; random numbers, buffers, training flags and
attributes of the modules are afterwards what they were.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from types import TracebackType
from typing import Any, Self

import numpy as np

from looptap.streams.errors import QueryError
from looptap.streams.values.module_state import ModuleState, unwrapped
from looptap.streams.values.random_state import RandomState


def probe(model: Any, /, *inputs: Any, gradient: bool = False, hooks: bool = False, **named: Any) -> Any:
    """Return what the model says to the inputs, and leave the model and the loop as they are.

    The model runs in evaluation mode, without gradients, on copies of the inputs and of its buffers. What is inside
    `torch.compile` or `DistributedDataParallel` runs itself: nothing is compiled, no rank waits. The user's hooks do
    not fire unless ``hooks``. With ``gradient`` the answer has a graph, over aliases of the parameters, and over an
    input that is a leaf and requires a gradient; the parameters' own ``.grad`` stays what it is.

    Raises QueryError for a model that cannot be asked, for inputs on another device, and if the model changed its
    parameters in place; otherwise what the model raises.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Dropout(0.5))
    >>> probe(model, torch.zeros(4, 2)).argmax(1).shape
    torch.Size([4])
    >>> model.training
    True
    """
    asked = probing(model, gradient=gradient, hooks=hooks)
    pressed: KeyboardInterrupt | None = None
    try:
        asked.begin()
        answer = asked(*inputs, **named)
    finally:
        while True:
            try:
                asked.end()
                break
            except KeyboardInterrupt as interrupt:  # the loop is whole before it is passed on
                pressed = interrupt
        if pressed is not None:
            raise pressed
    return answer


class untouched:  # noqa: N801  # a context is named like a function, as torch.no_grad is
    """A context that leaves a model as it is, with all its modules, and the random numbers, whatever runs in it.

    For code of the loop's own, which says itself how the model runs.

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
            raise QueryError(f"a model that can be asked is a torch.nn.Module, not {type(model).__name__}.")
        self._torch: Any = torch
        self.model = model
        self._state: ModuleState | None = None
        self._undo: list[Callable[[], Any]] = []

    def begin(self) -> None:
        """Begin; `end` must follow, also if this raises."""
        self._undo.append(RandomState().put_back)
        for put_back, change in self._modes():
            self._undo.append(put_back)  # first: an interrupt may come between the two
            change()
        self._state = self._modules()
        self._undo.append(self._state.put_back)
        self._state.swap_in()

    def end(self) -> None:
        """Put everything back; may be called again after an interrupt."""
        for put_back in reversed(self._undo):
            put_back()
        self._undo.clear()

    def changed(self) -> str:
        """Return the name of a parameter or a large buffer that was changed in place; empty if there is none."""
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

    def _modes(self) -> Iterator[tuple[Callable[[], Any], Callable[[], Any]]]:
        """Pairs of functions: what puts a mode back, and what changes it."""
        switch, enabled = self._torch._C._set_grad_enabled, self._torch.is_grad_enabled()
        yield partial(switch, enabled), partial(switch, enabled)

    def _modules(self) -> ModuleState:
        return ModuleState(self.model)


class probing(untouched):  # noqa: N801  # as above
    """A context in which a model can be asked several times; see `probe`.

    What it gives is called like the model. Its ``model`` is the module inside all wrappers, in evaluation mode.

    >>> import torch
    >>> with probing(torch.nn.Linear(2, 1)) as ask:
    ...     answers = ask(torch.zeros(4, 2)), ask(torch.ones(4, 2))
    """

    def __init__(self, model: Any, *, gradient: bool = False, hooks: bool = False) -> None:
        super().__init__(unwrapped(model))
        self._gradient, self._hooks = gradient, hooks

    def _modes(self) -> Iterator[tuple[Callable[[], Any], Callable[[], Any]]]:
        return _modes(self._torch, self._gradient)

    def _modules(self) -> ModuleState:
        return ModuleState(self.model, asking=True, gradient=self._gradient, hooks=self._hooks)

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Return what the model says to copies of the inputs."""
        state = self._state
        if state is None or not self._undo:
            raise QueryError("a model is asked within the context: with probing(model) as ask: ask(x).")
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
                f"the model changed its {name} in place while it was asked, in evaluation mode, too: "
                "the loop continues with it as it is now."
            )
        return answer

    def _copied(self, given: Any) -> Any:
        """Return the same input, which the model may change in place."""
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


def _modes(torch: Any, gradient: bool) -> Iterator[tuple[Callable[[], Any], Callable[[], Any]]]:
    """Pairs of functions: what puts a mode back, and what changes it."""
    if gradient and torch.is_inference_mode_enabled():
        guard = torch._C._InferenceMode(False)
        yield partial(guard.__exit__, None, None, None), guard.__enter__
    switch = torch._C._set_grad_enabled
    yield partial(switch, torch.is_grad_enabled()), partial(switch, gradient)
    # Under autocast the loop finds in the cache what was cast without a gradient, and trains nothing.
    switch = torch.set_autocast_cache_enabled
    yield partial(switch, torch.is_autocast_cache_enabled()), partial(switch, False)
    compiler: Any = sys.modules.get("torch._dynamo.eval_frame")
    if hasattr(compiler, "_set_stance") and not torch._C._dynamo.eval_frame.get_eval_frame_callback():
        eager = compiler.DynamoStance("force_eager")
        yield partial(compiler._set_stance, compiler._stance), partial(compiler._set_stance, eager)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        yield partial(_pop_modes, torch, torch._C._len_torch_dispatch_stack()), _no_collectives(torch)().__enter__


def _pop_modes(torch: Any, count: int) -> None:
    while torch._C._len_torch_dispatch_stack() > count:
        torch._C._pop_torch_dispatch_stack(None)


@cache
def _no_collectives(torch: Any) -> Any:
    """Return the mode in which a collective raises: the other ranks would not reach it."""

    class NoCollectives(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[misc]  # torch is not imported here
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if "c10d" in func.namespace:
                raise QueryError(
                    f"the model starts a collective ({func}), and the other ranks are not asked: it was not started."
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
