"""List the harmless functions and methods, by identity and by exact type.

They draw no random numbers, write to nothing that they are given and keep nothing.
"""

from __future__ import annotations

import builtins
import collections
import copy
import functools
import heapq
import inspect
import itertools
import logging
import math
import operator
import os
import statistics
import sys
import time
import types
import warnings
import weakref
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np

from looptap.streams.harmless.plain import is_of_torch
from looptap.streams.harmless.syntax import split_words

COMPUTES = [
    *(getattr(builtins, name) for name in split_words(
        "abs all any bin bool bytes bytearray chr complex divmod float hash hex int max min oct ord pow range round "
        "slice sorted sum"
    )),
    *(value for name, value in vars(math).items() if callable(value) and name[0] != "_"),
    *(getattr(statistics, name) for name in split_words(
        "mean fmean geometric_mean harmonic_mean median median_low median_high median_grouped mode multimode quantiles "
        "pstdev pvariance stdev variance covariance correlation linear_regression"
    )),
    *(getattr(operator, name) for name in split_words(
        "abs add and_ concat contains countOf eq floordiv ge getitem gt index indexOf inv invert le lshift lt matmul "
        "mod mul ne neg not_ or_ pos pow rshift sub truediv truth xor"
    )),
    functools.reduce, heapq.nlargest, heapq.nsmallest, heapq.merge,
    time.time, time.monotonic, time.perf_counter, time.process_time, time.thread_time, time.time_ns, time.strftime,
    os.getpid, os.getloadavg, os.cpu_count, sys.getsizeof, sys.getrecursionlimit, sys.intern,
]
"""Functions that compute from their arguments: these, and all that they contain, have to be plain values."""

ITERATES = [
    list, tuple, zip, enumerate, reversed, map, filter, collections.deque,
    *(value for name, value in vars(itertools).items() if name[0] != "_" and callable(value)),
]
"""Functions that hold or count the items of their arguments, which may be anything."""

FUNCTION_AT = {
    map: 0, filter: 0, itertools.filterfalse: 0, itertools.takewhile: 0, itertools.dropwhile: 0, itertools.starmap: 0,
    itertools.groupby: 1, itertools.accumulate: 1,
}
"""The place of the function that they call."""
COMPARING = (filter, itertools.filterfalse, itertools.groupby, itertools.accumulate)
"""Functions that test, compare or add the items if they are given no function for that."""
COUNTING = (
    enumerate, collections.deque, itertools.islice, itertools.tee, itertools.permutations, itertools.combinations,
    itertools.combinations_with_replacement,
)
"""Functions whose arguments after the first are numbers."""

HOLDS = [id, callable, operator.is_, operator.is_not, functools.partial]
"""Functions that use nothing of their arguments."""

SHOWS = [str, repr, ascii, format]
"""Functions that make text of their first argument."""

SILENT = [warnings.warn, *(getattr(logging.Logger, name) for name in split_words(
    "debug info warning error exception critical log"
))]
"""Functions that warn and log, which a question does not."""

KEYS = [dict, set, frozenset, collections.Counter, collections.OrderedDict, dict.fromkeys, collections.defaultdict]
"""Functions that compute the hash of what they hold."""

_NUMPY = split_words(
    "abs absolute all allclose amax amin angle any append apply_along_axis apply_over_axes arange argmax argmin "
    "argpartition argsort argwhere around array array_equal array_split asarray ascontiguousarray atleast_1d "
    "atleast_2d atleast_3d average bincount block broadcast_arrays broadcast_to clip column_stack concatenate "
    "convolve corrcoef correlate count_nonzero cov cross cumprod cumsum diag diagonal diff digitize dot dsplit dstack "
    "ediff1d einsum empty empty_like expand_dims eye fix flatnonzero flip fliplr flipud full full_like geomspace "
    "gradient histogram histogram2d histogramdd histogram_bin_edges hsplit hstack identity imag indices inner "
    "interp intersect1d isclose iscomplex iscomplexobj isin isreal isrealobj isscalar kron lexsort linspace logspace "
    "max mean median meshgrid min moveaxis nan_to_num nanargmax nanargmin nanmax nanmean nanmedian nanmin "
    "nanpercentile nanquantile nanstd nansum nanvar ndim nonzero ones ones_like outer pad partition percentile "
    "polyfit polyval prod ptp quantile ravel real repeat reshape resize roll rollaxis rot90 round searchsorted "
    "select setdiff1d setxor1d shape size sort split squeeze stack std sum swapaxes take take_along_axis tensordot "
    "tile trace transpose trapezoid tri tril triu union1d unique unravel_index unwrap vander var vdot vsplit vstack "
    "where zeros zeros_like finfo iinfo float16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 "
    "bool_ complex64 complex128 dtype matmul isneginf isposinf sinc i0 array_str array_repr result_type can_cast"
)
_LINALG = split_words(
    "norm svd svdvals eig eigh eigvals eigvalsh det slogdet inv pinv solve lstsq cond matrix_rank matrix_power qr "
    "cholesky multi_dot"
)
_TORCH = split_words(
    "tensor as_tensor from_numpy asarray is_tensor is_floating_point is_complex numel is_nonzero Size device dtype "
    "finfo iinfo typename is_grad_enabled is_inference_mode_enabled get_default_dtype get_default_device "
    "get_num_threads initial_seed is_autocast_enabled are_deterministic_algorithms_enabled "
    "get_float32_matmul_precision broadcast_shapes can_cast promote_types result_type"
)
_TORCH_ELSEWHERE = split_words(
    "cuda.is_available cuda.device_count cuda.current_device cuda.memory_allocated cuda.max_memory_allocated "
    "cuda.memory_reserved cuda.max_memory_reserved cuda.is_initialized cuda.get_device_name "
    "cuda.memory_stats cuda.is_current_stream_capturing xpu.is_current_stream_capturing "
    "distributed.is_initialized distributed.is_available distributed.get_rank "
    "distributed.get_world_size backends.mps.is_available Generator.initial_seed "
    "_C._has_torch_function _C._has_torch_function_unary _C._has_torch_function_variadic _C._get_tracing_state "
    "_C._to_dlpack _C._to_dlpack_versioned"
)

MUTATORS = frozenset(split_words(
    "append extend insert pop remove clear sort reverse update setdefault popitem add discard appendleft popleft "
    "extendleft rotate move_to_end subtract difference_update intersection_update symmetric_difference_update "
    "fill put itemset partition resize __setitem__ __delitem__ __iadd__ __ior__ __iand__ __isub__ __ixor__ __imul__"
))
"""Methods that change a container or an array."""
COMPARES = frozenset({"index", "count", "remove", "sort", "__contains__"})
"""Methods of containers that compare the items."""
NEVER = frozenset(split_words(
    "tofile dump dumps setflags setfield byteswap view_ __reduce__ __reduce_ex__ __setstate__"
))
"""Methods of arrays that write, or whose result depends on the memory of others."""

PROTOCOLS = frozenset(split_words("__array__ __dlpack__ __dlpack_device__ __len__ __contains__ __iter__ __reversed__"))
"""Methods with underscores that values of Python's own types may be asked by name."""
READS = frozenset(split_words("keys values items get index count __len__ __iter__ __contains__"))
"""Methods of containers that do the same for each subclass, and call nothing of it."""
CONTAINERS_OF_PYTHON = (dict, collections.OrderedDict, list, set, object)
"""Classes whose `READS` do what they say."""
ITERATING = frozenset({"extend", "extendleft"})
"""Methods that iterate over their argument."""
HASHING = frozenset(split_words(
    "union intersection difference symmetric_difference difference_update intersection_update "
    "symmetric_difference_update issubset issuperset isdisjoint subtract update"
))
"""Methods that hash the items of their arguments."""
KEYED = frozenset(split_words(
    "get pop setdefault __setitem__ __delitem__ __contains__ move_to_end add discard remove"
))
"""Methods of dicts and sets whose first argument is hashed."""
HOLDING = frozenset({("append", 0), ("appendleft", 0), ("insert", 1), ("__setitem__", 1)})
"""Methods of sequences, and the argument that becomes an item."""
MAKING = frozenset(split_words(
    "copy split rsplit most_common union intersection difference tolist __iter__ __reversed__ elements"
))
"""Methods that make a container or an iterator."""

TENSOR_READS = frozenset(split_words(
    "item tolist numpy cpu cuda numel nelement dim ndimension size stride element_size is_contiguous storage_offset "
    "is_floating_point is_complex is_signed get_device type data_ptr is_shared is_pinned norm split unique "
    "unique_consecutive stft istft __len__ __iter__ __contains__ __getitem__ to double float half int long bool short "
    "byte char bfloat16 has_names is_set_to is_inference is_conj is_neg view_as_real lu symeig to_sparse to_dense "
    "detach clone contiguous nonzero new new_tensor new_zeros new_ones new_full new_empty __deepcopy__ is_same_size "
    "dim_order"
))
"""Methods of tensors that torch implements outside of its operators, or under another name."""
TENSOR_NEVER = frozenset(split_words(
    "requires_grad_ retain_grad set_data resize_ resize_as_ rename_ set_ record_stream backward register_hook detach_ "
    "share_memory_ _backward apply_ map_ map2_ register_post_accumulate_grad_hook storage untyped_storage data_ptr_ "
    "module_load pin_memory"
))
"""Methods of tensors that change what no operator shows."""
MODULE_METHODS = frozenset(split_words(
    "parameters named_parameters buffers named_buffers modules named_modules children named_children get_submodule "
    "get_parameter get_buffer __len__ __iter__ __getitem__ __contains__ keys values items _get_name"
))
"""Methods of torch's that only walk over a model."""

_language: list[Callable[..., Any]] = []
F = TypeVar("F", bound=Callable[..., Any])


def register_helpers(functions: Iterable[Callable[..., Any]]) -> None:
    """Add functions of the query language, which may read models and optimizers."""
    _language.extend(functions)
    of_identity.cache_clear()


@functools.cache
def of_identity() -> dict[int, tuple[Callable[..., Any], str]]:
    """Return the rule of each known function by its identity; without torch."""
    found: dict[int, tuple[Callable[..., Any], str]] = {}

    def add(functions: Iterable[Any], rule: str) -> None:
        found.update((id(f), (f, rule)) for f in functions)

    add(_language, "helper")
    add(COMPUTES, "computes")
    add(ITERATES, "iterates")
    add(HOLDS, "holds")
    for one in (getattr, hasattr, vars, setattr, delattr, len, next, itertools.repeat):
        add([one], one.__name__)
    add((isinstance, issubclass), "class")
    add((type, iter, inspect.signature, weakref.ref), "alone")
    add((operator.itemgetter, operator.attrgetter), "getter")
    add(KEYS, "keys")
    add(SHOWS, "shows")
    add(SILENT, "silent")
    add((copy.copy, copy.deepcopy), "copies")
    add((getattr(np, name) for name in _NUMPY if hasattr(np, name)), "computes")
    add((getattr(np.linalg, name) for name in _LINALG if hasattr(np.linalg, name)), "computes")
    add((value for value in vars(np).values() if isinstance(value, np.ufunc)), "computes")
    if "numpy.fft" in sys.modules:
        add((value for value in vars(np.fft).values() if callable(value)), "computes")
    return found


@functools.cache
def of_torch() -> dict[int, tuple[Callable[..., Any], str]]:
    """Return the rule of the known functions of torch that are no operators."""
    torch: Any = sys.modules["torch"]
    every = [getattr(torch, name, None) for name in _TORCH]
    for path in _TORCH_ELSEWHERE:
        thing: Any = torch
        for step in path.split("."):
            thing = getattr(thing, step, None)
        every.append(thing)
    found = {id(f): (f, "computes") for f in every
             if f is not None and (not isinstance(f, types.FunctionType) or is_of_torch(f))}
    contexts = (torch.no_grad, torch.inference_mode, torch.enable_grad, torch.set_grad_enabled, torch.autocast)
    found.update((id(f), (f, "context")) for f in contexts)
    apply = torch.autograd.Function.__dict__["apply"].__func__
    found[id(apply)] = apply, "applied"
    found[id(torch._C._log_api_usage_once)] = torch._C._log_api_usage_once, "silent"
    found.update((id(f), (f, "refuses")) for f in (torch.autograd.grad, torch.autograd.backward))
    return found
