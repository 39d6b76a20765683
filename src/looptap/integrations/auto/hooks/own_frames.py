"""Leave looptap out of the traceback of a script that fails in a backward pass."""

from __future__ import annotations

import os
import sys
from types import TracebackType
from typing import Any

_OWN = os.path.join("looptap", "integrations", "auto", "")


def hide_own_frames() -> None:
    """Let an uncaught error be shown without frames of looptap, as in plain Python."""
    shown = sys.excepthook
    if getattr(shown, "__module__", "") == __name__:
        return

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> Any:
        last = traceback
        while last is not None:
            while last.tb_next is not None and _OWN in last.tb_next.tb_frame.f_code.co_filename:
                last.tb_next = last.tb_next.tb_next
            last = last.tb_next
        return shown(kind, error, traceback)

    sys.excepthook = hook
