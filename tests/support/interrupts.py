"""Ctrl-C at a chosen instruction, raised at the next signal check, as by CPython."""

from __future__ import annotations

import ctypes
import dis
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
_PLAIN = {
    "BUILD_LIST", "BUILD_TUPLE", "CACHE", "COPY", "COPY_FREE_VARS", "JUMP_FORWARD", "KW_NAMES", "LOAD_CLOSURE",
    "LOAD_CONST", "LOAD_DEREF", "LOAD_FAST", "LOAD_GLOBAL", "MAKE_CELL", "NOP", "POP_EXCEPT", "PRECALL",
    "PUSH_EXC_INFO", "PUSH_NULL", "STORE_DEREF", "STORE_FAST", "SWAP",
}  # fmt: skip
"""Instructions that neither call anything nor look for signals: one that is pending is raised after the next other."""


def interrupted(call: Callable[[], object], at: int) -> tuple[int, KeyboardInterrupt | None]:
    """Call ``call`` with SIGINT pending from the ``at``-th instruction on (0: never).

    Plain instructions do not count. No garbage is collected meanwhile, since what a finalizer raises is lost. Returns
    how many instructions ran until then, and the KeyboardInterrupt that came out.
    """
    count = 0

    def trace(frame: FrameType, what: str, arg: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        if what != "opcode" or dis.opname[frame.f_code.co_code[frame.f_lasti]] in _PLAIN:
            return trace  # the opcode is the last trace event of an instruction
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
