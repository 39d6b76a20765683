"""`looptap controls`: the controls of a run."""

from __future__ import annotations

from typing import Annotated

import msgspec
from typer import Option

from looptap.cli.formats import printable
from looptap.cli.options import RunName
from looptap.cli.output import DONE, say_json
from looptap.client.attach import attach


def controls_command(
    run: RunName,
    as_json: Annotated[bool, Option("--json", help="Print one JSON array with an object for each control.")] = False,
) -> int:
    """List what can be set in a run: values, bounds, meaning.

    \b
      looptap controls digits-cnn
      looptap controls digits-cnn --json | jq -r '.[] | .name'

    Besides these, any number, text or flag of an object that the job exposes can be set by its path.
    """
    with attach(run) as job:
        found = job.controls.look()
    if as_json:
        return say_json(list(map(msgspec.structs.asdict, found.values())))
    for info in found.values():
        print(printable(str(info)))
    if not found:
        print(
            "This job has no controls. It has them once it calls agent.control(...), or exposes an optimizer or an "
            "object with looptap.Control attributes."
        )
    return DONE
