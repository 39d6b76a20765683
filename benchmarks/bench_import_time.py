"""`import looptap` against `import numpy, zmq`.

Each runs in a fresh interpreter whose own start is included. The names of looptap are lazy: what a loop needs is loaded
when it says `looptap.Agent`, a line of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from harness import Row, in_units, interleave, main, program


def rows() -> Iterator[Row]:
    codes = {"nothing": "pass", "baseline": "import numpy, zmq", "ours": "import looptap"}
    codes["agent"] = "import looptap; looptap.Agent"
    programs = {name: program([sys.executable, "-c", code]) for name, code in codes.items()}
    seen = interleave(programs, rounds=20)
    start = in_units(seen.median("nothing"))
    for name, code in (("ours", "import looptap"), ("agent", "import looptap; looptap.Agent")):
        yield Row(
            f"{code} (baseline: import numpy, zmq), of which {start} are the interpreter's",
            in_units(seen.median("baseline")),
            in_units(seen.median(name)),
            str(seen.ratio(name, "baseline")),
            figures=dict(seen.seconds),
        )


if __name__ == "__main__":
    main(rows, __doc__)
