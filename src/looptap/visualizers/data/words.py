"""Values as short texts, for tables and logs; works for every value."""

from __future__ import annotations

import datetime
import reprlib
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from looptap.visualizers.data.numbers import describe, is_array, is_number, number

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 200
_short.maxlist = _short.maxtuple = _short.maxdict = _short.maxset = 12
_short.maxlevel = 4
_short.maxlong = 60


def shown_text(value: Any, letters: int = 200) -> str:
    """Return a value as text of at most ``letters`` characters.

    >>> shown_text(0.123456789), shown_text("a" * 9, 5), shown_text([1, None, 1 / 3])
    ('0.123457', 'aaaa…', '[1, None, 0.333333]')
    """
    try:
        text = _text(value, letters)
    except Exception as error:  # a repr may raise anything
        text = f"<{type(value).__name__}, whose repr raises {type(error).__name__}>"
    return text if len(text) <= letters else text[: letters - 1] + "…"


def _text(value: Any, letters: int) -> str:
    if isinstance(value, str):
        return value[: letters + 1]
    if isinstance(value, datetime.date | datetime.time | datetime.timedelta | Decimal | Fraction | np.datetime64):
        return str(value)
    if is_number(value):
        plain = value if isinstance(value, bool | int | float | complex) else value.item()
        if isinstance(plain, float):
            return f"{plain:.6g}"
        return str(plain) if isinstance(plain, bool | complex) or abs(plain) < 10**15 else f"{number(plain):.6g}"
    if isinstance(value, list | tuple) and 0 < len(value) <= _short.maxlist and all(map(_is_plain, value)):
        inner = ", ".join(_text(one, letters) for one in value)
        return f"[{inner}]" if isinstance(value, list) else f"({inner})"
    return describe(value) if is_array(value) and value.size != 1 else _short.repr(value)


def _is_plain(value: Any) -> bool:
    return value is None or is_number(value)
