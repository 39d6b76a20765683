"""A process with many clients and streams.

The arguments are CLIENTS STREAMS QUERY EVENT [WINDOW].
They attach to the agent in LOOPTAP_DIR. Prints as JSON the seconds in which the streams were opened, one after the
other, and for each line of its input how many values have arrived, of all streams, and how many are missing, once they
are as many as the line says.
"""

from __future__ import annotations

import json
import sys
import time

import looptap

PATIENCE = 60.0


def main() -> None:
    clients, count, query, event = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    how = {"window": int(sys.argv[5])} if len(sys.argv) > 5 else {}
    runs = [looptap.attach(timeout=PATIENCE) for _ in range(clients)]
    begin = time.monotonic()
    streams = [runs[number % clients].stream(query, on=event, **how) for number in range(count)]
    print(json.dumps({"opened": time.monotonic() - begin}), flush=True)
    for line in sys.stdin:
        deadline, due = time.monotonic() + PATIENCE, int(line)
        while (arrived := sum(stream.arrived for stream in streams)) < due and time.monotonic() < deadline:
            time.sleep(0.002)
        print(json.dumps({"arrived": arrived, "missing": sum(stream.dropped for stream in streams)}), flush=True)
    for run in runs:
        run.close()


if __name__ == "__main__":
    main()
