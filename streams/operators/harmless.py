"""Functions, methods and attributes that are harmless on plain values.

They do not draw random numbers, write or keep anything. Everything else runs in the agent's guard.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

from looptap.streams.aggregations.registry import REDUCERS
from looptap.streams.values.checks import HELPERS
from looptap.streams.values.modules.module_read import KINDS

MAX_POSITIONAL_ARGUMENTS = 99
"""Positional arguments of a function that writes to none of them."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


BUILTINS = _words(
    "abs all any ascii bin bool bytes chr complex dict divmod enumerate filter float format frozenset hex int iter len "
    "list map max min next oct ord pow range repr reversed round set slice sorted str sum tuple zip isinstance"
)
MODEL_HELPERS, OPTIMIZER_HELPERS = {"layer_norms", "layer_histograms"}, {"lr"}
NAMES = BUILTINS | set(REDUCERS) | (set(HELPERS) - MODEL_HELPERS - OPTIMIZER_HELPERS) | {"accumulate", "ema", *KINDS}
COLUMN_HELPERS = frozenset({"batch_topk", "batch_bottomk", "batch_sample"})
"""Helpers with arbitrary keywords, which name the columns of a row."""
OPERATORS = _words(
    "abs add and_ concat contains countOf eq floordiv ge getitem gt indexOf inv invert is_ is_not le lshift lt matmul "
    "mod mul ne neg not_ or_ pos pow rshift sub truediv truth xor"
)
STATISTICS = _words(
    "mean fmean geometric_mean harmonic_mean median median_low median_high median_grouped mode multimode quantiles "
    "pstdev pvariance stdev variance covariance correlation linear_regression"
)
ARRAYS: dict[str, int] = {
    **dict.fromkeys(_words("abs isnan isinf isfinite sqrt exp log log10 square sigmoid count_nonzero unique"), 1),
    **dict.fromkeys(_words("mean sum min max std var median argmax argmin any all argsort sort stack cat"), 2),
    **dict.fromkeys(_words("concatenate asarray array bincount dot matmul flatten softmax float32 float64 int64"), 2),
    **dict.fromkeys(_words("norm clip clamp topk histogram histc percentile quantile where sign log2 log1p"), 3),
}
"""Functions of torch and numpy, with the maximum number of positional arguments: they may write to later ones."""
ARRAYS.update(dict.fromkeys(_words("sign log2 log1p"), 1))
DOTTED = {"linalg.norm": 2, "linalg.vector_norm": 2}
CONSTANTS = {
    "math": _words("pi e inf nan tau"),
    "np": _words("pi e inf nan newaxis float16 float32 float64 int8 int16 int32 int64 uint8 bool_ ndarray"),
    "torch": _words("float16 bfloat16 float32 float64 float double half int8 int16 int32 int64 long uint8 bool Tensor"),
}
CONSTANTS["numpy"] = CONSTANTS["np"]
OUT = ("np", "numpy", "torch")  # their functions, passed as arguments, may get an array to write to
MODULES: dict[str, Mapping[str, int]] = {
    "math": dict.fromkeys(
        (name for name, value in vars(math).items() if callable(value) and name[0] != "_"), MAX_POSITIONAL_ARGUMENTS
    ),
    "statistics": dict.fromkeys(STATISTICS, MAX_POSITIONAL_ARGUMENTS),
    "itertools": dict.fromkeys((name for name in vars(itertools) if name[0] not in "_"), MAX_POSITIONAL_ARGUMENTS),
    "functools": {"reduce": 3},
    "operator": dict.fromkeys(OPERATORS, 2),
    "collections": {"Counter": 1},
    "heapq": {"nlargest": 3, "nsmallest": 3, "merge": MAX_POSITIONAL_ARGUMENTS},
    **{module: {**ARRAYS, **DOTTED} for module in OUT},
}
HANDED = _words("map filter reduce starmap takewhile dropwhile filterfalse")
METHODS: dict[str, int] = {
    **{name: max(count - 1, 0) for name, count in ARRAYS.items() if name != "sort"},
    **dict.fromkeys(
        _words(
            "item long int bool float double half cpu detach numpy tolist numel dim size view reshape permute "
            "transpose t squeeze unsqueeze flatten ravel astype to clone contiguous expand keys values items "
            "lower upper title strip lstrip rstrip split join format startswith endswith most_common nonzero"
        ),
        9,
    ),
    **dict.fromkeys(_words("amax amin prod cumsum diff eq ne lt le gt ge pow round trace isnan"), 1),
    **dict.fromkeys(_words("get replace count index copy norm quantile topk clip clamp chunk unbind"), 2),
}
"""Methods of plain values, with the maximum number of positional arguments."""
CASTS = _words("float double half cpu to")  # copy a tensor, but change a module in place
MODEL_METHODS = _words("parameters named_parameters buffers named_buffers")
ATTRIBUTES = _words(
    "shape ndim dtype device grad requires_grad is_leaf T mT real imag nbytes itemsize is_cpu is_cuda layout data "
    "start stop step numerator denominator"
)
"""Attributes of plain values."""
KEYWORDS = _words(
    "axis axes dim dims keepdim keepdims dtype key default p ord k largest sorted bins range density weights min max "
    "correction ddof unbiased initial start strict method return_counts decimals n repeat fillvalue func function "
    "alpha reverse base xbar mu ndigits q kind what by window sep maxsplit a_min a_max copy equal_nan"
)
