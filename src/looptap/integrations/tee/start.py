"""`start`: has an agent see what the job says to trackers, as long as it runs.

The methods of `trackers.METHODS` are wrapped in their classes, in packages that the job has imported or imports later.
A wrapper notes the arguments and calls the method; what the note raises stays in it. The last `Tee` that stops, or
whose agent ends, puts the methods back.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Collection
from types import ModuleType, TracebackType
from typing import Any

from looptap.agent.agent import Agent, is_open, on_end
from looptap.integrations.arrivals import once_imported
from looptap.integrations.harmless import harmlessly
from looptap.integrations.logged_values import LoggedValues
from looptap.integrations.tee.trackers import METHODS, SOURCES, TrackerMethod

_lock = threading.RLock()
_tees: tuple[Tee, ...] = ()
_followed: weakref.WeakSet[Agent] = weakref.WeakSet()
_wrapped: dict[tuple[type, str], tuple[Callable[..., Any], Callable[..., Any]]] = {}  # the wrapper, and the method


class Tee:
    """Passes calls of trackers to one agent; ends with the agent, or by `stop`."""

    def __init__(self, agent: Agent, sources: frozenset[str]) -> None:
        self._agent, self.sources = weakref.ref(agent), sources
        self._owners: dict[str, str] = {}
        self._logged = {source: LoggedValues(agent, source, self._owners) for source in sources}

    @property
    def agent(self) -> Agent | None:
        """The agent, as long as there is one that is open."""
        agent = self._agent()
        return agent if agent is not None and is_open(agent) else None

    def note(self, row: TrackerMethod, thing: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Note one call of a method. Raises only the ``on_stop`` of the agent's."""
        if row.source not in self.sources:
            return
        if self.agent is None:
            self.stop()
            return
        said = harmlessly(lambda: row.read(thing, *arguments, **keywords))
        if said is not None:
            self._logged[row.source].say(*said)

    def stop(self) -> None:
        """Note nothing further; the last one puts the methods back."""
        _drop_ended(self)

    def __enter__(self) -> Tee:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()


def start(agent: Agent, sources: Collection[str] = SOURCES) -> Tee:
    """Pass the job's calls of trackers to ``agent``, from now on.

    Each call of a tracker is an event ``log`` with the values by their tags, ``step`` and ``source``; each number is
    also a row of ``step`` and ``value`` in the declared stream of its tag, with history. Dicts in dicts give tags with
    slashes. ``sources`` are some of `SOURCES`: tensorboard, wandb, mlflow, trackio, lightning (``self.log``), tqdm (the
    postfix). Packages that the job does not import are never imported. A second call for an agent replaces the first.
    Raises ValueError for an unknown source; later nothing raises into the job except ``on_stop``.

    >>> import looptap
    >>> agent = looptap.Agent("doctest", enabled=False)
    >>> start(agent, ["tqdm"]).stop()
    """
    global _tees
    chosen = frozenset((sources,) if isinstance(sources, str) else sources)
    if unknown := chosen - {*SOURCES}:
        raise ValueError(f"sources={sorted(unknown)}: there are {', '.join(SOURCES)}.")
    tee = Tee(agent, chosen)
    with _lock:
        _tees = (*(one for one in _tees if one.agent is not None and one.agent is not agent), tee)
    _follow(agent)
    for name in {row.module for row in METHODS if row.source in chosen}:
        once_imported(name, functools.partial(harmlessly, _wrap_methods))
    return tee


def _follow(agent: Agent) -> None:
    """Drop the tee of an agent once that closes, fails or is gone."""
    if agent in _followed:
        _drop_ended()
        return
    _followed.add(agent)
    on_end(agent, _drop_ended)
    weakref.finalize(agent, _drop_ended).atexit = False


def _drop_ended(stopped: object = None) -> None:
    """Drop this one, and those of ended agents; after the last, put the methods back."""
    global _tees
    with _lock:
        _tees = tuple(one for one in _tees if one is not stopped and one.agent is not None)
        if not _tees:
            for (owner, name), (wrapper, method) in [*_wrapped.items()]:
                if vars(owner).get(name) is wrapper:
                    setattr(owner, name, method)
                    del _wrapped[owner, name]


def _new_lock() -> None:
    """Replace the lock in a forked child: a thread that is not there may hold it."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_new_lock)


def _wrap_methods(module: ModuleType) -> None:
    """Wrap the methods of a module that are in the table."""
    for row in METHODS:
        if row.module == module.__name__:
            harmlessly(_wrap, row, getattr(module, row.owner))


def _wrap(row: TrackerMethod, owner: type) -> None:
    """Wrap the method of a row, once."""
    name = next((one for one in row.methods if one in vars(owner)), None)
    with _lock:
        if name is None or (owner, name) in _wrapped or not _tees:
            return
        method = vars(owner)[name]

        @functools.wraps(method)
        def noted(self: Any, *arguments: Any, **keywords: Any) -> Any:
            if _tees and not _compiling():
                for tee in _tees:
                    tee.note(row, self, arguments, keywords)
            return method(self, *arguments, **keywords)

        setattr(owner, name, noted)
        _wrapped[owner, name] = noted, method


def _compiling() -> bool:
    """Return True where torch.compile traces the caller."""
    compiler = getattr(sys.modules.get("torch"), "compiler", None)
    return compiler is not None and bool(compiler.is_compiling())
