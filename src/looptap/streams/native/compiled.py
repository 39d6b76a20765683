"""The compiled modules of looptap, where they were built and are wanted.

The tap is `looptap._tap`, built from agent/loop/tap where setup finds a C compiler. ``LOOPTAP_PURE=1`` in the
environment leaves it out.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

INTERFACE_VERSION = 8
"""What this version exchanges with the module. One built from older sources, in a checkout, has another number."""


def load_compiled(name: str) -> Any:
    """Return a compiled module; None if it was not built here or is not wanted."""
    if os.environ.get("LOOPTAP_PURE", "0") not in ("", "0"):
        return None
    try:
        return import_module(f"looptap.{name}")
    except Exception:  # not built, or not for this interpreter: the job runs without it
        return None


_tap = load_compiled("_tap")
tap: Any = _tap if getattr(_tap, "INTERFACE_VERSION", None) == INTERFACE_VERSION else None
"""The compiled module, or None."""


def which_tap() -> str:
    """Return which of the two runs.

    >>> which_tap() in ("compiled tap", "pure Python")
    True
    """
    return "pure Python" if tap is None else "compiled tap"
