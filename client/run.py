"""`Run`: a running job as its client sees it.

A run owns its parts and shows them to users: the `Session` with the agent, the `Ranks` of the job, and what changes
the job (`ControlClient`) or shows it to others (`SharingClient`). No part holds the run: one that is dropped, together
with its streams, is disconnected.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Concatenate, Never, ParamSpec, TypeVar

import msgspec

from looptap.client.control.commands import ControlClient
from looptap.client.control.controls import Controls, Records
from looptap.client.control.grants import Share, SharingClient
from looptap.client.ranks.over_ranks import over_ranks, skew
from looptap.client.ranks.rank_stream import DEFAULT_LATE_TIMEOUT_SECONDS, RankStream
from looptap.client.ranks.ranks import ALL, NoRankDirectory, RankDirectory, Ranks
from looptap.client.session.session import OPEN, Session
from looptap.client.session.vitals import QUIET_SECONDS
from looptap.client.streams.code import all_named, code_of, name_of
from looptap.client.streams.live import LiveStream
from looptap.client.transport.base import Transport
from looptap.protocol import messages as m
from looptap.protocol.errors import NotAllowed
from looptap.protocol.keys import VIEWER
from looptap.protocol.replies import AgentStats, CommandRecord, StackReport, StreamInfo
from looptap.streams.errors import QueryError
from looptap.streams.operators.windows import as_window
from looptap.streams.stream.feed import LIVE
from looptap.streams.stream.stream import DEFAULT_BUFFER_BYTES, DEFAULT_BUFFER_ITEMS

P = ParamSpec("P")
T = TypeVar("T")


def _forward(part: str, method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Make a method of a part a method of the run, with its signature and docstring."""

    @functools.wraps(method)
    def forward(run: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return method(getattr(run, part), *args, **kwargs)

    forward.__qualname__ = f"Run.{method.__name__}"
    return forward


class Run:
    """One rank of a running job; made by `looptap.attach`.

    `state` is live, lost (the link is down and being restored, or the next run is waited for), silent (the link is up,
    and the agent has not answered for 5 s: `reason` names the query that may be why), ended or failed, and `reason`
    says why. `idle` is for how long the loop has raised no event, `silence` for how long its agent, which
    has a thread of its own in the job, has sent nothing: this tells a loop that hangs from a job that is gone.
    All methods may be called from any thread. A run is closed with `close`, as a context manager, or by dropping it
    together with its streams. `role` is operator or viewer: a viewer reads what is exported (`streams`,
    `stream(name)`), and anything else raises NotAllowed.
    """

    def __init__(
        self, transport: Transport, *, run: m.RunInfo | None = None, timeout: float = 5.0, follow: bool = False,
        siblings: RankDirectory[Run] | None = None, ranks: Ranks[Run] | None = None,
    ) -> None:  # fmt: skip
        self.session = Session(transport, run=run, timeout=timeout, follow=follow)
        """The conversation with the agent, for the parts of looptap itself."""
        self._ranks = Ranks(self, siblings or NoRankDirectory()) if ranks is None else ranks
        self._control = ControlClient(self.session, self._ranks)
        self._sharing = SharingClient(self.session)

    # ------------------------------------------------------------ what is known

    @property
    def ranks(self) -> Ranks[Run]:
        """The ranks of the job by number, each a `Run` that is attached on first use."""
        return self._ranks

    @property
    def info(self) -> m.RunInfo:
        """The run's identity: id, name, host, pid, rank, versions."""
        return self.session.info

    @property
    def role(self) -> str:
        """The role of this client: operator or viewer."""
        return self.session.role

    @property
    def name(self) -> str:
        """The name that the host gave to the job."""
        return self.info.name

    @property
    def id(self) -> str:
        """The id: the name, the start time and a random part. No two runs share it."""
        return self.info.id

    @property
    def state(self) -> str:
        """The state: live, lost, silent, ended or failed."""
        return self.session.state

    @property
    def reason(self) -> str:
        """The reason for the state; empty while it is live."""
        return self.session.reason

    @property
    def idle(self) -> float:
        """Seconds since the loop's last event, or since the agent began without one.

        By the agent's own clock, to about a second.
        """
        return self.session.vitals.idle

    @property
    def silence(self) -> float:
        """Seconds since the agent's last sign of life; it gives one each second."""
        return self.session.vitals.silence

    @property
    def losses(self) -> int:
        """The number of times the link was lost."""
        return self.session.losses

    @property
    def refused_messages(self) -> int:
        """Messages of the agent that were malformed, or belong to no stream."""
        return self.session.refused_messages

    @property
    def alive(self) -> bool:
        """True if the link is up and the agent answers; see `idle` for the loop."""
        return self.state == LIVE

    @property
    def streams(self) -> list[StreamInfo]:
        """The declared streams of the run, for `stream(name)`. Raises NoAnswer after 5 s.

        A viewer gets those that are exported.

        >>> from looptap.testing import pair
        >>> agent, run = pair("doctest")
        >>> agent.stream("loss", "step, loss", unit="nats")
        >>> [(stream.name, stream.query, stream.unit) for stream in run.streams]
        [('loss', 'step, loss', 'nats')]
        """
        return self.session.inquire(m.GetStreams, "The question for the declared streams", 5.0)

    @property
    def attached(self) -> list[LiveStream]:
        """The live streams of this client."""
        return [stream for _, stream in self.session.streams.living() if isinstance(stream, LiveStream)]

    @property
    def paused(self) -> float:
        """Seconds for which the loop has been paused, as of the newest heartbeat, or 0."""
        return self.session.vitals.paused

    @property
    def inside(self) -> str:
        """A query or command that has run for over 5 s, with its client; else empty."""
        return self.session.vitals.inside

    def events(self) -> dict[str, int]:
        """Return the number of events of each type, as of the newest heartbeat."""
        return dict(self.session.vitals.events)

    def ages(self) -> dict[str, float]:
        """Return the seconds since each type's last event, by the agent's own clock."""
        return self.session.vitals.ages()

    def stats(self, timeout: float = 5.0) -> dict[str, Any]:
        """Return the agent's counters. Raises NoAnswer after ``timeout`` s."""
        counters: dict[str, Any] = msgspec.to_builtins(self.agent_stats(timeout))
        return counters

    def agent_stats(self, timeout: float = 5.0) -> AgentStats:
        """Return the same as `stats`, as a struct. Raises NoAnswer after ``timeout`` s."""
        return self.session.inquire(m.GetStats, "The question for the agent's counters", timeout)

    def stacks(self, timeout: float = 5.0, *, ranks: str | int | Iterable[int] | None = None) -> dict[Any, Any]:
        """Return the stack of each thread of the job, even while the loop hangs.

        The result is a dict. ``threads`` is a list of dicts with ``thread`` (a name), ``ident``, ``daemon`` and
        ``stack`` (text, like a traceback), the main thread first. ``events`` has for each type the ``count`` and the
        seconds since the last one (``idle``), by the agent's own clock; ``age`` is the age of the agent in seconds, and
        ``inside`` lists the queries and commands that the loop has run for more than 5 s. ``paused`` is for how many
        seconds the loop has waited because of `pause`, else 0. Raises NoAnswer after ``timeout`` s: a call in C that
        keeps the interpreter lock, or a stopped process, cannot answer. With ``ranks`` it is a dict of such dicts by
        rank, with the error in the place of a rank that does not answer.
        """
        if ranks is not None:
            return self.ranks.each(lambda rank: rank.stacks(timeout), ranks, timeout)
        stacks: dict[Any, Any] = msgspec.to_builtins(self.stack_report(timeout))
        return stacks

    def stack_report(self, timeout: float = 5.0) -> StackReport:
        """Return the same as `stacks` of one rank, as a struct. Raises NoAnswer."""
        return self.session.inquire(m.GetStacks, "The question for the stacks of the job", timeout)

    def __repr__(self) -> str:
        facts = [f"{self.state}: {self.reason}" if self.reason else self.state, self.session.vitals.moving()]
        if self.paused:
            facts.append(f"paused for {self.paused:.0f} s")
        elif self.inside:
            facts.append(f"inside {self.inside}")
        if self.state in OPEN and self.silence > QUIET_SECONDS:
            facts.append(f"no sign of life for {self.silence:.0f} s")
        where = f"{self.info.host}, pid {self.info.pid}"
        rank = f", rank {self.info.rank} of {self.info.ranks}" if self.info.ranks > 1 else ""
        return f"<Run {self.name!r} ({self.id}) on {where}{rank}: {'; '.join(facts)}>"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("A Run is a connection of this process and cannot be pickled or sent along with a query.")

    # ------------------------------------------------------------ what can be asked

    def stream(
        self,
        query: str | Callable[..., Any],
        *unnamed: Never,
        on: str | None = None,
        window: Any = None,
        every: int = 1,
        throttle: float = 0.0,
        when: str | Callable[..., Any] | None = None,
        before: int = 0,
        after: int = 0,
        max_bytes: int = 4_000_000,
        budget: float | None = None,
        buffer: int = DEFAULT_BUFFER_ITEMS,
        buffer_bytes: int = DEFAULT_BUFFER_BYTES,
        latency: str = "normal",
        name: str = "",
        timeout: float = 5.0,
        ranks: str | int | Iterable[int] | None = None,
        combine: str | Callable[..., Any] | None = None,
        patience: float = DEFAULT_LATE_TIMEOUT_SECONDS,
        relay: bool = False,
    ) -> LiveStream:
        """Attach ``query`` to the events ``on`` and return the stream of its values.

        ``on`` is "batch" by default. A text that is the name of a declared stream of the run, without ``on`` or another
        argument of a query, reads that one: what its history holds, which is here when this returns (or comes after: it
        waits a second at most), then each new value. ``window`` is what a reduction aggregates over: None (the host's
        group), a number of events, `seconds` or `sliding`. ``every`` n-th event is looked at; ``throttle`` is the least
        time between two values in seconds. With ``when``, values are held back and come only around events where this
        condition is true: ``before`` and ``after`` of them. ``max_bytes`` bounds one value, ``buffer`` and
        ``buffer_bytes`` what is kept here. ``budget`` grants the query a fraction of the loop's time of its own
        (`math.inf`: no limit). ``latency="low"`` sends values within about 1 ms in place of 20 ms.

        ``ranks`` asks other ranks of the job than this run's, ``"all"`` or a list of numbers (docs/ranks.md). The
        stream has the values of each, in the order of the events, or with ``combine`` one for all ranks at each event
        or window: "mean", "sum", "max", "min", "median" or "list" of their values, what a Python function makes of the
        list, or with "merge" the result of the query over the events of all ranks. A value waits for slower ranks
        ``patience`` seconds at most, and says then which it lacks. With ``relay`` what is merged is
        merged on each host first, by a `looptap relay` started there. It is a
        `looptap.client.ranks.rank_stream.RankStream`.
        Raises QueryError, LimitReached, and NoAnswer after ``timeout`` seconds.
        """
        all_named("stream(query", unnamed)
        if latency not in ("normal", "low"):
            raise QueryError(f"latency={latency!r} must be 'normal' or 'low'.")
        plain = (on, window, when, budget, every, throttle) == (None, None, None, None, 1, 0.0)
        attach = m.Attach(
            self.session.requests.number(),
            self.session.streams.number(),
            code_of(query),
            "batch" if on is None else on,
            window=as_window(window),
            every=every,
            throttle=throttle,
            when=None if when is None else code_of(when),
            before=before,
            after=after,
            max_bytes=max_bytes,
            latency=latency,
            name=name,
            budget=budget,
            named=plain and isinstance(query, str),
        )
        if self.role == VIEWER and not attach.named:
            raise NotAllowed(
                "A viewer may not ask queries of the job. Name an exported stream (run.streams lists them) and nothing "
                "else; a query of your own runs on this side: run.stream(name).query(…)."
            )
        text = name_of(query)
        if ranks is not None or combine is not None:
            return over_ranks(
                self, attach, ranks, combine, patience=patience, timeout=timeout, text=text, buffer=buffer,
                buffer_bytes=buffer_bytes, relay=relay,
            )  # fmt: skip
        stream = LiveStream(self, attach, name=name, text=text, buffer=buffer, buffer_bytes=buffer_bytes)
        self.session.begin(stream, timeout)
        return stream

    def skew(
        self,
        on: str = "batch",
        *,
        ranks: str | Iterable[int] = ALL,
        every: int = 1,
        patience: float = DEFAULT_LATE_TIMEOUT_SECONDS,
        timeout: float = 5.0,
        buffer: int = DEFAULT_BUFFER_ITEMS,
    ) -> RankStream:
        """Return the stream of the time between the first and last rank at each event.

        Its values have the fields ``spread`` in seconds, ``slowest`` and ``fastest``, which are ranks, and
        ``uncertainty`` in seconds: 0 where all ranks are on one machine, whose clock is the same for all; of different
        hosts, as far as clocks can be compared by the time that answers take. Raises what `stream` raises.
        """
        return skew(self, on, ranks, every, patience=patience, timeout=timeout, buffer=buffer)

    # ------------------------------------------------------------ what changes the job, or shows it to others

    @property
    def controls(self) -> Controls:
        """The controls of the job, by name: value, bounds, unit, meaning, version.

        >>> from looptap.testing import pair
        >>> agent, run = pair("doctest")
        >>> settings = {"lr": 0.1}
        >>> agent.control("lr", lambda: settings["lr"], lambda lr: settings.update(lr=lr), maximum=1, doc="the rate")
        >>> run.controls["lr"].value
        0.1
        >>> list(run.controls)
        ['lr']
        """
        return self._control.controls

    @property
    def commands(self) -> Records:
        """The newest 1,000 recorded commands of all clients.

        Each says when, where, by whom, what, old, new and outcome. ``run.commands.save("commands.yaml")`` writes a file
        that `looptap replay` executes in another run.
        """
        return self._control.commands()

    def command_records(self) -> list[CommandRecord]:
        """Return the same as `commands`, as structs. Raises NoAnswer after 5 s."""
        return self._control.records()

    def commands_soon(self) -> Future[list[CommandRecord]]:
        """Return a future of `command_records`. Does not block."""
        return self._control.commands_soon()

    @property
    def shares(self) -> list[Share]:
        """The shares that have not ended, of every operator. Raises NoAnswer after 5 s."""
        return self._sharing.shares()

    set = _forward("_control", ControlClient.set)
    call = _forward("_control", ControlClient.call)
    trigger = _forward("_control", ControlClient.trigger)
    checkpoint = _forward("_control", ControlClient.checkpoint)
    stop = _forward("_control", ControlClient.stop)
    pause = _forward("_control", ControlClient.pause)
    resume = _forward("_control", ControlClient.resume)
    outcome = _forward("_control", ControlClient.outcome)
    cancel = _forward("_control", ControlClient.cancel)
    export = _forward("_sharing", SharingClient.export)
    keep = _forward("_sharing", SharingClient.keep)
    share = _forward("_sharing", SharingClient.share)
    revoke = _forward("_sharing", SharingClient.revoke)

    # ------------------------------------------------------------ the end

    def close(self) -> None:
        """Detach all streams and disconnect, from other ranks too; the job continues."""
        self.session.close()
        if self._ranks.belong_to(self):
            self._ranks.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
