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

from looptap.agent.announcing import announce, note_end
from looptap.agent.backlog import Backlog
from looptap.agent.budget import OverheadBudget
from looptap.agent.endpoints import place_for_sockets
from looptap.agent.identity import checked_groups, checked_name, run_info
from looptap.agent.keeping import Keeper
from looptap.agent.link import Link
from looptap.agent.outbox import Post
from looptap.agent.resuming import Resumable
from looptap.agent.service import Service
from looptap.agent.signals import OnSigterm, require_main_thread
from looptap.agent.standing import HISTORY, MAX_BYTES
from looptap.agent.steered import Steered
from looptap.agent.taps import After, Deaf, Taps
from looptap.protocol.connections import remove, runtime_dir
from looptap.protocol.errors import NoDirectory
from looptap.protocol.keys import OPERATOR, RoleKeys
from looptap.protocol.limits import Limits

AnyLink = Any  # a Link, or what looptap.testing puts in its place
log = logging.getLogger("looptap")

EXIT = 2.0
"""Seconds that the end of the run may take for what is still to be sent."""


class Agent(Steered, Resumable):
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

    Raises ValueError for a bad argument and for ``sigterm`` off the main thread, `EndpointError` if it cannot listen,
    `UnsafeFile` for a directory that others can write. After that nothing it does raises into the loop.

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
    ) -> None:
        _know_torch()
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
        post = Post(self.limits.outbox_bytes, self._ring, self._hurry)
        self._listen_to(Taps(self.groups, {}, self.run.rank, Backlog(post)) if wanted else Deaf())
        self._keeper = self._kept(store) if wanted else None
        self._service = Service(
            self.run, taps=self._taps, groups=self.groups, limits=self.limits, post=post, budget=OverheadBudget(budget),
            keeper=self._keeper,
        )  # fmt: skip
        self._allow(on_stop, may_pause, replay)
        if wanted:
            try:
                self._listen(listen)
            except NoDirectory as error:
                self._listen_to(Deaf())
                log.warning("looptap: %s This run goes on without an agent.", error)
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
            if tap.busy:
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
        if not isinstance(self._taps, Deaf):
            self._taps.standing.update(observables)

    def stream(
        self,
        name: str,
        query: str | Callable[..., Any],
        *,
        on: str = "batch",
        window: Any = None,
        every: int = 1,
        throttle: float = 0.0,
        history: int = HISTORY,
        unit: str = "",
        max_bytes: int = MAX_BYTES,
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
        if not isinstance(self._taps, Deaf):
            self._service.standing.declare(
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
            if not isinstance(self._taps, Deaf):
                self._service.standing.log(values)
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

    def close(self, reason: str = "the run ended") -> None:
        """End the run: open windows close, what waits is sent, clients are told. At most 2 s. Never raises."""
        if os.getpid() != self._pid:
            return
        try:
            taps = self._taps
            self._listen_to(Deaf())
            self._service.steering.pause.resume()
            now = time.monotonic()
            for tap in list(taps.by_name.values()):
                tap.end_group(now)
            link, self._link = self._link, None
            self._service.farewell = reason
            if link is not None:
                self._leaving = link
                link.stop(timeout=EXIT)
            if self._sigterm is not None:
                self._sigterm.remove()
            for path in self._files:
                remove(path)
            if self._keeper is not None:
                self._keeper.close(reason)
            note_end(self.run, self._files, reason, None if self._keeper is None else self._keeper.writer.path)
            taps.standing.clear()
            self._service.steering.close()
        except Exception as error:
            self._complain(error)
        atexit.unregister(self._at_exit)

    def __enter__(self) -> Agent:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close("the run ended" if kind is None else f"the run ended with {kind.__name__}")

    def __reduce__(self) -> tuple[Any, ...]:
        return _inert, (self.name, self.groups)

    def __repr__(self) -> str:
        state = "inert" if isinstance(self._taps, Deaf) else f"run {self.run.id}"
        return f"<looptap.Agent {self.name!r}, {state}>"

    # ------------------------------------------------------------ what it is made of

    def _allowed(self) -> bool:
        return os.environ.get("LOOPTAP_DISABLED", "") in ("", "0")

    def _listen(self, listen: str | None) -> None:
        directory = runtime_dir()
        keys = RoleKeys.fresh(OPERATOR)
        link = Link(
            self._service,
            endpoint=listen,
            keys=keys,
            limits=self.limits,
            directory=place_for_sockets(directory) if listen in (None, "ipc") else None,
            on_failure=_calls(self, Agent._failed),
        )
        self._service.send = link.send
        link.start()
        self._link = link
        self._service.sharing.link = link
        self._files.append(announce(self.run, keys, link, directory))
        atexit.register(self._at_exit)
        os.register_at_fork(after_in_child=_calls(self, Agent._deafen))

    def _terminated(self) -> None:
        self.close("the run was terminated (SIGTERM)")
        if self._leaving is not None:  # it may have been leaving already
            self._leaving.stop(timeout=EXIT)

    def _drain(self) -> None:
        """Have what waits arrive, in half the time that an exit may take: what libzmq holds is lost if nobody waits."""
        deadline, service, link = time.monotonic() + EXIT / 2, self._service, self._link
        while service.post.waiting() and time.monotonic() < deadline:
            self._hurry()
            time.sleep(0.005)
        if link is not None and not service.confirmed():
            link.post(service.ask_for_confirmation)
            while not service.confirmed() and time.monotonic() < deadline:
                time.sleep(0.005)

    def _kept(self, store: str | os.PathLike[str] | None) -> Keeper | None:
        return Keeper(self.run, store)

    def _ring(self) -> None:
        link = self._link
        if link is not None:
            link.wake()

    def _hurry(self) -> None:
        link = self._link
        if link is not None:
            link.post(self._service.flush)

    def _listen_to(self, taps: Taps) -> None:
        self._taps = taps
        self._types = taps.by_name  # an exact dict, which `emit` reads 10 ns faster than a class around it

    def _unusual(self, event: str, observables: dict[str, Any], error: Exception) -> None:
        """The slow way of `emit`: the first event of a type, what comes after one, or a mistake, which ends here."""
        after = error if type(error) is After else None
        try:
            if after is None:
                if not isinstance(error, KeyError | TypeError):
                    raise error
                self._taps.open(event).deliver(observables)
        except After as found:
            after = found
        except Exception as unexpected:
            self._complain(unexpected)
        if after is not None:
            after.do()

    def _complain(self, error: Exception) -> None:
        """Say once per kind what went wrong; the loop goes on."""
        kind = f"{type(error).__name__}: {error}"
        if kind not in self._complaints and len(self._complaints) < 10:
            self._complaints.add(kind)
            log.warning("looptap: %s (said once; the loop goes on)", kind)

    def _failed(self, reason: str) -> None:
        """Go on without clients: the I/O thread has given up."""
        self._listen_to(Deaf())
        for path in self._files:  # so that clients know that there will be no link again
            remove(path)
        log.warning("looptap: the agent has failed for good, the loop goes on without it. %s", reason)

    def _deafen(self) -> None:
        """Become inert without touching what the parent process owns."""
        self._listen_to(Deaf())
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
