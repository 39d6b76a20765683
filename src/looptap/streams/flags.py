"""Flags of a value: bits of a byte, the same in pipelines, files and on the wire."""

from __future__ import annotations

PARTIAL = 1
"""The window is incomplete."""
ERROR = 2
"""The value is the text of an error."""
TRIGGER = 4
"""The condition ``when=`` became true at this event."""
REPEATED = 8
"""The event repeats one from before the job resumed from an older state."""
HISTORY = 16
"""The value comes from the history of scalars: of the events before the attach, only some have one."""
