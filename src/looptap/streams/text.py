"""Short text for people: shortened, last line, spelling suggestions."""

from __future__ import annotations

import re
from collections.abc import Iterable

_WORD = re.compile(r"[^\W\d_]+")  # letters: the words of a name such as train_loss or top5_acc
_FORMULA = re.compile(r"[\t\r\n]|[\s\ufeff\u200b]*[=+\-@＝＋－＠]")  # the beginning of text that spreadsheets compute


def cut(text: str, length: int) -> str:
    """Return ``text`` cut to ``length`` characters, with an ellipsis if longer.

    >>> cut("gradient", 5), cut("loss", 5)
    ('grad…', 'loss')
    """
    return text if len(text) <= length else text[: max(0, length - 1)] + "…"


def cut_inside(text: str, length: int) -> str:
    """Return ``text`` cut to ``length`` characters in its middle.

    Its end may be a hint.

    >>> cut_inside("no x; there are a, b, c. Did you mean c?", 24), cut_inside("loss", 5)
    ('no x; there… you mean c?', 'loss')
    """
    half = length // 2
    return text if len(text) <= length else f"{text[: length - half - 1]}…{text[-half:]}"


def last_line(text: str) -> str:
    """Return the stripped last line of ``text``: of a traceback, the exception."""
    return text.strip().rpartition("\n")[2]


def public_line(text: str) -> str:
    """Return the last line of a traceback without the list of all names there are.

    >>> public_line("MissingObservable: no observable 'x'; there are: loss, secret.")
    "MissingObservable: no observable 'x'."
    """
    said, listed, _ = last_line(text).partition("; there are: ")
    return f"{said}." if listed else said


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return a sentence suggesting the nearest of ``names``; empty if none is near.

    >>> did_you_mean("los", ["loss", "step"]), did_you_mean("os", ["loss"])
    (" Did you mean 'loss'?", '')
    """
    import difflib

    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6 if len(name) > 2 else 0.7)
    return f" Did you mean {near[0]!r}?" if near else ""


def is_typo(name: str, meant: str) -> bool:
    """Return True if ``name`` is surely ``meant`` misspelled, and no name of its own.

    One of its words has two neighbouring letters swapped, or lacks a letter, has one too many or a wrong one between
    its first and its last. What differs at an end, or in a word of one or two letters, may be another name.

    >>> is_typo("los", "loss"), is_typo("lsos", "loss"), is_typo("grad_nrom", "grad_norm")
    (True, True, True)
    >>> is_typo("g_loss", "d_loss"), is_typo("rmse", "mse"), is_typo("grads", "grad"), is_typo("top1", "top5")
    (False, False, False, False)
    """
    words, others = _WORD.findall(name), _WORD.findall(meant)
    if len(words) != len(others) or _WORD.sub("", name) != _WORD.sub("", meant):
        return False
    unlike = [(a, b) for a, b in zip(words, others, strict=True) if a != b]
    return len(unlike) == 1 and _misspelled(*unlike[0])


def _misspelled(word: str, meant: str) -> bool:
    if min(len(word), len(meant)) < 3 or abs(len(word) - len(meant)) > 1:
        return False
    same = next((i for i, (a, b) in enumerate(zip(word, meant, strict=False)) if a != b), min(len(word), len(meant)))
    ends_alike = word[0] == meant[0] and word[-1] == meant[-1]
    if len(word) == len(meant):
        swapped = meant[:same] + meant[same + 1 : same + 2] + meant[same : same + 1] + meant[same + 2 :]
        return word == swapped or (ends_alike and word[same + 1 :] == meant[same + 1 :])
    shorter, longer = sorted((word, meant), key=len)
    return ends_alike and shorter[same:] == longer[same + 1 :]


def as_cell(text: str) -> str:
    """Return text for a table; what a spreadsheet would compute gets an apostrophe.

    >>> as_cell("=1+1"), as_cell("-0.5"), as_cell("loss")
    ("'=1+1", '-0.5', 'loss')
    """
    return f"'{text}" if _FORMULA.match(text) and not _is_number(text) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
