"""The messages between client and agent: tagged structs, one msgpack frame each.

A client speaks first (`Hello`); the agent answers `Welcome` or `Refused`. Every `Request` carries a number that the
client chose and the type of its reply, and is answered once, by `Done` with that reply, or by `Failed`. `Values`,
`Status`, `Beat` and `Goodbye` come unasked. A new minor version adds fields with defaults; unknown ones are ignored.
"""

from __future__ import annotations

from typing import Annotated, Any, Generic, TypeAlias, TypeVar, get_args

import msgspec

from looptap.protocol import replies as r
from looptap.protocol import run_config, statistics
from looptap.protocol.errors import RUN_ENDED
from looptap.streams.operators.windows import Group, Window

VERSION, COLUMNS_SINCE, UNSAFE_SINCE = (2, 2), (2, 1), (2, 2)
"""(major, minor) of the wire; peers of one major version understand each other. What came with a later minor one."""

VALUES, STATES = "values", "states"
"""Values of `Attach.align`."""

SCALARS, ROWS, PACKED, COLUMNS = range(4)
"""Forms of `Values.values`: scalars; flat tuples of them; anything (see protocol.values.packing); typed columns."""

R = TypeVar("R")
"""The reply to a request."""
_Few = msgspec.Meta(max_length=r.MAX_ENTRIES)
_Numbers: TypeAlias = Annotated[tuple[int, ...], _Few]
_Counts: TypeAlias = Annotated[dict[str, int], _Few]


class Message(msgspec.Struct, tag_field="t", omit_defaults=True, frozen=True):
    """Base of all messages, with a tag in the field ``t``."""


class Request(Message, Generic[R], frozen=True):
    """A message with a reply of type ``R``; ``request`` is a number not used before."""

    request: int


class Code(msgspec.Struct, frozen=True, omit_defaults=True):
    """A query or a function: text, or pickled by the same Python minor version."""

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
    """Request to start stream ``stream``, a number that the client has not used yet.

    Its values are numbered above ``above``, and above all numbers that the agent has used for this stream of this
    client. ``align``: the windows are the same on all ranks, and windows of seconds count from ``origin`` on the
    host's monotonic clock; the agent sends "values", or "states" of the query's parts to merge. ``named``: if the code
    is the name of a declared stream, the client reads that and the other fields are ignored; its values keep their
    numbers, and those up to ``above`` are not sent. With ``on`` empty and no such stream, the request fails.
    ``history``: the reply has the history of scalars, if the code consists of names that have one.

    With ``of`` it is a query over the values of the declared stream of that name, with ``of_stream`` over those of this
    client's stream of that number; ``on`` is empty then, and ``history`` asks for the declared stream's first.
    ``unsafe``: the query runs as it is, on record, even if it may change the job. ``count``: the stream ends after so
    many values; 0 for no end.
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
    history: bool = False
    of: str = ""
    of_stream: int = 0
    unsafe: bool = False
    count: int = 0


class Detach(Request[None], tag="detach", frozen=True):
    """Request to end stream ``stream``; its open window is flagged partial."""

    stream: int


class CloseWindow(Request[None], tag="close", frozen=True):
    """Request to close the window of stream ``stream`` at the next event."""

    stream: int


class Grant(Request[None], tag="grant", frozen=True):
    """Request to let a stream use the fraction ``budget`` of time; None: the default."""

    stream: int
    budget: float | None = None


class Call(Request[r.CommandReply], tag="call", frozen=True):
    """Request to run ``code`` once on the training thread at the next event ``on``.

    ``id`` never runs twice.
    """

    id: str
    code: Code
    on: str
    checkpoint: bool = False
    ranks: int = 0


class Command(Request[r.CommandReply], tag="command", frozen=True):
    """Request to do ``what`` once, at the next event ``on``; ``id`` never runs twice.

    ``what`` is set, undo, trigger, checkpoint, stop, pause or resume; an empty ``on`` is the first safe event;
    ``value`` is packed by looptap.protocol.values; a change is refused if the control's version is no longer
    ``expected``. ``undo`` takes back the newest change of ``name``, which the command with the id ``value`` made.
    ``outcome`` asks for the record of the command ``id``; ``cancel`` cancels it unless it has begun.
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
    """Request to run a prepared command at event ``number`` on all ranks or none.

    A `Call` or `Command` with ``ranks`` is only prepared, and so is this message with the number 0: the reply is a
    `looptap.protocol.replies.Preparation`. A number below 0 drops the command.
    """

    id: str
    number: int


class GetStats(Request[statistics.AgentStats], tag="get stats", frozen=True):
    """Request for the agent's counters, with ``machine`` also for host readings."""

    machine: bool = False


class GetStacks(Request[statistics.StackReport], tag="get stacks", frozen=True):
    """Request for the stack of each thread of the job."""


class GetControls(Request[r.ControlReport], tag="get controls", frozen=True):
    """Request for controls and triggers, and for the attribute at ``path`` if any."""

    path: str = ""


class GetCommands(Request[r.Listed[r.CommandRecord]], tag="get commands", frozen=True):
    """Request for the records of the newest commands."""


class GetConfig(Request[run_config.RunConfig], tag="get config", frozen=True):
    """Request for the settings of the run; a viewer needs a share that shows them."""


class GetShares(Request[r.Listed[r.ShareInfo]], tag="get shares", frozen=True):
    """Request for the shares that have not ended."""


class GetScalars(Request[r.ScalarReport], tag="get scalars", frozen=True):
    """Request for the list of the scalars whose history is kept."""


class GetModules(Request[r.ModuleReport], tag="get modules", frozen=True):
    """Request for the modules of the job's models whose names match ``pattern``."""

    pattern: str = ""


class GetClock(Request[float], tag="get clock", frozen=True):
    """Request for the monotonic clock of the agent's host, in seconds."""


class GetStreams(Request[r.Listed[r.StreamInfo]], tag="get streams", frozen=True):
    """Request for the declared streams that this client may read."""


class Read(Request[r.SubscriptionInfo], tag="read", frozen=True):
    """Request to read the declared stream ``name``, history above ``above`` first.

    It carries no code: a viewer sends it in place of `Attach`. ``count``: the stream ends after so many values; 0 for
    no end.
    """

    stream: int
    name: str
    above: int = 0
    latency: str = "normal"
    count: int = 0


class DeclareStream(Request[r.StreamInfo], tag="stand", frozen=True):
    """Request to export a stream to viewers or record it; None leaves it as it is.

    ``stream`` is one of this client. Its query becomes the declared stream ``name``, which outlives the client as long
    as it is exported, kept or read. 0: the declared stream ``name``. ``share`` exports it only to the viewers of a
    share that was made with `CreateShare.only`.
    """

    stream: int = 0
    name: str = ""
    export: bool | None = None
    keep: bool | None = None
    share: str = ""


class CreateShare(Request[r.NewShare], tag="share", frozen=True):
    """Request for a viewer key that expires after ``expires`` seconds.

    It admits at ``endpoint`` (empty: private), to what is exported to all or, ``only``, to it, and to the ``config``.
    """

    expires: float
    endpoint: str = ""
    only: bool = False
    config: bool = False


class Revoke(Request[r.Listed[str]], tag="revoke", frozen=True):
    """Request to end the share ``share`` at once, or all shares if it is empty."""

    share: str = ""


class Got(Message, tag="got", frozen=True):
    """Flow control: the client has received ``total`` bytes of `Values` frames."""

    total: int


class Leave(Message, tag="leave", frozen=True):
    """Goodbye of a client that disconnects for good; its streams end."""


# ---------------------------------------------------------------- agent to client


RunInfo: TypeAlias = run_config.RunInfo


class Welcome(Message, tag="welcome", frozen=True):
    """The answer to `Hello`: the run, the client's role, the events counted so far.

    ``streams`` have stayed active while the link was down; ``idle`` and ``ages`` are those of `Beat`.
    """

    version: tuple[int, int]
    run: RunInfo
    role: str
    events: _Counts = {}
    streams: _Numbers = ()
    idle: float = 0.0
    ages: dict[str, float] = {}


class Refused(Message, tag="refused", frozen=True):
    """The refusal of this client; a ``stranger`` has not sent `Hello`."""

    reason: str
    version: tuple[int, int]
    stranger: bool = False


class Done(Message, tag="done", frozen=True):
    """The answer to request ``request``: its reply, as `protocol.values` packs it."""

    request: int
    value: msgspec.Raw = msgspec.Raw(b"\xc0")


class Failed(Message, tag="failed", frozen=True):
    """The answer to a failed request: error class ``kind``, ``text``, a traceback."""

    request: int
    kind: str
    text: str
    detail: str = ""


class Values(Message, tag="values", frozen=True):
    """Values ``first`` to ``first + n - 1`` of a stream.

    ``events`` and ``times`` are n native-endian int64 event numbers and float64 monotonic seconds of the host,
    ``flags`` n bytes or empty, ``clock`` the offset from times to seconds since the epoch; ``windows`` are n int64
    window numbers if the attach set ``align``.
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
    """Several `Values` in one frame: each frame sent releases the GIL once."""

    messages: Annotated[tuple[msgspec.Raw, ...], _Few]


class Status(Message, tag="status", frozen=True):
    """The state of a stream: live, ended or failed; counters start at the attach.

    The budget withheld ``withheld`` events from the query; ``filtered`` ones gave no value. Values up to number
    ``reached`` were sent before this message, or never will be.
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
    """Heartbeat each second: events by type, seconds since the last and of a pause.

    With ``confirm`` it is answered at once with `Got`. ``ages`` are the seconds since the last event of each type;
    ``inside`` names the query or command that the loop has been running for long. A client says for how many seconds
    (``patience``) its values may gather before they are sent, and at which of its streams nothing looks (``unseen``).
    """

    events: _Counts = {}
    idle: float = 0.0
    paused: float = 0.0
    confirm: bool = False
    ages: dict[str, float] = {}
    inside: str = ""
    patience: float = 0.0
    unseen: _Numbers = ()


class Goodbye(Message, tag="goodbye", frozen=True):
    """Goodbye of a run, or with ``dismissed`` the end of this client's access only."""

    reason: str = RUN_ENDED
    dismissed: bool = False


FromClient: TypeAlias = (
    Hello
    | Attach
    | Detach
    | CloseWindow
    | Grant
    | Call
    | Command
    | Agree
    | GetStats
    | GetStacks
    | GetControls
    | GetCommands
    | GetConfig
    | GetShares
    | GetScalars
    | GetModules
    | GetClock
    | GetStreams
    | Read
    | DeclareStream
    | CreateShare
    | Revoke
    | Got
    | Beat
    | Leave
)
FromAgent: TypeAlias = Welcome | Refused | Done | Failed | Values | Bundle | Status | Beat | Goodbye

REPLIES: dict[type, Any] = {
    kind: get_args(vars(kind)["__orig_bases__"][0])[0] for kind in get_args(FromClient) if issubclass(kind, Request)
}
"""The type of the reply to each request, as its class declares it."""
