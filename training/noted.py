"""`Noted`: an object in the training loop that warns once of what it cannot raise."""

from __future__ import annotations

import contextlib
import warnings


class Noted:
    """The part of an object that says what went wrong: in `note`, and in a warning."""

    note: str

    def _say(self, text: str) -> None:
        """Warn of ``text``, unless it is the note already. Does not raise."""
        if text != self.note:
            self.note = text
            with contextlib.suppress(Warning):  # where warnings are errors, a note would end the loop
                warnings.warn(text, RuntimeWarning, stacklevel=3)
