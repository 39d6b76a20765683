"""The prompts of `looptap top`: for a text, and for a yes or no."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Checkbox, Input, Static

ON = "on"
"""The answer of a switch that is on."""


class AskText(ModalScreen[list[str] | None]):
    """A prompt for texts, each under its title; None if the user cancels.

    With a ``switch``, an off one follows the texts; if it is turned on, the last answer is `ON`, else "".
    """

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "dismiss(None)", "Leave it")]
    DEFAULT_CSS = """
    AskText { align: center middle; }
    AskText > Vertical { width: 80%; max-width: 90; height: auto; border: round $accent; padding: 0 1; }
    AskText Static { height: auto; max-height: 6; }
    """

    def __init__(self, about: str, *fields: tuple[str, str], switch: str = "") -> None:
        super().__init__()
        self._about, self._fields, self._switch = about, fields, switch

    def compose(self) -> ComposeResult:
        """Yield the fields with their initial texts."""
        with Vertical():
            yield Static(Text(self._about))
            for title, text in self._fields:
                yield Static(Text(title, "dim"))
                yield Input(text)
            if self._switch:
                yield Checkbox(self._switch, compact=True)
            yield Static(Text("Enter: apply    Escape: cancel", "dim"))

    def on_input_submitted(self) -> None:
        """Accept all fields on Enter in any of them."""
        switches = [ON if switch.value else "" for switch in self.query(Checkbox)]
        self.dismiss([*(field.value.strip() for field in self.query(Input)), *switches])


class ShowText(ModalScreen[None]):
    """A text to read, as long as it may be."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,q,enter,c", "dismiss", "Close")]
    DEFAULT_CSS = """
    ShowText { align: center middle; }
    ShowText > VerticalScroll { width: 90%; height: 80%; border: round $accent; padding: 0 1; }
    """

    def __init__(self, text: Text) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """Yield the text."""
        with VerticalScroll():
            yield Static(self._text)


class AskWhether(ModalScreen[bool]):
    """A question to which only y is a yes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("y", "dismiss(True)", "Yes"),
        ("n,escape,q,enter", "dismiss(False)", "No"),
    ]
    DEFAULT_CSS = """
    AskWhether { align: center middle; }
    AskWhether > Static { width: auto; max-width: 80%; height: auto; border: round $warning; padding: 0 1; }
    """

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        """Yield the question."""
        yield Static(Text(f"{self._question}\n\ny: yes    n: no"))
