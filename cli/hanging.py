"""`looptap stacks`: where the threads of a job are, asked while its loop may hang."""

from __future__ import annotations

from looptap.cli.formats import json_of
from looptap.cli.start import DONE
from looptap.client.discover import attach


def stacks(name: str, *, timeout: float, as_json: bool) -> int:
    """Print the stacks of the run ``name``; returns the exit code."""
    with attach(name) as run:
        answer = run.stacks(timeout)
        if as_json:
            print(json_of(answer))
            return DONE
        for event, seen in answer["events"].items():
            print(f"{event}: {seen['count']:,} events, none for {seen['idle']:.1f} s")
        if answer.get("paused"):
            print(f"paused for {answer['paused']:.1f} s; looptap resume {name} ends that")
        for thread in answer["threads"]:
            print(f"\n{thread['thread']}{' (daemon)' if thread['daemon'] else ''}:\n{thread['stack'].rstrip()}")
    return DONE
