"""What can go wrong between two processes, one branch of looptap's tree.

LooptapError
└── LinkError
    ├── NoSuchRun             nothing of that name announces itself
    ├── SeveralRuns           more than one does
    ├── RunEnded              its process is gone
    ├── NoAnswer              no answer from its endpoint in time
    ├── NotLooptap            the endpoint speaks another protocol
    ├── WrongServer           looptap answers, but not the agent that the connection file names
    ├── RefusedKey            the agent does not admit this key
    ├── VersionMismatch       the agent and the client speak different major versions
    ├── UnsafeFile            a connection file or directory that others may read or change
    ├── NoDirectory           the directory for connection files does not exist
    ├── NotAllowed            the role of this client may not do that
    ├── MessageError          bytes that are no message
    ├── LimitReached          a bound of `Limits`
    ├── RemoteError           a request failed on the other side
    └── EndpointError         an agent cannot listen
        ├── BadEndpoint       at an address that is malformed, unsafe or not of this machine
        └── EndpointBusy      at an address that is taken
"""

from __future__ import annotations

from looptap.streams.errors import LooptapError


class LinkError(LooptapError):
    """Anything that goes wrong between an agent and a client."""


class NoSuchRun(LinkError):
    """No run of that name, id or pattern announces itself."""


class SeveralRuns(LinkError):
    """More than one run matches; the message lists them."""


class RunEnded(LinkError):
    """The run has ended or its process is gone."""

    started = 0.0
    """When the run began, in seconds since the epoch; 0 if that is not known."""


class NoAnswer(LinkError):
    """The endpoint did not answer in time."""

    unsent = False
    """True for a request that was not sent, and so is not done: the link was lost meanwhile."""


class NotLooptap(LinkError):
    """Something answers at the endpoint, but it does not speak looptap's protocol."""


class WrongServer(LinkError):
    """The server at the endpoint does not hold the key that the connection file names."""


class RefusedKey(LinkError):
    """The agent does not admit this client's key."""


class VersionMismatch(LinkError):
    """The two sides speak different major versions of the protocol."""


class UnsafeFile(LinkError):
    """A connection file or directory that cannot be trusted; the message holds the command that mends it."""


class NoDirectory(LinkError):
    """The directory in which runs announce themselves does not exist."""


class NotAllowed(LinkError):
    """The role of this client may not do that: a viewer reads what is exported to it, and nothing else."""


class MessageError(LinkError):
    """Bytes that are no message of the protocol, or no packed value."""


class LimitReached(LinkError):
    """A bound of `Limits` is reached; the message names it."""


class EndpointError(LinkError):
    """An agent cannot listen at the endpoint that was asked for."""


class BadEndpoint(EndpointError):
    """An endpoint that is malformed, unsafe, too long or not of this machine."""


class EndpointBusy(EndpointError):
    """Something is already at the endpoint."""


class RemoteError(LinkError):
    """A request failed on the other side: ``kind`` names the error class there, ``traceback`` is text."""

    def __init__(self, text: str, kind: str = "", traceback: str = "") -> None:
        super().__init__(text, kind, traceback)
        self.text, self.kind, self.traceback = text, kind, traceback

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}" if self.kind else self.text
