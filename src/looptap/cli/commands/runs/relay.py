"""`looptap relay`: merges the ranks of one machine for a client elsewhere."""

from __future__ import annotations

from looptap.cli.options import Ranks, RunName, ranks_of
from looptap.client.attach import attach
from looptap.client.ranks.merge_relay import relay


def main(run: RunName, ranks: Ranks = "all") -> int:
    """Merge the ranks of this machine for a client elsewhere.

    It speaks over stdin and stdout; not for people: relay=True of run.stream starts it.

    \b
      looptap relay digits-cnn --ranks 0-7
    """
    with attach(run) as job:
        return relay(job, job.ranks.select(ranks_of(ranks) or "all"))
