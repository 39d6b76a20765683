"""What a checkpoint keeps of an agent, and how another one, or the same one later, goes on from there."""

from __future__ import annotations

import logging
from time import monotonic
from typing import Any

from looptap.agent.loop.evaluation_plan import event_of
from looptap.agent.loop.event_sources import EventSources, NullEventSources
from looptap.agent.run.resume_lineage import seen_by
from looptap.agent.server.recording import RunRecorder
from looptap.agent.server.request_dispatcher import RequestDispatcher
from looptap.protocol.messages import RunInfo

STATE_VERSION = 1
"""The version of a state."""
_MAX_EVENT_NUMBER = 1 << 62  # above, an event's number comes from no loop

log = logging.getLogger("looptap")


class AgentCheckpoint:
    """The part of an `Agent` that outlives its process, in the checkpoints of the job."""

    run: RunInfo
    _service: RequestDispatcher
    _taps: EventSources
    _keeper: RunRecorder | None
    _link: Any

    def state_dict(self) -> dict[str, Any]:
        """What to keep in a checkpoint: event numbers, values of controls, the runs so far. Plain data; never raises.

        Of the controls there are those that the host has declared, those of exposed objects, and what commands have
        changed by its path; those of optimizers are in the state of the optimizer.

        >>> import looptap
        >>> looptap.Agent("doctest", enabled=False).state_dict()["events"]
        {}
        """
        inert = isinstance(self._taps, NullEventSources)
        lineage, counts = self._service.history, self._taps.counts()
        return {
            "looptap": STATE_VERSION, "run": self.run.id, "lineage": list(lineage.runs), "events": counts,
            "groups": {name: self._taps.by_name[name].group_start for name in counts},
            "seen": {name: max(number, lineage.seen.get(name, 0)) for name, number in counts.items()},
            "controls": {} if inert else self._service.commands.job.controls.saved(),
            "file": "" if self._keeper is None else str(self._keeper.writer.path),
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state: events are numbered on from there, and controls are set back, which is on record.

        To be called where the job loads its checkpoint, once what it steers is exposed. A value of an event that had
        been there before, in this process or as the file of the earlier run tells, is marked: ``again`` of its
        record. `stats` and the file of the run say what it was resumed from. A control that cannot be set back is
        warned of and on record. Raises ValueError for what is no state.

        >>> from looptap.testing import pair
        >>> agent, run = pair("doctest")
        >>> agent.emit("batch")
        >>> state = agent.state_dict()
        >>> agent, run = pair("doctest")
        >>> agent.load_state_dict(state)
        >>> number = run.stream("event_number")
        >>> agent.emit("batch")
        >>> number.values
        [2]
        """
        events, groups, seen = (_counts(state, name) for name in ("events", "groups", "seen"))
        run, lineage, file, controls = _facts(state)
        if isinstance(self._taps, NullEventSources):
            return
        service = self._service
        before = self._taps.counts()
        beside = None if self._keeper is None else self._keeper.writer.path
        service.history.learn(before)
        service.history.resume_from(
            (*lineage, run), events, seen, lambda: seen_by(file, beside) if file and beside else {}
        )
        self._taps.resume_from(events, groups)
        if self._link is not None:
            self._link.post(service.describe)
        for name, value in controls.items():
            self._set_back(name, value)

    def _set_back(self, name: str, value: Any) -> None:
        """Set a control to what it was, as a command of the host. Never raises."""
        tap = self._taps.open(self._service.commands.job.default_event)
        error = self._service.commands.restore(name, value, event_of({}, tap.source, tap.number, monotonic(), 0.0))
        if error:
            log.warning("looptap: the control %s was not set back to %r: %s", name, value, error)


def _counts(state: Any, name: str) -> dict[str, int]:
    found = state.get(name) if isinstance(state, dict) and state.get("looptap") == STATE_VERSION else None
    if not isinstance(found, dict) or not all(
        isinstance(key, str) and type(number) is int and 0 <= number <= _MAX_EVENT_NUMBER
        for key, number in found.items()
    ):
        raise ValueError(f"{state!r:.80} is no state of an agent: it is what Agent.state_dict() has returned.")
    return found


def _facts(state: dict[str, Any]) -> tuple[str, list[str], str, dict[str, Any]]:
    run, lineage, file, controls = (state.get(name) for name in ("run", "lineage", "file", "controls"))
    if isinstance(run, str) and isinstance(lineage, list) and isinstance(file, str) and isinstance(controls, dict):
        return run, list(map(str, lineage)), file, controls
    raise ValueError(f"{state!r:.80} is no state of an agent: a part of it is missing or is something else.")
