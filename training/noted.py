"""`Noted`: warns once, in place of an exception that the training loop would get."""

from __future__ import annotations

import contextlib
import warnings


class Noted:
    """An object that reports what went wrong in `note`, and once as a warning."""

    note: str

    def _say(self, text: str) -> None:
        """Warn of ``text`` unless it is already the note. Does not raise."""
        if text != self.note:
            self.note = text
            with contextlib.suppress(Warning):  # where warnings are errors, this would end the loop
                warnings.warn(text, RuntimeWarning, stacklevel=3)
