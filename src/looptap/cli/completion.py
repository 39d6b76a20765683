"""What a shell completes: names of runs, streams, events, controls and modules."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from looptap.client.run import Run

ANSWER_TIMEOUT_SECONDS = 1.0
"""Seconds that a run and its next event have to answer."""
_NAME = re.compile(r"""(?:^|[^\w.'")\]])(?P<name>(?:[A-Za-z_][\w.-]*)?)$""")
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
    """Return queries that begin so: with names of streams, events or modules.

    >>> query_words(None, "model('")
    []
    """
    if (begun := _MODULE.search(incomplete)) is not None:
        after, of = f"{begun['quote']})", _modules
    elif (begun := _NAME.search(incomplete)) is not None:
        after, of = "", _names
    else:
        return []
    before, name = incomplete[: begun.start("name")], begun["name"]
    return [f"{before}{one}{after}" for one in _of_run(ctx, lambda run: of(run, before, name))]


def _modules(run: Run, before: str, name: str) -> list[str]:
    return [found for found, one in run.modules(name).items() if found.startswith(name) and not one.problem]


def _names(run: Run, before: str, name: str) -> list[str]:
    """Return the names that the next event offers; for a first word, also streams."""
    from looptap.client.estimates import commonest
    from looptap.streams.errors import LooptapError

    found = [] if before else [one.name for one in run.streams]
    with contextlib.suppress(LooptapError):  # of a viewer; or there is no event
        found += [one.name for one in run.scalars]
        found += run.names(commonest(run), ANSWER_TIMEOUT_SECONDS)
    return [one for one in dict.fromkeys(found) if one.startswith(name) and (one.isidentifier() or not before)]


def _of_run(ctx: Any, names: Callable[[Run], list[str]]) -> list[str]:
    """Return what ``names`` finds in the run that is typed, if it answers."""
    from looptap.client.attach import attach
    from looptap.streams.errors import LooptapError

    try:
        with attach(ctx.params.get("run"), timeout=ANSWER_TIMEOUT_SECONDS) as run:
            return names(run)
    except LooptapError:
        return []
