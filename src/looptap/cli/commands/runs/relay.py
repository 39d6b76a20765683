"""`looptap relay`: merges the ranks of one machine for a client elsewhere."""

from __future__ import annotations

from looptap.cli.options import Ranks, RunName, parsed_ranks
from looptap.client.attach import attach
from looptap.client.ranks.merge_relay import relay


def relay_command(run: RunName, ranks: Ranks = "all") -> int:
    """Merge the ranks of this machine for a client elsewhere.

    It speaks over stdin and stdout; not for people: relay=True of run.stream starts it.

    \b
      looptap relay digits-cnn --ranks 0-7
    """
    with attach(run) as job:
        return relay(job, job.ranks.select(parsed_ranks(ranks) or "all"))
