"""`Run`: a running job as its client sees it.

A run owns its parts and shows them to users: the `Session` with the agent, the `Ranks` of the job, and what changes
the job (`ControlClient`) or shows it to others (`SharingClient`). No part holds the run: one that is dropped, together
with its streams, is disconnected.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec

from looptap.client import query
from looptap.client.control.commands import ControlClient
from looptap.client.control.controls import Controls, Records
from looptap.client.control.grants import Share, SharingClient
from looptap.client.control.recordings import Recordings
from looptap.client.ranks.ranks import NoRankDirectory, RankDirectory, Ranks
from looptap.client.session.session import OPEN, Session
from looptap.client.session.vitals import QUIET_SECONDS
from looptap.client.streams.model_modules import ModelModules
from looptap.client.transport.base import Transport
from looptap.client.transport.timeouts import REPLY_SECONDS
from looptap.protocol import messages as m
from looptap.protocol.replies import CommandRecord, StreamInfo
from looptap.protocol.run_config import RunConfig
from looptap.protocol.statistics import AgentStats, StackReport
from looptap.store.kept_scalars import Scalars
from looptap.streams.forwarding import forwarded
from looptap.streams.stream.state_and_cost import LIVE

if TYPE_CHECKING:
    from looptap.client.streams.live import LiveStream


class Run:
    """One rank of a running job; made by `looptap.attach`.

    `state` is live, lost (the connection is being restored, or the run waits for the next one), silent (the connection
    is up, but the agent has not answered for 5 s), ended or failed. `reason` says why; for a silent run, it names the
    query that may be the cause. `idle` is the time since the loop's last event. `silence` is the time since the agent,
    which has its own thread in the job, last sent something. Together they distinguish a loop that hangs from a job
    that is gone. All methods may be called from any thread. Close a run with `close`, use it as a context manager, or
    drop it together with its streams. `role` is operator or viewer: a viewer reads exported streams (`streams`,
    `stream(name)`), and anything else raises NotAllowed.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        run: m.RunInfo | None = None,
        timeout: float = REPLY_SECONDS,
        follow: bool = False,
        siblings: RankDirectory[Run] | None = None,
        ranks: Ranks[Run] | None = None,
    ) -> None:
        self.session = Session(transport, run=run, timeout=timeout, follow=follow)
        """The conversation with the agent, for the parts of looptap itself."""
        self._ranks = Ranks(self, siblings or NoRankDirectory()) if ranks is None else ranks
        self._control = ControlClient(self.session, self._ranks)
        self._recordings = Recordings(self._control)
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
    def scalars(self) -> Scalars:
        """The numbers that events carry, with the history that is kept of each.

        Each has a name, the type of its events (``on``), how many ``points`` are kept, the seconds between them
        (``pace``), the ``first`` and ``last`` event, and the newest ``value``. Raises NoAnswer after 5 s.

        >>> from looptap.testing import pair
        >>> agent, run = pair("doctest", history=True)
        >>> agent.emit("batch", step=0, loss=0.5)
        >>> [(one.name, one.on, one.points, one.value) for one in run.scalars]
        [('step', 'batch', 1, 0), ('loss', 'batch', 1, 0.5)]
        """
        return Scalars.of(self.session.inquire(m.GetScalars, "The question for the scalars", 5.0))

    @property
    def attached(self) -> list[LiveStream]:
        """The live streams of this client."""
        from looptap.client.streams.live import LiveStream  # not at the top: see `looptap.client.query`

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

    def stats(self, timeout: float = REPLY_SECONDS) -> dict[str, Any]:
        """Return the agent's counters. Raises NoAnswer after ``timeout`` s.

        Args:
            timeout: Seconds to wait for the answer.
        """
        counters: dict[str, Any] = msgspec.to_builtins(self.agent_stats(timeout))
        return counters

    def agent_stats(self, timeout: float = REPLY_SECONDS, *, machine: bool = False) -> AgentStats:
        """Return the same as `stats`, as a struct. Raises NoAnswer after ``timeout`` s.

        Args:
            timeout: Seconds to wait for the answer.
            machine: True adds the newest readings of the job's host and devices. Rates of the host need two calls,
                because they are computed between them.
        """
        what = "The question for the agent's counters"
        return self.session.inquire(lambda number: m.GetStats(number, machine), what, timeout)

    def stacks(
        self, timeout: float = REPLY_SECONDS, *, ranks: str | int | Iterable[int] | None = None
    ) -> dict[Any, Any]:
        """Return the stack of each thread of the job, even while the loop hangs.

        The result is a dict. ``threads`` is a list of dicts with ``thread`` (a name), ``ident``, ``daemon`` and
        ``stack`` (text, like a traceback), the main thread first. ``events`` has for each type the ``count`` and the
        seconds since the last one (``idle``), by the agent's own clock; ``age`` is the age of the agent in seconds, and
        ``inside`` lists the queries and commands that the loop has run for more than 5 s. ``paused`` is the number of
        seconds that the loop has waited because of `pause`, else 0.

        Args:
            timeout: Seconds to wait for the answer.
            ranks: "all" or a list: the result is then a dict of such dicts by rank, with the error instead for a rank
                that does not answer.

        Raises NoAnswer after ``timeout`` s: a call in C that keeps the interpreter lock, or a stopped process, cannot
        answer.
        """
        if ranks is not None:
            return self.ranks.each(lambda rank: rank.stacks(timeout), ranks, timeout)
        stacks: dict[Any, Any] = msgspec.to_builtins(self.stack_report(timeout))
        return stacks

    def stack_report(self, timeout: float = REPLY_SECONDS) -> StackReport:
        """Return the same as `stacks` of one rank, as a struct. Raises NoAnswer.

        Args:
            timeout: Seconds to wait for the answer.
        """
        return self.session.inquire(m.GetStacks, "The question for the stacks of the job", timeout)

    def modules(self, pattern: str = "", timeout: float = REPLY_SECONDS) -> ModelModules:
        """Return the modules of the job's models by name, for `activations` and the like.

        Each has the name of its class (``kind``), the number of its ``parameters`` including those of the modules
        inside, the ``shapes`` of its own parameters, and a ``problem`` if no query can watch it. Raises NoAnswer after
        ``timeout`` s.

        Args:
            pattern: A part of the names, or with wildcards all of them.
            timeout: Seconds to wait for the answer.

        >>> import torch
        >>> from looptap.testing import pair
        >>> agent, run = pair("doctest")
        >>> agent.expose(model=torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU()))
        >>> [(one.name, one.kind, one.parameters) for one in run.modules().values()]
        [('model', 'Sequential', 9), ('0', 'Linear', 9), ('1', 'ReLU', 0)]
        """
        what = "The question for the modules of the job"
        return ModelModules.of(self.session.inquire(lambda number: m.GetModules(number, pattern), what, timeout))

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

    stream = forwarded("", query.stream)
    ask = forwarded("", query.ask)
    names = forwarded("", query.offered_names)
    watch_function = forwarded("", query.watch_function)
    skew = forwarded("", query.skew)

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
    def config(self) -> RunConfig:
        """What the run was started with: settings by name, command, commit, machine.

        Raises NoAnswer after 5 s, and NotAllowed for a viewer whose share does not show it.

        >>> from looptap.testing import pair
        >>> agent, run = pair("doctest", config={"lr": 0.1, "model": {"width": 64}})
        >>> run.config["model.width"], dict(run.config)
        (64, {'lr': 0.1, 'model.width': 64})
        """
        return self.session.inquire(m.GetConfig, "The question for the config", 5.0)

    @property
    def shares(self) -> list[Share]:
        """The shares that have not ended, of every operator. Raises NoAnswer after 5 s."""
        return self._sharing.shares()

    set = forwarded("_control", ControlClient.set)
    undo = forwarded("_control", ControlClient.undo)
    newest_change = forwarded("_control", ControlClient.newest_change)
    call = forwarded("_control", ControlClient.call)
    trigger = forwarded("_control", ControlClient.trigger)
    checkpoint = forwarded("_control", ControlClient.checkpoint)
    profile = forwarded("_recordings", Recordings.profile)
    memory = forwarded("_recordings", Recordings.memory)
    stop = forwarded("_control", ControlClient.stop)
    pause = forwarded("_control", ControlClient.pause)
    resume = forwarded("_control", ControlClient.resume)
    outcome = forwarded("_control", ControlClient.outcome)
    cancel = forwarded("_control", ControlClient.cancel)
    export = forwarded("_sharing", SharingClient.export)
    keep = forwarded("_sharing", SharingClient.keep)
    share = forwarded("_sharing", SharingClient.share)
    revoke = forwarded("_sharing", SharingClient.revoke)

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
