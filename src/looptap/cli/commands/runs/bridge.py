"""`looptap bridge`: the far end of a connection through ssh or another command."""

from __future__ import annotations

from typing import Annotated

from typer import Argument

from looptap.cli.options import RUN_HELP, Rank
from looptap.client.bridge import bridge


def bridge_command(
    run: Annotated[str | None, Argument(metavar="RUN", help=f"By default the newest. {RUN_HELP}")] = None,
    rank: Rank = None,
) -> int:
    """Join stdin and stdout to a run: the far end of ssh://host/run.

    Not for people, but for a client elsewhere that starts it on the machine of the run.

    \b
      looptap watch ssh://node7/digits-cnn "step, loss"
      looptap watch "command:ssh login srun --jobid=17 --overlap looptap bridge digits-cnn" "step, loss"

    First comes the connection file, with the keys; then the bytes of one connection, as lines.
    """
    return bridge(run, rank)
