"""`RunHandle`: all that the streams, ranks and commands of a run know of `Run`."""

from __future__ import annotations

from typing import Protocol

from looptap.client.session.session import Session
from looptap.protocol.messages import RunInfo


class RunHandle(Protocol):
    """What the streams and ranks of a run need of it."""

    @property
    def session(self) -> Session:
        """The conversation with the agent."""

    @property
    def info(self) -> RunInfo:
        """What the run says of itself."""

    @property
    def id(self) -> str:
        """The id, which no two runs share."""

    @property
    def role(self) -> str:
        """The role of this client: operator or viewer."""

    @property
    def state(self) -> str:
        """live, lost, silent, ended or failed."""

    @property
    def reason(self) -> str:
        """Why the run is in its state."""

    @property
    def idle(self) -> float:
        """Seconds since the loop's last event."""

    def events(self) -> dict[str, int]:
        """Return how many events of each type there were."""

    def ages(self) -> dict[str, float]:
        """Return the seconds since the last event of each type."""

    def close(self) -> None:
        """Hang up."""
