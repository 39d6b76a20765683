"""Ctrl-C at a chosen instruction, as CPython delivers it: noted at once, raised at the next check for signals."""

from __future__ import annotations

import ctypes
import gc
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

# What is posted here runs at the next check for signals, which the call itself ends with; it only notes the signal.
# So the signal is pending when the trace function returns, and is raised in the code that is traced.
_at_next_check = ctypes.pythonapi.Py_AddPendingCall
_at_next_check.argtypes, _at_next_check.restype = [ctypes.c_void_p, ctypes.c_void_p], None
_NOTE_SIGNAL = ctypes.cast(ctypes.pythonapi.PyErr_SetInterruptEx, ctypes.c_void_p)


def interrupted(call: Callable[[], object], at: int) -> tuple[int, KeyboardInterrupt | None]:
    """Call, with SIGINT pending from the ``at``-th instruction of Python code on (0: never).

    No garbage is collected meanwhile, since what a finalizer raises is lost. Returns how many instructions ran until
    then, and the KeyboardInterrupt that came out.
    """
    count = 0

    def trace(frame: FrameType, what: str, arg: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        if what != "opcode":  # which is the last of what is told of an instruction
            return trace
        count += 1
        if count != at:
            return trace
        sys.settrace(None)
        return _at_next_check(_NOTE_SIGNAL, signal.SIGINT)

    tracer, pressed = sys.gettrace(), None
    gc.disable()
    try:
        try:
            sys.settrace(trace)
            call()
        except KeyboardInterrupt as error:
            pressed = error
        sys.settrace(tracer)
    except KeyboardInterrupt as error:  # after the call
        assert pressed is None
        pressed = error
        sys.settrace(tracer)
    finally:
        gc.enable()
    return count, pressed
