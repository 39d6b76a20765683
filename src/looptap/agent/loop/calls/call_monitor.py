"""`CallMonitor`: has Python report calls of functions by their names.

`sys.monitoring` (Python 3.12 and newer) reports where functions begin and end. Of a function that is not watched the
first report is the last: the answer is that no more are wanted from there, and the interpreter runs that place as
before. So a name is found wherever its function is defined, also later, and nothing else gets slower. Only exceptions
that leave functions cannot be declined: each costs a look at a name while something is watched.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

TOOL_NUMBERS = (4, 3, 5, 2)
"""The identifiers of tools that looptap tries; the others have a purpose."""
MAX_COMPLAINTS_COUNT = 10
_monitoring: Any = getattr(sys, "monitoring", None)

log = logging.getLogger("looptap")


class WatchedFunction:
    """A function by its name, as ``evaluate``, or with its class and module."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.last = name.rpartition(".")[2]
        """Its own name, without the classes and modules before it."""

    def matches(self, frame: FrameType) -> bool:
        """Return True if a frame runs it.

        Functions of torch, the standard library and looptap match by their full names only.
        """
        module = str(frame.f_globals.get("__name__", ""))
        full = f"{module}.{frame.f_code.co_qualname.replace('.<locals>', '')}"
        if full == self.name:
            return True
        top = module.partition(".")[0]
        hidden = top in ("torch", "looptap") or (top in sys.stdlib_module_names and top != "__main__")
        return not hidden and full.endswith(f".{self.name}")

    def begin(self, frame: FrameType) -> None:
        """Note that a call begins."""

    def end(self, frame: FrameType, result: Any, error: BaseException | None) -> Callable[[], None] | None:
        """Note that a call ends, with a result or an error.

        What is returned is called then; what that raises reaches the job.
        """

    def forget(self) -> None:
        """Forget the calls that have begun: it is watched no longer."""


class _Reports:
    """What Python calls. It raises nothing into the job but ``on_stop`` and Ctrl-C."""

    def __init__(self) -> None:
        self.watched: tuple[WatchedFunction, ...] = ()
        self.names = frozenset[str]()
        self.complaints: set[str] = set()
        self.stopping = 0, 0
        """The ids of the exception that a command has raised where a call ends, and of its frame."""

    def began(self, code: CodeType, offset: int) -> Any:
        if code.co_name not in self.names:
            return _monitoring.DISABLE
        frame = sys._getframe(1)
        found = self._those(code, frame)
        for one in found:
            try:
                one.begin(frame)
            except Exception as error:
                self._complain(error)
        return None if found else _monitoring.DISABLE

    def returned(self, code: CodeType, offset: int, result: Any) -> Any:
        if code.co_name not in self.names:
            return _monitoring.DISABLE
        frame = sys._getframe(1)
        found = self._those(code, frame)
        for one in found:
            self._end(one, frame, result, None)
        return None if found else _monitoring.DISABLE

    def raised(self, code: CodeType, offset: int, error: BaseException) -> None:
        if code.co_name in self.names:
            frame = sys._getframe(1)
            if self.stopping == (id(error), id(frame)):
                self.stopping = 0, 0  # the end of this call has been reported
                return
            for one in self._those(code, frame):
                self._end(one, frame, None, error)

    def _those(self, code: CodeType, frame: FrameType) -> list[WatchedFunction]:
        return [one for one in self.watched if one.last == code.co_name and one.matches(frame)]

    def _end(self, one: WatchedFunction, frame: FrameType, result: Any, error: BaseException | None) -> None:
        then = None
        try:
            then = one.end(frame, result, error)
        except Exception as problem:
            self._complain(problem)
        if then is not None:
            try:
                then()
            except BaseException as stop:
                self.stopping = id(stop), id(frame)
                raise

    def _complain(self, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"
        if text not in self.complaints and len(self.complaints) < MAX_COMPLAINTS_COUNT:
            self.complaints.add(text)
            log.warning("looptap: %s (said once; the job continues)", text)


class CallMonitor:
    """The watched functions of this process, of all its agents. Any thread."""

    _reports = _Reports()
    _lock = threading.RLock()
    _tool: int | None = None

    @classmethod
    def why_not(cls) -> str:
        """Return why no function can be watched here, and what to do; else nothing."""
        if _monitoring is None:
            version = ".".join(map(str, sys.version_info[:3]))
            return (
                f"That needs Python 3.12 or newer (sys.monitoring) in the job, and it runs {version}: "
                "call agent.emit at the end of the function, or ask for an event that the job has."
            )
        with cls._lock:
            if cls._tool is None and not any(_monitoring.get_tool(tool) is None for tool in TOOL_NUMBERS):
                held = ", ".join(sorted({str(_monitoring.get_tool(tool)) for tool in TOOL_NUMBERS}))
                return f"The places of sys.monitoring for tools are all taken in the job, by {held}."
        return ""

    @classmethod
    def add(cls, one: WatchedFunction) -> None:
        """Watch a function from now on; no effect on one that is watched."""
        with cls._lock:
            if one in cls._reports.watched:
                return
            cls._set((*cls._reports.watched, one))

    @classmethod
    def remove(cls, one: WatchedFunction, *, wait: bool = True) -> None:
        """Watch a function no longer; the last one frees the place of the tool.

        Without ``wait`` only if no other thread is about to watch one.
        """
        if one not in cls._reports.watched or not cls._lock.acquire(blocking=wait):
            return
        try:
            cls._set(tuple(other for other in cls._reports.watched if other is not one))
        finally:
            cls._lock.release()
        one.forget()

    @classmethod
    def _set(cls, watched: tuple[WatchedFunction, ...]) -> None:
        reports, events = cls._reports, _monitoring.events
        reports.watched, reports.names = watched, frozenset(one.last for one in watched)
        calls = {events.PY_START: reports.began, events.PY_RETURN: reports.returned, events.PY_UNWIND: reports.raised}
        if watched:
            if cls._tool is None:
                tool = next((tool for tool in TOOL_NUMBERS if _monitoring.get_tool(tool) is None), None)
                if tool is None:
                    return
                _monitoring.use_tool_id(tool, "looptap")
                for event, call in calls.items():
                    _monitoring.register_callback(tool, event, call)
                cls._tool = tool
            _monitoring.set_events(cls._tool, events.PY_START | events.PY_RETURN | events.PY_UNWIND)
            _monitoring.restart_events()  # places that were declined are asked again
        elif cls._tool is not None:
            _monitoring.set_events(cls._tool, events.NO_EVENTS)
            for event in calls:
                _monitoring.register_callback(cls._tool, event, None)
            _monitoring.free_tool_id(cls._tool)
            cls._tool = None

    @classmethod
    def _forked(cls) -> None:
        """Watch nothing in a child; another thread may have held the lock."""
        cls._lock = threading.RLock()
        if cls._reports.watched:
            cls._set(())


if _monitoring is not None and hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=CallMonitor._forked)
