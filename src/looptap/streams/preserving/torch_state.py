"""Save the global state of torch, numpy and random, and restore it.

Saved are grad and inference mode, autocast, default dtype and device, precision of products, anomaly and deterministic
mode, thread count, dispatch and function modes, hooks of saved tensors, the stance of torch.compile, and the random
numbers of torch, its devices, numpy and random. This takes about 23 µs, so it is only done around queries that call
functions which are not known to be harmless.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from operator import call
from types import TracebackType
from typing import Any

import numpy as np

from looptap.streams.preserving.random_state import RandomState


class TorchStateGuard:
    """A context that restores modes and random number generators at its end.

    ``randomness=False`` leaves random numbers alone, for commands that are meant to draw some. ``process=False`` leaves
    the settings of the whole process alone, which another thread may change meanwhile.

    >>> import random
    >>> with TorchStateGuard():
    ...     _ = random.random()
    """

    __slots__ = ("_errors", "_modes", "_random", "_torch", "process", "randomness")

    def __init__(self, randomness: bool = True, process: bool = True) -> None:
        self.randomness, self.process = randomness, process
        self._torch: Any = None
        self._random: RandomState | None = None
        self._errors: Any = None
        self._modes: dict[str, Any] | None = None

    def __enter__(self) -> TorchStateGuard:
        self._torch = sys.modules.get("torch")
        if self.randomness:
            self._random = RandomState()
        self._errors = np.geterr()
        self._modes = None if self._torch is None else _save(self._torch, self.process)
        if self._modes is not None and self._modes["nesting"]:  # else the loop would find casts without a graph there
            self._torch.set_autocast_cache_enabled(False)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.restore()

    def restore(self) -> None:
        """Restore everything; a second call, after Ctrl-C, completes it."""
        if self._errors is not None and np.geterr() != self._errors:
            np.seterr(**self._errors)
        if self._modes is not None:
            _restore(self._torch, self._modes, self.process)
        if self._random is not None:
            self._random.put_back()


def _save(torch: Any, process: bool) -> dict[str, Any]:
    devices = ("cpu", "cuda") if torch.cuda.is_initialized() else ("cpu",)
    return {
        "settings": [read() for read, _ in _settings_of(torch, process)],
        "nesting": _autocast_nesting(torch),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": [(each, torch.is_autocast_enabled(each), torch.get_autocast_dtype(each)) for each in devices],
        "device": getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None),
        "hooks": torch._C._autograd._top_saved_tensors_default_hooks(False),
        "dispatch": torch._C._len_torch_dispatch_stack(),
        "function": torch._C._len_torch_function_stack(),
    }


def _restore(torch: Any, saved: dict[str, Any], process: bool) -> None:
    if getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None) is not saved["device"]:
        torch.set_default_device(saved["device"] and saved["device"].device)
    while torch._C._len_torch_function_stack() > saved["function"]:
        torch._C._pop_torch_function_stack()
    while torch._C._len_torch_dispatch_stack() > saved["dispatch"]:
        torch._C._pop_torch_dispatch_stack(None)
    _leave_inference_mode(torch, saved["inference"])
    hooks = torch._C._autograd
    while (top := hooks._top_saved_tensors_default_hooks(False)) != saved["hooks"] and top is not None:
        hooks._pop_saved_tensors_default_hooks()
    for (read, write), before in zip(_settings_of(torch, process), saved["settings"], strict=True):
        if read() != before:
            write(before)
    for _ in range(_autocast_nesting(torch) - saved["nesting"]):
        torch.autocast_decrement_nesting()
    if not saved["nesting"]:  # it would keep the weights of this step for all others
        torch.clear_autocast_cache()
    for device, enabled, dtype in saved["autocast"]:
        if torch.is_autocast_enabled(device) != enabled:
            torch.set_autocast_enabled(device, enabled)
        if torch.get_autocast_dtype(device) != dtype:
            torch.set_autocast_dtype(device, dtype)


def _autocast_nesting(torch: Any) -> int:
    """Return the number of open autocast regions, which only a change reports.

    One call of C: a Ctrl-C between the two would leave a region open, and the loop with the weights of one step.
    """
    return int(list(map(call, (torch.autocast_increment_nesting, torch.autocast_decrement_nesting)))[1])


_FLAGS = (
    "cudnn_enabled",
    "cudnn_benchmark",
    "cudnn_deterministic",
    "cudnn_allow_tf32",
    "mkldnn_enabled",
    "deterministic_fill_uninitialized_memory",
)
_ATTENTION = ("flash", "math", "mem_efficient", "cudnn")
_MODES = ("fwd_grad", "multithreading", "view_replay")
_SMALLEST_MAGNITUDE = 5e-324
"""A denormal number, which a processor that flushes them takes for zero."""


def _settings_of(torch: Any, process: bool) -> list[tuple[Callable[[], Any], Callable[[Any], Any]]]:
    """Return the settings of this thread, or of the process, too."""
    if process:
        return _settings(torch)
    return [
        (torch.is_grad_enabled, torch._C._set_grad_enabled),
        (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
    ]


@cache
def _settings(torch: Any) -> list[tuple[Callable[[], Any], Callable[[Any], Any]]]:
    """Return the functions that read and write each setting."""
    flags = [(f"_get_{flag}", f"_set_{flag}") for flag in _FLAGS]
    flags += [(f"_get_{kind}_sdp_enabled", f"_set_sdp_use_{kind}") for kind in _ATTENTION]
    flags += [(f"_is_{mode}_enabled", f"_set_{mode}_enabled") for mode in _MODES]
    opt_einsum = torch.backends.opt_einsum
    return [
        (torch.is_grad_enabled, torch._C._set_grad_enabled),
        (
            lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
            lambda before: torch.set_anomaly_enabled(*before),
        ),
        (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
        (torch.get_default_dtype, torch.set_default_dtype),
        (torch.get_num_threads, torch.set_num_threads),
        (
            lambda: (
                torch.are_deterministic_algorithms_enabled(),
                torch.is_deterministic_algorithms_warn_only_enabled(),
            ),
            lambda before: torch.use_deterministic_algorithms(before[0], warn_only=before[1]),
        ),
        *((getattr(torch._C, get), getattr(torch._C, set)) for get, set in flags if hasattr(torch._C, set)),
        (lambda: opt_einsum.enabled, lambda before: setattr(opt_einsum, "enabled", before)),
        (lambda: _SMALLEST_MAGNITUDE * 1.0 == 0.0, torch.set_flush_denormal),
        (lambda: getattr(_compiler(), "_stance", None), _set_stance),
    ]


def _compiler() -> Any:
    """Return the module with torch.compile's stance; None if unloaded or compiling."""
    module: Any = sys.modules.get("torch._dynamo.eval_frame")
    if not hasattr(module, "_set_stance") or sys.modules["torch"]._C._dynamo.eval_frame.get_eval_frame_callback():
        return None
    return module


def _set_stance(before: Any) -> None:
    if (module := _compiler()) is not None:
        module._set_stance(before or module.DynamoStance())


_kept: list[Any] = []


def _leave_inference_mode(torch: Any, inference: bool) -> None:
    """Restore inference mode by covering a guard that a query has left open."""
    if torch.is_inference_mode_enabled() != inference:
        cover = torch._C._InferenceMode(inference)
        cover.__enter__()
        _kept.append(cover)
