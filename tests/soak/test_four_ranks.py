"""Four ranks over gloo: streams come and go while the job adds up its losses."""

from __future__ import annotations

import pytest
from rank_jobs import ranks, started
from waiting import soon

from looptap.client.attach import attach

QUERY = "sum(e.loss for e in events), len(events), min(e.step for e in events), max(e.step for e in events)"


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("uneven", [0, 3], ids=["as many batches", "unequal counts"])
def test_four_ranks_are_queried_as_one(uneven, directory):
    with ranks(directory, 4, uneven=uneven) as children:
        started(directory, 4)
        with attach("many") as run:
            for _ in range(20):  # attach and detach beside the continuing stream
                run.stream("loss", ranks="all").close()
            merged = run.stream(QUERY, ranks="all", combine="merge")
            single = run.stream(QUERY, ranks="all", combine="list")
            skew = run.skew()

            def complete(stream):
                return [record for record in stream.records if not record.partial]

            soon(lambda: min(map(len, map(complete, (merged, single)))) >= 20, detail="twenty epochs of all ranks come")
            by_event = {record.event: record.value for record in complete(single)}
            for record in complete(merged):
                if record.event not in by_event:
                    continue
                parts = by_event[record.event]
                totals, counts, firsts, lasts = zip(*parts, strict=True)
                assert record.value == (sum(totals), sum(counts), min(firsts), max(lasts))
                assert list(counts) == [20 + uneven * rank for rank in range(4)]
            assert len(skew) > 20
            assert merged.dropped == single.dropped == 0
            children[3].kill()
            soon(lambda: 3 in merged.gone, detail="the death of a rank is reported")
