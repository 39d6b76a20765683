"""Ask a job questions from its beginning, and collect the errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from looptap.streams.errors import QueryError
from looptap.testing import pair

REASONS = "not known to be harmless", "would", "a hook of the job sees", "runs the hooks of the job's graph"
"""What a refusal says that names what cannot be proven."""


def asked(work: Callable[..., Any], questions: Iterable[tuple[str, str]]) -> tuple[Any, list[str]]:
    """Return what the job becomes with (event type, question), and the errors."""
    job = pair("unharmed", manual=True)  # values are packed by a thread that is in no mode of the loop's
    agent, run = job
    streams, said = [], []

    def attach() -> None:
        for event, text in questions:
            try:
                window = 2 if "events" in text and event != "mode" else None  # else it ends with the epoch
                streams.append(run.stream(text, on=event, budget=math.inf, window=window))
            except QueryError as error:  # its function is not known at all
                said.append(str(error))

    try:
        became = work(agent, attach)
        job.deliver()
        return became, said + [stream.traceback for stream in streams if stream.error_count]
    finally:
        agent.close()


def refusals(said: Iterable[str]) -> list[str]:
    """Return the refusals among errors; each has to name what cannot be proven."""
    found = [text for text in said if "Refused" in text]
    vague = [text for text in found if not any(reason in text for reason in REASONS)]
    assert not vague, vague
    return found
