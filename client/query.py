"""`Run.stream`: attaches a query to a run, or to several of its ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Never

import msgspec

from looptap.client.ranks.over_ranks import over_ranks
from looptap.client.ranks.rank_stream import DEFAULT_LATE_TIMEOUT_SECONDS
from looptap.client.ranks.ranks import RankHandle
from looptap.client.streams.code import all_named, code_of, name_of
from looptap.client.streams.live import LiveStream
from looptap.client.streams.source import source_of
from looptap.protocol import messages as m
from looptap.protocol.errors import NotAllowed
from looptap.protocol.keys import VIEWER
from looptap.streams.errors import QueryError
from looptap.streams.operators.windows import as_window
from looptap.streams.stream.stream import DEFAULT_BUFFER_BYTES, DEFAULT_BUFFER_ITEMS, Stream


def stream(
    run: RankHandle,
    query: str | Callable[..., Any],
    *unnamed: Never,
    on: str | None = None,
    of: str | Stream | None = None,
    window: Any = None,
    every: int = 1,
    throttle: float = 0.0,
    when: str | Callable[..., Any] | None = None,
    before: int = 0,
    after: int = 0,
    max_bytes: int = 4_000_000,
    budget: float | None = None,
    buffer: int = DEFAULT_BUFFER_ITEMS,
    buffer_bytes: int = DEFAULT_BUFFER_BYTES,
    latency: str = "normal",
    name: str = "",
    timeout: float = 5.0,
    ranks: str | int | Iterable[int] | None = None,
    combine: str | Callable[..., Any] | None = None,
    patience: float = DEFAULT_LATE_TIMEOUT_SECONDS,
    relay: bool = False,
    history: bool | None = None,
) -> LiveStream:
    """Attach ``query`` to the events ``on`` and return the stream of its values.

    ``on`` is "batch" by default. A text that is the name of a declared stream of the run, without ``on`` or another
    argument of a query, reads that one: what its history holds, which is here when this returns (or comes after: it
    waits a second at most), then each new value. A text that is the name of a number that events carry, or several with
    commas (`Run.scalars` lists them), begins with the values kept since the first event: `LiveStream.history` says
    which these are. ``history=True`` asks for them with ``on`` or other arguments, ``history=False`` for live values
    alone.

    ``of`` makes it a query over the ``values`` of another stream, evaluated in the job: the name of a declared stream,
    or a stream of this client and this run. It begins with the next value; ``history=True`` begins with those that the
    history of a declared stream holds. Ends with that stream.

    ``window`` is what a reduction aggregates over: None (the host's group), a number of events, `seconds` or `sliding`.
    ``every`` n-th event is looked at; ``throttle`` is the least time between two values in seconds. With ``when``,
    values are held back and come only around events where this condition is true: ``before`` and ``after`` of them.
    ``max_bytes`` bounds one value, ``buffer`` and ``buffer_bytes`` what is kept here. ``budget`` grants the query a
    fraction of the loop's time of its own (`math.inf`: no limit). ``latency="low"`` sends values within about 1 ms in
    place of 20 ms.

    ``ranks`` asks other ranks of the job than this run's, ``"all"`` or a list of numbers (docs/ranks.md). The
    stream has the values of each, in the order of the events, or with ``combine`` one for all ranks at each event
    or window: "mean", "sum", "max", "min", "median" or "list" of their values, what a Python function makes of the
    list, or with "merge" the result of the query over the events of all ranks. A value waits for slower ranks
    ``patience`` seconds at most, and says then which it lacks. With ``relay`` what is merged is
    merged on each host first, by a `looptap relay` started there. It is a
    `looptap.client.ranks.rank_stream.RankStream`.
    Raises QueryError, LimitReached, and NoAnswer after ``timeout`` seconds.
    """
    all_named("stream(query", unnamed)
    if latency not in ("normal", "low"):
        raise QueryError(f"latency={latency!r} must be 'normal' or 'low'.")
    plain = (on, of, window, when, budget, every, throttle) == (None, None, None, None, None, 1, 0.0)
    attach = m.Attach(
        run.session.requests.number(),
        run.session.streams.number(),
        code_of(query),
        "batch" if on is None and of is None else on or "",
        window=as_window(window),
        every=every,
        throttle=throttle,
        when=None if when is None else code_of(when),
        before=before,
        after=after,
        max_bytes=max_bytes,
        latency=latency,
        name=name,
        budget=budget,
        named=plain and isinstance(query, str),
        history=(plain if history is None else history) and isinstance(query, str) and combine is None,
    )
    if of is not None:
        attach = msgspec.structs.replace(attach, **source_of(run, of, attach, combine))
    if run.role == VIEWER and not attach.named:
        raise NotAllowed(
            "A viewer may not ask queries of the job. Name an exported stream (run.streams lists them) and nothing "
            "else; a query of your own runs on this side: run.stream(name).query(…)."
        )
    text = name_of(query)
    if ranks is not None or combine is not None:
        return over_ranks(
            run, attach, ranks, combine, patience=patience, timeout=timeout, text=text, buffer=buffer,
            buffer_bytes=buffer_bytes, relay=relay,
        )  # fmt: skip
    stream = LiveStream(run, attach, name=name, text=text, buffer=buffer, buffer_bytes=buffer_bytes)
    run.session.begin(stream, timeout)
    return stream
