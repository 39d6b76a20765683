"""`RunFacts`: the state of a run as plain data, read once a second for all pages."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Mapping
from typing import Any

from looptap.client.config_reader import ConfigReader
from looptap.client.estimates import Estimates, commonest, over_by_now, said
from looptap.client.exported_run import ExportedRun, shown_scalars
from looptap.client.machine import machine_lines
from looptap.client.session.vitals import moving
from looptap.streams.durations import duration, short_time
from looptap.streams.errors import LooptapError, QueryError
from looptap.streams.text import cut
from looptap.visualizers.data.words import shown_text
from looptap.visualizers.first_curves import GRADIENT_NORM, Curve, first_curves, has_gradient_norm
from looptap.visualizers.surfaces.panels.plain_knobs import plain_knob, value_for
from looptap.visualizers.surfaces.panels.run_controls import RunControls
from looptap.visualizers.surfaces.web.run_shelf import is_live
from looptap.visualizers.surfaces.web.stream_requests import COMMANDS_STREAM, OPERATOR

log = logging.getLogger("looptap")

REFRESH_INTERVAL_SECONDS = 1.0
"""Seconds between two requests for the state of a run."""
MAX_DIFF_CHARACTERS = 200_000
"""Characters of a diff that a page gets."""
_MAX_ROWS = 30
_MAX_COMMANDS = 12
_MAX_TEXT_CHARACTERS = 300
_MAX_FACT_CHARACTERS = 2_000
_MAX_SETTINGS = 500


class RunFacts:
    """What a page shows of a run beside its charts."""

    def __init__(self, run: Any) -> None:
        self._run = run
        self._live = is_live(run)
        self._operates = self._live and run.role == OPERATOR
        self._owned = self._operates or (isinstance(run, ExportedRun) and run.own)
        self._guard, self._turning = threading.Lock(), threading.Lock()
        self._looked = -math.inf
        self._last: dict[str, Any] = {}
        self._before: tuple[float, dict[str, int]] = (0.0, {})
        self._estimates = Estimates(run) if self._live else None
        self._config = ConfigReader(run)
        self._controls = RunControls(run) if self._operates else None

    def look(self) -> dict[str, Any]:
        """Return the facts, at most a second old. Blocks for a few seconds at most."""
        with self._guard:
            if time.monotonic() - self._looked >= 0.9 * REFRESH_INTERVAL_SECONDS:
                self._last = self._read()
                self._looked = time.monotonic()
            if self._controls is not None:  # outcomes arrive between two looks
                self._last |= self._panel(self._controls)
            return dict(self._last)

    def turn(self, name: str, value: Any, *, sure: bool = False) -> str:
        """Set a control or give a command; unless ``sure``, return a question about it.

        Raises QueryError for an unknown one.
        """
        controls = self._controls
        knob = None if controls is None else controls.knobs.get(name)
        if controls is None or knob is None:
            raise QueryError(f"This run has no control and no command {name!r:.80}.")
        with self._turning:
            controls.ask(knob, None if knob.info is None else value_for(knob.info, value))
            question = knob.question
            if question:  # a panel of one user leaves it open; here it is the page's, which asks again to say yes
                controls.answer(knob, sure)
        return "" if sure else question

    def export(self, name: str, shown: bool) -> None:
        """Show a declared stream to viewers, or hide it. Raises LooptapError."""
        if not self._operates:
            raise QueryError("This run is read-only.")
        self._run.export(name, shown)
        self._looked = -math.inf

    def diff(self) -> str:
        """Return the changes that were not committed; empty if they are not shown."""
        config = self._config.read()
        return "" if config is None else cut(config.diff, MAX_DIFF_CHARACTERS)

    def close(self) -> None:
        """End the stream that the facts were read from."""
        if self._estimates is not None:
            self._estimates.close()

    def _read(self) -> dict[str, Any]:
        """Read the facts; a failure is one of them, so that the charts are still shown."""
        try:
            return self._of_live() if self._live else self._of_stored()
        except Exception as error:
            if not self._last.get("problems"):
                log.exception("looptap: the facts of a run could not be read.")
            text = str(error) if isinstance(error, LooptapError) else f"{type(error).__name__}: {error}"
            return {"streams": [], "first": [], "name": "", "state": "", **self._last, "problems": [text]}

    # ------------------------------------------------------------ live runs

    def _of_live(self) -> dict[str, Any]:
        run, info = self._run, self._run.info
        rank = f"rank {info.rank} of {info.ranks}, " if info.ranks > 1 else ""
        facts: dict[str, Any] = {
            "name": run.name,
            "id": run.id,
            "kind": "live",
            "state": run.state,
            "reason": cut(run.reason, 500),
            "operates": self._operates,
            "owned": self._owned,
            "where": f"{rank}{info.host}, pid {info.pid}",
            "started": info.started,
            "first": [],
            "streams": [],
            "problems": [],
        }
        if not run.alive:
            return facts
        problems: list[str] = []
        asked = [self._cost, self._commands, self._gradient] if self._operates else []
        parts = [self._streams, self._activity, self._first, self._started, *asked]
        for part in parts:
            try:
                facts |= part(facts)
            except (LooptapError, TimeoutError) as error:
                problems.append(str(error))
        report = None if self._estimates is None else self._estimates.describe()
        if report is not None:
            sure, perhaps = over_by_now(report)
            facts["progress"] = {"sure": _finite(sure), "perhaps": _finite(perhaps), "lines": said(report)}
        if self._controls is not None:
            self._controls.refresh()
        return facts | {"problems": list(dict.fromkeys(problems))}

    def _streams(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "streams": [
                {
                    "name": one.name,
                    "query": cut(one.query, _MAX_TEXT_CHARACTERS),
                    "on": one.on,
                    "unit": one.unit,
                    "fields": list(one.fields or ()),
                    "values": one.values,
                    "rate": _finite(one.rate),
                    "state": one.reason or one.state,
                    "exported": one.exported,
                }
                for one in self._run.streams[: 10 * _MAX_ROWS]
            ]
        }

    def _first(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return the first charts of a page: declared streams, then scalars."""
        streams = [one for one in self._run.streams if one.name != COMMANDS_STREAM]
        curves = first_curves(shown_scalars(self._run), streams)
        return {
            "first": [
                *({"q": one.name} for one in streams),
                *({"q": one.query, "on": one.on, "name": one.name} for one in curves),
            ]
        }

    def _started(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of the run, if they are shown."""
        return config_facts(self._config.read())

    def _gradient(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return the query of a gradient norm, unless events carry one."""
        if has_gradient_norm(self._run.scalars):
            return {}
        return {"gradient": {"q": GRADIENT_NORM, "on": commonest(self._run), "every": 20, "name": "gradient norm"}}

    def _activity(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return how far the loop is."""
        run, events = self._run, self._run.events()
        ages, idle = run.ages(), run.idle
        (then, before), now = self._before, time.monotonic()
        self._before = now, events
        rows = [
            {
                "name": name,
                "count": count,
                "rate": _finite((count - before[name]) / (now - then)) if name in before else 0.0,
            }
            for name, count in list(events.items())[:_MAX_ROWS]
        ]
        found: dict[str, Any] = {"events": rows, "moving": moving(events, ages, idle) if events else ""}
        if run.paused:
            found["moving"] = f"paused for {duration(run.paused)}"
        if run.inside:
            found["moving"] = f"inside {run.inside}"
        return found

    def _cost(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        stats = self._run.agent_stats(machine=True)
        share = sum(one.share_of_time for one in (*stats.queries, *stats.streams))
        rows = [
            ["queries and declared streams", f"{share:.2%} of the loop's time"],
            ["looptap's thread", f"{stats.io_share:.2%}"],
            ["budget", f"{stats.budget:.0%}" if stats.budget != math.inf else "none"],
            ["clients", str(len(stats.clients))],
            ["dropped values", f"{stats.dropped:,}"],
        ]
        queries = [
            [
                cut(one.name, 120),
                one.on,
                short_time(one.nanoseconds_per_event / 1e9),
                f"{one.share_of_time:.2%}",
                one.limitation,
            ]
            for one in stats.queries[:_MAX_ROWS]
        ]
        return {"cost": rows, "queries": queries, "machine": machine_lines(stats.machine)}

    def _commands(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "commands": [_command(one, one.client) for one in reversed(self._run.command_records()[-_MAX_COMMANDS:])]
        }

    def _panel(self, controls: RunControls) -> dict[str, Any]:
        ordered = sorted(list(controls.knobs.values()), key=lambda knob: knob.info is None)
        return {"knobs": [plain_knob(knob) for knob in ordered], "refusal": controls.reason}

    # ------------------------------------------------------------ stored runs

    def _of_stored(self) -> dict[str, Any]:
        run = self._run
        facts = run.metadata
        where = ", ".join(str(facts[name]) for name in ("host", "directory", "commit") if facts.get(name))
        curves = first_curves(run.scalars, [Curve(one.text, one.on, one.name) for one in run.streams])
        until = run.until
        took = f", for {duration(until - run.started)}" if run.started and until else ""
        return {
            "name": run.name,
            "id": run.id,
            "kind": "stored",
            "state": run.state,
            "reason": cut(run.reason, 500),
            "operates": False,
            "where": cut(where, _MAX_TEXT_CHARACTERS) + took,
            "started": run.started,
            "streams": [
                {
                    "name": one.name,
                    "query": cut(one.text, _MAX_TEXT_CHARACTERS),
                    "on": one.on,
                    "unit": getattr(one, "unit", ""),
                    "fields": list(one.fields or ()),
                    "values": one.arrived,
                    "rate": 0.0,
                    "state": one.state,
                }
                for one in run.streams[: 10 * _MAX_ROWS]
            ],
            "first": [
                *({"q": one.name} for one in run.streams[:_MAX_ROWS]),
                *({"q": one.query, "on": one.on, "name": one.name} for one in curves),
            ],
            "commands": [_command(one, one.client) for one in reversed(run.commands[-_MAX_COMMANDS:])],
            "problems": [],
            **config_facts(self._config.read()),
        }


def config_facts(config: Any) -> dict[str, Any]:
    """Return the settings of a run and the facts of its start, as rows; {} for None."""
    if config is None:
        return {}
    settings = [[name, shown_text(value, _MAX_TEXT_CHARACTERS)] for name, value in list(config.items())[:_MAX_SETTINGS]]
    facts = [[name, cut(text, _MAX_FACT_CHARACTERS)] for name, text in config.facts().items()]
    return {"config": settings, "started_with": facts, "dirty": config.dirty}


def _command(one: Any, client: str) -> list[str]:
    """Return a command as a row: when, what, the change, by whom, the outcome."""
    when = getattr(one, "wall", None) or one.time
    name = getattr(one, "name", "")
    change = (
        "" if one.new is None else f"{one.old!r:.40} → {one.new!r:.40}" if one.old is not None else f"{one.new!r:.40}"
    )
    outcome = getattr(one, "warning", "") or one.outcome
    return [time.strftime("%H:%M:%S", time.localtime(when)), f"{one.what} {name}".strip(), change, client, outcome]


def _finite(number: float) -> float:
    """Return ``number``, or 0 if a hostile agent sent one that JSON cannot hold."""
    return number if math.isfinite(number) else 0.0
