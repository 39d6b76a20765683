"""What an agent does for its clients: answers requests, attaches queries, sends values.

Everything here runs on the I/O thread, through `receive`, `flush`, `beat` and `goodbye`. The training thread is met
in few places only: taps (copy on write), the backlog, outboxes and rings, and the queue of command outcomes.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from looptap.agent.control.command_handlers import Steering
from looptap.agent.control.command_log import Outcome
from looptap.agent.handoff.value_queue import Post
from looptap.agent.io.server_socket import Sent
from looptap.agent.loop.event_sources import Taps
from looptap.agent.loop.overhead_budget import OverheadBudget
from looptap.agent.queries.query_registry import Queries, granted
from looptap.agent.run.resume_lineage import Lineage
from looptap.agent.server.access_grants import Sharing
from looptap.agent.server.declared_streams import StandingStreams
from looptap.agent.server.exporter import LARGE, Delivery
from looptap.agent.server.liveness import Pulse
from looptap.agent.server.recording import Keeper, command_of
from looptap.agent.server.sessions import Guests
from looptap.agent.server.statistics import Figures
from looptap.agent.server.subscription import RETRY, Client, silent
from looptap.agent.server.subscription_manager import Attachments
from looptap.protocol import messages as m
from looptap.protocol.codec import decode_from_client, encode, pack, version_of
from looptap.protocol.errors import LimitReached, MessageError
from looptap.protocol.limits import Limits
from looptap.protocol.roles import may_send, refusal
from looptap.streams.errors import LooptapError, QueryError

LEAVING, LAST_WORD = 1.0, 0.25
"""Seconds for the last values at the end of the run, and then for how each stream ended."""


class Service:
    """The agent's brain. ``send`` hands a frame to the link and says whether it went."""

    def __init__(
        self,
        run: m.RunInfo,
        *,
        taps: Taps,
        groups: tuple[str, ...],
        limits: Limits,
        post: Post,
        budget: OverheadBudget,
        keeper: Keeper | None = None,
    ) -> None:
        self.run, self.limits, self.taps, self.budget = run, limits, taps, budget
        self.post, self.keeper = post, keeper
        self.queries = Queries(taps, groups, limits, budget)
        self.standing = StandingStreams(self.queries, taps, post, limits)
        self.send: Callable[[bytes, bytes], Sent] = lambda peer, frame: Sent.GONE  # until the link is there
        self.guests = Guests(limits)
        self.clients = self.guests.clients
        self.farewell = "the run ended"
        self.refused = 0
        self.io_seconds = 0.0
        self._cpu, self._beaten = 0.0, time.monotonic()
        self.lineage = Lineage()
        self.delivery = Delivery(self.queries, post, self.guests, limits, self._send, run.rank, self.lineage)
        self.pulse = Pulse(taps, self._owner)
        self._outcomes: deque[Outcome] = deque()
        self.steering = Steering(self.queries, taps, groups, limits, self._finished)
        self.sharing = Sharing(run, limits, self.standing, self.dismiss)
        self.attachments = Attachments(
            self.queries, self.standing, self.delivery, taps, post, limits, keeper, self.lineage, self.sharing
        )
        self.figures = Figures(self)

    # ------------------------------------------------------------ what the link calls

    def linger(self) -> float:
        """Seconds to wait for more values before a flush; large ones gain nothing from company."""
        hurried = self.delivery.hurried or self.post.gathered() > LARGE
        return 0.001 if hurried else 0.02

    def receive(self, peer: bytes, role: str, frame: bytes) -> None:
        """Handle one frame of a client."""
        try:
            message = decode_from_client(frame)
        except MessageError:
            self.refused += 1
            if (version := version_of(frame)) and version[0] != m.VERSION[0]:
                self._mismatch(peer, version)
            return
        if not may_send(role, message):
            self.refused += 1
            self._reply(peer, m.Failed(getattr(message, "request", 0), "role", refusal(role, message)))
            return
        if isinstance(message, m.Hello):
            self._hello(peer, role, message)
            return
        client = self.clients.get(peer)
        if client is None:
            self.refused += 1
            self._reply(peer, m.Refused("say hello first.", m.VERSION, stranger=True))
            return
        client.heard, client.role = time.monotonic(), role
        try:
            self._handle(client, message)
        except QueryError as error:
            fields = {"reason": error.reason, "source": error.source, "column": error.column, "hint": error.hint}
            self._fail(client, message, "query", str(error), msgspec.json.encode(fields).decode())
        except LooptapError as error:
            self._fail(client, message, type(error).__name__, str(error))

    def gone(self, peer: bytes) -> None:
        """Forget a client that cannot be reached any more, with all its queries."""
        self.steering.agreement.forget(peer)
        if (client := self.clients.get(peer)) is not None:
            self.delivery.forget(client, self.guests.forget(peer))
        self._tidy()

    def flush(self) -> bool:
        """Send one message's worth of what waits; True if there is more to send now."""
        self.io_seconds = time.thread_time()
        self.taps.backlog.catch_up()
        self.post.peak = max(self.post.peak, self.post.gathered())
        while self._outcomes:
            self._report(self._outcomes.popleft())
        sinks = self.post.collect()
        self.delivery.heard(sinks)
        if self.keeper is not None:
            self.keeper.heard(sinks)
            self.keeper.hand_over(self.lineage)
        more = self.delivery.flush()
        if self.post.changed:
            self._tidy()
        return more

    def rest(self) -> bool:
        """Have what comes next ring the bell; False if something is there to be sent already."""
        self.post.rung = False
        waits = self.post.ready or self.taps.backlog.waits() or self._outcomes
        self.post.rung = bool(waits or self.delivery.news())
        return not self.post.rung

    def beat(self) -> None:
        """See whether the loop moves; give every client a sign of life, and say what its streams cost."""
        now = time.monotonic()
        cpu = time.thread_time() + (0.0 if self.keeper is None else self.keeper.writer.stats()["seconds"])
        for peer in silent(self.clients, self.limits, now, self._beaten):
            self.gone(peer)
        if now > self._beaten:
            self.budget.io = (cpu - self._cpu) / (now - self._beaten)
        self._cpu, self._beaten = cpu, now
        self.budget.io_schedule.is_this_thread()
        self.pulse.beat()
        self.post.rung = False  # an interrupt of the training thread may have left it set and woken nobody
        if not self.clients:  # nobody waits for what is quiet
            return
        self._give_sign()
        for peer, client in list(self.clients.items()):
            if client.away and self.guests.given_up(client):
                self.gone(peer)
        self.taps.quiet.drain()
        self.delivery.mark_all()
        if self.flush():
            self.post.wake()

    def _give_sign(self, confirm: bool = False) -> None:
        shared = b""  # the same for all operators
        for peer, client in list(self.clients.items()):
            if client.away:
                continue
            if client.viewer:
                self._send(peer, encode(self.figures.beat(client, confirm)))
            else:
                shared = shared or encode(self.figures.beat(client, confirm))
                self._send(peer, shared)

    def _owner(self, query: object) -> str:
        """The client that asked a query, empty if the job declared it."""
        streams = list(self.delivery.streams)
        return next((s.client.name for s in streams if s.query is query and s.reader is None), "")

    def ask_for_confirmation(self) -> None:
        """Have all clients say what has reached them; see `confirmed`."""
        self._give_sign(confirm=True)

    def confirmed(self) -> bool:
        """Whether all that was sent has reached whom it was for."""
        return all(client.away or client.got_bytes >= client.sent_bytes for client in list(self.clients.values()))

    def alarmed(self) -> None:
        """End the shares that have expired."""
        self.sharing.expire()
        self._tidy()

    def dismiss(self, key: str, reason: str) -> None:
        """Send nothing more to who came in by a key, but why."""
        for client in self.guests.of(key):
            self._reply(client.peer, m.Goodbye(reason, dismissed=True))
            self.gone(client.peer)

    def goodbye(self) -> None:
        """Send what waits, end every stream, take leave, with `farewell` as the reason."""
        self.taps.drain()
        self.standing.finish(self.farewell)
        for stream in self.delivery.streams:
            if stream.state == "live":
                stream.query.state, stream.query.reason = "ended", self.farewell
                stream.touch()
        self.delivery.mark_all()
        if self.keeper is not None:
            self.keeper.look_at_all()
        self.delivery.leaving = True
        deadline, sent = time.monotonic() + LEAVING, -1
        while self.flush() and time.monotonic() < deadline:
            if sent == self.delivery.sent_bytes:  # whoever is left reads slowly
                time.sleep(RETRY)
            sent = self.delivery.sent_bytes
        deadline = time.monotonic() + LAST_WORD
        last = [(s.client.peer, s.status()) for s in self.delivery.streams if s.changed]  # with what is lost now
        for peer, message in [*last, *((peer, m.Goodbye(self.farewell)) for peer in self.clients)]:
            while self._reply(peer, message) is Sent.FULL and time.monotonic() < deadline:
                time.sleep(RETRY)

    # ------------------------------------------------------------ requests

    def _hello(self, peer: bytes, role: str, hello: m.Hello) -> None:
        if hello.version[0] != m.VERSION[0]:
            self._mismatch(peer, hello.version)
            return
        key = self.sharing.speaker()
        if (stranger := self.guests.in_the_way(peer, role, hello, key)) is not None:
            self.gone(stranger)
        try:
            client = self.guests.admit(peer, role, hello, key)
        except LimitReached as limit:
            self._reply(peer, m.Refused(str(limit), m.VERSION))
            return
        self.delivery.remove(*(s for n, s in client.streams.items() if n not in hello.streams and client.token))
        for stream in client.streams.values():
            self.delivery.mark(stream)
        beat = self.figures.beat(client)
        streams = tuple(client.streams)
        self._reply(peer, m.Welcome(m.VERSION, self.run, role, beat.events, streams, beat.idle, beat.ages))
        if client.streams:
            self.post.wake()

    def _mismatch(self, peer: bytes, version: tuple[int, int]) -> None:
        theirs, ours = (".".join(map(str, v)) for v in (version, m.VERSION))
        reason = f"the client speaks protocol {theirs} and the agent {ours}; install the same looptap on both."
        self._reply(peer, m.Refused(reason, m.VERSION))

    def _handle(self, client: Client, message: m.FromClient) -> None:
        match message:
            case m.Attach() | m.Read():
                self._done(client, message.request, self.attachments.attach(client, message))
                if client.streams[message.stream].waits():  # a history
                    self.post.wake()
            case m.Detach():
                stream = self.attachments.stream(client, message.stream)
                self._done(client, message.request)
                self.attachments.detach(stream, "closed by the client")
                self.flush()
            case m.CloseWindow():
                query = self.attachments.own(client, message.stream)
                self.queries.between_events(query.on, query.close, query.close_soon)
                self._done(client, message.request)
            case m.Grant():
                self.attachments.own(client, message.stream).granted(granted(message.budget))
                self._done(client, message.request)
            case m.Stand():
                self._done(client, message.request, self.attachments.stand(client, message))
                self._tidy()
                self.post.wake()
            case m.Share():
                self._done(client, message.request, self.sharing.share(message, client.name))
            case m.Revoke():
                self._done(client, message.request, self.sharing.revoke(message.share))
                self._tidy()
            case m.Call() | m.Command() | m.Agree():
                self.steering.asked(client.name, message, client.peer)
            case m.Got():
                held = client.holds_up(time.monotonic(), self.delivery.window()(client))
                client.got_bytes = min(message.total, client.sent_bytes)
                if held and self.flush():
                    self.post.wake()
            case m.Ask():
                self._done(client, message.request, self.figures.answer(message.what))
            case m.Look():
                self._done(client, message.request, self.standing.list(self.sharing.sight(client)))
            case m.Leave():
                client.token = ""  # it will not be back
                self.gone(client.peer)
            case _:  # a Beat needs no answer
                pass

    def _finished(self, outcome: Outcome) -> None:
        self._outcomes.append(outcome)
        self.post.hurry()

    def _report(self, outcome: Outcome) -> None:
        if not outcome.kept:
            outcome.kept = True
            command = command_of(outcome.record)
            self.standing.command(command)
            if self.keeper is not None:
                self.keeper.writer.command(command)
        asked, outcome.asked_by = outcome.asked_by, []
        for asker in asked:
            self._reply(asker.peer, outcome.reply(asker))

    def _tidy(self) -> None:
        self.post.changed = False  # before the look: a query that changes from now on is looked at the next time
        for over in self.standing.tidy() if self.standing.by_name else ():
            if self.keeper is not None:
                self.keeper.leave(over, self.lineage)

    def stats(self) -> dict[str, Any]:
        """Clients, queries with their cost, the outbox's peak, drops, events: all counters of the agent."""
        return self.figures.stats()

    def start_keeping(self, name: str) -> None:
        """Keep a standing stream in the file of the run."""
        if self.keeper is not None:
            self.attachments.keep(self.standing.by_name[name])

    def describe(self) -> None:
        """Have the file of the run say what it goes on from."""
        if self.keeper is not None:
            self.keeper.writer.describe(**self.lineage.told())

    # ------------------------------------------------------------ replies

    def _reply(self, peer: bytes, message: m.Message) -> Sent:
        client = self.clients.get(peer)
        if client is None or isinstance(message, m.Beat | m.Status | m.Goodbye):
            return self._send(peer, encode(message))
        return self.delivery.answer(client, encode(message))

    def _send(self, peer: bytes, frame: bytes) -> Sent:
        sent = self.send(peer, frame)
        if sent is Sent.GONE and self.guests.leaves(peer):
            self.gone(peer)
        return sent

    def _done(self, client: Client, request: int, value: Any = None) -> None:
        self._reply(client.peer, m.Done(request, msgspec.Raw(pack(value))))

    def _fail(self, client: Client, message: m.Message, kind: str, text: str, detail: str = "") -> None:
        self._reply(client.peer, m.Failed(getattr(message, "request", 0), kind, text, detail))
