"""Queries of a run: `Run.stream`, `ask`, `names`, `watch_function` and `skew`.

What streams are made of is imported by the first query: a run that is only asked for facts, or controlled, starts
without it, and without numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Never

import msgspec

from looptap.client.ranks.ranks import ALL, DEFAULT_LATE_TIMEOUT_SECONDS, RankHandle
from looptap.client.streams.code import all_named, code_of, query_name
from looptap.client.streams.kept_history import NO_HISTORY, check_history
from looptap.client.transport.timeouts import COMMAND_SECONDS, REPLY_SECONDS
from looptap.protocol import messages as m
from looptap.protocol.errors import NotAllowed
from looptap.protocol.keys import VIEWER
from looptap.streams.errors import QueryError
from looptap.streams.forwarding import check_options
from looptap.streams.operators.windows import as_window
from looptap.streams.stream.state_and_cost import DEFAULT_BUFFER_BYTES, DEFAULT_BUFFER_ITEMS

if TYPE_CHECKING:
    from looptap.client.ranks.rank_stream import RankStream
    from looptap.client.streams.event_names import EventNames
    from looptap.client.streams.live import LiveStream
    from looptap.streams.stream.stream import Stream


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
    count: int | None = None,
    timeout: float = REPLY_SECONDS,
    ranks: str | int | Iterable[int] | None = None,
    combine: str | Callable[..., Any] | None = None,
    patience: float = DEFAULT_LATE_TIMEOUT_SECONDS,
    relay: bool = False,
    history: bool | None = None,
    unsafe: bool = False,
) -> LiveStream:
    """Attach ``query`` to the events ``on`` and return the stream of its values.

    If the text is the name of a declared stream, and ``on`` and other arguments of a query are not given, the result is
    that stream: its history, for which this waits a second at most, then each new value. If the text is the name of a
    number that events carry, or several with commas (`Run.scalars` lists them), the stream begins with the values kept
    since the first event; `LiveStream.history` describes them.

    Args:
        query: A text of the query language (docs/queries.md), a function of one event, or one of ``events``.
        on: The event type at which it is evaluated; "batch" by default.
        of: Makes it a query over the ``values`` of another stream, evaluated in the job: the name of a declared stream,
            or a stream of this client and this run. It begins with the next value and ends with that stream.
        window: The window that a reduction aggregates over: None (the host's group), a number of events, `seconds` or
            `sliding`.
        every: It is evaluated at every n-th event; 1 or more.
        throttle: The minimum time between two values, in seconds.
        when: A condition: values are held back, and sent only around events at which it is true.
        before: With ``when``, the number of values to send from before that event.
        after: With ``when``, the number of values to send from after that event.
        max_bytes: The maximum size of a value in bytes; a larger one is an error.
        budget: The fraction of the loop's time that the query may take by itself, such as 0.2; `math.inf`: no limit.
            Without it, all queries share what the job allows.
        buffer: The maximum number of values to keep here; the oldest are forgotten.
        buffer_bytes: The maximum size of the values that are kept here, in bytes.
        latency: "normal" sends values within about 30 ms if something waits for them, "low" within about 1 ms.
        name: The name in charts, tables and messages; by default the query.
        count: The number of values after which the stream ends; the query is then taken out of the job.
        timeout: Seconds to wait for the answer of the job.
        ranks: Other ranks of the job than this run's: "all", a number or a list (docs/ranks.md). The stream has the
            values of each, in the order of the events; it is a `looptap.client.ranks.rank_stream.RankStream`.
        combine: One value for all ranks at each event or window: "mean", "sum", "max", "min", "median" or "list" of
            their values, a function of the list, or "merge", the result of the query over the events of all ranks.
        patience: Seconds that a value waits for slower ranks; after that it comes without them and names them.
        relay: With ``combine="merge"``: merge on each host first, by a `looptap relay` that is started there.
        history: True begins with the kept history of the names, or of the stream ``of``, even with ``on`` or other
            arguments; an expression, which has none, is refused. False gives live values only.
        unsafe: True runs the query as it is, on record like a command, even if it may change the job (docs/queries.md).

    Raises QueryError, LimitReached, and NoAnswer after ``timeout`` seconds.
    """
    from looptap.client.streams.live import LiveStream

    all_named("stream(query", unnamed)
    if latency not in ("normal", "low"):
        raise QueryError(f"latency={latency!r} must be 'normal' or 'low'.")
    if not isinstance(unsafe, bool):
        raise QueryError(f"unsafe={unsafe!r:.80} must be True or False.")
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        raise QueryError(f"count={count!r} must be a whole number of values, 1 or more.")
    plain = (on, of, window, when, budget, every, throttle, unsafe) == (None, None, None, None, None, 1, 0.0, False)
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
        above=_newest(run, query) if plain and history is False else 0,
        named=plain and isinstance(query, str),
        history=(plain if history is None else history) and isinstance(query, str) and combine is None,
        unsafe=unsafe,
        count=count or 0,
    )
    if of is not None:
        from looptap.client.streams.source import source_of

        attach = msgspec.structs.replace(attach, **source_of(run, of, attach, combine))
    if run.role == VIEWER and not attach.named:
        raise NotAllowed(
            "A viewer may not ask queries of the job. Name an exported stream (run.streams lists them) and nothing "
            "else; a query of your own runs on this side: run.stream(name).query(…)."
        )
    if history and of is None and run.role != VIEWER:
        check_history(run, query, attach, combine)
    text = query_name(query)
    if ranks is not None or combine is not None:
        from looptap.client.ranks.over_ranks import over_ranks

        return over_ranks(
            run,
            attach,
            ranks,
            combine,
            patience=patience,
            timeout=timeout,
            text=text,
            buffer=buffer,
            buffer_bytes=buffer_bytes,
            relay=relay,
        )
    stream = LiveStream(run, attach, name=name, text=text, buffer=buffer, buffer_bytes=buffer_bytes)
    run.session.begin(stream, timeout)
    if history and of is None and stream.history is None and stream.declared is None:
        stream.notes.append(NO_HISTORY)
    return stream


def _newest(run: RankHandle, name: Any) -> int:
    """Return the newest number of the declared stream of this name; 0 without one."""
    streams = run.session.inquire(m.GetStreams, "The question for the declared streams", REPLY_SECONDS)
    return next((one.values for one in streams if one.name == name), 0)


def ask(
    run: RankHandle,
    /,
    query: str | Callable[..., Any],
    n: int = 1,
    *,
    timeout: float = COMMAND_SECONDS,
    **options: Any,
) -> Any:
    """Ask a question once: return its next value, or the next ``n`` as a list.

    The query is in the job no longer than that takes. It is no command, and leaves no file.

    Args:
        query: A query, as for `stream`.
        n: How many values.
        timeout: Seconds to wait for them.
        options: The options of `stream`, except ``count`` and ``history``.

    Raises QueryError, StreamTimeout, and StreamEnded if the query fails.

    >>> import threading
    >>> from looptap.testing import pair
    >>> agent, run = pair("doctest")
    >>> over = threading.Event()
    >>> def loop():
    ...     while not over.wait(0.001):
    ...         agent.emit("batch", loss=0.5)
    >>> thread = threading.Thread(target=loop)
    >>> thread.start()
    >>> run.ask("loss")
    0.5
    >>> over.set()
    >>> thread.join()
    """
    check_options("ask", options, stream)
    if given := {"count", "history"}.intersection(options):
        raise TypeError(f"ask() got an unexpected keyword argument {min(given)!r}")
    with stream(run, query, count=n, history=False, **{"latency": "low", **options}) as answers:
        values = answers.wait(n, timeout)[:n]
    return values[0] if n == 1 else values


def offered_names(run: RankHandle, /, on: str = "batch", timeout: float = COMMAND_SECONDS) -> EventNames:
    """Return the names that the next event offers to queries.

    Each has the name of its class (``kind``), of an array or a tensor the ``shape`` and ``dtype``, and its ``source``:
    "the event" (its ``emit``), "exposed", "looptap", "the machine", or a function or module of a script. What a query
    computes from them, and the functions that it may use, are in docs/queries.md.

    Args:
        on: The event type.
        timeout: Seconds to wait for an event.

    Raises NotAllowed for a viewer, and StreamTimeout if there is no event.

    >>> import threading
    >>> from looptap.testing import pair
    >>> agent, run = pair("doctest")
    >>> over = threading.Event()
    >>> def loop():
    ...     while not over.wait(0.001):
    ...         agent.emit("batch", step=3, loss=0.5)
    >>> thread = threading.Thread(target=loop)
    >>> thread.start()
    >>> offered = run.names()
    >>> over.set()
    >>> thread.join()
    >>> offered["loss"].kind, offered["loss"].source
    ('float', 'the event')
    """
    from looptap.client.streams.event_names import OFFER, EventNames

    return EventNames.of(ask(run, OFFER, on=on, timeout=timeout))


def watch_function(
    run: RankHandle, /, function: str, query: str | Callable[..., Any] = "arguments, result", **options: Any
) -> LiveStream:
    """Attach ``query`` to the calls of a function of the job.

    Each call gives a value as it ends: the same as ``stream(query, on="evaluate()")`` for a function ``evaluate``. The
    function is watched while a stream reads it. The job needs Python 3.12 or newer. A query can read ``arguments``
    (those of the call; large values as a short text), ``result``, ``seconds``, ``exception`` (as text, if the call
    ended with one), ``function`` (its full name), and all variables that the function has at its end.

    Args:
        function: Its name, preceded by its class and module as far as needed to distinguish it from others.
        query: A query, as for `stream`.
        options: The options of `stream`, except ``on`` and ``of``.

    Raises QueryError, also where the job runs an older Python, LimitReached and NoAnswer.

    >>> from looptap.testing import pair
    >>> agent, run = pair("doctest")
    >>> stream = run.watch_function("evaluate()")
    Traceback (most recent call last):
        ...
    looptap.streams.errors.QueryError: 'evaluate()' is no name of a function: it has letters, digits, _ and dots.
    """
    if not all(part.isidentifier() for part in function.split(".")):
        raise QueryError(f"{function!r:.120} is no name of a function: it has letters, digits, _ and dots.")
    check_options("watch_function", options, stream)
    if given := {"on", "of"}.intersection(options):
        raise TypeError(f"watch_function() got an unexpected keyword argument {min(given)!r}")
    return stream(run, query, on=f"{function}()", **options)


def skew(
    run: RankHandle,
    on: str = "batch",
    *,
    ranks: str | int | Iterable[int] = ALL,
    every: int = 1,
    patience: float = DEFAULT_LATE_TIMEOUT_SECONDS,
    timeout: float = REPLY_SECONDS,
    buffer: int = DEFAULT_BUFFER_ITEMS,
) -> RankStream:
    """Return the stream of the time between the first and last rank at each event.

    Its values have the fields ``spread`` in seconds, ``slowest`` and ``fastest``, which are ranks, and ``uncertainty``
    in seconds. The uncertainty is 0 if all ranks are on one machine, which has one clock; clocks of different hosts are
    compared by round trips.

    Args:
        on: The event type.
        ranks: "all" or a list of ranks.
        every: Evaluate at every n-th event only.
        patience: Seconds that a value waits for slower ranks.
        timeout: Seconds to wait for the answers of the ranks.
        buffer: The maximum number of values to keep.

    Raises what `stream` raises.
    """
    from looptap.client.ranks.over_ranks import spread_over_ranks

    return spread_over_ranks(run, on, ranks, every, patience=patience, timeout=timeout, buffer=buffer)
