"""The object inside the training process that raises events and serves clients."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection
from types import TracebackType
from typing import Any

from looptap.agent.checkpoint import AgentCheckpoint
from looptap.agent.connection import ServerConnection
from looptap.agent.declarations import ControlDeclarations, StreamDeclarations
from looptap.agent.io.endpoints import check_form
from looptap.agent.life_cycle import LifeCycle
from looptap.agent.loop.event_sources import DeferredActions, EventSources
from looptap.agent.server.recording import RunRecorder
from looptap.agent.wiring import Components, build, enabled_here
from looptap.protocol.limits import Limits
from looptap.streams.forwarding import forwarded


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

    ``config`` holds the settings of the job: a dict, an argparse namespace, a dataclass, an OmegaConf or any object
    with attributes. They are read once, stored, and shown with the command line, the git commit, its uncommitted
    changes and versions (docs/store.md says what exactly); viewers see none of it unless it is shared.

    The numbers that events carry are kept from the first event on, at most 2,000 points a name, for `Run.scalars`;
    ``history=False`` keeps none.

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
        history: bool = True,
        config: Any = None,
        strict: bool = False,
    ) -> None:
        check_form(listen)
        parts = build(
            name, groups=groups, limits=limits, budget=budget, ranks=ranks, enabled=enabled and enabled_here(),
            connect=lambda run, limits: ServerConnection(name, run.rank, listen, limits),
            record=lambda run: RunRecorder(run, store), sigterm=sigterm, strict=strict, history=history, config=config,
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

    # ------------------------------------------------------------ what the host declares, and the rest of its life

    stream = forwarded("_streams", StreamDeclarations.stream)
    control = forwarded("_controls", ControlDeclarations.control)
    trigger = forwarded("_controls", ControlDeclarations.trigger)
    checkpoint = forwarded("_controls", ControlDeclarations.checkpoint)
    state_dict = forwarded("_checkpoint", AgentCheckpoint.state_dict)
    load_state_dict = forwarded("_checkpoint", AgentCheckpoint.load_state_dict)
    close = forwarded("_life", LifeCycle.close)

    @property
    def stop_requested(self) -> bool:
        """True if a client has asked the job to stop, for loops that end by themselves.

        >>> import looptap
        >>> looptap.Agent("doctest", enabled=False).stop_requested
        False
        """
        return self._controls.stop_requested()

    def stats(self) -> dict[str, Any]:
        """Return clients, queries with costs, queue, drops and events, as plain data."""
        return self._parts.dispatcher.stats()

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
        self._streams = StreamDeclarations(parts, self._life)
        self._controls = ControlDeclarations(parts, self._life)
        self._controls.allow(on_stop, may_pause)
        self._controls.replay(replay, strict)
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
