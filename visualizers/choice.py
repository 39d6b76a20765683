"""Which chart a value asks for: `choose`, a pure function, and `Choice`, what it says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Mode = Literal["append", "frame"]
APPEND: Mode = "append"
FRAME: Mode = "frame"
"""In mode append a value is a point of the picture, in mode frame it is a whole picture."""


@dataclass(frozen=True)
class Choice:
    """A kind of chart by its name, the family it shares axes with, what a value holds, and how values add up.

    ``family`` is one of xy, xyz, hist, mat, img and text. ``schema`` names the parts of a value, as in
    ``("step", "loss")``. ``guess`` says what was guessed where the shape is ambiguous, and how to override it.
    """

    kind: str
    family: str
    mode: Mode
    schema: tuple[str, ...] = field(default=())
    guess: str = ""
