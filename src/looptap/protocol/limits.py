"""The bounds of an agent as one value object; every bound is finite."""

from __future__ import annotations

import msgspec


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on what an agent holds and does for its clients.

    >>> Limits(clients=2).clients
    2
    """

    clients: int = 16
    """Clients at a time."""
    viewers: int = 16
    """Viewers at a time, in addition to the clients."""
    shares: int = 16
    """Viewers' keys at a time (`Run.share`)."""
    streams_per_client: int = 64
    """Streams of one client."""
    streams: int = 256
    """Streams of all clients, and as many of all viewers."""
    inbound_frame: int = 65_536
    """Bytes of one frame from a client."""
    outbound_message: int = 67_108_864
    """Bytes of one frame to a client."""
    outbox_bytes: int = 33_554_432
    """Bytes queued for the I/O thread, over all streams."""
    in_flight_bytes: int = 16_777_216
    """Bytes sent to all clients and not yet acknowledged; at least 1 MiB for one client."""
    outbox_values: int = 200_000
    """Values queued for the I/O thread, per stream."""
    declared_streams: int = 256
    """Streams that the host declares, names of `Agent.log` included."""
    handed_streams: int = 64
    """Declared streams that clients have created with `Run.export` and `Run.keep`."""
    history_bytes: int = 16_777_216
    """Bytes that the history of one declared stream may hold."""
    history_bytes_in_all: int = 67_108_864
    """Bytes that the histories of all declared streams may hold."""
    scalars: int = 100
    """Names of numbers whose history is kept from the first event on, with at most 2,000 points and 60 kB each."""
    high_water_mark: int = 64
    """Messages that libzmq queues for one client."""
    handshake: float = 2.0
    """Seconds that a new peer has to prove its key."""
    backlog: int = 1024
    """Connections that the kernel queues."""
    heartbeat: float = 1.0
    """Seconds between heartbeats."""
    heartbeat_timeout: float = 4.0
    """Seconds of silence after which a peer is gone."""
    commands_per_second: int = 50
    """Commands the run accepts in a second."""
    agreement: float = 5.0
    """Seconds that a rank waits at the event of a command for the other ranks."""
    collected_items: int = 100_000
    """Items that a collecting query may hold for one window."""
    collected_bytes: int = 67_108_864
    """Bytes that a collecting query may hold for one window."""
    keys: int = 10_000
    """Keys of one group_by or Counter."""
