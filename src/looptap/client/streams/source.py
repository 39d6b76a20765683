"""The stream whose values a query reads in the job: ``of=`` of `Run.stream`."""

from __future__ import annotations

from typing import Any

from looptap.client.session.run_handle import RunHandle
from looptap.client.streams.live import LiveStream
from looptap.protocol import messages as m
from looptap.streams.errors import QueryError
from looptap.streams.stream.state_and_cost import LIVE
from looptap.streams.stream.stream import Stream
from looptap.streams.text import cut


def source_of(run: RunHandle, of: str | Stream, attach: m.Attach, combine: object) -> dict[str, Any]:
    """Return the fields of ``attach`` that name the stream. Raises QueryError."""
    name = cut(of.name if isinstance(of, Stream) else repr(of), 80)
    if attach.on:
        raise QueryError(f"of={name} has the events of that stream: leave out on={attach.on!r:.80}.")
    if attach.when is not None:
        raise QueryError(
            "when= records events of the loop. Put the condition into the query over the values:",
            hint="(v.loss for v in values if v.loss > 5)",
        )
    if combine is not None:
        raise QueryError(
            f"combine= puts values of events together, not those of={name}. Combine the stream itself over the ranks, "
            "and ask over its values on this side: run.stream(…, combine='mean').query(…)."
        )
    if isinstance(of, str) and of:
        return {"of": of}
    if not isinstance(of, LiveStream) or of.run.session is not run.session:
        here = "stream.query(…) asks over its values on this side, and looptap.join puts streams together"
        raise QueryError(f"of={name} is neither the name of a declared stream nor a live stream of this run; {here}.")
    if of.state != LIVE:
        raise QueryError(f"of={name}: this stream has {of.state}{f': {of.reason}' if of.reason else ''}.")
    return {"of": of.declared} if of.declared is not None else {"of_stream": of.attach.stream}
