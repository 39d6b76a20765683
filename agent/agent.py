"""The object inside the training process: it raises events and answers clients."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import time
import weakref
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from looptap.agent.checkpoint import AgentCheckpoint
from looptap.agent.closing import Closing
from looptap.agent.declarations import ControlDeclarations
from looptap.agent.handoff.value_queue import QueueSet
from looptap.agent.io.endpoints import check_form
from looptap.agent.loop.deferred_evaluation import DeferredEvaluator
from looptap.agent.loop.event_sources import DeferredActions, EventSources, NullEventSources
from looptap.agent.loop.overhead_budget import OverheadBudget
from looptap.agent.opening import Opening, give_up_place, take_place, why_not
from looptap.agent.run.identity import checked_groups, checked_name, run_info
from looptap.agent.run.signal_free_thread import aside
from looptap.agent.run.termination import OnSigterm, require_main_thread
from looptap.agent.server.declared_streams import DEFAULT_HISTORY_VALUES, DEFAULT_MAX_VALUE_BYTES
from looptap.agent.server.recording import RunRecorder
from looptap.agent.server.request_dispatcher import RequestDispatcher
from looptap.protocol.files.connection import remove, runtime_dir
from looptap.protocol.limits import Limits

AnyLink = Any  # a Link, or what looptap.testing puts in its place
log = logging.getLogger("looptap")


class Agent(ControlDeclarations, AgentCheckpoint, Closing):
    """Raises the events of a training loop and answers those who attach to them.

    ``name`` is what clients ask for. In ``groups``, an event ends the open groups of the types before it. ``listen``
    is where to listen: None for a private socket of this machine, ``"tcp"`` for loopback, ``"tcp://host:port"``.
    ``budget`` is the fraction of the loop's time that all queries and the I/O thread may take together, unless a client
    grants one more. ``ranks`` restricts the agent to these ranks. An agent that is not ``enabled``, or has
    ``LOOPTAP_DISABLED=1`` in its environment, or is in a forked child, does nothing and costs nothing: training code
    needs no ``if``. No signal is handled, unless ``sigterm`` asks for it: then what waits is sent before SIGTERM does
    what it did before, and clients hear of it.

    ``on_stop`` is raised out of `emit` when a client asks the job to stop, beside `stop_requested`; ``may_pause`` lets
    clients pause the loop, inside `emit`, for up to so many seconds; ``replay`` is a file of commands of another run
    that are done at the same events in this one (or ``LOOPTAP_REPLAY`` names it).

    A newer agent of the same name and rank takes the place of an older one of the same process, which is closed: a
    cell of a notebook can be run again.

    A mistake in the arguments raises, on any machine and in the first second: ValueError (also for ``sigterm`` off the
    main thread), `BadEndpoint` for a ``listen`` that is none, `ControlError` for a ``replay`` that cannot be done. What
    this machine does not allow (a directory that others can write, a port that is taken, a full disk) is a warning, and
    the job goes on with an agent that does nothing; ``strict`` raises that as well. After that nothing it does raises
    into the loop.

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
        _know_torch()
        check_form(listen)
        self.name, self.groups = checked_name(name), checked_groups(groups)
        self.limits = limits or Limits()
        self._link: AnyLink | None = None
        self._files: list[Path] = []
        self._pid = os.getpid()
        self._complaints: set[str] = set()
        self._at_exit = _calls(self, Agent.close)
        self._sigterm: OnSigterm | None = None
        self._leaving: AnyLink | None = None
        self.run = run_info(name)
        wanted = enabled and self._allowed() and (ranks is None or self.run.rank in ranks)
        if wanted and sigterm:
            require_main_thread()
        post = QueueSet(self.limits.outbox_bytes, self._ring, self._hurry)
        self._listen_to(
            EventSources(self.groups, {}, self.run.rank, DeferredEvaluator(post)) if wanted else NullEventSources()
        )
        self._keeper: RunRecorder | None = None
        if wanted:
            try:
                self._keeper = self._kept(store)
            except Exception as error:
                self._go_without(error, strict)
        self._service = RequestDispatcher(
            self.run, taps=self._taps, groups=self.groups, limits=self.limits, post=post, budget=OverheadBudget(budget),
            keeper=self._keeper,
        )  # fmt: skip
        self._allow(on_stop, may_pause, replay, strict)
        if not isinstance(self._taps, NullEventSources):
            try:
                self._listen(listen)
            except Exception as error:
                self._go_without(error, strict)
        if sigterm and self._link is not None:
            self._sigterm = OnSigterm(_calls(self, Agent._terminated), _calls(self, Agent._drain))

    # ------------------------------------------------------------ what the loop calls

    def emit(self, event: str, /, **observables: Any) -> None:
        """Raise ``event`` with its observables, passed by reference. Never raises, from any thread, but ``on_stop``.

        >>> import looptap
        >>> looptap.Agent("doctest", enabled=False).emit("batch", step=3, loss=0.1)
        """
        if _compiling():
            return
        try:
            tap = self._types[event]
            if tap.has_work:
                tap.deliver(observables)
            else:
                tap.number += 1
        except Exception as error:
            self._unusual(event, observables, error)

    def expose(self, **observables: Any) -> None:
        """Make objects visible at every event, by name; they are kept by reference until the agent closes.

        >>> import looptap
        >>> looptap.Agent("doctest", enabled=False).expose(scale=2.0)
        """
        _know_torch()
        if not isinstance(self._taps, NullEventSources):
            self._taps.exposed.update(observables)

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
        """Declare a standing stream: the query runs from now on, and its newest ``history`` values are kept.

        Clients read it by its name, the history first. With ``keep``, all values go to the file of the run as well
        (docs/store.md). The query and its arguments are those of `Run.stream`; no budget
        limits it, since the host has written it. Raises QueryError for a bad query, ValueError for another bad argument
        or a name that is taken, LimitReached beyond ``Limits.standing_streams``; no value of it ever raises.

        >>> from looptap.testing import pair
        >>> agent, run = pair("doctest")
        >>> agent.stream("loss", "step, loss", on="batch")
        >>> agent.emit("batch", step=0, loss=0.5)
        >>> run.stream("loss").latest
        (step=0, loss=0.5)
        """
        if not isinstance(self._taps, NullEventSources):
            self._service.declared_streams.declare(
                name, query, on, window=window, every=every, throttle=throttle, history=history, unit=unit,
                max_bytes=max_bytes,
            )  # fmt: skip
            if keep and self._keeper is not None and self._link is not None:
                self._link.post(partial(self._service.start_keeping, name))

    def log(self, /, **values: Any) -> None:
        """Append each value to the standing stream of its name, which keeps the newest 10,000. Never raises.

        >>> from looptap.testing import pair
        >>> agent, run = pair("doctest")
        >>> agent.log(lr=0.1)
        >>> run.stream("lr").values
        [0.1]
        """
        if _compiling():
            return
        try:
            if not isinstance(self._taps, NullEventSources):
                self._service.declared_streams.log(values)
        except Exception as error:
            self._complain(error)

    def end_group(self, event: str) -> None:
        """End the open group of ``event`` events: the windows that follow the host's group close. Never raises."""
        try:
            self._taps.open(event).end_group(time.monotonic())
        except Exception as error:
            self._complain(error)

    def stats(self) -> dict[str, Any]:
        """Clients, queries with their cost, outbox, drops and events, as plain data."""
        return self._service.stats()

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close("the run ended" if kind is None else f"the run ended with {kind.__name__}")

    def __reduce__(self) -> tuple[Any, ...]:
        return _inert, (self.name, self.groups)

    def __repr__(self) -> str:
        state = "inert" if isinstance(self._taps, NullEventSources) else f"run {self.run.id}"
        return f"<looptap.Agent {self.name!r}, {state}>"

    # ------------------------------------------------------------ what it is made of

    def _allowed(self) -> bool:
        return os.environ.get("LOOPTAP_DISABLED", "") in ("", "0")

    def _listen(self, listen: str | None) -> None:
        directory = runtime_dir()
        opening = Opening(self._service, directory, listen, self.limits, _calls(self, Agent._failed))
        try:
            older = take_place(self, (directory, self.name, self.run.rank))
            if older is not None and older.replaced():
                log.warning("looptap: this agent takes the place of an older one of this name, %r.", self.name)
            aside(opening.open, "looptap-open")
            self._link, self._files = opening.link, opening.files
            atexit.register(self._at_exit)
            os.register_at_fork(after_in_child=_calls(self, Agent._deafen))
        except BaseException as error:
            if not isinstance(error, Exception):  # Ctrl-C: it may be open, or be opened yet
                opening.abandon()
            self._link, self._files = None, []
            give_up_place(self)
            raise

    def replaced(self) -> bool:
        """Make room for a newer agent of the same name; whether there was one to make room."""
        if os.getpid() != self._pid or self._link is None:
            return False
        self.close("replaced by a newer agent of this name")
        return True

    def _go_without(self, error: Exception, strict: bool) -> None:
        """Be an agent that does nothing, since this machine allows no other; ``strict`` raises the error."""
        self._listen_to(NullEventSources())
        if strict:
            raise error
        log.warning("looptap: %s This run goes on without an agent (strict=True would end it).", why_not(error))

    def _kept(self, store: str | os.PathLike[str] | None) -> RunRecorder | None:
        return RunRecorder(self.run, store)

    def _ring(self) -> None:
        link = self._link
        if link is not None:
            link.wake()

    def _hurry(self) -> None:
        link = self._link
        if link is not None:
            link.post(self._service.flush)

    def _listen_to(self, taps: EventSources) -> None:
        self._taps = taps
        self._types = taps.by_name  # an exact dict, which `emit` reads 10 ns faster than a class around it

    def _unusual(self, event: str, observables: dict[str, Any], error: Exception) -> None:
        """The slow way of `emit`: the first event of a type, what comes after one, or a mistake, which ends here."""
        after = error if type(error) is DeferredActions else None
        try:
            if after is None:
                if not isinstance(error, KeyError | TypeError):
                    raise error
                self._taps.open(event).deliver(observables)
        except DeferredActions as found:
            after = found
        except Exception as unexpected:
            self._complain(unexpected)
        if after is not None:
            after.run()

    def _complain(self, error: Exception) -> None:
        """Say once per kind what went wrong; the loop goes on."""
        kind = f"{type(error).__name__}: {error}"
        if kind not in self._complaints and len(self._complaints) < 10:
            self._complaints.add(kind)
            log.warning("looptap: %s (said once; the loop goes on)", kind)

    def _failed(self, reason: str) -> None:
        """Go on without clients: the I/O thread has given up."""
        self._listen_to(NullEventSources())
        for path in self._files:  # so that clients know that there will be no link again
            remove(path)
        log.warning("looptap: the agent has failed for good, the loop goes on without it. %s", reason)

    def _deafen(self) -> None:
        """Become inert without touching what the parent process owns."""
        self._listen_to(NullEventSources())
        give_up_place(self)
        link, self._link = self._link, None
        self._files = []
        if link is not None:
            link.abandon()


def _never() -> bool:
    return False


_compiling: Callable[[], bool] = _never
"""Whether torch.compile is tracing the caller. Dynamo knows the function and folds it to True, so that nothing of an
event gets into a graph, nor a guard or a break; elsewhere it is a call that returns False."""


def _know_torch() -> None:
    """Look for torch, which may be imported after looptap."""
    global _compiling
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "compiler"):
        _compiling = torch.compiler.is_dynamo_compiling


def _calls(agent: Agent, method: Callable[..., None]) -> Callable[..., None]:
    """``method`` of the agent as a hook that does not keep the agent alive."""
    weak = weakref.ref(agent)

    def call(*args: Any) -> None:
        living = weak()
        if living is not None:
            method(living, *args)

    return call


def _inert(name: str, groups: tuple[str, ...]) -> Agent:
    return Agent(name, groups=groups, enabled=False)
