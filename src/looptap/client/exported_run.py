"""`ExportedRun`, `ExportedFile`: read-only views of a run, for viewers.

They show exported streams of a live run and their events, streams of a stored one. There
is no way from here to anything else, and no text that names it.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

from looptap.client.run import Run
from looptap.client.streams.kept_history import kept_history
from looptap.client.streams.live import LiveStream
from looptap.protocol import messages as m
from looptap.protocol.errors import NoAnswer, NotAllowed
from looptap.protocol.keys import OPERATOR, VIEWER
from looptap.protocol.replies import StreamInfo
from looptap.protocol.run_config import RunConfig
from looptap.store.kept_scalars import Scalars
from looptap.store.run import StoredRun
from looptap.store.stream import StoredStream
from looptap.streams.errors import QueryError
from looptap.streams.stream.state_and_cost import DEFAULT_BUFFER_BYTES, DEFAULT_BUFFER_ITEMS, ENDED, LIVE
from looptap.streams.stream.stream import Stream

ANSWER_TIMEOUT_SECONDS = 5.0
"""Seconds to wait for the job to answer."""
NO_LONGER = "it is no longer exported"
_REASONS_SHOWN = ("lost", "ended", "failed")  # that of a silent run names queries


def exported(run: Any, *, config: bool, own: bool = False) -> Any:
    """Return ``run`` as viewers see it, or as its owner (``own``) does.

    ``config`` shows viewers its settings, too.
    """
    if isinstance(run, Run):  # the agent shows the viewer of a share what it may see
        return ExportedRun(run, config=config, own=own) if run.role == OPERATOR else run
    return ExportedFile(run, config=config) if isinstance(run, StoredRun) and not own else run


def shown_scalars(run: Any) -> Scalars:
    """Return the numbers in a run's events, none if they are not shared."""
    try:
        found: Scalars = run.scalars
    except NotAllowed:
        found = Scalars()
    return found


class ExportedRun:
    """A live run as a viewer sees it, through the connection of an operator.

    Its owner (``own``) sees all its streams, the numbers in its events and its settings.
    """

    role = VIEWER
    inside = ""

    def __init__(self, run: Run, *, config: bool, own: bool = False) -> None:
        self._run, self._config = run, config
        self.own = own
        self._on: set[str] | None = None
        self._opened: weakref.WeakSet[LiveStream] = weakref.WeakSet()

    @property
    def info(self) -> m.RunInfo:
        """The run's identity."""
        return self._run.info

    @property
    def name(self) -> str:
        """The name of the job."""
        return self._run.name

    @property
    def id(self) -> str:
        """The id of the run."""
        return self._run.id

    @property
    def state(self) -> str:
        """The state: live, lost, silent, ended or failed."""
        return self._run.state

    @property
    def reason(self) -> str:
        """The reason for the state."""
        return self._run.reason if self.own or self.state in _REASONS_SHOWN else ""

    @property
    def alive(self) -> bool:
        """True if the link is up and the agent answers."""
        return self._run.alive

    @property
    def idle(self) -> float:
        """Seconds since the loop's last event."""
        return self._run.idle

    @property
    def paused(self) -> float:
        """Seconds for which the loop has been paused, or 0."""
        return self._run.paused

    @property
    def streams(self) -> list[StreamInfo]:
        """The exported streams; those that no longer are end. Raises NoAnswer.

        Its owner sees the others, too.
        """
        with _plainly():
            found = [one for one in self._run.streams if self.own or one.exported]
        self._on = {one.on for one in found}
        shown = {one.name for one in found}
        for stream in [one for one in self._opened if one.declared not in shown]:
            stream.end(ENDED, NO_LONGER)
            self._run.session.detach(stream.attach.stream)
            self._opened.discard(stream)
        return found

    def check(self, stream: Stream) -> None:
        """Raise QueryError if a stream that is still open is no longer exported."""
        while (source := getattr(stream, "source", None)) is not None:
            stream = source
        if stream.reason == NO_LONGER:
            raise QueryError(f"{stream.name!r:.80}: {NO_LONGER}.")

    def events(self) -> dict[str, int]:
        """Return the number of events of the types of exported streams."""
        on = self._types()
        return {name: count for name, count in self._run.events().items() if name in on}

    def ages(self) -> dict[str, float]:
        """Return the seconds since the last event of each of these types."""
        on = self._types()
        return {name: age for name, age in self._run.ages().items() if name in on}

    def _types(self) -> set[str]:
        return {one.on for one in self.streams} if self._on is None else self._on

    def stream(self, name: str, *, buffer: int = DEFAULT_BUFFER_ITEMS) -> LiveStream:
        """Return an exported stream. Raises QueryError for any other."""
        if all(one.name != name for one in self.streams):
            raise QueryError(f"This run exports no stream {name!r:.80}.")
        session = self._run.session
        attach = m.Attach(
            session.requests.number(), session.streams.number(), m.Code(name), on="", named=True
        )  # no type of events: were the stream gone meanwhile, the name could not become a query
        stream = LiveStream(
            self._run, attach, name="", text=name, buffer=buffer, buffer_bytes=DEFAULT_BUFFER_BYTES, discreet=True
        )
        with _plainly():
            session.begin(stream, ANSWER_TIMEOUT_SECONDS)
        self._opened.add(stream)
        return stream

    def curve(self, text: str, on: str) -> Stream | None:
        """Return the numbers that events carry, with their history, for the owner.

        None unless ``text`` has only names that the run itself has listed: no other text becomes a query.
        """
        if not self.own:
            return None
        names = {text for one in self._run.scalars if on in ("", one.on) for text in (one.name, one.query)}
        if not names.issuperset(part.strip() for part in text.split(",")):
            return None
        return self._run.stream(text, on=on or None, history=kept_history(self._run, text))

    @property
    def config(self) -> RunConfig:
        """The settings, as a share with the config shows them. Raises NotAllowed."""
        if self.own:
            return self._run.config
        if not self._config:
            raise NotAllowed("The settings of this run are not shared.")
        with _plainly():
            return self._run.config.shared()

    @property
    def scalars(self) -> Scalars:
        """The numbers that events carry, for the owner. Raises NotAllowed for others."""
        if self.own:
            return self._run.scalars
        raise NotAllowed("The numbers that events carry are not shared.")

    def close(self) -> None:
        """Disconnect; the job continues."""
        self._run.close()


class ExportedFile:
    """A stored run: its streams, without commands, scalars and unshared config."""

    def __init__(self, run: StoredRun, *, config: bool) -> None:
        self._run = run
        self.id, self.name, self.started = run.id, run.name, run.started
        self.config = run.config.shared() if config else RunConfig()
        self.metadata = {"host": run.metadata.get("host", ""), "commit": self.config.commit}
        self.commands: list[Any] = []
        self.scalars = Scalars()
        self.path = run.path

    @property
    def state(self) -> str:
        """The state: live while it is being written, else ended."""
        return self._run.state

    @property
    def reason(self) -> str:
        """The reason for the state."""
        return self._run.reason

    @property
    def alive(self) -> bool:
        """True while it is being written."""
        return self.state == LIVE

    @property
    def ended(self) -> float | None:
        """Time at which it ended; None if alive or killed."""
        return self._run.ended

    @property
    def until(self) -> float | None:
        """Time of its end, else of the newest thing in its file; None while it is alive."""
        return self._run.until

    @property
    def streams(self) -> list[StoredStream]:
        """The stored streams."""
        return self._run.streams

    def stream(self, name: str) -> StoredStream:
        """Return a stored stream by name. Raises QueryError for any other."""
        for stream in reversed(self.streams):
            if stream.name == name:
                return stream
        raise QueryError(f"This run has no stored stream {name!r:.80}.")

    def history(self, text: str, on: str | None = None) -> None:
        """Return None: the history of scalars is not shared."""

    def close(self) -> None:
        """Close the file."""
        self._run.close()


@contextlib.contextmanager
def _plainly() -> Iterator[None]:
    """Say that no answer came, and not which queries of others may be why."""
    try:
        yield
    except NoAnswer:
        raise NoAnswer("The job does not answer.") from None
