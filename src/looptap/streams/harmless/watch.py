"""Run operators of torch, so that they write to nothing of the job's.

torch itself says which operators write to an argument (the schema) and which draw random numbers (a tag). Those that do
neither run as they are. Of the others, each step is seen before it happens: a write is let through to storage that the
evaluation made, a draw comes from a generator of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from looptap.streams.harmless.checked_evaluation import current
from looptap.streams.harmless.refusal import Refusal

_NAMESPACES = frozenset({"aten", "prim", "prims", "torchvision", "mkldnn", "quantized"})
_NORMALIZATIONS = frozenset({"native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "_batch_norm_impl_index"})
"""Operators that write running statistics, although their schema does not say so."""
_HIDDEN = frozenset({"running_mean", "running_var", "train", "training", "dropout", "dropout_p", "generator"})
"""Arguments of operators that are made of others, which write or draw."""
_CHANCES = frozenset({"p", "dropout", "dropout_p", "drop_rate"})

PURE, WRITES_FIRST, MIXED = "pure", "writes first", "mixed"
"""What operators do: only compute, only write to their first argument, or anything else."""


@cache
def effect(name: str) -> str:
    """Return what torch's operators of a name do; "" if there are none."""
    inner = [one for one in _overloads(name) if not any(argument.is_out for argument in one._schema.arguments)]
    if not inner or any(_writes_or_draws_unseen(one) for one in inner) or name in _NORMALIZATIONS:
        return MIXED if inner else ""
    written = {tuple(_written(one._schema)) for one in inner}
    if written == {()} and all(one._schema.returns for one in inner):
        return PURE
    return WRITES_FIRST if written == {(0,)} else MIXED


def _overloads(name: str) -> list[Any]:
    try:
        packet = getattr(sys.modules["torch"].ops.aten, name)
        return [getattr(packet, overload) for overload in packet.overloads()]
    except (AttributeError, RuntimeError):
        return []


def _writes_or_draws_unseen(overload: Any) -> bool:
    """Return True for an operator that draws, or whose parts may write or draw."""
    draws = sys.modules["torch"].Tag.nondeterministic_seeded in overload.tags
    return draws or bool(_HIDDEN & {argument.name for argument in overload._schema.arguments})


def operate(f: Callable[..., Any], name: str, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Return what the operator ``name`` gives, called as ``f``; plain arguments."""
    does = effect(name)
    may_write(f"{name} with out=", named.get("out"))
    if does == WRITES_FIRST:
        may_write(name, given[0] if given else named)
    result = f(*given, **named) if does in (PURE, WRITES_FIRST) else watched(f, *given, **named)
    if does != WRITES_FIRST:
        note_storages(result, given, named)
    return result


def watched(do: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """Return ``do(…)`` with each of its tensor operations checked."""
    evaluation = current()
    torch = sys.modules.get("torch")
    if torch is None or evaluation.is_watching:
        return do(*given, **named)
    evaluation.keep_modes()
    with _watch_class(torch)():
        evaluation.is_watching = True
        try:
            return do(*given, **named)
        finally:
            evaluation.is_watching = False


def note_storages(result: Any, *given: Any) -> None:
    """Note the storages of a result that are not of what was given."""
    strided, storages, old = sys.modules["torch"].strided, current().storages, set()
    for tensor in _tensors(given):
        if tensor.layout != strided:
            return  # whose parts may be those of the result
        old.add(tensor.untyped_storage()._cdata)
    for tensor in _tensors(result):
        if tensor.layout == strided:
            storage = tensor.untyped_storage()
            if storage._cdata not in old and storage._cdata not in storages:
                storages[storage._cdata] = storage._weak_ref()


def owns(tensor: Any) -> bool:
    """Return True for a tensor whose storage the evaluation made."""
    strided = sys.modules["torch"].strided
    return tensor.layout == strided and tensor.untyped_storage()._cdata in current().storages


def may_write(what: Any, value: Any) -> None:
    """Refuse a write to a tensor that the evaluation has not made."""
    if not all(map(owns, _tensors(value))):
        raise Refusal(f"{what} would write to a tensor of the job")


@cache
def _watch_class(torch: Any) -> Any:
    class Watch(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[misc]  # torch is not imported here
        """The mode in which one operator of unknown parts runs."""

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False  # nothing is compiled while a query runs, and the wrapper costs more than the check

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            schema, kwargs = func._schema, kwargs or {}
            if func.namespace not in _NAMESPACES:
                raise Refusal(f"{func} is not known to be harmless: collectives and custom operators are not run")
            values = {
                a.name: args[n] if n < len(args) else kwargs.get(a.name, a.default_value)
                for n, a in enumerate(schema.arguments)
            }
            for place in _written(schema):
                may_write(func, values[schema.arguments[place].name])
            if schema.name.rpartition(":")[2] in _NORMALIZATIONS and values["training"]:
                may_write(func, [values["running_mean"], values["running_var"]])
            if torch.Tag.nondeterministic_seeded in func.tags and _draws(values):
                result = _drawn(torch, func, args, kwargs)
            else:
                result = func(*args, **kwargs)
            note_storages(result, args, kwargs)
            return result

    return Watch


def _written(schema: Any) -> Iterator[int]:
    """Yield the places of the arguments to which an operator writes."""
    for place, argument in enumerate(schema.arguments if schema.is_mutable else ()):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield place


def _tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, sys.modules["torch"].Tensor):
        yield value
    elif isinstance(value, list | tuple | dict):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _tensors(one)


def _draws(values: dict[str, Any]) -> bool:
    """Return False for dropout that drops nothing."""
    if values.get("train") is False or values.get("training") is False:
        return False
    chances = [values[name] for name in _CHANCES if name in values]
    return not chances or any(chances)


def _drawn(torch: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Return what the operator gives with random numbers of the evaluation's own."""
    name = func._schema.name.rpartition(":")[2]
    first = args[0] if args else None
    device = kwargs.get("device") or (first.device if isinstance(first, torch.Tensor) else torch.get_default_device())
    generator = _generator(torch, torch.device(device))
    if any(argument.name == "generator" for argument in func._schema.arguments):
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
