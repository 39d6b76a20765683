"""How an agent comes to be found: its link and its connection file, both or neither, one agent for each name."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeAlias

from looptap.agent.io.endpoints import place_for_sockets
from looptap.agent.io.server_thread import ServerThread
from looptap.agent.run.advertisement import announce
from looptap.agent.run.signal_free_thread import aside
from looptap.agent.server.request_dispatcher import RequestDispatcher
from looptap.protocol.files.connection import remove
from looptap.protocol.keys import OPERATOR, RoleKeys
from looptap.protocol.limits import Limits
from looptap.streams.errors import LooptapError

UNDO_SECONDS = 2.0
"""For what is taken back: nobody is attached yet."""

Place: TypeAlias = tuple[Path, str, int]
"""The directory, name and rank by which clients find an agent."""


class Replaceable(Protocol):
    """An agent, as far as the next one of its name has to know it."""

    def replaced(self) -> bool:
        """End the run, whose place is taken; False if it had ended already."""


_found: dict[Place, Replaceable] = {}
"""The agents of this process that can be found."""


def take_place(agent: Replaceable, place: Place) -> Replaceable | None:
    """Have ``agent`` be the one of this process that is found there; the one that was."""
    older = _found.get(place)
    _found[place] = agent
    return older


def give_up_place(agent: object) -> None:
    """Have ``agent`` not be found any more."""
    for place, there in list(_found.items()):
        if there is agent:
            _found.pop(place, None)


class Opening:
    """The link and the connection file of an agent on their way. ``open`` runs beside the host's main thread."""

    def __init__(
        self,
        service: RequestDispatcher,
        directory: Path,
        endpoint: str | None,
        limits: Limits,
        on_failure: Callable[[str], None],
    ) -> None:
        self.link: ServerThread | None = None
        self.files: list[Path] = []
        self._service, self._directory, self._endpoint = service, directory, endpoint
        self._limits, self._on_failure = limits, on_failure
        self._decided: list[str] = []  # the first entry says who has to undo it, if anyone

    def open(self) -> None:
        """Listen, and announce it. Raises what goes wrong; then nothing is left behind."""
        keys = RoleKeys.fresh(OPERATOR)
        sockets = place_for_sockets(self._directory) if self._endpoint in (None, "ipc") else None
        link = ServerThread(
            self._service, endpoint=self._endpoint, keys=keys, limits=self._limits, directory=sockets,
            on_failure=self._on_failure,
        )  # fmt: skip
        self._service.send = link.send
        link.start()
        self.link = link
        try:
            self.files.append(announce(self._service.run, keys, link, self._directory))
        except BaseException:
            self._undo()
            raise
        self._service.access_grants.link = link
        self._decided.append("open")
        if self._decided[0] == "abandoned":
            self._undo()

    def abandon(self) -> None:
        """Undo it, whether `open` is over or not: the host was interrupted."""
        self._decided.append("abandoned")
        if self._decided[0] == "open":
            aside(self._undo, "looptap-close")

    def _undo(self) -> None:
        if self.link is not None:
            self.link.stop(UNDO_SECONDS)
        for path in self.files:
            remove(path)


def why_not(error: Exception) -> str:
    """A sentence on why there is no agent, with the likeliest way out."""
    if isinstance(error, LooptapError):
        return str(error)
    code = getattr(error, "errno", None)
    if code in (errno.EMFILE, errno.ENFILE):
        return f"No further file can be opened ({error}). Allow more: ulimit -n 4096"
    if isinstance(error, OSError):
        return f"The agent cannot be announced, or cannot listen ({error}). Elsewhere it may: export LOOPTAP_DIR=…"
    return f"The agent cannot listen ({type(error).__name__}: {error})."
