"""`Noted`: warns once, in place of an exception that the training loop would get."""

from __future__ import annotations

import contextlib
import warnings

_MAX_WARNINGS = 20  # of one object; later ones stand in the note only


class Noted:
    """Mixin: keeps the latest problem in `note`, and warns at most 20 times."""

    note = ""
    """What is wrong or missing, and why; empty if nothing is."""
    _warned = 0

    def _say(self, text: str) -> None:
        """Warn of ``text`` unless it is already the note. Does not raise."""
        if text != self.note:
            self.note, self._warned = text, self._warned + 1
            if self._warned > _MAX_WARNINGS:  # Python keeps each text of a warning for ever
                return
            with contextlib.suppress(Warning):  # where warnings are errors, this would end the loop
                warnings.warn(text, RuntimeWarning, stacklevel=3)
