"""Ask a query of one event of a small job, and read what its guard reported."""

from __future__ import annotations

import math

from looptap.testing import pair


def ask(query, event=None, /, **exposed):
    """Return the stream of ``query`` at one event of a job that exposes ``exposed``."""
    agent, run = pair("guarded")
    agent.expose(**exposed)
    stream = run.stream(query, on="batch", budget=math.inf)
    agent.emit("batch", **(event or {"step": 1}))
    agent.close()
    assert stream.arrived or stream.error_count
    return stream


def reported(stream):
    """Return the notes on what the query changed."""
    return [note for note in stream.notes if "in place" in note]
