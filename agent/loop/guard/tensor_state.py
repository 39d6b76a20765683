"""The state of tensors and arrays before a query, and what can be restored.

Restored are gradients, `requires_grad`, the graph, data that was exchanged, and the contents of what is small and lies
on the host, or is a buffer. What is larger is watched: a tensor counts its changes itself (``_version``), and of an
array, or of data reached past that count, a sample is compared.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import numpy as np

from looptap.streams.values.plain import TENSOR, kind_of

SMALL_BYTES = 65_536
"""Tensors larger than this are not copied."""
MAX_COPIED_BYTES = 1_048_576
"""Bytes of all copies of one guard."""
MAX_COPIED_TENSORS, MAX_SAMPLED_TENSORS = 512, 64
"""Small tensors that are copied, besides buffers, and large ones that are sampled; first those that the query names."""
MAX_SAMPLED_ELEMENTS = 1024
"""Elements of a large tensor that are compared."""
MAX_NAMED_BYTES = 64 * 1024 * 1024
"""Bytes that are copied of large tensors, if the query names them and may write past the count of their changes."""
MAX_NAMED_ARRAY_BYTES = 4 * 1024 * 1024
"""Bytes of an array, which counts no changes, that is copied if the query names it."""
_PAST_THE_COUNT = frozenset({"data", "numpy", "untyped_storage", "storage", "asarray", "from_dlpack", "__array__"})
MAX_NON_LEAVES = 16
"""Results of the loop whose graph node is kept."""


class ObjectPath(NamedTuple):
    """A path to an object, as its parent and one step; formatted only for a report."""

    parent: ObjectPath | None
    step: str
    key: Any = None

    def __str__(self) -> str:
        key = self.key
        own = self.step
        if own == "[":
            own = f"[{key!r:.40}]" if isinstance(key, str | int | float | tuple) else f"[<{type(key).__name__}>]"
        if self.parent is None:
            return own
        return f"{self.parent}{own}" if self.step == "[" else f"{self.parent}.{own}"


class Change(NamedTuple):
    """Something that the query has changed."""

    path: ObjectPath
    undone: bool
    thing: Any = None


class _Tensor:
    """A tensor's recorded state."""

    __slots__ = (
        "buffer", "data", "grad", "grad_fn", "kind", "path", "requires", "retained", "tensor", "twin", "version",
    )  # fmt: skip

    def __init__(self, tensor: Any, path: ObjectPath, buffer: bool) -> None:
        self.tensor, self.path, self.buffer, self.twin = tensor, path, buffer, None
        leaf, self.kind = tensor.is_leaf, type(tensor)
        self.version = -1 if tensor.is_inference() else tensor._version
        self.requires = tensor.requires_grad if leaf else None
        self.retained = tensor.retains_grad
        self.grad = tensor.grad if leaf or self.retained else None
        self.grad_fn = None if leaf else tensor.grad_fn
        self.data = tensor.detach()


class Tensors:
    """The tensors and arrays that a query can reach, as they are now."""

    def __init__(self) -> None:
        self.torch: Any = sys.modules.get("torch")
        self._all: list[_Tensor] = []
        self._non_leaves: list[_Tensor] = []
        self._groups: dict[Any, list[_Tensor]] = {}
        self._kept: list[tuple[list[_Tensor], Any]] = []
        self._arrays: list[tuple[ObjectPath, Any, Any]] = []
        self._samples: list[tuple[ObjectPath, Any, Any]] = []
        self._candidates: list[_Tensor] = []
        self._bytes = MAX_COPIED_BYTES

    def add(self, tensor: Any, path: ObjectPath, buffer: bool = False) -> Any:
        """Record a tensor; return its gradient. A ``buffer`` is restored silently."""
        one = _Tensor(tensor, path, buffer)
        self._all.append(one)
        if not self._is_plain(tensor):
            return one.grad
        if one.requires is None and tensor.requires_grad and len(self._non_leaves) < MAX_NON_LEAVES:
            self._non_leaves.append(one)
        self._candidates.append(one)
        return one.grad

    def _is_plain(self, tensor: Any) -> bool:
        """Return True if the memory can be copied without calling code of the job."""
        dispatches = type(tensor).__torch_dispatch__ is not self.torch.Tensor.__torch_dispatch__
        if dispatches or tensor.layout is not self.torch.strided or tensor.is_meta or tensor.is_nested:
            return False
        if type(tensor) is not self.torch.Tensor and self.torch.nn.parameter.is_lazy(tensor):
            return False
        return bool(not tensor.numel() or tensor.untyped_storage().nbytes())  # sharding frees it for a while

    def add_array(self, array: Any, path: ObjectPath, named: Collection[str] = ()) -> None:
        """Record an array; a large one wholly if the query has ``named`` it."""
        if array.dtype.hasobject or not array.size:
            return
        whole = array.nbytes <= MAX_NAMED_ARRAY_BYTES and not _unnamed(path, named)
        if whole or (array.nbytes <= SMALL_BYTES and array.nbytes <= self._bytes):
            self._bytes -= 0 if whole else array.nbytes
            self._arrays.append((path, array, np.array(array, copy=True, subok=False)))
        else:
            step = max(1, round((array.size / MAX_SAMPLED_ELEMENTS) ** (1 / array.ndim)))
            chosen = array[(slice(None, None, step),) * array.ndim]
            self._samples.append((path, chosen, chosen.copy()))

    def keep(self, named: Collection[str] = ()) -> None:
        """Copy small tensors, all of a kind at once, and keep results' graph nodes.

        First those on whose path are most of the words that the query has ``named``.
        """
        if len(self._candidates) > MAX_SAMPLED_TENSORS:
            self._candidates.sort(key=lambda one: _unnamed(one.path, named))
        copies, samples, whole = MAX_COPIED_TENSORS, MAX_SAMPLED_TENSORS, MAX_NAMED_BYTES
        past = not _PAST_THE_COUNT.isdisjoint(named)
        for one in self._candidates:
            size, host = one.data.nbytes, one.data.is_cpu
            if size <= SMALL_BYTES and size <= self._bytes and (one.buffer or (copies > 0 and host)):
                copies -= not one.buffer
                self._bytes -= size
                self._groups.setdefault((one.data.dtype, one.data.device), []).append(one)
            elif past and host and size <= whole and not _unnamed(one.path, named):
                whole -= size
                self._groups.setdefault((one.data.dtype, one.data.device), []).append(one)
            elif host and samples > 0 and one.data.ndim and not one.data.is_quantized:
                samples -= 1
                flat = one.data.view(-1) if one.data.is_contiguous() else one.data
                step = max(1, round((flat.numel() / MAX_SAMPLED_ELEMENTS) ** (1 / flat.ndim)))
                chosen = flat[(slice(None, None, step),) * flat.ndim]
                self._samples.append((one.path, chosen, chosen.clone()))
        for members in self._groups.values():
            self._kept.append((members, self._flat(members)))
        if self._non_leaves:
            with self.torch.enable_grad():
                for one in self._non_leaves:  # a change in place of what is large takes its alias with it
                    small = one.data.nbytes <= MAX_COPIED_BYTES
                    one.twin = one.tensor.clone() if small else self.torch.ops.aten.alias(one.tensor)

    def restore(self) -> Iterator[Change]:
        """Restore what can be; yield what had changed, buffers excepted."""
        for one in self._candidates:
            yield from self._memory(one)
        for one in self._all:
            try:
                yield from self._attributes(one)
            except Exception:  # of a kind that cannot be put back; the others can
                yield Change(one.path, False, one.tensor)
        copied = {id(one) for members, _ in self._kept for one in members}
        restored = {id(one) for members, kept in self._kept for one in self._restored(members, kept)}
        for one in self._all:
            changed = id(one) in restored
            if one.version >= 0 and one.tensor._version != one.version:
                self._set_version(one.tensor, one.version)
                changed = True
            if changed and not (one.buffer and id(one) in copied):
                yield Change(one.path, id(one) in copied, one.tensor)
        for path, array, copy in self._arrays:
            if array.shape != copy.shape or array.dtype != copy.dtype or _differ(array, copy):
                yield Change(path, _rewritten(array, copy), array)
        for path, chosen, copy in self._samples:
            if _differ(chosen, copy) if isinstance(copy, np.ndarray) else _unequal(chosen, copy):
                yield Change(path, False, chosen)

    def _memory(self, one: _Tensor) -> Iterator[Change]:
        """Restore memory that a query has freed: to touch it would end the process."""
        storage = one.data.untyped_storage()
        needed = (one.data.storage_offset() + _span(one.data)) * one.data.element_size()
        if storage.nbytes() < needed:
            storage.resize_(needed)
            yield Change(one.path, False, one.tensor)

    def _attributes(self, one: _Tensor) -> Iterator[Change]:
        """Restore a tensor's data, graph node, `requires_grad` and gradient."""
        tensor, data = one.tensor, one.data
        if type(tensor) is not one.kind:
            tensor.data = data
            tensor.__class__ = one.kind
            yield Change(one.path, True, tensor)
        elif kind_of(one.kind) == TENSOR and self._is_exchanged(tensor, data):
            tensor.data = data
            yield Change(one.path, True, tensor)
        if one.twin is not None and tensor.grad_fn is not one.grad_fn and self._has_history(one):
            tensor.detach_()
            with self.torch.enable_grad():
                tensor.copy_(one.twin)
            yield Change(ObjectPath(one.path, "grad_fn"), True, tensor)
        elif one.requires is not None and tensor.is_leaf and tensor.requires_grad != one.requires:
            tensor.requires_grad_(one.requires)
            yield Change(ObjectPath(one.path, "requires_grad"), True, tensor)
        elif one.requires is None and tensor.retains_grad and not one.retained:
            yield Change(ObjectPath(one.path, "retains_grad"), False, tensor)
        if (one.requires is not None or tensor.retains_grad) and tensor.grad is not one.grad:
            tensor.grad = one.grad
            yield Change(ObjectPath(one.path, "grad"), True, tensor)

    def _is_exchanged(self, tensor: Any, data: Any) -> bool:
        """Return True if a tensor has other data than it had.

        A sparse one has no strides and no address, a nested one has no shape either.
        """
        if (tensor.dtype, tensor.layout) != (data.dtype, data.layout):
            return True
        if tensor.is_nested:
            return False
        strided = tensor.layout is self.torch.strided
        return tensor.shape != data.shape or bool(
            strided and (tensor.stride() != data.stride() or tensor.data_ptr() != data.data_ptr())
        )

    def _has_history(self, one: _Tensor) -> bool:
        """Return True if a tensor's twin still has its place in the graph."""
        return bool(one.tensor.is_leaf or one.data.nbytes <= MAX_COPIED_BYTES)

    def _restored(self, members: list[_Tensor], kept: Any) -> Iterator[_Tensor]:
        """Restore the contents of tensors of one kind; return those that had changed."""
        now = self._flat(members) if kept.is_cpu else None  # of a device nothing is compared: that would wait for it
        if now is not None and not _unequal(now, kept):
            return
        sizes = [one.tensor.numel() for one in members]
        for one, before in zip(members, kept.split(sizes), strict=True):
            before = before.view(one.tensor.shape)
            if now is None or _unequal(one.data, before):
                with self.torch.inference_mode(one.version < 0):
                    one.data.copy_(before)
                yield one

    def _flat(self, members: list[_Tensor]) -> Any:
        return self.torch.cat([one.data.reshape(-1) for one in members])

    def _set_version(self, tensor: Any, version: int) -> None:
        """Reset a tensor's version, so that the loop's backward pass does not fail."""
        self.torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))


def _span(tensor: Any) -> int:
    """Return how many elements of its storage a tensor spreads over."""
    if not tensor.numel():
        return 0
    return 1 + sum((int(size) - 1) * int(stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _unnamed(path: ObjectPath, named: Collection[str]) -> int:
    """Return how many steps of a path the query does not mention."""
    count = 0
    at: ObjectPath | None = path
    while at is not None:
        count += at.step not in named and str(at.key) not in named
        at = at.parent
    return count


def _rewritten(array: Any, copy: Any) -> bool:
    """Restore an array's shape and contents; return False if it refuses them."""
    try:
        if array.shape != copy.shape:
            array.resize(copy.shape, refcheck=False)
        array[...] = copy
    except Exception:  # it has become read-only, or does not own its memory
        return False
    return True


def _differ(array: Any, copy: Any) -> bool:
    return bool(array.tobytes() != copy.tobytes())


def _unequal(now: Any, before: Any) -> bool:
    """Return True if two tensors of a kind differ; a NaN is equal to itself."""
    torch = sys.modules["torch"]
    if torch.equal(now, before):
        return False
    return not torch.equal(*(t.reshape(-1).contiguous().view(torch.uint8) for t in (now, before)))
