"""What a shell completes: the names of runs, and of their controls."""

from __future__ import annotations

import re
from typing import Any

ANSWER_TIMEOUT_SECONDS = 1.0
_MODULE = re.compile(r"""\b(activations|inputs|grads_of)\((?P<quote>['"])(?P<name>[\w.]*)$""")


def run_names(incomplete: str) -> list[str]:
    """Return the names of the live runs of this machine that begin so."""
    from looptap.client.attach import runs

    return sorted({one.name for one in runs() if one.name.startswith(incomplete)})


def control_names(ctx: Any, incomplete: str) -> list[str]:
    """Return the names of the controls of the run that is typed already."""
    from looptap.client.attach import attach
    from looptap.streams.errors import LooptapError

    try:
        with attach(ctx.params.get("run"), timeout=ANSWER_TIMEOUT_SECONDS) as run:
            return [name for name in run.controls if name.startswith(incomplete)]
    except LooptapError:
        return []  # a shell shows what is printed in the middle of the line


def module_names(ctx: Any, incomplete: str) -> list[str]:
    """Return a query with the names of modules that continue its last one.

    >>> module_names(None, "step, los")
    []
    """
    from looptap.client.attach import attach
    from looptap.streams.errors import LooptapError

    begun = _MODULE.search(incomplete)
    if begun is None:
        return []
    before, quote, name = incomplete[: begun.start("name")], begun["quote"], begun["name"]
    try:
        with attach(ctx.params.get("run"), timeout=ANSWER_TIMEOUT_SECONDS) as run:
            names = [found for found, one in run.modules(name).items() if found.startswith(name) and not one.problem]
    except LooptapError:
        return []
    return [f"{before}{found}{quote})" for found in names]
