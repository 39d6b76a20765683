"""The messages between a client and an agent: one tagged struct each, one msgpack frame each.

A client speaks first (`Hello`); the agent answers `Welcome` or `Refused`. Every `Request` carries a number that the
client chose and the type of its reply, and is answered once, by `Done` with that reply, or by `Failed`. `Values`,
`Status`, `Beat` and `Goodbye` come unasked.
Fields may be added with a default (a new minor version); unknown fields are ignored.
"""

from __future__ import annotations

from typing import Annotated, Any, Generic, TypeAlias, TypeVar, get_args

import msgspec

from looptap.protocol import replies as r
from looptap.streams.operators.windows import Group, Window

VERSION = (2, 0)
"""(major, minor) of the wire: the same major understands each other."""

VALUES, STATES = "values", "states"
"""What `Attach.align` asks for."""

SCALARS, ROWS, PACKED = 0, 1, 2
"""Forms of `Values.values`: plain scalars; flat tuples of scalars; anything, packed by looptap.protocol.codec."""

R = TypeVar("R")
"""The reply to a request."""
_Few = msgspec.Meta(max_length=r.MAX_ENTRIES)
_Numbers: TypeAlias = Annotated[tuple[int, ...], _Few]
_Counts: TypeAlias = Annotated[dict[str, int], _Few]


class Message(msgspec.Struct, tag_field="t", omit_defaults=True, frozen=True):
    """Base of all messages, with a tag in the field ``t``."""


class Request(Message, Generic[R], frozen=True):
    """A message that is answered once, with an ``R``; ``request`` is a number that the client has not used before."""

    request: int


class Code(msgspec.Struct, frozen=True, omit_defaults=True):
    """A query or a function: as text, or pickled by the same Python minor version."""

    text: str = ""
    pickled: bytes = b""
    python: tuple[int, int] = (0, 0)


# ---------------------------------------------------------------- client to agent


class Hello(Message, tag="hello", frozen=True):
    """The first message of a client over a link.

    The agent recognizes a client that reconnects by its ``token``; ``streams`` are those that the client still wants.
    """

    version: tuple[int, int]
    client: str = ""
    run: str = ""
    token: str = ""
    streams: _Numbers = ()


class Attach(Request[r.SubscriptionInfo], tag="attach", frozen=True):
    """Start stream ``stream`` (a number the client chose and has not used before).

    Its values are numbered above ``above``, and above all that the agent has made for this stream of this client.
    ``align``: the windows are alike on all ranks, those of seconds count from ``origin`` on the host's monotonic clock;
    "values" are sent, or "states" of the query's parts, to be merged.
    ``named``: if the code is the name of a declared stream, that is meant, and nothing else of this message counts;
    its values have the numbers that they have for every reader, and those up to ``above`` are not sent. Where ``on``
    is empty, it is no query if there is no such stream.
    """

    stream: int
    code: Code
    on: str
    window: Window = Group()
    every: int = 1
    throttle: float = 0.0
    when: Code | None = None
    before: int = 0
    after: int = 0
    max_bytes: int = 4_000_000
    latency: str = "normal"
    name: str = ""
    budget: float | None = None
    above: int = 0
    named: bool = False
    align: str = ""
    origin: float = 0.0


class Detach(Request[None], tag="detach", frozen=True):
    """End stream ``stream``; a cut window is flagged partial."""

    stream: int


class CloseWindow(Request[None], tag="close", frozen=True):
    """Close the open window of stream ``stream`` at the next event."""

    stream: int


class Grant(Request[None], tag="grant", frozen=True):
    """Let stream ``stream`` take the fraction ``budget`` of the loop's time; None: its part of the common budget."""

    stream: int
    budget: float | None = None


class Call(Request[r.CommandReply], tag="call", frozen=True):
    """Run ``code`` once on the training thread at the next event ``on``; ``id`` never runs twice."""

    id: str
    code: Code
    on: str
    checkpoint: bool = False
    ranks: int = 0


class Command(Request[r.CommandReply], tag="command", frozen=True):
    """Do ``what`` once, at the next event ``on`` (empty: the first safe one); ``id`` never runs twice.

    ``what`` is set, trigger, checkpoint, stop, pause or resume; ``value`` is packed by looptap.protocol.codec; a change
    is refused if the control's version is no longer ``expected``. ``outcome`` asks for that of the command ``id``;
    ``cancel`` cancels it unless it has begun; the reply is its record in either case.
    """

    id: str
    what: str
    name: str = ""
    value: msgspec.Raw = msgspec.Raw(b"\xc0")
    on: str = ""
    expected: int | None = None
    schedule: str = ""
    checkpoint: bool = False
    ranks: int = 0


class Agree(Request[r.CommandReply], tag="agree", frozen=True):
    """Run the prepared command ``id`` at event ``number``, on all its ranks or none; the reply is its record.

    A `Call` or `Command` with ``ranks`` is only prepared, and so is this message with the number 0: the reply is a
    `looptap.protocol.replies.Preparation`. A number below 0 drops the command.
    """

    id: str
    number: int


class GetStats(Request[r.AgentStats], tag="get stats", frozen=True):
    """Ask for the counters of the agent."""


class GetStacks(Request[r.StackReport], tag="get stacks", frozen=True):
    """Ask where each thread of the job is."""


class GetControls(Request[r.ControlReport], tag="get controls", frozen=True):
    """Ask what can be set and done in the job."""


class GetCommands(Request[r.Listed[r.CommandRecord]], tag="get commands", frozen=True):
    """Ask for the records of the newest commands."""


class GetShares(Request[r.Listed[r.ShareInfo]], tag="get shares", frozen=True):
    """Ask for the shares that have not ended."""


class GetClock(Request[float], tag="get clock", frozen=True):
    """Ask what the monotonic clock of the agent's host shows, in seconds."""


class GetStreams(Request[r.Listed[r.StreamInfo]], tag="get streams", frozen=True):
    """Ask for the declared streams that this client may read."""


class Read(Request[r.SubscriptionInfo], tag="read", frozen=True):
    """Start stream ``stream``, which reads the declared stream ``name``: its history above ``above``, then new values.

    It carries no code: a viewer sends it in place of `Attach`.
    """

    stream: int
    name: str
    above: int = 0
    latency: str = "normal"


class Stand(Request[r.StreamInfo], tag="stand", frozen=True):
    """Show a stream to viewers (``export``), record it in the file of the run (``keep``); None leaves that as it is.

    ``stream`` is one of this client. Its query then belongs to the job, as the declared stream ``name``, which outlives
    the client as long as it is exported, kept or read. 0: the declared stream ``name``.
    ``share`` shows it only to the viewers of a share that was made with `CreateShare.only`.
    """

    stream: int = 0
    name: str = ""
    export: bool | None = None
    keep: bool | None = None
    share: str = ""


class CreateShare(Request[r.NewShare], tag="share", frozen=True):
    """Admit viewers by a new key, for ``expires`` seconds, at ``endpoint`` (empty: a private socket).

    They see what is exported to all, or with ``only`` what is exported to this share.
    """

    expires: float
    endpoint: str = ""
    only: bool = False


class Revoke(Request[r.Listed[str]], tag="revoke", frozen=True):
    """End the share ``share`` at once, or all of them if it is empty."""

    share: str = ""


class Got(Message, tag="got", frozen=True):
    """The client has received ``total`` bytes of `Values` frames over this link: flow control for the agent."""

    total: int


class Leave(Message, tag="leave", frozen=True):
    """The client disconnects for good; its streams end."""


# ---------------------------------------------------------------- agent to client


class RunInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """Identity of one rank of a run.

    The ranks of one job have the same ``job``, which their launcher gives them; no two jobs that run at the same time
    share it. ``attempt`` counts the launcher's restarts, on this host.
    """

    id: str
    name: str
    host: str
    pid: int
    started: float
    rank: int = 0
    ranks: int = 1
    python: tuple[int, int] = (0, 0)
    looptap: str = ""
    job: str = ""
    attempt: int = 0


class Welcome(Message, tag="welcome", frozen=True):
    """The answer to `Hello`: the run, the client's role, the events seen so far with their counts.

    ``streams`` have gone on while the link was down; ``idle`` and ``ages`` are those of `Beat`.
    """

    version: tuple[int, int]
    run: RunInfo
    role: str
    events: _Counts = {}
    streams: _Numbers = ()
    idle: float = 0.0
    ages: dict[str, float] = {}


class Refused(Message, tag="refused", frozen=True):
    """The agent refuses this client, for ``reason``. A ``stranger`` has not sent a hello."""

    reason: str
    version: tuple[int, int]
    stranger: bool = False


class Done(Message, tag="done", frozen=True):
    """The answer to request ``request``; ``value`` is its reply, packed by looptap.protocol.codec."""

    request: int
    value: msgspec.Raw = msgspec.Raw(b"\xc0")


class Failed(Message, tag="failed", frozen=True):
    """Request ``request`` failed: ``kind`` names an error class, ``text`` says why, ``detail`` is a traceback."""

    request: int
    kind: str
    text: str
    detail: str = ""


class Values(Message, tag="values", frozen=True):
    """Values ``first`` to ``first + n - 1`` of a stream.

    ``events`` and ``times`` are n native-endian int64 event numbers and float64 monotonic seconds of the host,
    ``flags`` n bytes or empty, ``clock`` what to add to a time to get seconds since the epoch; ``windows`` are
    the n int64 numbers of the windows, where the attach has said ``align``.
    """

    stream: int
    first: int
    events: bytes
    times: bytes
    clock: float
    form: int
    values: msgspec.Raw
    flags: bytes = b""
    rank: int = 0
    windows: bytes = b""


class Bundle(Message, tag="bundle", frozen=True):
    """Several `Values` in one frame: each frame that is sent makes the job give up the interpreter lock once."""

    messages: Annotated[tuple[msgspec.Raw, ...], _Few]


class Status(Message, tag="status", frozen=True):
    """How a stream is: ``state`` is live, ended or failed; counters are totals since the attach.

    ``withheld`` events were kept from the query by the budget, ``filtered`` ones gave no value.
    Values up to number ``reached`` were sent before this message, or never will be.
    """

    stream: int
    state: str
    reason: str = ""
    last: int = 0
    dropped: int = 0
    skipped: int = 0
    errors: int = 0
    traceback: str = ""
    notes: Annotated[tuple[str, ...], _Few] = ()
    nanoseconds: float = 0.0
    share: float = 0.0
    reached: int = 0
    withheld: int = 0
    filtered: int = 0


class Beat(Message, tag="beat", frozen=True):
    """A sign of life, each second: events so far by type, and seconds since the last one and since a pause began.

    With ``confirm`` it is answered at once with `Got`. ``ages`` are the seconds since the last event of each type;
    ``inside`` names the query or command that the loop has been inside of for long.
    """

    events: _Counts = {}
    idle: float = 0.0
    paused: float = 0.0
    confirm: bool = False
    ages: dict[str, float] = {}
    inside: str = ""


class Goodbye(Message, tag="goodbye", frozen=True):
    """The run ends, or with ``dismissed`` only this client's access to it."""

    reason: str = "the run ended"
    dismissed: bool = False


FromClient: TypeAlias = (
    Hello | Attach | Detach | CloseWindow | Grant | Call | Command | Agree | GetStats | GetStacks | GetControls
    | GetCommands | GetShares | GetClock | GetStreams | Read | Stand | CreateShare | Revoke | Got | Beat | Leave
)  # fmt: skip
FromAgent: TypeAlias = Welcome | Refused | Done | Failed | Values | Bundle | Status | Beat | Goodbye

REPLIES: dict[type, Any] = {
    kind: get_args(vars(kind)["__orig_bases__"][0])[0] for kind in get_args(FromClient) if issubclass(kind, Request)
}
"""The type of the reply to each request, as its class declares it."""
