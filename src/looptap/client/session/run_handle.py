"""`RunHandle`: the part of `Run` that its streams, ranks and commands use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from looptap.client.session.session import Session
from looptap.protocol.messages import RunInfo

if TYPE_CHECKING:
    from looptap.streams.stream.stream import Stream


class RunHandle(Protocol):
    """The part of a run that its streams and ranks use."""

    @property
    def session(self) -> Session:
        """The conversation with the agent."""

    @property
    def info(self) -> RunInfo:
        """The run's identity."""

    @property
    def id(self) -> str:
        """The id, which no two runs share."""

    @property
    def role(self) -> str:
        """The role of this client: operator or viewer."""

    @property
    def state(self) -> str:
        """The state: live, lost, silent, ended or failed."""

    @property
    def reason(self) -> str:
        """The reason for the state."""

    @property
    def idle(self) -> float:
        """Seconds since the loop's last event."""

    def events(self) -> dict[str, int]:
        """Return the number of events of each type."""

    def ages(self) -> dict[str, float]:
        """Return the seconds since the last event of each type."""

    def stream(self, query: str, *, on: str | None, throttle: float, name: str, budget: float | None) -> Stream:
        """Attach a query."""

    def close(self) -> None:
        """Disconnect."""
