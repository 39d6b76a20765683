"""Options and arguments that several commands share, and the parsing of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, BadParameter, Option

from looptap.cli import completion
from looptap.streams.durations import duration
from looptap.streams.errors import QueryError
from looptap.streams.operators.windows import MAX_WINDOW_EVENTS, Window, as_window, seconds, sliding
from looptap.streams.text import did_you_mean

RUN_HELP = (
    "The run: its name, its id, the beginning of either, a pattern such as 'digits-*', or the path of a connection "
    "file; elsewhere ssh://host/run, ssh://login/host/run or 'command:… looptap bridge run'. `looptap ls` lists them."
)
STORED_HELP = "A stored run: its file, its name or id (the newest of that name), or a directory of TensorBoard's."

_UNIT_SECONDS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}


class TimeSpan(float):
    """Seconds as a default, which a help text shows with their unit.

    >>> str(TimeSpan(300))
    '5 min'
    """

    def __str__(self) -> str:
        return duration(self)


def time_of(text: str | float) -> float:
    """Return the seconds in ``90``, ``30s``, ``5m``, ``2d`` or ``inf``.

    Raises BadParameter.

    >>> [time_of(text) for text in ("90", "0.5s", "5m", "1.5d", "inf")]
    [90.0, 0.5, 300.0, 129600.0, inf]
    """
    if not isinstance(text, str):  # a default
        return float(text)
    if text.strip() == "inf":
        return float("inf")
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(s|m|min|h|d|)", text.strip())
    if match is None:
        raise BadParameter(f"{text!r} is no time. Write 30 or 30s for seconds, 5m, 8h or 2d.")
    return float(match[1]) * _UNIT_SECONDS[match[2]]


def integer(least: int, most: int | None = None) -> Callable[[Any], int]:
    """Return a parser of whole numbers from ``least`` to ``most``."""
    span = f", {least:,} or more" if most is None else f" from {least:,} to {most:,}"

    def number(text: Any) -> int:
        if not isinstance(text, str):  # a default
            return int(text)
        found = int(text) if re.fullmatch(r"[+-]?\d{1,18}", text.strip()) else None
        if found is None or found < least or (most is not None and found > most):
            raise BadParameter(f"{text!r} must be a whole number{span}.")
        return found

    return number


def choice(*names: str) -> Callable[[Any], str]:
    """Return a parser that takes one of ``names``."""

    def name(text: Any) -> str:
        if text and text not in names:  # the default is empty
            raise BadParameter(f"{text!r} must be one of {', '.join(names)}.{did_you_mean(text, names)}")
        return str(text)

    return name


def budget_of(text: Any) -> float:
    """Return the share of the time of a loop in ``0.05``, ``5%`` or ``inf``.

    Raises BadParameter.

    >>> [budget_of(text) for text in ("0.05", "5%", "inf")]
    [0.05, 0.05, inf]
    """
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+|inf)(%?)", str(text).strip())
    share = float(match[1]) / (100 if match[2] else 1) if match else 0.0
    if not share:
        raise BadParameter(f"{text!r} must be a share of the loop's time above 0: 0.05 or 5%. inf lifts the limit.")
    return share


def only_with(other: str, there: bool, **given: Any) -> None:
    """Raise BadParameter for an option that was given without ``other``."""
    for name, value in given.items():
        if value and not there:
            raise BadParameter(f"--{name.replace('_', '-')} has an effect only with {other}.")


RunName = Annotated[
    str, Argument(metavar="RUN", help=RUN_HELP, show_default=False, autocompletion=completion.run_names)
]
RunOrFile = Annotated[
    str,
    Argument(
        metavar="RUN",
        help=f"{RUN_HELP} Or the file of a stored run.",
        show_default=False,
        autocompletion=completion.run_names,
    ),
]
Wait = Annotated[
    float | None,
    Option(
        "--wait",
        metavar="TIME",
        parser=time_of,
        show_default=False,
        help="How long to wait for a run that has not started: 30s, 5m, 8h, inf. Ctrl-C ends the wait.",
    ),
]
Follow = Annotated[
    bool, Option("--follow", help="Wait for a run that has not started, and after its end for the next one.")
]

# ---------------------------------------------------------------- of queries

On = Annotated[
    str | None,
    Option(
        "--on",
        metavar="EVENT",
        show_default=False,
        help="The type of event of a query, as the job calls it in agent.emit; batch if not given. With it a text is "
        "a query, even if the job has a stream of that name.",
    ),
]
Of = Annotated[
    str | None,
    Option(
        "--of",
        metavar="STREAM",
        show_default=False,
        autocompletion=completion.stream_names,
        help="Ask the values of this stream that the job declares, not events; the query is evaluated in the job.",
    ),
]
WindowSize = Annotated[
    str | None,
    Option(
        "--window",
        metavar="SIZE",
        show_default=False,
        help="What a reduction goes over: 100 (events), 30s or 5m (time), sliding:100 (a value at each event over the "
        "last 100). Without it: a group of the job, such as the batches of an epoch.",
    ),
]
Every = Annotated[int, Option("--every", metavar="N", parser=integer(1), help="Evaluate at every N-th event only.")]
StreamName = Annotated[str, Option("--name", metavar="NAME", help="What the stream is called.", show_default=False)]
Budget = Annotated[
    float | None,
    Option(
        "--budget",
        metavar="SHARE",
        parser=budget_of,
        show_default=False,
        help="The share of the loop's time that each query may take: 0.2 or 20%, and inf lifts the limit. Without it "
        "all queries together keep to what the job allows, 3% by default.",
    ),
]
AllowCalls = Annotated[
    bool, Option("--allow-calls", help="Run the code that is in the file: only for a file that you trust.")
]
Unsafe = Annotated[bool, Option("--unsafe", help="Run the query as it is, on record, even if it may change the job.")]
Ranks = Annotated[
    str | None,
    Option(
        "--ranks",
        metavar="RANKS",
        show_default=False,
        help="Which ranks of the job: all, 0,3 or 0-3. Without it rank 0, or the lowest with an agent.",
    ),
]
Combine = Annotated[
    str | None,
    Option(
        "--combine",
        metavar="HOW",
        show_default=False,
        parser=choice("mean", "sum", "max", "min", "median", "list", "merge"),
        help="One value for all ranks: mean, sum, max, min, median or list of their values, or merge, which evaluates "
        "the query over the events of all ranks.",
    ),
]

Rank = Annotated[
    int | None,
    Option(
        "--rank",
        metavar="N",
        parser=integer(0),
        show_default=False,
        help="Which rank of the job; by default 0, or the lowest.",
    ),
]

# ---------------------------------------------------------------- of charts, files and servers

Place = Annotated[
    str,
    Option(
        "--in",
        metavar="PLACE",
        parser=choice("tk", "qt", "browser", "terminal"),
        help="tk, qt, browser or terminal; by default the first that works.",
    ),
]
Config = Annotated[bool, Option("--config", help="Show the settings of the run, its commit and versions, too.")]
ScriptName = Annotated[
    str | None, Option("--name", metavar="NAME", help="What the run is called.", show_default="the script's name")
]

# ---------------------------------------------------------------- of commands

Timeout = Annotated[
    float, Option("--timeout", metavar="TIME", parser=time_of, help="How long to wait for the answer: 30s, 5m.")
]
At = Annotated[
    str, Option("--on", metavar="EVENT", help="The type of event at which it runs.", show_default="where it is safe")
]
CommandId = Annotated[
    str | None,
    Option("--id", metavar="ID", help="Only ask for the outcome of an earlier command; do nothing else."),
]
CheckpointFirst = Annotated[bool, Option("--checkpoint", help="Save a checkpoint first, if the job can.")]
OnRanks = Annotated[
    str,
    Option("--ranks", metavar="RANKS", help="Only on these ranks of the job: 0,3 or 0-3. All of them do it, or none."),
]
TracedSteps = Annotated[
    int, Option("--steps", metavar="N", parser=integer(1, 100), help="How many steps are traced: 1 to 100.")
]
JobFile = Annotated[
    Path | None,
    Option("--output", "-o", metavar="PATH", help="A new file, on the machine of the job.", show_default=False),
]
JsonObject = Annotated[bool, Option("--json", help="Print one JSON object.")]


# ---------------------------------------------------------------- what they mean


def query_arguments(
    on: str | None,
    window: str | None,
    every: int,
    budget: float | None,
    ranks: str | None = None,
    combine: str | None = None,
    of: str | None = None,
    unsafe: bool = False,
) -> dict[str, Any]:
    """Return the arguments of `Run.stream` for these options. Raises BadParameter."""
    found: dict[str, Any] = {"on": on, "window": parsed_window(window), "every": every, "budget": budget}
    found["unsafe"] = unsafe
    if of is not None:
        found["of"] = of
    if ranks is not None or combine is not None:
        found |= {"ranks": parsed_ranks(ranks), "combine": combine}
    return found


def parsed_window(text: str | None) -> Window | None:
    """Return the window for ``100``, ``5m`` or ``sliding:100``. Raises BadParameter.

    >>> parsed_window("30s"), parsed_window("sliding:100")
    (Seconds(size=30.0), Sliding(size=100))
    """
    if text is None:
        return None
    try:
        if re.fullmatch(r"\d+", text):
            return as_window(int(text))
        if re.fullmatch(r"[\d.]+\s*(s|m|min|h|d)", text):
            return seconds(time_of(text))
        if match := re.fullmatch(r"sliding:(\d+)", text):
            return sliding(int(match[1]))
    except QueryError:  # its words are Python's
        pass
    raise BadParameter(
        f"{text!r}: a window is a number of events (100), a time (30s, 5m), or sliding:100 for a value "
        f"at each event over the last 100; at most {MAX_WINDOW_EVENTS:,} events."
    )


def parsed_ranks(text: str | None) -> str | list[int] | None:
    """Return the ranks for ``all``, ``0,3`` or ``0-3``. Raises BadParameter.

    >>> parsed_ranks("0-2,5")
    [0, 1, 2, 5]
    """
    if text in (None, "all"):
        return text
    ranks: list[int] = []
    for part in str(text).split(","):
        first, _, last = part.strip().partition("-")
        last = last or first
        if not (first.isdecimal() and last.isdecimal()) or int(last) - int(first) not in range(10_000):
            raise BadParameter(f"--ranks {text}: ranks are all, a list such as 0,3 or a range such as 0-3.")
        ranks += range(int(first), int(last) + 1)
    return ranks


def which_of(text: str) -> str | list[int]:
    """Return the ranks that a command is for."""
    return parsed_ranks(text) or "all"


def value_of(text: str) -> Any:
    """Return the value of a text: a number, True, False, or else the text.

    >>> value_of("1e-3"), value_of("True"), value_of("cosine"), value_of("'3'")
    (0.001, True, 'cosine', '3')
    """
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return {"true": True, "false": False, "inf": float("inf"), "nan": float("nan")}.get(text.lower(), text)
    return found if isinstance(found, int | float | str) else text
