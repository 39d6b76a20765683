"""A virtual display for windows, and its pixels."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator

import numpy as np
import pytest
from programs import need


@contextlib.contextmanager
def display(width: int = 1000, height: int = 800) -> Iterator[str]:
    """Start an X server without a screen; yield its name. Skips without Xvfb."""
    server = need("Xvfb", "WINDOWS ARE")
    read, write = os.pipe()
    command = [server, "-displayfd", str(write), "-screen", "0", f"{width}x{height}x24", "-nolisten", "tcp"]
    command.append("-noreset")  # else it resets, and refuses clients, whenever the last client leaves
    server = subprocess.Popen(command, pass_fds=[write], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.close(write)
    try:
        with os.fdopen(read) as said:
            number = said.readline().strip()  # written when it listens; empty if it died
        assert number, "Xvfb did not start"
        yield f":{number}"
    finally:
        server.terminate()
        server.wait(300)


def screenshot(name: str) -> np.ndarray:
    """Return the pixels of the display, (height, width, 3)."""
    image_grab = pytest.importorskip("PIL.ImageGrab")
    return np.asarray(image_grab.grab(xdisplay=name).convert("RGB"))


def pixels(shot: np.ndarray, color: str) -> np.ndarray:
    """Return the positions (row, column) of about this colour (#rrggbb)."""
    wanted = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)])
    return np.argwhere(np.abs(shot.astype(int) - wanted).max(axis=2) < 30)
