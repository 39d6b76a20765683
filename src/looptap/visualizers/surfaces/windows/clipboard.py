"""`copy_text`: a text on the clipboard of a window's toolkit."""

from __future__ import annotations

from typing import Any


def copy_text(canvas: Any, text: str) -> str:
    """Put a text on the clipboard; return a report with the text."""
    if hasattr(canvas, "get_tk_widget"):
        widget = canvas.get_tk_widget()
        widget.clipboard_clear()
        widget.clipboard_append(text)
    elif hasattr(canvas, "setCursor"):  # a widget of Qt
        from matplotlib.backends.qt_compat import QtWidgets

        QtWidgets.QApplication.clipboard().setText(text)
    else:
        return text
    return f"copied: {text}"
