"""Global state of torch, numpy and random, restored after unknown code.

Saved and restored: grad and inference mode, autocast, default dtype and device, precision of products, anomaly and
deterministic mode, thread count, dispatch and function modes, hooks of saved tensors, and the random numbers of torch,
its devices, numpy and random. About 23 µs, so only around queries that call functions which are not known to be
harmless.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

import numpy as np

from looptap.streams.values.random_state import RandomState

log = logging.getLogger("looptap")
captured = 0
"""Events that were not looked at because a CUDA graph was being captured."""


def captures() -> Callable[[], bool] | None:
    """Return a function that tests for CUDA graph capture; None without CUDA."""
    torch = sys.modules.get("torch")
    return None if torch is None or not torch.backends.cuda.is_built() else capturing


def capturing() -> bool:
    """Return True during CUDA graph capture; count it, and warn once."""
    global captured
    cuda = sys.modules["torch"].cuda
    if not cuda.is_initialized() or not cuda.is_current_stream_capturing():
        return False
    captured += 1
    if captured == 1:
        log.warning("looptap: events inside a CUDA graph are not looked at: emit after the replay. (said once)")
    return True


class TorchStateGuard:
    """A context that restores modes and random number generators at its end.

    With ``randomness=False`` random numbers are left alone, for commands that are meant to draw some.

    >>> import random
    >>> with TorchStateGuard():
    ...     _ = random.random()
    """

    __slots__ = ("_errors", "_modes", "_random", "_torch", "randomness")

    def __init__(self, randomness: bool = True) -> None:
        self.randomness = randomness
        self._torch: Any = None
        self._random: RandomState | None = None
        self._errors: Any = None
        self._modes: dict[str, Any] | None = None

    def __enter__(self) -> TorchStateGuard:
        self._torch = sys.modules.get("torch")
        if self.randomness:
            self._random = RandomState()
        self._errors = np.geterr()
        self._modes = None if self._torch is None else _save(self._torch)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.restore()

    def restore(self) -> None:
        """Restore everything; a second call, after Ctrl-C, does the rest."""
        if self._errors is not None and np.geterr() != self._errors:
            np.seterr(**self._errors)
        if self._modes is not None:
            _restore(self._torch, self._modes)
        if self._random is not None:
            self._random.put_back()


def _save(torch: Any) -> dict[str, Any]:
    autocast = [
        (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
        for device in (("cpu", "cuda") if torch.cuda.is_initialized() else ("cpu",))
    ]
    return {
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": autocast,
        "cache": torch.is_autocast_cache_enabled(),
        "anomaly": (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        "precision": torch.get_float32_matmul_precision(),
        "device": getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None),
        "hooks": torch._C._autograd._top_saved_tensors_default_hooks(False),
        "dtype": torch.get_default_dtype(),
        "threads": torch.get_num_threads(),
        "deterministic": (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        "flags": [getattr(torch._C, f"_get_{flag}")() for flag in _FLAGS],
        "dispatch": torch._C._len_torch_dispatch_stack(),
        "function": torch._C._len_torch_function_stack(),
    }


_FLAGS = ("cudnn_enabled", "cudnn_benchmark", "cudnn_deterministic", "cudnn_allow_tf32")
"""Flags of torch that have a getter and a setter of that name."""


def _restore(torch: Any, saved: dict[str, Any]) -> None:
    if getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None) is not saved["device"]:
        torch.set_default_device(saved["device"] and saved["device"].device)
    while torch._C._len_torch_function_stack() > saved["function"]:
        torch._C._pop_torch_function_stack()
    while torch._C._len_torch_dispatch_stack() > saved["dispatch"]:
        torch._C._pop_torch_dispatch_stack(None)
    _leave_inference_mode(torch, saved["inference"])
    if torch.is_grad_enabled() != saved["grad"]:
        torch._C._set_grad_enabled(saved["grad"])
    hooks = torch._C._autograd
    while (top := hooks._top_saved_tensors_default_hooks(False)) != saved["hooks"] and top is not None:
        hooks._pop_saved_tensors_default_hooks()
    if (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()) != saved["anomaly"]:
        torch.set_anomaly_enabled(*saved["anomaly"])
    if torch.get_float32_matmul_precision() != saved["precision"]:
        torch.set_float32_matmul_precision(saved["precision"])
    if torch.is_autocast_cache_enabled() != saved["cache"]:
        torch.set_autocast_cache_enabled(saved["cache"])
    for device, enabled, dtype in saved["autocast"]:
        if torch.is_autocast_enabled(device) != enabled:
            torch.set_autocast_enabled(device, enabled)
        if torch.get_autocast_dtype(device) != dtype:
            torch.set_autocast_dtype(device, dtype)
    if torch.get_default_dtype() != saved["dtype"]:
        torch.set_default_dtype(saved["dtype"])
    if torch.get_num_threads() != saved["threads"]:
        torch.set_num_threads(saved["threads"])
    now = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    if now != saved["deterministic"]:
        torch.use_deterministic_algorithms(saved["deterministic"][0], warn_only=saved["deterministic"][1])
    for flag, before in zip(_FLAGS, saved["flags"], strict=True):
        if getattr(torch._C, f"_get_{flag}")() != before:
            getattr(torch._C, f"_set_{flag}")(before)


_kept: list[Any] = []


def _leave_inference_mode(torch: Any, inference: bool) -> None:
    """Restore inference mode by covering a guard that a query has left open."""
    if torch.is_inference_mode_enabled() != inference:
        cover = torch._C._InferenceMode(inference)
        cover.__enter__()
        _kept.append(cover)
