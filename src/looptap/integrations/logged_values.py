"""`LoggedValues`: what a job logs becomes events, and one stream per tag."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Mapping
from numbers import Real
from typing import Any

from looptap.agent.agent import Agent, log_at_step
from looptap.integrations.harmless import harmlessly, say_once

EVENT = "log"
"""The type of the events."""
MAX_TAGS_COUNT = 200
"""Tags of one process that have streams; those beyond are in the events alone."""
MAX_DEPTH_COUNT = 8
"""Dicts within dicts that are flattened."""
MAX_VALUES_COUNT = 1000
"""Values of one event."""


class LoggedValues:
    """What one ``source`` (a tracker, a framework) logs, on behalf of an agent.

    Any thread. An event ``log`` has the values by their tags, all of them as ``logs``, ``step`` and ``source``. Each
    number is also a row of ``step`` and ``value`` in the declared stream of its tag. That stream belongs to the source
    that was first to log the tag: what Lightning hands on to TensorBoard is in it once. ``owners`` says which, for all
    sources of an agent.
    """

    def __init__(self, agent: Agent, source: str, owners: dict[str, str] | None = None) -> None:
        self._agent, self._source = weakref.ref(agent), source
        self._owners = {} if owners is None else owners
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()

    def say(self, values: Mapping[str, Any], step: Any = None) -> None:
        """Raise one event, and append to the streams. Raises ``on_stop`` only."""
        agent = self._agent()
        event = None if agent is None else harmlessly(self._take, agent, values, step)
        if agent is not None and event:
            agent.emit(EVENT, **event)

    def _take(self, agent: Agent, values: Mapping[str, Any], step: Any) -> dict[str, Any]:
        """Append to the streams; return the observables of the event, if any."""
        found = dict(tagged(values))
        numbers = [(tag, value) for tag, value in found.items() if is_one_number(value)]
        if step is None:
            step = found["step"] if is_one_number(found.get("step")) else self._next(numbers)
        for tag, value in numbers:
            if self._owns(tag):
                self._append(agent, tag, step, value)
        return {**found, "step": step, "source": self._source, "logs": found} if found else {}

    def _owns(self, tag: str) -> bool:
        owner = self._owners.get(tag)
        if owner is None:
            with self._lock:
                if len(self._owners) >= MAX_TAGS_COUNT:
                    return False
                owner = self._owners.setdefault(tag, self._source)
        return owner == self._source

    def _next(self, numbers: list[tuple[str, Any]]) -> int:
        """Return how often these were logged before, where the job gives no step."""
        counts = self._counts
        for tag, _ in numbers:
            if tag in counts or len(counts) < MAX_TAGS_COUNT:
                counts[tag] = counts.get(tag, -1) + 1
        return max((counts.get(tag, 0) for tag, _ in numbers), default=0)

    def _append(self, agent: Agent, tag: str, step: Any, value: Any) -> None:
        try:
            log_at_step(agent, tag, step, value)
        except Exception as error:  # a stream of the job has this name, or there are too many
            self._owners[tag] = ""
            say_once(error)


def tagged(values: Mapping[str, Any], prefix: str = "", depth: int = MAX_DEPTH_COUNT) -> Iterator[tuple[str, Any]]:
    """Yield tags and values; a dict in a dict gives tags with a slash.

    >>> dict(tagged({"loss": 1.0, "val": {"acc": 0.5, "f1": {"macro": 0.25}}}))
    {'loss': 1.0, 'val/acc': 0.5, 'val/f1/macro': 0.25}
    """
    for name, value in [*values.items()][:MAX_VALUES_COUNT]:
        tag = f"{prefix}{name}"
        if isinstance(value, Mapping) and depth > 0:
            yield from tagged(value, f"{tag}/", depth - 1)
        else:
            yield tag, value


def is_one_number(value: Any) -> bool:
    """Return True for a real number, a numpy scalar or a tensor with one element.

    >>> is_one_number(0.5), is_one_number(True), is_one_number("0.5")
    (True, True, False)
    """
    if isinstance(value, Real) or not (hasattr(value, "detach") and hasattr(value, "numel")):
        return isinstance(value, Real)
    return bool(value.numel() == 1 and not value.is_complex())
