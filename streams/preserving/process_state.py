"""Save and restore what all code of a process shares.

Warnings, garbage collector, environment, paths, signals: those whose module a query mentions, so that what another
thread changes meanwhile is left alone.
"""

from __future__ import annotations

import decimal
import gc
import os
import signal
import sys
import warnings
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import numpy as np

_STREAMS = ("stdin", "stdout", "stderr", "excepthook")
_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGCHLD")
    if hasattr(signal, name)
)  # fmt: skip
_environment: dict[Any, Any] = vars(os.environ)["_data"]


class ProcessState:
    """The state of the interpreter that a query with the words ``named`` may change."""

    __slots__ = ("_before",)

    def __init__(self, named: Collection[str]) -> None:
        settings = [setting for module, setting in _SETTINGS if module in named]
        self._before = [(setting, setting.read()) for setting in settings]

    def put_back(self) -> list[str]:
        """Restore everything; return what had changed. Can be called again."""
        changed = []
        for setting, before in self._before:
            if setting.read() != before:
                setting.write(before)
                changed.append(setting.name)
        return changed


def _filters() -> tuple[int, list[Any]]:
    return id(warnings.filters), list(warnings.filters)


def _set_filters(before: tuple[int, list[Any]]) -> None:
    warnings.filters[:] = before[1]  # type: ignore[index]  # a list, as the module makes it
    if hasattr(warnings, "_filters_mutated"):
        warnings._filters_mutated()


def _set_environment(before: dict[Any, Any]) -> None:
    for key in [key for key in _environment if key not in before]:
        del os.environ[os.environ.decodekey(key)]
    for key, value in before.items():
        if _environment.get(key) != value:
            os.environ[os.environ.decodekey(key)] = os.environ.decodevalue(value)


def _set_path(before: list[str]) -> None:
    sys.path[:] = before


def _directory() -> str:
    try:
        return os.getcwd()
    except OSError:  # it is gone
        return ""


def _go_to(directory: str) -> None:
    if directory:
        os.chdir(directory)


def _collector() -> tuple[bool, tuple[int, int, int]]:
    return gc.isenabled(), gc.get_threshold()


def _set_collector(before: tuple[bool, tuple[int, int, int]]) -> None:
    (gc.enable if before[0] else gc.disable)()
    gc.set_threshold(*before[1])


def _set_limits(before: tuple[int, float]) -> None:
    sys.setrecursionlimit(before[0])
    sys.setswitchinterval(before[1])


def _streams() -> list[Any]:
    return [getattr(sys, name, None) for name in _STREAMS]


def _set_streams(before: list[Any]) -> None:
    for name, value in zip(_STREAMS, before, strict=True):
        setattr(sys, name, value)


def _handlers() -> list[Any]:
    return [signal.getsignal(number) for number in _SIGNALS]


def _set_handlers(before: list[Any]) -> None:
    for number, handler in zip(_SIGNALS, before, strict=True):
        if handler is not None and signal.getsignal(number) is not handler:  # None: not installed from Python
            signal.signal(number, handler)


def _timer() -> bool:
    return hasattr(signal, "getitimer") and signal.getitimer(signal.ITIMER_REAL) != (0.0, 0.0)


def _set_timer(before: bool) -> None:
    if not before:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def _decimals() -> Any:
    context = decimal.getcontext()
    return context.prec, context.rounding


def _set_decimals(before: Any) -> None:
    context = decimal.getcontext()
    context.prec, context.rounding = before


def _printing() -> Any:
    torch = sys.modules.get("torch._tensor_str")
    return np.get_printoptions(), None if torch is None else dict(vars(torch.PRINT_OPTS))


def _set_printing(before: Any) -> None:
    np.set_printoptions(**before[0])
    if before[1] is not None:
        vars(sys.modules["torch._tensor_str"].PRINT_OPTS).update(before[1])


class _Setting(NamedTuple):
    name: str
    read: Callable[[], Any]
    write: Callable[[Any], None]


_SETTINGS = (
    ("gc", _Setting("gc", _collector, _set_collector)),
    ("warnings", _Setting("warnings.filters", _filters, _set_filters)),
    ("os", _Setting("os.environ", _environment.copy, _set_environment)),
    ("os", _Setting("the working directory", _directory, _go_to)),
    ("sys", _Setting("sys.path", lambda: list(sys.path), _set_path)),
    ("sys", _Setting("a limit of sys", lambda: (sys.getrecursionlimit(), sys.getswitchinterval()), _set_limits)),
    ("sys", _Setting("sys.stdout", _streams, _set_streams)),
    ("signal", _Setting("a signal handler", _handlers, _set_handlers)),
    ("signal", _Setting("a timer", _timer, _set_timer)),
    ("set_printoptions", _Setting("the form of printed numbers", _printing, _set_printing)),
    ("decimal", _Setting("the context of decimal", _decimals, _set_decimals)),
)
