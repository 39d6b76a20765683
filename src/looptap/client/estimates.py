"""Estimates of a job that exposes a `looptap.training.progress.Progress`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from looptap.client.run import Run
from looptap.client.streams.live import LiveStream
from looptap.protocol.errors import NotAllowed
from looptap.protocol.keys import VIEWER
from looptap.streams.durations import duration
from looptap.streams.errors import LooptapError
from looptap.streams.stream.state_and_cost import DEFAULT_BUFFER_ITEMS

REPORT_INTERVAL_SECONDS = 1.0
"""Seconds between two reports."""


class Estimates:
    """The reports of a job's `Progress` called ``name``, at one evaluation a second."""

    def __init__(self, run: Run, name: str = "progress") -> None:
        self._run, self._name = run, name
        self._stream: LiveStream | None = None

    def newest(self) -> Mapping[str, Any] | None:
        """Return the newest report, or None. Raises LooptapError without an answer."""
        if self._stream is None:
            run = self._run
            if not any(run.events().values()):
                return None
            if run.role == VIEWER:
                offered = any(stream.name == f"{self._name}.report" for stream in run.streams)
            else:
                offered = f"{self._name}.epochs" in run.controls
            if not offered:
                return None
            self._stream = reports(run, self._name, buffer=10)
        value = self._stream.latest
        return value if is_report(value) else None

    def close(self) -> None:
        """End the stream of reports, if it was opened."""
        if self._stream is not None:
            self._stream.detach()

    def describe(self) -> Mapping[str, Any] | None:
        """Return the newest report; None if the run is over, does not answer or has none."""
        try:
            return self.newest() if self._run.alive else None
        except LooptapError:
            return None


def reports(
    run: Run,
    name: str = "progress",
    on: str | None = None,
    every: float = REPORT_INTERVAL_SECONDS,
    buffer: int = DEFAULT_BUFFER_ITEMS,
) -> LiveStream:
    """Return the stream of reports of a job's `Progress`, at most one in ``every`` s.

    ``name`` is that of the exposed object. A viewer gets those that are exported as "progress.report", whenever they
    come; LooptapError if none are.
    """
    query = f"{name}.report"
    if run.role != VIEWER:
        return run.stream(query, on=on or commonest(run), throttle=every, buffer=buffer)
    if all(stream.name != query for stream in run.streams):
        raise NotAllowed(
            f"{run.id} shows viewers no progress as {name!r}. Its operator exports it by: looptap share {run.name} "
            f"--stream {query} --on {commonest(run)}."
        )
    return run.stream(query, buffer=buffer)


def is_report(value: object) -> bool:
    """Return True if a value of a stream is a report of progress."""
    return isinstance(value, Mapping) and "fraction" in value and "remaining" in value


def commonest(run: Run) -> str:
    """Return the most frequent type of event."""
    events = run.events()
    return max(events, key=events.__getitem__) if any(events.values()) else "batch"


def said(report: Mapping[str, Any]) -> list[str]:
    """Format a report as lines: remaining time, stop, speed, and unknowns."""
    if report["over"]:
        return [f"100%, done after {duration(report['elapsed'])}"]
    lines = [f"{report['fraction']:.0%}"]
    if report["remaining"] is None:
        steps = f"{report['steps']:,} step{'s' * (report['steps'] != 1)}"
        lines[0] = f"{steps} in {duration(report['elapsed'])}; what remains is not known yet"
    else:
        median, low, high = report["remaining"]
        lines[0] += f", {duration(median)} to go ({duration(low)} to {duration(high)})"
    if report.get("guess"):
        lines[0] = f"a guess: {lines[0]}"
        lines.append(f"from {report['guess']}")
        return [*lines, report["note"]] if report["note"] else lines
    facts = []
    if (stop := report["stop_at"]) is not None and stop[1] < stop[2]:
        facts.append("stops after validation {:.0f} ({:.0f} to {:.0f})".format(*stop))
    elif stop is not None and (report["validation_cost"] or report["validation_speed"]):
        facts.append(f"ends after validation {stop[0]:.0f}")
    if (certain := report.get("unless_better")) is not None:
        facts.append(f"in {certain} unless one improves")
    for what in ("train", "validation"):
        if (speed := report[f"{what}_speed"]) is not None:
            facts.append(f"{what} {speed:,.{0 if speed >= 10 else 1}f}/s")
    if facts:
        lines.append(", ".join(facts))
    if known := report.get("earlier_runs"):
        lines.append(f"It knows {known} earlier run{'s' * (known > 1)} with this name and config.")
    if report.get("reason"):
        lines.append(f"The estimate has just moved: {report['reason']}.")
    if report["note"]:
        lines.append(report["note"])
    return lines


def over_by_now(report: Mapping[str, Any]) -> tuple[float, float]:
    """Return the shares of the time (0 to 1) that are over at least and at most.

    >>> over_by_now({"over": False, "elapsed": 50, "fraction": 0.5, "remaining": [50, 0, 200]})
    (0.2, 1.0)
    """
    if report["over"]:
        return 1.0, 1.0
    if report["remaining"] is None:
        return 0.0, 0.0
    elapsed, (_, low, high) = report["elapsed"], report["remaining"]
    sure, perhaps = (min(1.0, elapsed / max(elapsed + rest, 1e-9)) for rest in (high, low))
    return sure, perhaps


def banded(report: Mapping[str, Any], width: int) -> str:
    """Draw a bar of ``width`` characters: full up to the least share, then shaded.

    >>> banded({"over": False, "elapsed": 50, "fraction": 0.5, "remaining": [50, 33, 116]}, 10)
    '███▒▒▒░░░░'
    """
    sure, perhaps = (int(width * share) for share in over_by_now(report))
    return "█" * sure + "▒" * (perhaps - sure) + "░" * (width - perhaps)
