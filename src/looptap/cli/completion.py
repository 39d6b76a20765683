"""What a shell completes: the names of runs, streams, controls and modules."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from looptap.client.run import Run

ANSWER_TIMEOUT_SECONDS = 1.0
_MODULE = re.compile(r"""\b(activations|inputs|grads_of)\((?P<quote>['"])(?P<name>[\w.]*)$""")


def typed_words() -> list[str]:
    """Return what was typed after ``looptap`` before the word that a shell completes."""
    if "_LOOPTAP_COMPLETE" not in os.environ:
        return []
    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")  # bash; other shells
    return re.findall(r"\S+(?=\s)", line)[1:]


def run_names(incomplete: str) -> list[str]:
    """Return the names of the live runs of this machine that begin so."""
    from looptap.client.attach import runs
    from looptap.streams.errors import LooptapError

    try:
        return sorted({one.name for one in runs() if one.name.startswith(incomplete)})
    except LooptapError:
        return []  # a shell shows what is printed in the middle of the line


def control_names(ctx: Any, incomplete: str) -> list[str]:
    """Return the names of the controls of the run that is typed already."""
    return _of_run(ctx, lambda run: [name for name in run.controls if name.startswith(incomplete)])


def stream_names(ctx: Any, incomplete: str) -> list[str]:
    """Return the names of the declared streams of the run that is typed already."""
    return _of_run(ctx, lambda run: [one.name for one in run.streams if one.name.startswith(incomplete)])


def query_words(ctx: Any, incomplete: str) -> list[str]:
    """Return names of streams, or a query with names of modules.

    >>> query_words(None, "step, los")
    []
    """
    begun = _MODULE.search(incomplete)
    if begun is None:
        return stream_names(ctx, incomplete) if re.fullmatch(r"[\w.-]*", incomplete) else []
    before, quote, name = incomplete[: begun.start("name")], begun["quote"], begun["name"]

    def modules(run: Run) -> list[str]:
        return [found for found, one in run.modules(name).items() if found.startswith(name) and not one.problem]

    return [f"{before}{found}{quote})" for found in _of_run(ctx, modules)]


def _of_run(ctx: Any, names: Callable[[Run], list[str]]) -> list[str]:
    """Return what ``names`` finds in the run that is typed, if it answers."""
    from looptap.client.attach import attach
    from looptap.streams.errors import LooptapError

    try:
        with attach(ctx.params.get("run"), timeout=ANSWER_TIMEOUT_SECONDS) as run:
            return names(run)
    except LooptapError:
        return []
