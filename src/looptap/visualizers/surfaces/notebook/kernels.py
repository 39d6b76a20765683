"""Finds out whether a kernel takes messages of widgets while a cell runs.

Kernels with subshells pass them to another thread; ipykernel 7.4 does so only if the shell that opened the widget
expects no reply, which `answer_anywhere` arranges. All other kernels keep them until the cell ends.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

WAITS = "Takes effect when the running cell ends: this kernel, or this notebook, has no subshells."


def shell() -> Any:
    """Return the interactive shell of a notebook's kernel, None outside of one."""
    import sys

    ipython = sys.modules.get("IPython")
    found = None if ipython is None else ipython.get_ipython()
    return found if getattr(found, "kernel", None) is not None else None


def answer_anywhere(widget: Any) -> None:
    """Take messages to ``widget`` and its children in the browser's subshell."""
    comm: Any = getattr(widget, "comm", None)
    if hasattr(comm, "_reply_subshell_for"):
        comm._reply_subshell_for = lambda data, default: default
    for child in getattr(widget, "children", ()):
        answer_anywhere(child)


def quietly(widget: Any) -> None:
    """Take messages to ``widget`` without the hooks that IPython runs around a cell.

    The hooks are for cells: one of them shows, and closes, the figures that the running cell is still drawing.
    """
    comm: Any = getattr(widget, "comm", None)
    if hasattr(comm, "_msg_callback"):
        comm.handle_msg = lambda message: comm._msg_callback and comm._msg_callback(message)


class KernelPulse:
    """Monitor of the kernel: is a cell running, are widget messages held up?"""

    def __init__(self) -> None:
        self._sent = self._back = 0.0
        self.aside = False
        """True if a message arrived on another thread than that of the cells."""
        self.heard = False
        """True if any message arrived."""

    def hear(self) -> None:
        """Note that a message of a widget has arrived on this thread."""
        self.heard = True
        if threading.current_thread() is not threading.main_thread():
            self.aside = True

    def beat(self, now: float) -> None:
        """Probe the thread of the cells; call this a few times a second."""
        if self._back < self._sent or now - self._sent < 0.2:
            return
        kernel = getattr(shell(), "kernel", None)
        loop = getattr(kernel, "io_loop", None)
        if loop is None:
            return
        self._sent = now
        with contextlib.suppress(RuntimeError):  # the loop is closed: the kernel ends
            loop.add_callback(self._answer)

    def _answer(self) -> None:
        self._back = time.monotonic()

    def deaf(self, now: float) -> bool:
        """Return whether a cell runs and holds up all messages of widgets until it ends."""
        return not self.aside and self._back < self._sent and now - self._sent > 0.3


pulse = KernelPulse()
"""The monitor of this process."""


def waiting_note() -> str:
    """Return the note beside a control that waits for the end of a cell, or ""."""
    kernel = getattr(shell(), "kernel", None)
    if pulse.aside or kernel is None:
        return ""
    able = bool(getattr(kernel, "_supports_kernel_subshells", False))
    return WAITS if not able or pulse.heard else ""
