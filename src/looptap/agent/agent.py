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
from looptap.agent.loop.evaluation_plan import DeferredActions, EvaluationPlan
from looptap.agent.loop.event_sources import EventSource, EventSources
from looptap.agent.loop.overhead_budget import OverheadBudget
from looptap.agent.loop.tap.choice import compiled, forget_agents
from looptap.agent.server.recording import RunRecorder
from looptap.agent.wiring import Components, build, enabled_here
from looptap.protocol.errors import RUN_ENDED
from looptap.protocol.limits import Limits
from looptap.streams.forwarding import forwarded


class Agent:
    """The part of looptap in the training process: emits events, serves clients.

    Args:
        name: The name for clients: 1 to 100 printable characters without "/".
        groups: Event types that nest, innermost first: an event ends the open groups of the types before it.
        listen: Where to listen: None for a private socket of this machine, ``"tcp"`` for loopback, or
            ``"tcp://host:port"``.
        limits: Bounds on what clients may use; see `Limits`.
        budget: The fraction of the loop's time that all queries and the I/O thread may take together, unless a client
            grants a query more.
        ranks: The ranks that get an agent, by default all; on others the agent does nothing.
        enabled: False gives an agent that does nothing and costs nothing, so training code needs no ``if``.
            ``LOOPTAP_DISABLED=1`` and a fork have the same effect.
        sigterm: True installs a SIGTERM handler that sends pending values, notifies clients, and then does what SIGTERM
            did before. By default no signal is handled.
        on_stop: An exception class that `emit` raises when a client asks the job to stop, in addition to
            `stop_requested`.
        may_pause: The maximum number of seconds for which clients may pause the loop, inside `emit`; by default pauses
            are not allowed.
        replay: A file of another run's commands, to be executed at the same events in this run; by default the file
            that ``LOOPTAP_REPLAY`` names, if any.
        store: The file of the run, or its directory; by default the directory that ``LOOPTAP_STORE`` names, or
            ``looptap-runs`` in the working directory. The file is created for the first kept stream or command.
        history: False keeps no history of the numbers in events. By default at most 2,000 points a name are kept, from
            the first event on, for `Run.scalars`.
        config: The settings of the job: a dict, an argparse namespace, a dataclass, an OmegaConf or any object with
            attributes. They are read once, stored, and shown with the command line, the git commit, its uncommitted
            changes and versions (docs/keep.md says what exactly); viewers see none of it unless it is shared.
        strict: True raises what is otherwise a warning, after which the job continues without an agent: a directory
            that others can write, a port that is taken, a full disk.

    A new agent of the same name and rank in the same process closes and replaces the older one, so you can run a
    notebook cell again.

    A wrong argument raises at once, on any machine: ValueError (also for ``sigterm`` off the main thread),
    `BadEndpoint` for a malformed ``listen``, `ControlError` for a ``replay`` that cannot be executed. After that
    nothing raises into the loop.

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

    @compiled
    def emit(self, event: str, /, **observables: Any) -> None:
        """Emit ``event`` with its observables, which are passed by reference.

        Any thread. Never raises, except ``on_stop``.

        Args:
            event: Its type, such as "batch".
            observables: The values that queries can read at it, by name. `lazy` defers a computation until it is read.

        >>> import looptap
        >>> looptap.Agent("doctest", enabled=False).emit("batch", step=3, loss=0.1)
        """
        try:
            if _compiling():
                return
            source = self._types[event]
            if source.has_work:
                source.deliver(observables)
            else:
                source.number += 1
        except RecursionError as error:  # the interpreter has no frame left, not even for the log
            where = error.__traceback__
            if where is not None and where.tb_next is None:  # nor for what counts the event
                if event in self._types:
                    self._types[event].number += 1
                else:  # nor to open its type
                    self._uncounted[event] = self._uncounted[event] + 1 if event in self._uncounted else 1
        except Exception as error:
            try:
                self._unusual(event, observables, error)
            except RecursionError:
                if event.__class__ is str and (event not in self._types or not self._types[event].number):
                    self._uncounted[event] = self._uncounted[event] + 1 if event in self._uncounted else 1

    def expose(self, **observables: Any) -> None:
        """Expose objects to queries at every event, by name, until the agent closes.

        Args:
            observables: The objects. An optimizer, and attributes that are declared as `Control`, can be changed.

        >>> import looptap
        >>> looptap.Agent("doctest", enabled=False).expose(scale=2.0)
        """
        _know_torch()
        if not self._life.inert:
            self._life.sources.exposed.update(observables)
            self._parts.earlier_runs.tell(observables)

    def log(self, /, **values: Any) -> None:
        """Append each value to the declared stream of its name. Never raises.

        Each stream keeps its newest 10,000 values.

        Args:
            values: What to append, by the names of the streams.

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
                for error in self._parts.dispatcher.declared_streams.log(values):
                    self._life.log_error(error)
        except Exception as error:
            self._life.log_error(error)

    def end_group(self, event: str) -> None:
        """End the open group of ``event`` events, and its windows. Never raises.

        Args:
            event: The event type.
        """
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
        self.close(RUN_ENDED if kind is None else f"the run ended with {kind.__name__}")

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
        self._uncounted = sources.uncounted
        forget_agents()

    def _kept(self, source: EventSource, plan: EvaluationPlan) -> None:
        """Announce an event that the tap has kept."""
        try:
            source.announce(plan)
        except Exception as error:
            self._life.log_error(error)

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
        except RecursionError:  # `emit` counts the event
            raise
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


def log_at_step(agent: Agent, name: str, step: Any, value: Any) -> None:
    """Append a row of ``step`` and ``value`` to the declared stream of this name.

    Any thread. Raises ValueError for a bad name or that of a query, LimitReached for too many.
    """
    if not (_compiling() or agent._life.inert):
        for error in agent._parts.dispatcher.declared_streams.log({name: (step, value)}, "step, value"):
            raise error


def is_open(agent: Agent) -> bool:
    """Return True until the agent ends, or if it never began."""
    return not agent._life.inert


def on_end(agent: Agent, call: Callable[[], None]) -> None:
    """Call this once ``agent`` closes or fails; at once if it has. Not in a fork."""
    agent._life.on_end(call)


def before_end(agent: Agent, call: Callable[[], None]) -> None:
    """Call this as ``agent`` closes, while it still takes events. Not if it fails."""
    agent._life.before_end = call


def emit_found(agent: Agent, event: str, observables: Callable[[], dict[str, Any]]) -> None:
    """Raise ``event``, with observables that are made only if something reads them.

    Any thread. Never raises, except ``on_stop``, and what ``observables`` raises.
    """
    source = agent._types.get(event) or agent._life.sources.open(event)
    if source.capturing is not None and source.capturing():
        source.number += 1
        return
    found = observables()
    try:
        source.deliver(found)
    except DeferredActions as after:
        after.run()
    except Exception as error:
        agent._life.log_error(error)
    finally:
        found.clear()  # what finds the names holds the frames of the loop


def next_rests(agent: Agent, event: str) -> tuple[bool, tuple[str, ...] | None]:
    """Return whether the next ``event`` needs no more than `keep_numbers`, and which.

    These are None if it only counts.
    """
    source = agent._types.get(event)
    if source is None or not source.has_work:
        return source is not None, None
    names = source.kept_names()
    return names is not None, names


def _keep_numbers(agent: Agent, event: str, **numbers: Any) -> bool | None:
    """Keep the numbers of an event and return None; False if there is more to do.

    Any thread. What does it is compiled.
    """
    return False


keep_numbers = compiled(_keep_numbers)


def purse_of(agent: Agent, event: str) -> OverheadBudget | None:
    """Return the budget that pays for queries at ``event``, if there are any."""
    source = agent._types.get(event)
    return None if source is None else source.purse


def only_counts(agent: Agent, event: str, always: bool = False) -> bool:
    """Count an event of which nothing is asked, or ``always``; else return False.

    Any thread.
    """
    counts = always or next_rests(agent, event) == (True, None)
    if counts:
        agent._life.sources.open(event).number += 1
    return counts


def is_asked(agent: Agent, event: str) -> bool:
    """Return True if a query or a command waits for ``event``."""
    source = agent._types.get(event)
    return source is not None and source.evaluates


def looks_next(agent: Agent, event: str) -> bool:
    """Return True if the next ``event`` copies its numbers for the history."""
    source = agent._types.get(event)
    return source is not None and source.look_next


def exposed_as(agent: Agent, name: str) -> Any:
    """Return the object that ``agent`` exposes under ``name``, or None."""
    return agent._life.sources.exposed.get(name)


def name_events(agent: Agent, name: str, event: str, *, replace: bool = True) -> None:
    """Let clients ask for the events of type ``event`` by a second name.

    Without ``replace`` a type of events that has this name keeps it.
    """
    sources = agent._life.sources
    if name in sources.by_name and not replace:
        return
    sources.by_name[name] = sources.open(event)
    forget_agents()


def count_from(agent: Agent, events: dict[str, int]) -> None:
    """Continue the numbers of events after these, in groups that begin there.

    A type that has had more keeps its number.
    """
    sources = agent._life.sources
    counts = sources.counts()
    ahead = {name: number for name, number in events.items() if number > counts.get(name, 0)}
    if ahead and not agent._life.inert:
        groups = {name: sources.by_name[name].group_start for name in counts}
        sources.resume_from(counts | ahead, groups | ahead)


def search_names(agent: Agent) -> None:
    """Note that events have more than is exposed: it is searched for there."""
    agent._life.sources.searched = True


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
