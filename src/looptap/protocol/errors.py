"""The errors between two processes, one branch of looptap's tree.

LooptapError
└── LinkError
    ├── NoSuchRun             no such run is advertised
    ├── SeveralRuns           more than one matches
    ├── RunEnded              its process is gone
    ├── NoAnswer              no answer from its endpoint in time
    ├── NotLooptap            the endpoint speaks another protocol
    ├── WrongServer           looptap answers, but not the agent that the connection file names
    ├── RefusedKey            the agent does not admit this key
    ├── VersionMismatch       the agent and the client speak different major versions
    ├── UnsafeFile            a connection file or directory that others may read or change
    ├── NoDirectory           the directory for connection files does not exist
    ├── NotAllowed            the role of this client may not do that
    ├── MessageError          bytes that are not a message
    ├── LimitReached          a bound of `Limits`
    ├── RemoteError           a request failed on the other side
    └── EndpointError         an agent cannot listen
        ├── BadEndpoint       at an address that is malformed, unsafe or not of this machine
        └── EndpointBusy      at an address that is taken
"""

from __future__ import annotations

from looptap.streams.errors import LooptapError

RUN_ENDED = "the run ended"
"""The reason of the end of a run that gave none."""


class LinkError(LooptapError):
    """Any error between an agent and a client."""


class NoSuchRun(LinkError):
    """A name, id or pattern that matches no advertised run."""


class SeveralRuns(LinkError):
    """A name, id or pattern that matches several runs; the message lists them."""


class RunEnded(LinkError):
    """A run that has ended, or whose process is gone."""

    started = 0.0
    """When the run began, in seconds since the epoch; 0 if that is not known."""


class NoAnswer(LinkError):
    """An endpoint that did not answer in time."""

    unsent = False
    """True for a request that was never sent, since the link was lost, and so has no effect."""


class NotLooptap(LinkError):
    """An endpoint that answers, but does not speak looptap's protocol."""


class WrongServer(LinkError):
    """A server without the key that the connection file names."""


class RefusedKey(LinkError):
    """A client's key that the agent does not admit."""


class VersionMismatch(LinkError):
    """Different major versions of the protocol on the two sides."""


class UnsafeFile(LinkError):
    """An untrusted connection file or directory; the message has the fix."""


class NoDirectory(LinkError):
    """A directory of connection files that does not exist."""


class NotAllowed(LinkError):
    """A request that the client's role forbids; viewers only read exported streams."""


class MessageError(LinkError):
    """Bytes that are not a message of the protocol or a packed value."""


class LimitReached(LinkError):
    """A bound of `Limits` that is reached; the message names it."""


class EndpointError(LinkError):
    """An endpoint at which an agent cannot listen."""


class BadEndpoint(EndpointError):
    """An endpoint that is malformed, unsafe, too long or not of this machine."""


class EndpointBusy(EndpointError):
    """An endpoint that is already in use."""


class RemoteError(LinkError):
    """A failed request, with the other side's error class and traceback as text."""

    def __init__(self, text: str, kind: str = "", traceback: str = "") -> None:
        super().__init__(text, kind, traceback)
        self.text, self.kind, self.traceback = text, kind, traceback

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}" if self.kind else self.text


def malformed(what: str, error: Exception) -> MessageError:
    """Return a MessageError for hostile bytes, whatever they raised.

    Seen besides msgspec's own: UnicodeDecodeError, RecursionError, MemoryError, struct.error, errors of torch.
    """
    return MessageError(f"{what}: {(str(error) or type(error).__name__)[:200]}")
