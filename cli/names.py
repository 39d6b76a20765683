"""How a run is named on the command line."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from looptap.streams.errors import QueryError

RUN_HELP = (
    "The run: its name, its id, the beginning of either, a pattern such as 'digits-*', or the path of a connection "
    "file; elsewhere ssh://host/run, ssh://login/host/run or 'command:… looptap bridge run'. `looptap ls` lists them."
)
Wait = Annotated[
    float | None,
    Option(
        "--wait", metavar="S", min=0.0, show_default=False,
        help="Wait up to S seconds for a run that has not started; inf: as long as it takes. Ctrl-C ends that.",
    ),
]  # fmt: skip
Ranks = Annotated[
    str | None,
    Option(
        "--ranks", metavar="RANKS", show_default=False,
        help="Which ranks of the job: all, 0,3 or 0-3. Without it rank 0, or the lowest with an agent.",
    ),
]  # fmt: skip
Combine = Annotated[
    str | None,
    Option(
        "--combine", metavar="HOW", show_default=False,
        help="One value for all ranks: mean, sum, max, min, median or list of their values, or merge, what the "
        "query comes to over the events of all.",
    ),
]  # fmt: skip
Budget = Annotated[
    float | None,
    Option(
        "--budget", metavar="SHARE", show_default=False,
        help="Of the loop's time, what each query may take: 0.2 is a fifth, inf lifts the limit. Without it all "
        "queries together keep to what the job allows, 3 % by default.",
    ),
]  # fmt: skip
OnRanks = Annotated[
    str,
    Option(
        "--ranks",
        metavar="RANKS",
        help="For these ranks of the job alone: 0,3 or 0-3. All that are meant do it, or none.",
    ),
]
Shown = Annotated[str, Argument(metavar="RUN", help=f"{RUN_HELP} Or the file of a stored run.", show_default=False)]
Name = Annotated[str, Argument(metavar="RUN", help=RUN_HELP, show_default=False)]


def ranks_of(text: str | None) -> str | list[int] | None:
    """The ranks that ``all``, ``0,3`` or ``0-3`` means. Raises QueryError for anything else.

    >>> ranks_of("0-2,5")
    [0, 1, 2, 5]
    """
    if text in (None, "all"):
        return text
    ranks: list[int] = []
    for part in str(text).split(","):
        first, _, last = part.strip().partition("-")
        last = last or first
        if not (first.isdecimal() and last.isdecimal()) or int(last) - int(first) not in range(10_000):
            raise QueryError(f"--ranks {text}: ranks are all, a list such as 0,3 or a range such as 0-3.")
        ranks += range(int(first), int(last) + 1)
    return ranks


def which_of(text: str) -> str | list[int]:
    """The ranks that a command is for."""
    return ranks_of(text) or "all"


def relayed(name: str, ranks: str | list[int] | None) -> int:
    """Be the relay of ``ranks`` of the run ``name``; returns the exit code."""
    from looptap.client.attach import attach
    from looptap.client.ranks.merge_relay import relay

    with attach(name) as run:
        return relay(run, run.ranks.select(ranks or "all"))
