"""Grants of access: exported and kept streams, and shares with viewers."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from looptap.client.session.session import Session
from looptap.client.transport.connect_errors import is_loopback_address
from looptap.client.transport.timeouts import REPLY_SECONDS
from looptap.protocol import messages as m
from looptap.protocol.file_names import fitting
from looptap.protocol.files.connection import IPC, parse, write_connection_file
from looptap.protocol.replies import ShareInfo, StreamInfo
from looptap.streams.errors import QueryError

if TYPE_CHECKING:
    from looptap.client.streams.live import LiveStream

SECONDS_PER_HOUR = 3600.0


class Share:
    """A key for viewers, made by `Run.share`, that admits them until it expires."""

    def __init__(self, client: SharingClient, info: ShareInfo, path: Path | None = None) -> None:
        self.id, self.expires, self.endpoints, self.streams = info.share, info.expires, info.endpoints, info.streams
        """``streams`` is what it shows, as of when it was asked for; None: whatever is exported."""
        self.config = info.config
        """True if it shows the settings of the run (`Run.config`)."""
        self.who = ["".join(filter(str.isprintable, name[:1000])) for name in info.viewers]
        """Names of its viewers at the time of the request; `viewers` asks again."""
        self._client = client
        self.path = path
        """The path of the viewer's file, to be sent to viewers; None for a share that was made elsewhere."""

    @property
    def left(self) -> float:
        """Seconds until it expires."""
        return max(0.0, self.expires - time.time())

    @property
    def viewers(self) -> list[str]:
        """The attached viewers: user, host and process, as they name themselves."""
        self.who = next((share.who for share in self._client.shares() if share.id == self.id), [])
        return self.who

    @property
    def reach(self) -> str:
        """A sentence that says from where the file gives access."""
        return self.reach_by("share(endpoint='tcp://{host}:*')")

    def reach_by(self, wider: str) -> str:
        """Return `reach`, with the way to give access to others.

        Args:
            wider: A call or command that would, with ``{host}`` for the host.
        """
        host = self._client.host
        open_to = [endpoint for endpoint in self.endpoints if not endpoint.startswith(IPC)]
        if not open_to:
            return f"Only by processes of your own user on {host}; for others: {wider.format(host=host)}."
        hosts = {urlsplit(endpoint).hostname or "" for endpoint in open_to}
        if far := sorted(itertools.filterfalse(is_loopback_address, hosts)):
            return f"From wherever {', '.join(far)} can be reached."
        return f"By every user of {host}, and through ssh to it."

    def revoke(self, timeout: float = REPLY_SECONDS) -> None:
        """End it at once and disconnect its viewers. Raises NoAnswer.

        Args:
            timeout: Seconds to wait for the answer.
        """
        self._client.revoke(self.id, timeout=timeout)

    def __repr__(self) -> str:
        where = f" {self.path}" if self.path else ""
        return f"<Share {self.id}{where} at {', '.join(self.endpoints)}, ends in {self.left / 60:.0f} min>"


class SharingClient:
    """Shares, exports and kept streams of a session's run."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def host(self) -> str:
        """The host of the job."""
        return self._session.info.host

    def export(
        self,
        stream: LiveStream | str,
        exported: bool = True,
        *,
        name: str = "",
        share: Share | str = "",
        timeout: float = REPLY_SECONDS,
    ) -> StreamInfo:
        """Show a stream to viewers, or hide it (``exported=False``); describe it.

        The query of a live stream then belongs to the job and has a history, which begins now. If the stream itself
        began with the history of the numbers that it reads, that history is included. The query continues after you
        leave, within its budget, as long as it is exported, kept or read.

        Args:
            stream: The name of a declared stream or of a number that events carry, or a live stream of this run.
            exported: False hides it.
            name: Its name in the job from then on; by default the stream's name.
            share: A share that was created with its own streams: the stream is shown or hidden only there. Without it,
                the stream is shown to the viewers of all shares that were created without streams, or hidden from all
                viewers.
            timeout: Seconds to wait for the answer.

        Raises QueryError for a flight recorder or a name that is taken, LimitReached, NoAnswer.

        >>> from looptap.testing import pair
        >>> agent, run = pair("doctest")
        >>> loss = run.stream("step, loss")
        >>> run.export(loss, name="loss").exported
        True
        >>> agent.emit("batch", step=0, loss=0.5)
        >>> loss.values, run.stream("loss").values
        ([(step=0, loss=0.5)], [(step=0, loss=0.5)])
        """
        share = share if isinstance(share, str) else share.id
        return self._declare(stream, name, timeout, export=exported, share=share)

    def keep(
        self, stream: LiveStream | str, kept: bool = True, *, name: str = "", timeout: float = REPLY_SECONDS
    ) -> StreamInfo:
        """Record a stream in the file of the run, or stop with ``kept=False``.

        See docs/keep.md. The history of a declared stream is kept, too. A live stream of yours becomes a declared
        stream, as with `export`.

        Args:
            stream: The name of a declared stream, or a live stream of this run.
            kept: False stops; stored values stay.
            name: Its name in the file; by default the stream's name.
            timeout: Seconds to wait for the answer.

        Raises what `export` raises.
        """
        return self._declare(stream, name, timeout, keep=kept)

    def share(
        self,
        *,
        streams: Iterable[LiveStream | str] | LiveStream | str | None = None,
        config: bool = False,
        expires: float = 8 * SECONDS_PER_HOUR,
        endpoint: str | None = None,
        path: str | os.PathLike[str] | None = None,
        timeout: float = REPLY_SECONDS,
    ) -> Share:
        """Write a viewer's file, with which `looptap.attach` reads streams only.

        Args:
            streams: The streams that this share shows, and no other share: live streams of this run, or names of
                declared streams. None shows all streams that are exported to everyone (`export`), now or later.
            config: True shows the settings of the run, its commit and versions (`Run.config`), but neither the command
                line nor changes of the code.
            expires: Seconds for which it is valid, unless `Share.revoke` ends it before.
            endpoint: Where viewers connect: None is a private socket, for processes of your user on the machine of the
                job; ``"tcp"`` is loopback there, for its other users and through ssh; ``"tcp://host:*"`` is the
                network.
            path: The file to write, or its directory; by default the current one.
            timeout: Seconds to wait for the answer.

        Raises EndpointError, LimitReached, UnsafeFile for a directory that others can change, NoAnswer.
        """
        from looptap.client.streams.live import LiveStream  # not at the top: see `looptap.client.query`

        only = [streams] if isinstance(streams, LiveStream | str) else None if streams is None else list(streams)
        ask = m.CreateShare(self._session.requests.number(), float(expires), endpoint or "", only is not None, config)
        made = self._done(ask, timeout)
        share = Share(self, made.info)
        try:
            if only is not None:
                share.streams = tuple(self.export(stream, share=share, timeout=timeout).name for stream in only)
            file = parse(made.file.encode(), "the viewer's file")
            name = f"{fitting(file.run.id)}.{file.run.rank}.viewer-{share.id}.json".replace("/", "_")
            place = Path(path or ".").expanduser().absolute()
            share.path = write_connection_file(file, place / name if place.is_dir() else place)
        except BaseException:  # a key without a file
            share.revoke(timeout)
            raise
        return share

    def shares(self) -> list[Share]:
        """Return the shares of the run that have not ended. Raises NoAnswer after 5 s."""
        found = self._session.inquire(m.GetShares, "The question for the shares", 5.0)
        return [Share(self, info) for info in found]

    def revoke(self, id: str = "", *, timeout: float = REPLY_SECONDS) -> list[str]:
        """End the share ``id``, or all; return their ids. Raises QueryError, NoAnswer.

        Args:
            id: The id of the share; without it, all end.
            timeout: Seconds to wait for the answer.
        """
        ended = self._session.requests.send(m.Revoke(self._session.requests.number(), id))
        return self._session.requests.wait(ended, timeout, "The end of the share")

    def _declare(self, stream: LiveStream | str, name: str, timeout: float, **wanted: Any) -> StreamInfo:
        if isinstance(stream, str):
            return self._done(m.DeclareStream(self._session.requests.number(), 0, stream, **wanted), timeout)
        from looptap.client.streams.live import LiveStream  # not at the top: see `looptap.client.query`

        if not isinstance(stream, LiveStream) or stream.run.session is not self._session:
            name = getattr(stream, "name", "") or repr(stream)
            raise QueryError(
                f"{name:.120} is neither a live stream of this run nor the name of a declared one. Of a join or a "
                "query on this side, take the streams that it reads."
            )
        number, name = stream.attach.stream, name or stream.name
        found = self._done(m.DeclareStream(self._session.requests.number(), number, name, **wanted), timeout)
        if stream.declared is None:
            stream.read_declared(found)
        return found

    def _done(self, request: m.Request[m.R], timeout: float) -> m.R:
        what = f"The request ({request.__struct_config__.tag})"
        return self._session.requests.wait(self._session.requests.send(request, again=False), timeout, what)
