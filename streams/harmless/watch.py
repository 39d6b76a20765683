"""Watch the tensor operations of an evaluation: refuse writes and draws.

torch itself says which operators write to an argument (the schema) and which draw random numbers (a tag). A write is
let through to storage that the evaluation made, a draw comes from a generator of the evaluation's own.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from looptap.streams.harmless.checked_evaluation import check_modes, current
from looptap.streams.harmless.refusal import Refusal
from looptap.streams.preserving.interrupts import complete

_NAMESPACES = frozenset({"aten", "prim", "prims", "torchvision", "mkldnn", "quantized"})
_NORMALIZATIONS = frozenset({"native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "_batch_norm_impl_index"})
"""Operators that write running statistics, although their schema does not say so."""
_HIDDEN = frozenset({"running_mean", "running_var", "train", "training", "dropout", "dropout_p", "generator"})
"""Arguments of operators that are made of others, which write or draw."""
_CHANCES = frozenset({"p", "dropout", "dropout_p", "drop_rate"})


class Unwatched(Refusal):
    """A write to a tensor that the evaluation may have made before it was watched."""


def watched(do: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """Return ``do(…)`` with each of its tensor operations checked."""
    evaluation = current()
    torch = sys.modules.get("torch")
    if torch is None or evaluation.watch is not None:
        return do(*given, **named)
    check_modes()
    evaluation.keep_modes()
    with _watch_class(torch)() as watch:
        evaluation.watch = watch
        try:
            return do(*given, **named)
        finally:
            evaluation.watch = None
            complete(watch.forget)


def own_storage(tensor: Any) -> None:
    """Note a tensor that the evaluation made, before or outside its watch."""
    watch = current().watch
    if watch is not None:
        watch.note(tensor)


@cache
def pure(name: str) -> bool:
    """Return True for the name of an operator that neither writes nor draws."""
    torch: Any = sys.modules["torch"]
    operators = _overloads(torch, name)
    return bool(operators) and all(
        not one._schema.is_mutable and one._schema.returns and torch.Tag.nondeterministic_seeded not in one.tags
        and _HIDDEN.isdisjoint(argument.name for argument in one._schema.arguments)
        for one in operators
    ) and name not in _NORMALIZATIONS  # fmt: skip


@cache
def is_operator(name: str) -> bool:
    """Return True if torch has an operator of this name."""
    return bool(_overloads(sys.modules["torch"], name))


def _overloads(torch: Any, name: str) -> list[Any]:
    try:
        packet = getattr(torch.ops.aten, name)
        every = [getattr(packet, overload) for overload in packet.overloads()]
    except (AttributeError, RuntimeError):
        return []
    return [one for one in every if not any(argument.is_out for argument in one._schema.arguments)]


@cache
def _watch_class(torch: Any) -> Any:
    seeded = torch.Tag.nondeterministic_seeded

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[misc]  # torch is not imported here
        """The mode of one evaluation."""

        def __init__(self) -> None:
            super().__init__()
            # References that keep the address of a storage from being another's, but not its memory. They are numbers,
            # which no finalizer frees: a Ctrl-C in one is lost.
            self.made: dict[int, int] = {}

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False  # nothing is compiled while a query runs, and the wrapper costs more than the check

        def note(self, tensor: Any) -> None:
            if tensor.layout == torch.strided:
                storage = tensor.untyped_storage()
                if storage._cdata not in self.made:
                    self.made[storage._cdata] = storage._weak_ref()

        def forget(self) -> None:
            made, self.made = self.made, {}
            deque(map(torch.UntypedStorage._free_weak_ref, made.values()), 0)

        def owns(self, tensor: Any) -> bool:
            return tensor.layout == torch.strided and tensor.untyped_storage()._cdata in self.made

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            schema = func._schema
            if func.namespace not in _NAMESPACES:
                raise Refusal(f"{func} is not known to be harmless: collectives and custom operators are not run")
            if schema.is_mutable:
                self._may_write(func, args, kwargs)
            elif schema.name.rpartition(":")[2] in _NORMALIZATIONS:
                self._may_normalize(func, schema, args, kwargs)
            if seeded in func.tags and _draws(schema, args, kwargs):
                result = _drawn(torch, func, schema, args, kwargs)
            else:
                result = func(*args, **kwargs)
            given = {t.untyped_storage()._cdata for t in _tensors(torch, (args, kwargs)) if t.layout == torch.strided}
            for tensor in _tensors(torch, result):
                if tensor.layout == torch.strided and tensor.untyped_storage()._cdata not in given:
                    self.note(tensor)
            return result

        def _may_write(self, func: Any, args: Any, kwargs: Any) -> None:
            for place, argument in enumerate(func._schema.arguments):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    value = args[place] if place < len(args) else kwargs.get(argument.name)
                    for tensor in _tensors(torch, value):
                        if not self.owns(tensor):
                            raise Unwatched(f"{func} would write to a tensor of the job")

        def _may_normalize(self, func: Any, schema: Any, args: Any, kwargs: Any) -> None:
            values = {a.name: args[n] if n < len(args) else kwargs.get(a.name) for n, a in enumerate(schema.arguments)}
            if values.get("training"):
                for name in ("running_mean", "running_var"):
                    if values.get(name) is not None and not self.owns(values[name]):
                        raise Refusal(f"{func} would write to the running statistics of the job")

    return Watch


def _tensors(torch: Any, value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(torch, one)
    elif isinstance(value, dict):
        for one in value.values():
            yield from _tensors(torch, one)


def _draws(schema: Any, args: Any, kwargs: Any) -> bool:
    """Return False for dropout that drops nothing."""
    values = {a.name: args[n] if n < len(args) else kwargs.get(a.name, a.default_value)
              for n, a in enumerate(schema.arguments)}  # fmt: skip
    if values.get("train") is False or values.get("training") is False:
        return False
    chances = [values[name] for name in _CHANCES if name in values]
    return not chances or any(chances)


def _drawn(torch: Any, func: Any, schema: Any, args: Any, kwargs: Any) -> Any:
    """Return what the operator gives with random numbers of the evaluation's own."""
    name = schema.name.rpartition(":")[2]
    first = args[0] if args else None
    device = kwargs.get("device") or (first.device if isinstance(first, torch.Tensor) else torch.get_default_device())
    generator = _generator(torch, torch.device(device))
    if any(argument.name == "generator" for argument in schema.arguments):
        given = kwargs.get("generator")
        if given is not None and given._cdata not in current().own:
            raise Refusal("a generator of the job would be advanced")
        return func(*args, **{**kwargs, "generator": given or generator})
    if name == "native_dropout":
        kept = torch.empty_like(first).bernoulli_(1 - args[1], generator=generator).bool()
        return first * kept / (1 - args[1]), kept
    if name in ("rand_like", "randn_like"):
        made = torch.empty_like(first, **{k: v for k, v in kwargs.items() if v is not None})
        return made.uniform_(generator=generator) if name == "rand_like" else made.normal_(generator=generator)
    overload = getattr(getattr(torch.ops.aten, name), "generator", None)
    if overload is not None:
        return overload(*args, **{**kwargs, "generator": generator})
    raise Refusal(f"{func} draws from the random numbers of the job")


_generators: dict[Any, Any] = {}


def _generator(torch: Any, device: Any) -> Any:
    """Return the random numbers that queries draw from, which are never the job's."""
    if device not in _generators:
        _generators[device] = torch.Generator(device=device).manual_seed(0)
    return _generators[device]
