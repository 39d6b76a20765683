"""Finds out where charts can be shown: a window, the browser or the terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

PlaceName = Literal["tk", "qt", "browser", "terminal", "window"]
NAMES: tuple[PlaceName, ...] = ("tk", "qt", "browser", "terminal")
"""Places in the order in which they are tried, after "window", the backend that the user gave matplotlib."""
TITLES = {
    "tk": "a window (Tk)",
    "qt": "a window (Qt)",
    "browser": "a page in the browser",
    "terminal": "the terminal",
    "window": "a window",
}
BACKENDS = {"tk": "TkAgg", "qt": "QtAgg"}
"""The matplotlib backends of windows."""
QT_PROBE = "from matplotlib.backends.qt_compat import QtWidgets; QtWidgets.QApplication([])"
_TOOLKIT_TIMEOUT_SECONDS = 20.0  # seconds that a toolkit has to start


@dataclass(frozen=True)
class Place:
    """A place to show charts, and why the places before it do not work."""

    name: PlaceName
    obstacles: tuple[str, ...] = ()
    backend: str = ""
    """The matplotlib backend, for a window."""

    def __str__(self) -> str:
        why = f", because {'; '.join(self.obstacles)}" if self.obstacles else ""
        origin = f" ({self.backend}, the backend given to matplotlib)" if self.name == "window" else ""
        return f"{TITLES[self.name]}{origin}{why}"


class NoPlace(RuntimeError):
    """Charts cannot be shown where requested; the message says why and what to do."""


def choose_place(wanted: str = "") -> Place:
    """Return the first place that works here, or the one that is ``wanted``.

    "window" is the first that is a window. A backend given to matplotlib (``matplotlib.use``, MPLBACKEND) comes first.
    Checking starts the toolkit for a moment; Qt is checked in another process, which it ends if it fails. Raises
    NoPlace if the wanted place does not work, ValueError for an unknown one.

    >>> choose_place("terminal").name
    'terminal'
    """
    if wanted and wanted != "window":
        if wanted not in NAMES:
            raise ValueError(f"There is no place {wanted!r} to show charts in; there are {', '.join(NAMES)}.")
        name = NAMES[NAMES.index(wanted)]
        if why := _OBSTACLES[name]():
            raise NoPlace(f"Charts cannot be shown in {TITLES[name]}: {why}.")
        return Place(name, backend=BACKENDS.get(name, ""))
    given, obstacles = _given_backend(), []
    if given and not (why := no_display() if _opens_windows(given) else f"matplotlib is set to use {given}"):
        return Place("window", backend=given)
    if given:
        obstacles.append(why)
    for name in NAMES:
        if given and name in BACKENDS:  # a second one at the same time does not work
            continue
        if wanted and name not in BACKENDS:
            break
        if not (why := _OBSTACLES[name]()):
            return Place(name, tuple(dict.fromkeys(obstacles)), BACKENDS.get(name, ""))
        obstacles.append(why)
    raise NoPlace(f"Charts cannot be shown in a window: {'; '.join(dict.fromkeys(obstacles))}.")


def _given_backend() -> str:
    """Return the backend that the user gave matplotlib; "" if it may choose."""
    if _no_matplotlib():
        return ""
    import matplotlib

    return str(matplotlib.get_backend(auto_select=False) or "")


def _opens_windows(backend: str) -> bool:
    from matplotlib.backends import BackendFilter, backend_registry

    return backend.lower() in map(str.lower, backend_registry.list_builtin(BackendFilter.INTERACTIVE))


def _no_matplotlib() -> str:
    return "" if find_spec("matplotlib") else "matplotlib is not installed (pip install 'looptap[window]')"


def no_display() -> str:
    """Return why no window can open here, judged by the environment; "" if one may."""
    if sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        return ""
    return "there is no display (DISPLAY is not set; over ssh, ssh -X sets it)"


def _no_tk() -> str:
    if why := _no_matplotlib() or no_display():
        return why
    try:
        import tkinter
    except ImportError:
        return "this Python has no tkinter (Debian: apt install python3-tk)"
    try:
        tkinter.Tk().destroy()
    except tkinter.TclError as error:
        return f"Tk does not start ({error})"
    return ""


def _no_qt() -> str:
    if why := _no_matplotlib() or no_display():
        return why
    if not any(find_spec(name) for name in ("PySide6", "PyQt6", "PyQt5", "PySide2")):
        return "Qt is not installed (pip install pyside6-essentials)"
    try:
        done = subprocess.run(
            [sys.executable, "-c", QT_PROBE],
            capture_output=True,
            text=True,
            timeout=_TOOLKIT_TIMEOUT_SECONDS,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        return f"Qt does not start within {_TOOLKIT_TIMEOUT_SECONDS:g} s"
    if done.returncode == 0:
        return ""
    said = " ".join((done.stderr.strip().splitlines() or ["it ended without a message"])[0].split())[:200]
    more = " (Debian: apt install libxcb-cursor0 libxcb-icccm4 libxcb-keysyms1)" if "xcb" in said else ""
    return f"Qt does not start: {said}{more}"


def _no_browser() -> str:
    if why := _no_matplotlib() or no_display():
        return why
    import webbrowser

    try:
        webbrowser.get()
    except webbrowser.Error:
        return "there is no browser"
    return ""


_OBSTACLES: dict[PlaceName, Callable[[], str]] = {
    "tk": _no_tk,
    "qt": _no_qt,
    "browser": _no_browser,
    "terminal": lambda: "",
}
