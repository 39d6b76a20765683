"""Estimates of a job that exposes a `looptap.training.progress.Progress`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
            if not any(self._run.events().values()) or not self._is_offered():
                return None
            self._stream = reports(self._run, self._name, buffer=10)
        value = self._stream.latest
        return value if is_report(value) else None

    def _is_offered(self) -> bool:
        if self._run.role == VIEWER:
            return _is_exported(self._run, f"{self._name}.report")
        return f"{self._name}.epochs" in self._run.controls

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
    if not _is_exported(run, query):
        raise NotAllowed(
            f"{run.id} shows viewers no progress as {name!r}. Its operator exports it by: looptap share {run.name} "
            f"--stream {query} --on {commonest(run)}."
        )
    return run.stream(query, buffer=buffer)


def _is_exported(run: Run, name: str) -> bool:
    return name in {stream.name for stream in run.streams}


def is_report(value: object) -> bool:
    """Return True if a value of a stream is a report of progress."""
    return isinstance(value, Mapping) and "fraction" in value and "remaining" in value


def commonest(run: Run) -> str:
    """Return the most frequent type of event."""
    events = run.events()
    return max(events, key=events.__getitem__) if any(events.values()) else "batch"


def said(report: Mapping[str, Any]) -> list[str]:
    """Format a report as lines: remaining time, stop, speed, and unknowns."""
    elapsed = duration(report["elapsed"])
    if report["over"]:
        return [f"100%, done after {elapsed}"]
    if report["remaining"] is None:
        steps = f"{report['steps']:,} step{'s' * (report['steps'] != 1)}"
        left = f"{steps} in {elapsed}; what remains is not known yet"
    else:
        median, low, high = map(duration, report["remaining"])
        left = f"{report['fraction']:.0%}, {median} to go ({low} to {high})"
    if guess := report.get("guess"):
        return [f"a guess: {left}", f"from {guess}", *filter(None, [report["note"]])]
    known, reason = report.get("earlier_runs"), report.get("reason")
    notes = (
        ", ".join(_facts(report)),
        known and f"It knows {known} earlier run{'s' * (known > 1)} with this name and config.",
        reason and f"The estimate has just moved: {reason}.",
        report["note"],
    )
    return [left, *filter(None, notes)]


def _facts(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield when it stops, and how fast it is, as far as that is known."""
    stop, certain = report["stop_at"], report.get("unless_better")
    if stop is not None and stop[1] < stop[2]:
        yield "stops after validation {:.0f} ({:.0f} to {:.0f})".format(*stop)
    elif stop is not None and (report["validation_cost"] or report["validation_speed"]):
        yield f"ends after validation {stop[0]:.0f}"
    if certain is not None:
        yield f"in {certain} unless one improves"
    for what in ("train", "validation"):
        if (speed := report[f"{what}_speed"]) is not None:
            yield f"{what} {speed:,.{0 if speed >= 10 else 1}f}/s"


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
