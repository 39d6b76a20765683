"""Serves clients: answers requests, attaches queries, sends values.

Everything here runs on the I/O thread, through `receive`, `flush`, `on_heartbeat_timer` and `goodbye`. It shares with
the training thread only event sources (copy on write), deferred events, rings of values, and commands.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import msgspec

from looptap.agent.control.command import LoopCommand
from looptap.agent.control.command_handlers import CommandService
from looptap.agent.handoff.ready_set import ReadySet
from looptap.agent.handoff.value_ring import RingSet
from looptap.agent.io.server_socket import SendResult
from looptap.agent.io.server_thread import ServerThread
from looptap.agent.loop.event_sources import EventSources
from looptap.agent.loop.overhead_budget import OverheadBudget
from looptap.agent.machine.monitor import MachineMonitor
from looptap.agent.queries.module_report import module_report
from looptap.agent.queries.query_registry import QueryRegistry, grant_share
from looptap.agent.run.configuration import Configuration
from looptap.agent.run.resume_lineage import RunHistory
from looptap.agent.scalars.scalar_history import ScalarHistory
from looptap.agent.server.access_grants import AccessGrants
from looptap.agent.server.declared_streams import DeclaredStreams
from looptap.agent.server.exporter import Pacing, ValueExporter
from looptap.agent.server.heartbeat import Heartbeat
from looptap.agent.server.liveness import LoopLiveness
from looptap.agent.server.recording import RunRecorder, kept_command
from looptap.agent.server.sessions import SessionTable
from looptap.agent.server.statistics import StatisticsReporter
from looptap.agent.server.subscription import RETRY_DELAY_SECONDS, ClientSession
from looptap.agent.server.subscription_manager import PAUSE_TIMEOUT_SECONDS, SubscriptionManager
from looptap.protocol import messages as m
from looptap.protocol.codec import decode_from_client, encode, version_of
from looptap.protocol.errors import RUN_ENDED, LimitReached, MessageError
from looptap.protocol.limits import Limits
from looptap.protocol.roles import may_send, refusal
from looptap.protocol.values.packing import pack
from looptap.streams.errors import LooptapError, QueryError

LAST_VALUES_TIMEOUT_SECONDS, LAST_STATUS_TIMEOUT_SECONDS = 1.0, 0.25
"""Seconds for the last values at the end of the run, and then for how each stream ended."""
REPLIED = object()
"""Returned by a handler of a message that has none, has got its reply, or will get it later."""


class RequestDispatcher:
    """The agent's request handler; ``send`` sends a frame to a peer."""

    def __init__(
        self,
        run: m.RunInfo,
        *,
        sources: EventSources,
        groups: tuple[str, ...],
        limits: Limits,
        ready_set: ReadySet,
        budget: OverheadBudget,
        recorder: RunRecorder | None,
        configuration: Configuration,
        send: Callable[[bytes, bytes], SendResult],
        link: Callable[[], ServerThread | None],
    ) -> None:
        self.run, self.limits, self.sources, self.budget = run, limits, sources, budget
        self.ready_set, self.recorder, self.configuration = ready_set, recorder, configuration
        self.queries = QueryRegistry(sources, groups, limits, budget)
        # One reader that takes nothing fills two thirds at most, and leaves the rest to those that come later.
        self.outbox = RingSet(ready_set, limits.outbox_bytes, 2 * limits.outbox_bytes // 3, limits.outbox_values)
        self.declared_streams = DeclaredStreams(self.queries, sources, ready_set, limits)
        self.scalars = ScalarHistory(sources, limits)
        self.send = send
        self.sessions = SessionTable(limits)
        self.clients = self.sessions.clients
        self.end_reason = RUN_ENDED
        self.history = RunHistory()
        self.exporter = ValueExporter(
            self.queries, ready_set, self.sessions, limits, self._send, run.rank, self.history
        )
        self.pacing = Pacing(ready_set, self.exporter, recorder)
        self.linger = self.pacing.linger
        self.give_way: Callable[[], None] = lambda: None
        self.liveness = LoopLiveness(sources, self._owner)
        self.machine = MachineMonitor(sources)
        self._finished_commands: deque[LoopCommand] = deque()
        self.commands = CommandService(self.queries, sources, groups, limits, self._finished)
        self.access_grants = AccessGrants(run, limits, self.declared_streams, self.disconnect, link)
        self.subscriptions = SubscriptionManager(
            self.queries, self.declared_streams, self.exporter, sources, self.outbox, limits, recorder, self.history,
            self.access_grants, self.scalars, self.commands.unsafe_queries,
        )  # fmt: skip
        self.statistics = StatisticsReporter(
            run, sources=sources, outbox=self.outbox, liveness=self.liveness, sessions=self.sessions,
            grants=self.access_grants, exporter=self.exporter, declared=self.declared_streams, history=self.history,
            pause=self.commands.job.pause, recorder=recorder, budget=budget,
        )  # fmt: skip
        self.heartbeat = Heartbeat(
            self.sessions, self.statistics, self.liveness, budget,
            lambda: 0.0 if recorder is None else recorder.writer.seconds, self._send,
        )  # fmt: skip
        self.handlers = self._table()

    # ------------------------------------------------------------ what the link calls

    def receive(self, peer: bytes, role: str, frame: bytes) -> None:
        """Handle one frame of a client."""
        try:
            message = decode_from_client(frame)
        except MessageError:
            self.statistics.refused_messages += 1
            if (version := version_of(frame)) and version[0] != m.VERSION[0]:
                self._mismatch(peer, version)
            return
        if not may_send(role, message):
            self.statistics.refused_messages += 1
            self._reply(peer, m.Failed(getattr(message, "request", 0), "role", refusal(role, message)))
            return
        if isinstance(message, m.Hello):
            self._hello(peer, role, message)
            return
        client = self.clients.get(peer)
        if client is None:
            self.statistics.refused_messages += 1
            self._reply(peer, m.Refused("say hello first.", m.VERSION, stranger=True))
            return
        client.last_heard, client.role = time.monotonic(), role
        try:
            reply = self.handlers[type(message)](client, message)
            if reply is not REPLIED:
                self._done(client, cast("m.Request[object]", message), reply)
        except QueryError as error:
            fields = {"reason": error.reason, "source": error.source, "column": error.column, "hint": error.hint}
            self._fail(client, message, "query", str(error), msgspec.json.encode(fields).decode())
        except LooptapError as error:
            self._fail(client, message, type(error).__name__, str(error))

    def on_disconnect(self, peer: bytes) -> None:
        """Forget a client that cannot be reached any more, with all its queries."""
        self.commands.agreement.forget(peer)
        if (client := self.clients.get(peer)) is not None:
            # While an event is evaluated, how far a stream got is not certain.
            with self.sources.paused(PAUSE_TIMEOUT_SECONDS * bool(client.token)) as still:
                streams = self.sessions.forget(peer, exact=still)
            self.exporter.forget(client, streams)
        self._tidy()

    def flush(self, seconds: float = 0.0, fresh: bool = True) -> bool:
        """Send pending values: see `RequestHandler.flush`."""
        if not fresh:
            return self.exporter.flush(seconds, fresh, self.give_way)
        self.pacing.begin_flush()
        self.statistics.io_seconds = time.thread_time()
        self.sources.evaluator.catch_up(self.give_way)
        replaying = self.subscriptions.replays.go_on()
        self.commands.unsafe_queries.look()
        while self._finished_commands:
            self._report(self._finished_commands.popleft())
        rings = self.ready_set.collect()
        self.exporter.mark_rings(rings)
        if self.recorder is not None and self.recorder.recording:
            self.recorder.mark_rings(rings)
            self.recorder.hand_over(self.history)
        more = self.exporter.flush(seconds, True, self.give_way)
        if self.ready_set.changed:
            self._tidy()
        return more or replaying

    def is_idle(self) -> bool:
        """Let the next value wake the I/O thread; False if something waits already."""
        self.ready_set.wakeup_pending = False
        waits = self.ready_set.ready or self.sources.evaluator.waits() or self._finished_commands
        self.ready_set.wakeup_pending = bool(waits or self.exporter.can_send())
        self.exporter.rest()
        return not self.ready_set.wakeup_pending

    def on_heartbeat_timer(self) -> bool:
        """Check that the loop moves; send each client a heartbeat and its costs."""
        for peer in self.heartbeat.expired():
            self.on_disconnect(peer)
        self.heartbeat.update()
        self.machine.update()
        self.ready_set.wakeup_pending = False  # an interrupt of the training thread may have left it set
        if not self.clients:  # no client waits for unobserved values
            return False
        self.heartbeat.send()
        self.give_way()
        for peer, client in list(self.clients.items()):
            if client.disconnected and self.sessions.is_expired(client):
                self.on_disconnect(peer)
        self.sources.unobserved.drain()
        self.exporter.mark_all(self.give_way)
        more = self.flush()
        self.subscriptions.merge()  # what streams have of their own queries is sent now
        if more:
            self.ready_set.wake()
        return more

    def mark_scalars(self, now: float) -> float:
        """Mark events for the history of scalars; return when to do so again."""
        due = self.scalars.mark(now)
        if self.recorder is not None:
            self.recorder.store_scalars(self.scalars)
            self.recorder.store_facts(self.commands.job.observers.facts_to_keep())
        return due

    def _owner(self, query: object) -> str:
        """Return the name of a query's client; empty if the job declared it."""
        streams = list(self.exporter.streams)
        return next((s.client.name for s in streams if s.query is query and not s.declared), "")

    def on_alarm(self) -> None:
        """End the expired shares."""
        self.access_grants.expire()
        self._tidy()

    def disconnect(self, key: str, reason: str) -> None:
        """Disconnect the clients of a key, with a reason."""
        for client in self.sessions.of(key):
            self._reply(client.peer, m.Goodbye(reason, dismissed=True))
            self.on_disconnect(client.peer)

    def goodbye(self) -> None:
        """Send pending values, end every stream, and say goodbye with a reason."""
        self.sources.drain()
        self.commands.unsafe_queries.end(self.end_reason)
        if self.recorder is not None:
            self.recorder.store_scalars(self.scalars, end=True)
            self.recorder.store_facts(self.commands.job.observers.facts_to_keep())
        self.declared_streams.finish(self.end_reason)
        for stream in self.exporter.streams:
            if stream.state == "live":
                stream.end(self.end_reason)
        self.exporter.mark_all()
        if self.recorder is not None:
            self.recorder.mark_all()
        self.exporter.leaving = True
        deadline, sent = time.monotonic() + LAST_VALUES_TIMEOUT_SECONDS, -1
        while self.flush() and time.monotonic() < deadline:
            if sent == self.exporter.sent_bytes:  # the clients that are left read slowly
                time.sleep(RETRY_DELAY_SECONDS)
            sent = self.exporter.sent_bytes
        deadline = time.monotonic() + LAST_STATUS_TIMEOUT_SECONDS
        last = [(s.client.peer, s.status()) for s in self.exporter.streams if s.changed]  # with what is lost now
        for peer, message in [*last, *((peer, m.Goodbye(self.end_reason)) for peer in self.clients)]:
            while self._reply(peer, message) is SendResult.FULL and time.monotonic() < deadline:
                time.sleep(RETRY_DELAY_SECONDS)

    # ------------------------------------------------------------ requests

    def _hello(self, peer: bytes, role: str, hello: m.Hello) -> None:
        if hello.version[0] != m.VERSION[0]:
            self._mismatch(peer, hello.version)
            return
        key = self.access_grants.sender_key()
        if (stranger := self.sessions.conflicting_session(peer, role, hello, key)) is not None:
            self.on_disconnect(stranger)
        try:
            client = self.sessions.admit(peer, role, hello, key)
        except LimitReached as limit:
            self._reply(peer, m.Refused(str(limit), m.VERSION))
            return
        self.exporter.remove(*(s for n, s in client.streams.items() if n not in hello.streams and client.token))
        self.exporter.welcome_back(client)
        beat = self.statistics.beat(client)
        streams = tuple(client.streams)
        self._reply(peer, m.Welcome(m.VERSION, self.run, role, beat.events, streams, beat.idle, beat.ages))
        if client.streams:
            self.ready_set.wake()

    def _mismatch(self, peer: bytes, version: tuple[int, int]) -> None:
        theirs, ours = (".".join(map(str, v)) for v in (version, m.VERSION))
        reason = f"the client uses protocol {theirs} and the agent {ours}; install the same version on both sides."
        self._reply(peer, m.Refused(reason, m.VERSION))

    def _table(self) -> dict[type[m.Message], Callable[[ClientSession, Any], object]]:
        """Return what handles each kind of message of an attached client.

        What it returns is the reply, unless that is `REPLIED`.
        """
        grants, reports, streams = self.access_grants, self.statistics, self.subscriptions
        return {
            m.Attach: self._attach,
            m.Read: self._attach,
            m.Detach: self._detach,
            m.CloseWindow: self._close_window,
            m.Grant: lambda client, ask: streams.own(client, ask.stream).limit.set_grant(grant_share(ask.budget)),
            m.DeclareStream: self._declare,
            m.GetStreams: lambda client, ask: self.declared_streams.list(grants.visibility(client)),
            m.Call: self._command,
            m.Command: self._command,
            m.Agree: self._command,
            m.GetControls: lambda client, ask: self.commands.job.describe(ask.path),
            m.GetCommands: lambda client, ask: self.commands.commands.records,
            m.CreateShare: lambda client, ask: grants.share(ask, client.name),
            m.Revoke: self._revoke,
            m.GetShares: lambda client, ask: grants.describe(self.sessions),
            m.GetConfig: self._config,
            m.GetStats: lambda client, ask: reports.stats(self.machine.report() if ask.machine else None),
            m.GetStacks: lambda client, ask: reports.stacks(),
            m.GetScalars: lambda client, ask: self.scalars.report(),
            m.GetModules: lambda client, ask: module_report(self.sources, ask.pattern),
            m.GetClock: lambda client, ask: time.monotonic(),
            m.Got: self._got,
            m.Beat: self._beat,
            m.Leave: self._leave,
        }

    def _attach(self, client: ClientSession, ask: m.Attach | m.Read) -> object:
        self._done(client, ask, self.subscriptions.attach(client, ask))
        stream = client.streams[ask.stream]
        if stream.query.awaits:
            self.machine.update()
        if stream.waits() or len(self.subscriptions.replays):  # a history
            self.ready_set.wake()
        return REPLIED

    def _detach(self, client: ClientSession, ask: m.Detach) -> object:
        stream = self.subscriptions.stream(client, ask.stream)
        self._done(client, ask, None)  # before how the stream ended
        self.subscriptions.detach(stream, "closed by the client")
        self.flush()
        return REPLIED

    def _close_window(self, client: ClientSession, ask: m.CloseWindow) -> None:
        query = self.subscriptions.own(client, ask.stream)
        if query.pipeline.trusted:
            self.queries.between_events(query.on, query.flush_partial, query.flush_at_next_event)
        else:
            query.flush_at_next_event()

    def _declare(self, client: ClientSession, ask: m.DeclareStream) -> object:
        self._done(client, ask, self.subscriptions.declare(client, ask))
        self._tidy()
        self.ready_set.wake()
        return REPLIED

    def _revoke(self, client: ClientSession, ask: m.Revoke) -> object:
        self._done(client, ask, self.access_grants.revoke(ask.share))
        self._tidy()
        return REPLIED

    def _command(self, client: ClientSession, ask: m.Call | m.Command | m.Agree) -> object:
        answer = self.commands.handle(client.name, ask, client.peer)
        return REPLIED if answer is None else answer  # None: the outcome is the reply

    def _config(self, client: ClientSession, ask: m.GetConfig) -> object:
        if not client.viewer:
            return self.configuration.report()
        if self.access_grants.shows_config(client):
            return self.configuration.report().shared()
        text = "A viewer may not read the config of the run: its share does not show it (run.share(config=True))."
        self._fail(client, ask, "role", text)
        return REPLIED

    def _got(self, client: ClientSession, message: m.Got) -> object:
        held = client.is_stalled(time.monotonic(), self.exporter.window()(client))
        client.got_bytes = min(message.total, client.sent_bytes)
        if held and self.flush():
            self.ready_set.wake()
        return REPLIED

    def _beat(self, client: ClientSession, message: m.Beat) -> object:
        self.exporter.note_attention(client, message.patience, message.unseen)
        return REPLIED

    def _leave(self, client: ClientSession, message: m.Leave) -> object:
        client.token = ""  # it will not be back
        self.on_disconnect(client.peer)
        return REPLIED

    # ------------------------------------------------------------ commands

    def _finished(self, command: LoopCommand) -> None:
        self._finished_commands.append(command)
        self.ready_set.wake_now()

    def _report(self, command: LoopCommand) -> None:
        if not command.reported:
            command.reported = True
            kept = kept_command(command.record)
            self.declared_streams.command(kept)
            if self.recorder is not None:
                self.recorder.record_command(kept)
        requesters, command.requesters = command.requesters, []
        for requester in requesters:
            self._reply(requester.peer, command.reply(requester))

    def _tidy(self) -> None:
        self.ready_set.changed = False  # before the look: a query that changes from now on is looked at the next time
        self.queries.end_chained()
        self.commands.unsafe_queries.look()
        for over in self.declared_streams.tidy() if self.declared_streams.by_name else ():
            if self.recorder is not None:
                self.recorder.stop_recording(over, self.history)

    def stats(self) -> dict[str, Any]:
        """Return all counters: clients, queries with costs, queue peak, drops, events."""
        return dict(msgspec.to_builtins(self.statistics.stats()))

    def start_keeping(self, name: str) -> None:
        """Keep a declared stream in the file of the run."""
        if self.recorder is not None:
            self.subscriptions.keep(self.declared_streams.by_name[name])

    def describe(self) -> None:
        """Write to the file of the run which runs it resumes."""
        if self.recorder is not None:
            self.recorder.writer.describe(**self.history.describe())

    # ------------------------------------------------------------ replies

    def _reply(self, peer: bytes, message: m.Message) -> SendResult:
        client = self.clients.get(peer)
        if client is None or isinstance(message, m.Beat | m.Status | m.Goodbye):
            return self._send(peer, encode(message))
        return self.exporter.answer(client, encode(message))

    def _send(self, peer: bytes, frame: bytes) -> SendResult:
        sent = self.send(peer, frame)
        if sent is SendResult.GONE and self.sessions.on_unreachable(peer):
            self.on_disconnect(peer)
        return sent

    def _done(self, client: ClientSession, request: m.Request[m.R], reply: m.R) -> None:
        self._reply(client.peer, m.Done(request.request, msgspec.Raw(pack(reply))))

    def _fail(self, client: ClientSession, message: m.Message, kind: str, text: str, detail: str = "") -> None:
        self._reply(client.peer, m.Failed(getattr(message, "request", 0), kind, text, detail))
