"""The agent's part of a checkpoint, and how an agent resumes from it."""

from __future__ import annotations

import logging
from typing import Any

from looptap.agent.life_cycle import LifeCycle
from looptap.agent.run.resume_lineage import seen_by
from looptap.agent.wiring import Components
from looptap.streams.events import event_of

STATE_VERSION = 1
"""The version of a state."""
_MAX_EVENT_NUMBER = 1 << 62  # above, an event's number comes from no loop

log = logging.getLogger("looptap")


class AgentCheckpoint:
    """The agent's state in the checkpoints of its job; see `Agent.state_dict`."""

    def __init__(self, parts: Components, life: LifeCycle) -> None:
        self._parts, self._life = parts, life

    def state_dict(self) -> dict[str, Any]:
        """Return the agent's state for a checkpoint, as plain data. Never raises.

        It holds event numbers, the earlier runs and the values of controls: those that the host has declared, those of
        exposed objects, and those that commands have changed by path. An optimizer's controls are in its own state.

        >>> import looptap
        >>> looptap.Agent("doctest", enabled=False).state_dict()["events"]
        {}
        """
        parts, sources = self._parts, self._life.sources
        history, counts = parts.dispatcher.history, sources.counts()
        return {
            "looptap": STATE_VERSION,
            "run": parts.run.id,
            "lineage": list(history.runs),
            "events": counts,
            "groups": {name: sources.by_name[name].group_start for name in counts},
            "seen": {name: max(number, history.seen.get(name, 0)) for name, number in counts.items()},
            "controls": {} if self._life.inert else parts.dispatcher.commands.job.controls.saved(),
            "file": "" if parts.recorder is None else str(parts.recorder.writer.path),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a state: continue its event numbers and restore its controls.

        Call it where the job loads its checkpoint, after exposing the objects with controls. Records of values from
        events that had already occurred, in this process or according to the file of the earlier run, have ``again``.
        `stats` and the file of the run say from where it was resumed. A control that cannot be restored causes a
        warning and a record. Raises ValueError if ``state`` is malformed.

        Args:
            state: The result of `state_dict`.

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
        if self._life.inert:
            return
        parts, sources, dispatcher = self._parts, self._life.sources, self._parts.dispatcher
        dispatcher.history.learn(sources.counts())
        sibling = None if parts.recorder is None else parts.recorder.writer.path
        dispatcher.history.resume_from(
            (*lineage, run), events, seen, lambda: seen_by(file, sibling) if file and sibling else {}
        )
        sources.resume_from(events, groups)
        parts.connection.post(dispatcher.describe)
        for name, value in controls.items():
            source = sources.open(dispatcher.commands.job.default_event)
            event = event_of({}, source.origin, source.number, sources.clock(), 0.0)
            if error := dispatcher.commands.restore(name, value, event):
                log.warning("looptap: the control %s was not set back to %r: %s", name, value, error)


def _counts(state: Any, name: str) -> dict[str, int]:
    found = state.get(name) if isinstance(state, dict) and state.get("looptap") == STATE_VERSION else None
    if not isinstance(found, dict) or not all(
        isinstance(key, str) and type(number) is int and 0 <= number <= _MAX_EVENT_NUMBER
        for key, number in found.items()
    ):
        raise ValueError(f"{state!r:.80} is not the state of an agent, which Agent.state_dict() returns.")
    return found


def _facts(state: dict[str, Any]) -> tuple[str, list[str], str, dict[str, Any]]:
    run, lineage, file, controls = (state.get(name) for name in ("run", "lineage", "file", "controls"))
    if isinstance(run, str) and isinstance(lineage, list) and isinstance(file, str) and isinstance(controls, dict):
        return run, list(map(str, lineage)), file, controls
    raise ValueError(f"{state!r:.80} is not the state of an agent: a part of it is missing or of another kind.")
