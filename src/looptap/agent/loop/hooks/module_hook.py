"""A hook on one module for one query; keeps the newest call's tensors.

They are kept until the event by reference, without their graph, and copied only where the model changes them in
place afterwards. A hook returns nothing, so the model computes what it does without; nothing raises out of it. It does
nothing while torch.compile traces it, in a CUDA graph capture, and where a mode or transform of torch would see its
operations.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from looptap.agent.loop.hooks.unsaved_hook import UnsavedHook, leave_out
from looptap.streams.errors import QueryError
from looptap.streams.preserving.job_modes import modes_observe
from looptap.streams.values.modules.module_read import GRADS_OF, INPUTS
from looptap.streams.values.torch_interop import local_shard

MAX_TENSORS_COUNT = 64
"""Tensors of one call that are kept; a cache of keys and values may have more."""
MAX_DEPTH = 4
"""Nesting of containers in which tensors are looked for."""


class Counter(Protocol):
    """The type of events that the query is asked on."""

    number: int


def _never() -> bool:
    return False


_tracing: Callable[[], bool] = _never
"""Whether torch.compile is tracing the caller: Dynamo folds it to True, so that no hook of ours gets into a graph."""


class ModuleHook(UnsavedHook):
    """A hook on ``module`` that keeps what the query reads of its newest call.

    Training thread: the forward pass calls it, and the query reads it at the event.
    """

    def __init__(self, name: str, module: Any, kind: str, events: Counter, every: int) -> None:
        global _tracing
        torch: Any = sys.modules["torch"]
        _tracing = torch.compiler.is_dynamo_compiling
        self.name, self.kind, self.active = name, kind, True
        self._module = weakref.ref(module)
        self._torch, self._events, self._every = torch, events, every
        self._cuda = torch.cuda if torch.backends.cuda.is_built() else None
        self._task, self._plain_types = torch._C._current_graph_task_id, (torch.Tensor, torch.nn.Parameter)
        level = torch._C._functorch.maybe_current_level
        self._depths = torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack, level
        self.calls = 0
        """Calls of the module since the last event."""
        self.problem = ""
        """Why the newest call gave no value."""
        self._copies = True  # at first, until the tensors are seen to stay as they are
        self._kept: list[tuple[Any, int]] = []  # aliases of the tensors, with their versions
        self._value: Any = None
        self._leaves: list[Any] = []  # handles on tensors that outlive a step
        leave_out(module)
        put = module.register_forward_hook if kind != INPUTS else module.register_forward_pre_hook
        self._handle = put(self) if kind != INPUTS else put(self, with_kwargs=True)

    def __call__(self, module: Any, *given: Any) -> None:
        """Keep what this call of the module gets or returns. Raises nothing."""
        if _tracing():
            return None
        return self._see(given)

    def _see(self, given: tuple[Any, ...]) -> None:
        try:
            if not self.active:
                self.remove()
            elif not (self._events.number + 1) % self._every:
                self._keep(given)
        except Exception as error:
            self.problem = f"{type(error).__name__}: {error}"

    def _keep(self, given: tuple[Any, ...]) -> None:
        cuda, kind = self._cuda, self.kind
        if kind != GRADS_OF and self._task() != -1:  # in the backward pass a checkpointed part is computed again
            return
        self.calls += 1
        self._forget()
        if cuda is not None and cuda.is_initialized() and cuda.is_current_stream_capturing():
            self.problem = "a CUDA graph was captured, whose replays call no hook"
        elif self._observed():
            self.problem = "it ran under a mode or transform of torch, which would see a hook's own operations"
        elif kind == GRADS_OF:
            self._value = self._followed(given[-1], self.calls)
        else:
            self._value = self._plain(given[-1] if kind != INPUTS else _inputs(*given), 0)

    def _observed(self) -> bool:
        """Return whether `modes_observe`, in the usual case by three calls."""
        dispatch, functions, level = self._depths
        return bool(dispatch() or functions() or level() is not None) and modes_observe(self._torch)

    def _plain(self, value: Any, depth: int) -> Any:
        """Return ``value`` with tensors without a graph, in plain containers."""
        if isinstance(value, self._plain_types[0]):
            return self._detached(value)
        return self._contents(value, depth, self._plain)

    def _detached(self, tensor: Any) -> Any:
        if len(self._kept) >= MAX_TENSORS_COUNT:
            return None
        if type(tensor) not in self._plain_types:
            if not hasattr(tensor, "to_local"):
                self.problem = f"it is a {type(tensor).__name__}, and not a tensor of torch's own class"
                return None
            with self._torch.no_grad():
                tensor = local_shard(tensor)
        alias = tensor.detach()
        self._kept.append((alias, -1 if alias.is_inference() else alias._version))
        return alias.clone() if self._copies else alias

    def _contents(self, value: Any, depth: int, each: Callable[[Any, int], Any]) -> Any:
        """Return the contents of a container, each as ``each`` makes it."""
        if isinstance(value, bool | int | float | str) or value is None:
            return value
        if depth >= MAX_DEPTH:
            return None
        if isinstance(value, tuple | list):
            return tuple(each(one, depth + 1) for one in value[:MAX_TENSORS_COUNT])
        if isinstance(value, dict):  # so is what models of Hugging Face return
            items = list(value.items())[:MAX_TENSORS_COUNT]
            return {str(name): each(one, depth + 1) for name, one in items}
        if hasattr(type(value), "__dataclass_fields__"):
            return {name: each(getattr(value, name), depth + 1) for name in type(value).__dataclass_fields__}
        return None

    # ------------------------------------------------------------ gradients

    def _followed(self, output: Any, call: int) -> Any:
        """Ask for the gradients of a call's outputs; they come in the backward pass."""
        slots: list[_Gradient] = []

        def follow(value: Any, depth: int) -> Any:
            if not isinstance(value, self._plain_types[0]):
                return self._contents(value, depth, follow)
            if not value.requires_grad or len(slots) >= MAX_TENSORS_COUNT:
                return None
            slots.append(_Gradient(self, call))
            handle = value.register_hook(slots[-1])
            if value.is_leaf:  # one of the job's parameters or inputs: its hook would stay
                self._leaves.append(handle)
            return slots[-1]

        return follow(output, 0)

    def arrived(self, gradient: Any, call: int) -> Any:
        """Return what to keep of a gradient of the ``call``-th call."""
        if not self.active or call != self.calls or self._observed():
            return None
        return self._detached(gradient)

    # ------------------------------------------------------------ at the event

    def is_on(self, module: Any) -> bool:
        """Return True if this is the hooked module, or None once that is gone."""
        return self._module() is module

    def value(self) -> Any:
        """Return what was kept. Raises QueryError if there is nothing."""
        if self._value is None and self.calls and not self.problem:
            raise QueryError(f"{self.name!r} returned no tensor in its latest call.")
        if self.problem and not self._kept:
            raise QueryError(f"{self.name!r} was called, and gave no value: {self.problem}.")
        value = self._value
        if self.kind == GRADS_OF:
            value = _gradients(value)
            if not self._kept:
                raise QueryError(
                    f"no gradient has reached the output of {self.name!r}.",
                    hint="Emit the event after backward(); under no_grad there is none.",
                )
        changed = any(version >= 0 and alias._version != version for alias, version in self._kept)
        if changed and not self._copies:
            self._copies = True
            raise QueryError(
                f"the model has changed the output of {self.name!r} in place, as ReLU(inplace=True) does: it is copied "
                "from the next event on."
            )
        self._copies = changed
        return value

    def release(self) -> None:
        """Drop all tensors, since the event is over or the query has ended."""
        self.calls, self._value = 0, None
        self._forget()

    def _forget(self) -> None:
        self.problem = ""
        if self._kept:
            self._kept = []
        while self._leaves:
            self._leaves.pop().remove()

    def remove(self) -> None:
        """Take the hook out. Training thread."""
        self.active = False
        self._handle.remove()
        self.release()


class _Gradient:
    """A hook on a tensor that keeps its gradient."""

    __slots__ = ("_call", "_hook", "gradient")
    __torch_unserializable__ = True  # torch warns of other hooks where a tensor is saved

    def __init__(self, hook: ModuleHook, call: int) -> None:
        self._hook, self._call, self.gradient = hook, call, None

    def __call__(self, gradient: Any) -> None:
        """Keep the gradient. Raises nothing."""
        try:
            self.gradient = self._hook.arrived(gradient, self._call)
        except Exception as error:
            self._hook.problem = f"{type(error).__name__}: {error}"


def _gradients(value: Any) -> Any:
    """Return the structure of a call's outputs with the gradients that have arrived."""
    if isinstance(value, _Gradient):
        return value.gradient
    if isinstance(value, tuple):
        return tuple(map(_gradients, value))
    return {name: _gradients(one) for name, one in value.items()} if isinstance(value, dict) else None


def _inputs(args: Any, named: Any = None) -> Any:
    """Return the arguments of a call: the only one, a tuple, or a dict by name."""
    if named:
        return {**{str(place): one for place, one in enumerate(args)}, **named}
    return args[0] if len(args) == 1 else args
