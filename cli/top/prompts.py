"""What `looptap top` asks its user: for a text, or whether something is meant."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static


class AskText(ModalScreen[list[str] | None]):
    """Some texts, each under its title; None if the user thinks better of it."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "dismiss(None)", "Leave it")]
    DEFAULT_CSS = """
    AskText { align: center middle; }
    AskText > Vertical { width: 80%; max-width: 90; height: auto; border: round $accent; padding: 0 1; }
    AskText Static { height: auto; max-height: 6; }
    """

    def __init__(self, about: str, *fields: tuple[str, str]) -> None:
        super().__init__()
        self._about, self._fields = about, fields

    def compose(self) -> ComposeResult:
        """The texts with what is in them at first."""
        with Vertical():
            yield Static(Text(self._about))
            for title, text in self._fields:
                yield Static(Text(title, "dim"))
                yield Input(text)
            yield Static(Text("Enter does it, Escape leaves it.", "dim"))

    def on_input_submitted(self) -> None:
        """Enter in any of them."""
        self.dismiss([field.value.strip() for field in self.query(Input)])


class AskWhether(ModalScreen[bool]):
    """A question that only y says yes to."""

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
        """The question."""
        yield Static(Text(f"{self._question}\n\ny: yes    n: no"))
