"""Replies about the agent itself: its counters, and the stacks of its process."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from looptap.protocol.replies import MAX_VALUE_NUMBER, ByName, Listed, Reply, StreamInfo

_Bytes: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MAX_VALUE_NUMBER)]


class LongEvaluation(Reply, frozen=True, kw_only=True):
    """A query or command that the loop has been running for more than 5 s."""

    kind: str
    name: str
    client: str
    """Name of the client that asked for it; empty for the job itself."""
    on: str
    seconds: float
    text: str
    """All of this in words."""


class ClientStats(Reply, frozen=True, kw_only=True):
    """One attached client."""

    name: str
    role: str
    streams: int
    sent_bytes: int
    away: bool
    """True while its link is lost."""


class SubscriptionStats(Reply, frozen=True, kw_only=True):
    """One stream of one client, with the cost of its query."""

    name: str
    on: str
    client: str
    state: str
    values: int
    sent: int
    dropped: int
    skipped: int
    errors: int
    withheld: int
    filtered: int
    evaluated: int
    nanoseconds_per_event: float
    share_of_time: float
    limitation: str
    """How the budget limits the query, in words."""


class RecordedStreamStats(Reply, frozen=True, kw_only=True):
    """One stream in the file of the run."""

    name: str
    kept: int
    dropped: int


class RecordingStats(Reply, frozen=True, kw_only=True):
    """The file of the run: what was written to it and what is pending."""

    file: str
    path: str
    state: str
    reason: str
    kept: int
    dropped: int
    waiting_bytes: int
    waiting_peak: int
    pauses: int
    commits: int
    slowest_commit: float
    """Longest wait for the disk, in seconds."""
    seconds: float
    """CPU time of the thread that writes."""
    streams: Listed[RecordedStreamStats]


class ThreadReading(Reply, frozen=True, kw_only=True):
    """What the training thread did since the last reading, in percent of that time."""

    computed: float
    waited: float
    """It could run, and other threads had the processors."""
    slept: float
    """It waited for data, a device, a lock, a disk or another process."""


class HostReading(Reply, frozen=True, kw_only=True):
    """What the machine of a rank does. Rates are those since the last reading."""

    cpu: float | None = None
    """Percent of all processors."""
    memory: _Bytes = 0
    """Bytes in use: those that a program could not get."""
    memory_total: _Bytes = 0
    disk_read: float | None = None
    disk_written: float | None = None
    network_received: float | None = None
    network_sent: float | None = None
    """Bytes per second; None where the system does not count them."""
    thread: ThreadReading | None = None
    """None where the system does not say, and while events come from several threads."""


class DeviceReading(Reply, frozen=True, kw_only=True):
    """What an NVIDIA device does, for whomever; None where it does not report it."""

    index: int | None
    """Its number on the machine, as nvidia-smi lists it; None of several together."""
    name: str
    util: float | None = None
    """Percent of the last time in which it computed."""
    memory: _Bytes | None = None
    """Bytes in use."""
    memory_total: _Bytes | None = None
    temperature: float | None = None
    """Degrees Celsius."""


class MachineReport(Reply, frozen=True, kw_only=True):
    """The newest readings of the machine of a rank."""

    host: HostReading | None
    """None until the second time that it is asked for: rates need two."""
    devices: Listed[DeviceReading]
    """Those that this rank uses."""
    problem: str = ""
    """The reason why there is none."""


class AgentStats(Reply, frozen=True, kw_only=True, omit_defaults=True):
    """All counters of an agent."""

    run: str
    events: ByName[int]
    idle: float
    ages: ByName[float]
    inside: Listed[LongEvaluation]
    clients: Listed[ClientStats]
    shares: int
    queries: Listed[SubscriptionStats]
    streams: Listed[StreamInfo]
    readers: Listed[SubscriptionStats]
    history_bytes: int
    history_peak: int
    outbox_bytes: int
    outbox_peak: int
    dropped: int
    withheld: int
    refused_messages: int
    events_in_cuda_graphs: int
    lineage: Listed[str] = msgspec.field(default_factory=list)
    """Ids of the runs that this one resumes, the oldest first; like the next three, only of a run that resumes one."""
    resumed_from: str | None = None
    resumed_at: ByName[int] = msgspec.field(default_factory=dict)
    rewound: ByName[tuple[int, int]] = msgspec.field(default_factory=dict)
    """First and last number of the events that are repeated, by type."""
    paused: float
    paused_before: float
    store: RecordingStats | None
    io_seconds: float
    io_share: float
    budget: float
    machine: MachineReport | None = None
    """Only if asked for."""


class ThreadStack(Reply, frozen=True, kw_only=True):
    """The Python stack of one thread of the job."""

    thread: str
    ident: int
    daemon: bool
    stack: str
    """Text, like a traceback, the innermost call last."""


class EventActivity(Reply, frozen=True, kw_only=True):
    """Events of one type: how many so far, and seconds since the newest."""

    count: int
    idle: float


class StackReport(Reply, frozen=True, kw_only=True):
    """The stack of each thread of the job, and whether the loop is moving."""

    threads: Listed[ThreadStack]
    events: ByName[EventActivity]
    paused: float
    age: float
    """Seconds since the agent began."""
    inside: Listed[LongEvaluation]


class MemoryLine(Reply, frozen=True, kw_only=True):
    """A line of code, and the memory that was allocated there and is held."""

    file: str
    """Empty for what was allocated before the recording."""
    line: int
    code: str
    count: int
    """Blocks."""
    size: int
    """Bytes."""


class LiveTensors(Reply, frozen=True, kw_only=True):
    """Tensors that are alive: of one name, or without one of one form."""

    name: str
    """As the job calls them; ``history[…]`` for all in a list; empty if no name is known."""
    shape: tuple[int, ...]
    dtype: str
    device: str
    count: int
    size: int
    """Bytes of their storages, each counted once."""


class DeviceMemory(Reply, frozen=True, kw_only=True):
    """What torch holds of a CUDA device, in bytes."""

    index: int
    allocated: int
    reserved: int
    peak: int
    """The most that was allocated since the job began."""


class MemoryReport(Reply, frozen=True, kw_only=True):
    """Which lines and tensors hold memory, and what the recording has cost."""

    kind: str
    """What the lines are of: "cuda" for torch's blocks on devices, "python" for tracemalloc's."""
    steps: int
    step_seconds: float
    """Median seconds of a step while memory was traced."""
    step_seconds_before: float
    """The same of as many steps before."""
    stood: float
    """Seconds that the loop waited while its tensors were listed."""
    held: int
    """Bytes that the lines hold together."""
    peak: int
    """The most bytes that tracemalloc has seen at once."""
    lines: Listed[MemoryLine]
    """The largest first."""
    lines_left_out: int
    tensors: Listed[LiveTensors]
    """The largest first."""
    tensors_left_out: int
    tensor_bytes: ByName[int]
    """Bytes of all tensors, by device."""
    tensor_count: int
    resident: int
    """Bytes of the process in memory."""
    devices: Listed[DeviceMemory]
    notes: Listed[str]
    path: str
    """The file of the snapshot on the machine of the job; empty if none was asked for."""
    file_bytes: int
