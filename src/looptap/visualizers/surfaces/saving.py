"""Pictures to files: `save_pictures` draws with matplotlib, plotly or as text."""

from __future__ import annotations

import io
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

from looptap.visualizers.drawing.backends.with_csv import csv_of
from looptap.visualizers.drawing.layouts import arrange
from looptap.visualizers.drawing.picture import Picture

WRITTEN = (".png", ".svg", ".pdf", ".html", ".csv", ".txt", ".gif")
"""Suffixes that `save_pictures` writes; a .gif shows the pictures one after the other."""
_EXTRAS = {".txt": "terminal"}
"""The extras of looptap that install the library, if not "window"."""


def save_pictures(
    pictures: Picture | Sequence[Picture],
    path: str | os.PathLike[str],
    rows: int | None = None,
    *,
    seconds: float = 0.2,
    over: Sequence[Mapping[str, Picture]] = (),
) -> Path:
    """Write one or several pictures to ``path`` by its suffix; return the path.

    .png, .svg and .pdf are drawn by matplotlib, .txt is text of 100 columns without colours, .html is a page that opens
    offline and can be zoomed, as in a notebook; ``over`` has what `html_of` takes. A .csv has the numbers of the
    pictures. In a .gif each picture is a frame of ``seconds``. ``rows`` says in how many rows several pictures are.
    The file is replaced as a whole: what ends this early leaves the old one, or none.
    Raises ValueError for any other suffix and for no pictures, FileNotFoundError for a missing directory, ImportError
    for a missing library.
    """
    path, several = checked_path(path), [pictures] if isinstance(pictures, Picture) else list(pictures)
    if not several:
        raise ValueError(f"There is no picture to write to {path}; a chart has one after its first value.")
    suffix = path.suffix.lower()
    whole = not path.exists() or path.is_file()
    target = path.resolve()  # a link stays one
    beside = target.with_name(f".{secrets.token_hex(8)}{suffix}") if whole else path
    try:
        _write(several, beside, suffix, rows, seconds, over, path.stem)
        if whole:
            beside.replace(target)
    except BaseException as error:
        if whole:
            beside.unlink(missing_ok=True)
        if not isinstance(error, ModuleNotFoundError):
            raise
        package, extra = str(error.name).partition(".")[0], _EXTRAS.get(suffix, "window")
        raise ImportError(f"A {suffix} file needs {package}: pip install 'looptap[{extra}]'", name=package) from None
    return path


def checked_path(path: str | os.PathLike[str]) -> Path:
    """Return the path of a file to write. Raises ValueError or FileNotFoundError."""
    path = Path(path)
    if path.suffix.lower() not in WRITTEN:
        raise ValueError(f"{path.name!r} does not say what to write; end it with one of {', '.join(WRITTEN)}.")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"The directory {path.parent} does not exist; make it first, or name another one.")
    return path


def _write(
    several: list[Picture],
    path: Path,
    suffix: str,
    rows: int | None,
    seconds: float,
    over: Sequence[Mapping[str, Picture]],
    title: str,
) -> None:
    if suffix == ".txt":
        from looptap.visualizers.drawing.backends.with_text import all_as_text as text_of_all

        text = text_of_all(several, width=100, color=False, rows=rows)
        path.write_text(text + "\n", encoding="utf-8")
    elif suffix == ".html":
        from looptap.visualizers.surfaces.pages.html_page import html_of

        path.write_text(html_of(several, rows, title=several[0].title or title, over=over), encoding="utf-8")
    elif suffix == ".csv":
        path.write_text("\r\n".join(map(csv_of, several)), encoding="utf-8", newline="")
    elif suffix == ".gif":
        _animate(several, path, seconds)
    else:
        _print(several, path, rows)


def _print(pictures: list[Picture], path: Path, rows: int | None) -> None:
    from matplotlib import rc_context

    from looptap.visualizers.drawing.backends.with_matplotlib import draw_all, new_figure

    down, across = arrange(len(pictures), rows)
    figure = new_figure(6.0 * across if across > 1 else 6.4, 3.8 * down if down > 1 else 4.2)
    draw_all(pictures, figure, down)
    with rc_context({"svg.fonttype": "path"}):
        figure.savefig(path)


def _animate(pictures: list[Picture], path: Path, seconds: float) -> None:
    from PIL import Image

    from looptap.visualizers.drawing.backends.with_matplotlib import draw, new_figure

    figure = new_figure()
    drawing, frames = draw(pictures[0], figure), []
    for picture in pictures:
        drawing.update(picture)
        file = io.BytesIO()
        figure.savefig(file, format="png")
        frames.append(Image.open(file).convert("P"))
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=round(1000 * seconds), loop=0)
