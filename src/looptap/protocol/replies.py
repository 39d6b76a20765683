"""The replies of an agent: one struct for each request.

`looptap.protocol.messages` pairs each request with its reply. A reply travels inside `Done`, packed by
`looptap.protocol.values`: the fields of type Any hold snapshots, such as the result of a command.
Every field is checked when it is decoded; unknown fields are ignored, fields added later have a default. All are given
by name, so that mypy finds both ends of a field that is renamed.
"""

from __future__ import annotations

import time
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec

from looptap.protocol.errors import MessageError
from looptap.protocol.types.built_types import built
from looptap.streams.panel_hint import MAX_PANEL_ROWS, PanelChart
from looptap.streams.stream.state_and_cost import Cost

MAX_ENTRIES = 65_536
"""Entries of a collection in a message: an empty one of a byte takes up to 80 in memory."""

MAX_VALUE_NUMBER = 1 << 62
"""Largest number of a value or an event; no loop reaches it."""

_Entry = TypeVar("_Entry")
_Few = msgspec.Meta(max_length=MAX_ENTRIES)
Listed: TypeAlias = Annotated[list[_Entry], _Few]
_Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MAX_VALUE_NUMBER)]
_Texts: TypeAlias = Annotated[tuple[str, ...], _Few]
ByName: TypeAlias = Annotated[dict[str, _Entry], _Few]


class Reply(msgspec.Struct, frozen=True):
    """Base of all replies and of their parts."""


def checked_reply(kind: Any, value: Any) -> Any:
    """Return ``value`` as a reply of type ``kind``. Raises MessageError on mismatch.

    >>> checked_reply(AttachPoint, {"event": 3, "base": 0})
    AttachPoint(event=3, base=0, exact=False)
    """
    try:
        return msgspec.convert(value, built(kind))
    except Exception as error:  # besides msgspec's own: RecursionError, OverflowError
        raise MessageError(f"The agent sent a reply of another shape: {str(error)[:200]}") from None


# ---------------------------------------------------------------- streams


class StreamInfo(Reply, frozen=True, kw_only=True):
    """A snapshot of one declared stream of a run; `Run.stream` reads it by name."""

    name: str
    query: str = ""
    """Empty if the job hands the values over itself (`Agent.log`)."""
    on: str = ""
    of: str = ""
    """The stream whose values it reads; empty for a query over events."""
    unit: str = ""
    fields: _Texts | None = None
    """The names of the elements of a value, if the values are rows."""
    state: str
    reason: str = ""
    values: int = 0
    """Values so far."""
    held: int = 0
    """Values that the history holds, the newest ones."""
    bytes: int = 0
    """Bytes that the history takes."""
    rate: float = 0.0
    """Values per second, at present."""
    errors: int = 0
    withheld: int = 0
    """Events that the budget has kept from the query."""
    readers: int = 0
    exported: bool = False
    """True if viewers see it."""
    shares: _Texts = ()
    """Ids of the shares whose viewers see it as well; empty for a viewer."""
    kept: bool = False
    """True if its values go to the file of the run."""
    by: str = ""
    """The client whose query it is (`Run.export`, `Run.keep`); empty if the job declares the stream."""
    nanoseconds_per_event: float = 0.0
    share_of_time: float = 0.0
    """Fraction of the loop's time that the query takes."""

    @property
    def cost(self) -> Cost:
        """Cost of the query, which runs once for all readers."""
        return Cost(self.nanoseconds_per_event, self.share_of_time)


class DeclaredSource(Reply, frozen=True, kw_only=True):
    """The declared stream that a subscription reads, and the span of its history."""

    name: str
    query: str
    on: str
    unit: str
    after: _Number
    """Number of the value before the first to come."""
    upto: _Number
    """Number of the newest value, as of now."""


class KeptScalars(Reply, frozen=True, kw_only=True):
    """Rows of the history of scalars: native-endian int64 and float64 columns.

    ``columns`` and ``present`` have one entry for each name: its numbers, and a byte for each row that is 1 if the row
    has one. ``kinds`` are their types: int, bool or float. ``rests`` are int16 columns: a number with a rest is an
    integer beyond 2**53, the float nearest to it plus the rest. An older agent sends none.
    """

    on: str
    query: str
    """The query of the values that continue it."""
    fields: _Texts | None
    """The names of the elements of a row; None for a single name."""
    events: bytes
    times: bytes
    columns: Annotated[tuple[bytes, ...], _Few]
    present: Annotated[tuple[bytes, ...], _Few]
    kinds: _Texts
    rests: Annotated[tuple[bytes, ...], _Few] = ()
    pace: float
    """Mean seconds between two rows."""
    clock: float
    """The offset from times to seconds since the epoch."""


class AttachPoint(Reply, frozen=True, kw_only=True):
    """Start of a query: after event ``event``, with values numbered above ``base``."""

    event: _Number
    base: _Number
    exact: bool = False
    """True if ``base`` counts all that a query attached before would have yielded up to here."""


class SubscriptionInfo(Reply, frozen=True, kw_only=True):
    """A new subscription: how its query is understood, and where it begins."""

    mapped: bool
    """True if the query yields at events, not at the ends of windows."""
    fields: _Texts | None = None
    """The names of the elements of a value, if the values are rows."""
    explain: str = ""
    notes: _Texts = ()
    functions: _Texts = ()
    """Functions that the host exposes and the query calls."""
    declared: DeclaredSource | None = None
    """None for a query of the client's own."""
    point: AttachPoint | None = None
    """None if an event came at that moment, and for a declared stream."""
    history: KeptScalars | None = None
    """The history of the numbers that the query consists of, if it was asked for and there is one."""
    panel: Annotated[tuple[PanelChart, ...], msgspec.Meta(max_length=MAX_PANEL_ROWS)] = ()
    on: str = ""
    """The type of its events; of a query over the values of a stream, that of this stream."""


# ---------------------------------------------------------------- scalars


class ScalarInfo(Reply, frozen=True, kw_only=True):
    """A number that events carry or the job exposes, with the history kept of it."""

    name: str
    on: str
    """The type of its events."""
    query: str
    """The query of its live values; `Run.stream` takes the name, too."""
    points: int
    """Points kept so far, at most 2,000, evenly spread over the run."""
    pace: float
    """Mean seconds between two points."""
    first: _Number
    last: _Number
    """Numbers of the first and of the newest event that is kept."""
    value: bool | int | float | None
    """The newest number."""
    exposed: bool = False
    """True if the job exposes it, such as the learning rate of an optimizer; False if events carry it."""


class ScalarReport(Reply, frozen=True, kw_only=True):
    """The history of scalars of a job."""

    scalars: Annotated[tuple[ScalarInfo, ...], _Few] = ()
    enabled: bool = True
    """False for `Agent(history=False)`."""
    left_out: int = 0
    """Names that were not kept, since there were too many."""
    limit: int = 0
    """How many names are kept at most."""


# ---------------------------------------------------------------- controls


class ControlInfo(Reply, frozen=True, kw_only=True):
    """A control: its value when read, its bounds and meaning, how often it changed.

    ``name`` is the name for `Run.set`. ``value`` lies between ``minimum`` and ``maximum``, or is one of the
    ``choices``, if there are any; ``unit`` and ``doc`` are for people.
    """

    name: str
    value: Any = None
    type: str = ""
    """"int", "float", "bool" or "str"."""
    minimum: int | float | None = None
    maximum: int | float | None = None
    choices: tuple[Any, ...] = ()
    unit: str = ""
    doc: str = ""
    at: _Texts = ()
    """The events at which it is safe to change; none: any."""
    driven: str = ""
    """The schedule that drives it, if one does."""
    version: int = 0
    """How often it was changed by commands."""
    problem: str = ""
    """Why its value cannot be read, if so."""

    def __str__(self) -> str:
        low, high = self.minimum, self.maximum
        if self.choices:
            span = f"one of {', '.join(map(repr, self.choices))}"
        elif high is None:
            span = "" if low is None else f"{low} or more"
        else:
            span = f"{high} or less" if low is None else f"{low} to {high}"
        facts = [self.type, span, f"driven by {self.driven}" if self.driven else "", self.doc, self.problem]
        value = f"{self.value!r:.80}{f' {self.unit}' if self.unit else ''}"
        return f"{self.name} = {value}  ({'; '.join(filter(None, facts))})"


class ControlReport(Reply, frozen=True, kw_only=True):
    """The controls and triggers of a job."""

    controls: Annotated[tuple[ControlInfo, ...], _Few] = ()
    triggers: ByName[str] = {}
    """What each trigger does, by name."""
    checkpoint: bool = False
    """True if the host declares how to make a checkpoint."""
    may_pause: int | float | None = None
    """Seconds that a pause may take; None if the host allows none."""


# ---------------------------------------------------------------- modules


class ModuleInfo(Reply, frozen=True, kw_only=True):
    """One module of a model of the job."""

    name: str
    """As queries name it; of the whole model the name of the observable."""
    kind: str
    """The name of its class."""
    parameters: _Number
    """Numbers in its parameters and those of the modules inside; a shared one counts where it stands first."""
    trained: _Number
    """Those of them that require a gradient."""
    shapes: ByName[tuple[int, ...]] = {}
    """The shapes of its own parameters; of a sharded model those of this rank's shards."""
    training: bool = False
    problem: str = ""
    """Why a query cannot watch it."""


class ModuleReport(Reply, frozen=True, kw_only=True):
    """The modules of the models that a job exposes or passes to its events."""

    modules: Listed[ModuleInfo]
    models: _Texts
    """The observables that hold them."""
    left_out: _Number = 0
    """How many more there are."""


# ---------------------------------------------------------------- shares


class ShareInfo(Reply, frozen=True, kw_only=True):
    """One share of a run."""

    share: str
    """Its id."""
    expires: float
    """When it ends, in seconds since the epoch."""
    left: float
    """Seconds until it ends."""
    endpoints: _Texts
    by: str
    """The client that made it."""
    streams: _Texts | None = None
    """The streams that it shows; None: whatever is exported."""
    viewers: _Texts = ()
    """Names of the viewers who are attached by it."""
    config: bool = False
    """True if it shows the settings of the run."""


class NewShare(Reply, frozen=True, kw_only=True):
    """A new share, with its connection file, which holds the key."""

    info: ShareInfo
    file: str

    def __repr__(self) -> str:
        return f"NewShare({self.info!r})"


# ---------------------------------------------------------------- commands

PENDING = "pending"
"""The outcome of a command that waits for its event."""
UNSAFE = "unsafe"
"""What the record of a query is called that was asked for with ``unsafe``."""


class CommandRecord(Reply, tag_field="reply", tag="record", frozen=True, kw_only=True):
    """The record of a command: what was asked, by whom, and its outcome."""

    id: str
    client: str
    what: str
    name: str = ""
    value: Any = None
    on: str = ""
    """Type of the event that it waits for."""
    event: str = ""
    """Type and number of the event at which it ran; empty and 0 if it did not."""
    number: int = 0
    time: float = msgspec.field(default_factory=time.time)
    """Time of arrival, then of execution or refusal."""
    old: Any = None
    new: Any = None
    """Values of a control before and after."""
    version: int | None = None
    """Number of changes of the control, this one included."""
    schedule: str = ""
    checkpoint: bool = False
    """True to make a checkpoint first; ``saved`` is the result of the function that makes it."""
    saved: Any = None
    result: Any = None
    agreed: int = 0
    """Ranks that must agree on it, and seconds this one has waited for the decision."""
    waited: float = 0.0
    outcome: str = PENDING
    error: str = ""
    traceback: str = ""
    note: str = ""
    warning: str = ""
    """What was done and may be a slip, such as a change by a factor of 10,000, or did not last."""
    stood: int | None = None
    """Events after a change at which the control was read and still had the new value; None: it is not read again."""


class Preparation(Reply, tag_field="reply", tag="prepared", frozen=True, kw_only=True):
    """A prepared command, and the ``number`` of this rank's newest ``on`` event."""

    on: str
    number: _Number


CommandReply: TypeAlias = CommandRecord | Preparation
