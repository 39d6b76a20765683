"""The object inside the training process that raises events and serves clients."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection
from functools import partial
from types import TracebackType
from typing import Any

from looptap.agent.checkpoint import AgentCheckpoint
from looptap.agent.connection import ServerConnection
from looptap.agent.declarations import ControlDeclarations
from looptap.agent.io.endpoints import check_form
from looptap.agent.life_cycle import LifeCycle
from looptap.agent.loop.event_sources import DeferredActions, EventSources
from looptap.agent.server.declared_streams import DEFAULT_HISTORY_VALUES, DEFAULT_MAX_VALUE_BYTES
from looptap.agent.server.recording import RunRecorder
from looptap.agent.wiring import Components, build, enabled_here
from looptap.protocol.limits import Limits
from looptap.streams.control import Control


class Agent:
    """The training process's end of looptap: raises events and serves clients.

    ``name`` is what clients ask for. In ``groups``, an event ends the open groups of the types before it. ``listen``
    is where to listen: None for a private socket of this machine, ``"tcp"`` for loopback, ``"tcp://host:port"``.
    ``budget`` is the fraction of the loop's time that all queries and the I/O thread may take together, unless a client
    grants one more. ``ranks`` restricts the agent to these ranks. An agent that is not ``enabled``, or has
    ``LOOPTAP_DISABLED=1`` in its environment, or is in a forked child, does nothing and costs nothing: training code
    needs no ``if``. ``sigterm=True`` installs a SIGTERM handler that sends pending values, notifies clients, and then
    does what SIGTERM did before; without it no signal is handled.

    ``on_stop`` is raised out of `emit` when a client asks the job to stop, in addition to `stop_requested`.
    ``may_pause`` is for how many seconds clients may pause the loop, inside `emit`. ``replay`` (or ``LOOPTAP_REPLAY``)
    names a file of another run's commands, which are executed at the same events in this one.

    A newer agent of the same name and rank in the same process closes the older one and takes its place, so that a
    notebook cell can be run again.

    A wrong argument raises at once, on any machine: ValueError (also for ``sigterm`` off the main thread),
    `BadEndpoint` for a malformed ``listen``, `ControlError` for a ``replay`` that cannot be executed. What this
    machine does not allow (a directory that others can write, a port that is taken, a full disk) is a warning, and the
    job continues with an agent that does nothing; ``strict`` raises that as well. After that nothing raises into the
    loop.

    >>> import looptap
    >>> with looptap.Agent("doctest", enabled=False) as agent:
    ...     agent.emit("batch", step=0, loss=0.5)
    """

    def __init__(
        self,
        name: str,
        *,
        groups: Collection[str] = ("batch", "epoch"),
        listen: str | None = None,
        limits: Limits | None = None,
        budget: float = 0.03,
        ranks: Collection[int] | None = None,
        enabled: bool = True,
        sigterm: bool = False,
        on_stop: type[BaseException] | None = None,
        may_pause: float | None = None,
        replay: str | os.PathLike[str] | None = None,
        store: str | os.PathLike[str] | None = None,
        strict: bool = False,
    ) -> None:
        check_form(listen)
        parts = build(
            name, groups=groups, limits=limits, budget=budget, ranks=ranks, enabled=enabled and enabled_here(),
            connect=lambda run, limits: ServerConnection(name, run.rank, listen, limits),
            record=lambda run: RunRecorder(run, store), sigterm=sigterm, strict=strict,
        )  # fmt: skip
        self._begin(parts, sigterm=sigterm, on_stop=on_stop, may_pause=may_pause, replay=replay, strict=strict)

    # ------------------------------------------------------------ what the loop calls

    def emit(self, event: str, /, **observables: Any) -> None:
        """Raise ``event`` with its observables, which are passed by reference.

        Any thread. Never raises, except ``on_stop``.

        >>> import looptap
        >>> looptap.Agent("doctest", enabled=False).emit("batch", step=3, loss=0.1)
        """
        if _compiling():
            return
        try:
            source = self._types[event]
            if source.has_work:
                source.deliver(observables)
            else:
                source.number += 1
        except Exception as error:
            self._unusual(event, observables, error)

    def expose(self, **observables: Any) -> None:
        """Expose objects to queries at every event, by name, until the agent closes.

        >>> import looptap
        >>> looptap.Agent("doctest", enabled=False).expose(scale=2.0)
        """
        _know_torch()
        if not self._life.inert:
            self._life.sources.exposed.update(observables)

    def stream(
        self,
        name: str,
        query: str | Callable[..., Any],
        *,
        on: str = "batch",
        window: Any = None,
        every: int = 1,
        throttle: float = 0.0,
        history: int = DEFAULT_HISTORY_VALUES,
        unit: str = "",
        max_bytes: int = DEFAULT_MAX_VALUE_BYTES,
        keep: bool = False,
    ) -> None:
        """Declare a stream: its query runs from now on, with a ``history`` of values.

        Clients read it by its name, the history first. With ``keep``, all values also go to the file of the run
        (docs/store.md). The query and its arguments are those of `Run.stream`; no budget limits it, since the
        host has written it. Raises QueryError for a bad query, ValueError for another bad argument
        or a name that is taken, LimitReached beyond ``Limits.declared_streams``. Evaluating it never raises.

        >>> from looptap.testing import pair
        >>> agent, run = pair("doctest")
        >>> agent.stream("loss", "step, loss", on="batch")
        >>> agent.emit("batch", step=0, loss=0.5)
        >>> run.stream("loss").latest
        (step=0, loss=0.5)
        """
        if not self._life.inert:
            self._parts.dispatcher.declared_streams.declare(
                name, query, on, window=window, every=every, throttle=throttle, history=history, unit=unit,
                max_bytes=max_bytes,
            )  # fmt: skip
            if keep and self._parts.recorder is not None:
                self._parts.connection.post(partial(self._parts.dispatcher.start_keeping, name))

    def log(self, /, **values: Any) -> None:
        """Append each value to the declared stream of its name. Never raises.

        Each stream keeps its newest 10,000 values.

        >>> from looptap.testing import pair
        >>> agent, run = pair("doctest")
        >>> agent.log(lr=0.1)
        >>> run.stream("lr").values
        [0.1]
        """
        if _compiling():
            return
        try:
            if not self._life.inert:
                self._parts.dispatcher.declared_streams.log(values)
        except Exception as error:
            self._life.log_error(error)

    def end_group(self, event: str) -> None:
        """End the open group of ``event`` events, and its windows. Never raises."""
        try:
            sources = self._life.sources
            sources.open(event).end_group(sources.clock())
        except Exception as error:
            self._life.log_error(error)

    def control(
        self,
        name: str,
        get: Callable[[], Any],
        set: Callable[[Any], object],
        *,
        type: type | None = None,
        minimum: float | None = None,
        maximum: float | None = None,
        choices: Collection[Any] = (),
        unit: str = "",
        doc: str = "",
        at: str | Collection[str] = "",
    ) -> None:
        """Declare a control: a setting that clients can read and change.

        ``get`` reads it, on any thread and without side effects; ``set`` changes it, in the loop.
        ``type`` is int, float, bool or str, by default that of the first choice, else float; ``at`` names the events
        at which ``set`` may be called, by default any, the first of ``groups`` unless the client says. Controls that
        are declared as attributes (`looptap.Control`) are found on exposed objects. Raises ControlError.

        >>> import looptap
        >>> settings = {"lr": 0.1}
        >>> agent = looptap.Agent("doctest", enabled=False)
        >>> agent.control("lr", lambda: settings["lr"], lambda lr: settings.update(lr=lr), minimum=0, maximum=1)
        """
        declaration = Control(type, minimum=minimum, maximum=maximum, choices=choices, unit=unit, doc=doc, at=at)
        self._declarations.control(name, get, set, declaration)

    def trigger(self, name: str, function: Callable[[], Any], *, at: str | Collection[str] = "", doc: str = "") -> None:
        """Let clients call ``function`` in the loop, by name. Raises ControlError.

        >>> import looptap
        >>> looptap.Agent("doctest", enabled=False).trigger("evaluate", lambda: 0.98)
        """
        self._declarations.trigger(name, function, at, doc)

    def checkpoint(self, function: Callable[[], Any], *, at: str | Collection[str] = "") -> None:
        """Let clients save a checkpoint, alone or before a change.

        ``function`` saves it and may return its path.

        >>> import looptap
        >>> looptap.Agent("doctest", enabled=False).checkpoint(lambda: "step3.pt")
        """
        self._declarations.checkpoint(function, at)

    @property
    def stop_requested(self) -> bool:
        """True if a client has asked the job to stop, for loops that end by themselves.

        >>> import looptap
        >>> looptap.Agent("doctest", enabled=False).stop_requested
        False
        """
        return self._declarations.stop_requested()

    def state_dict(self) -> dict[str, Any]:
        """Return the agent's state for a checkpoint, as plain data. Never raises.

        It holds event numbers, the runs so far and the values of controls: those that the host has declared, those of
        exposed objects, and those that commands have changed by path. An optimizer's are in its own state.

        >>> import looptap
        >>> looptap.Agent("doctest", enabled=False).state_dict()["events"]
        {}
        """
        return self._checkpoint.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a state: continue its event numbers and restore its controls.

        Call it where the job loads its checkpoint, after exposing what it controls. Values of events that had
        occurred before, in this process or according to the file of the earlier run, are marked: ``again`` of their
        records. `stats` and the file of the run say what it was resumed from. A control that cannot be set back causes
        a warning and a record. Raises ValueError if ``state`` is malformed.

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
        self._checkpoint.load_state_dict(state)

    def stats(self) -> dict[str, Any]:
        """Return clients, queries with costs, queue, drops and events, as plain data."""
        return self._parts.dispatcher.stats()

    def close(self, reason: str = "the run ended") -> None:
        """End the run: close windows, send pending values, notify clients.

        Blocks up to 2 s. Raises nothing but KeyboardInterrupt, and that only once everything is done.
        """
        self._life.close(reason)

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close("the run ended" if kind is None else f"the run ended with {kind.__name__}")

    def __reduce__(self) -> tuple[Any, ...]:
        return _inert, (self.name, self.groups)

    def __repr__(self) -> str:
        state = "inert" if self._life.inert else f"run {self.run.id}"
        return f"<looptap.Agent {self.name!r}, {state}>"

    # ------------------------------------------------------------ inside

    def _begin(
        self, parts: Components, *, sigterm: bool, on_stop: type[BaseException] | None, may_pause: float | None,
        replay: str | os.PathLike[str] | None, strict: bool,
    ) -> None:  # fmt: skip
        """Take over the parts, and open."""
        _know_torch()
        self.name, self.groups, self.limits, self.run = parts.name, parts.groups, parts.limits, parts.run
        self._parts = parts
        self._follow(parts.sources)
        self._life = LifeCycle(parts, self._follow)
        self._checkpoint = AgentCheckpoint(parts, self._life)
        self._declarations = ControlDeclarations(parts.dispatcher, self._life)
        self._declarations.allow(on_stop, may_pause)
        self._declarations.replay(replay, strict)
        self._life.open(sigterm=sigterm, strict=strict)

    def _follow(self, sources: EventSources) -> None:
        self._types = sources.by_name  # an exact dict, which `emit` reads 10 ns faster than a class around it

    def _unusual(self, event: str, observables: dict[str, Any], error: Exception) -> None:
        """Handle the rare cases of `emit`: a first event, follow-up actions, an error."""
        after = error if type(error) is DeferredActions else None
        try:
            if after is None:
                if not isinstance(error, KeyError | TypeError):
                    raise error
                self._life.sources.open(event).deliver(observables)
        except DeferredActions as found:
            after = found
        except Exception as unexpected:
            self._life.log_error(unexpected)
        if after is not None:
            after.run()


def agent_of(
    parts: Components,
    *,
    sigterm: bool = False,
    on_stop: type[BaseException] | None = None,
    may_pause: float | None = None,
    replay: str | os.PathLike[str] | None = None,
    strict: bool = False,
) -> Agent:
    """Return the agent made of ``parts``, open to clients. Raises as `Agent` does."""
    agent = Agent.__new__(Agent)
    agent._begin(parts, sigterm=sigterm, on_stop=on_stop, may_pause=may_pause, replay=replay, strict=strict)
    return agent


def parts_of(agent: Agent) -> Components:
    """Return the parts of ``agent``: for looptap's own tests, may change at any time."""
    return agent._parts


def _never() -> bool:
    return False


_compiling: Callable[[], bool] = _never
"""Whether torch.compile is tracing the caller. Dynamo knows the function and folds it to True, so that nothing of an
event gets into a graph, nor a guard or a break; elsewhere it is a call that returns False."""


def _know_torch() -> None:
    """Check whether torch has been imported; the host may do so after looptap."""
    global _compiling
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "compiler"):
        _compiling = torch.compiler.is_dynamo_compiling


def _inert(name: str, groups: tuple[str, ...]) -> Agent:
    return Agent(name, groups=groups, enabled=False)
