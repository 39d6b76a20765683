"""TensorWatch 0.9.1, unchanged, for the same questions.

It runs in a separate environment. The benchmark measures an event with one stream `lambda d: (d.step, d.loss)`, 4,000
in a row; the one-way delay at 200 events/s, out of a training loop; a reduction; and the MLP loop of `loops.py` with
one stream and with five, against the same loop without an event. Its package imports charts that fail with current
versions of their dependencies. These charts are not loaded; the rest is its own code. Its connections are neither
encrypted nor authenticated.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

from harness import HERE, PEER, Measured, Row, in_units, main, rate


def rows() -> Iterator[Row]:
    if not PEER.exists():
        print(f"{PEER.parent.parent.name} is not there; `make bench` makes it.", file=sys.stderr)
        return
    done = subprocess.run([str(PEER), str(HERE / "peer_tensorwatch.py")], stdout=subprocess.PIPE, check=True)
    seen = json.loads(done.stdout.splitlines()[-1])
    events, delay = seen["throughput"], seen["latency"]
    yield Row("TensorWatch: the loop per event, one stream", in_units(events["wall"]), "", figures=events)
    yield Row("TensorWatch: events per second to one reader", rate(events["rate"]), "", figures=events)
    both = f"{in_units(delay['p50'])}, {in_units(delay['p99'])}"
    yield Row("TensorWatch: one-way delay at 200 events/s, median, p99", both, "", figures=delay)
    value = seen["reduction"]["values"][-1]
    yield Row("TensorWatch: sum of five losses of 1.0 by reduce", value, "", figures=seen["reduction"])
    loop = Measured(seen["loop"])
    for name, streams in (("one", "one stream"), ("five", "five streams")):
        change, plain = loop.ratio(name, "none"), in_units(loop.median("none"))
        what = f"TensorWatch: MLP step with {streams} (baseline: without)"
        yield Row(what, plain, "", f"TensorWatch: {change}", figures=seen["loop"])


if __name__ == "__main__":
    main(rows, __doc__)
