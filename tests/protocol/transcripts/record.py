"""Records a conversation's bytes, once for each minor version of the protocol.

    python tests/protocol/transcripts/record.py

writes <major>.<minor>/conversation.txt beside it, a line for each step: ``>`` a frame of the client and ``<`` one of
the agent in hexadecimal, ``!`` what happens in the job. A released version is never recorded again.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
import threading
import time
from pathlib import Path

from looptap.client.control.pending import CommandPending
from looptap.client.run import Run
from looptap.client.session import session
from looptap.protocol import messages as m
from looptap.protocol.codec import encode
from looptap.streams.errors import QueryError
from looptap.testing import MemoryTransport, pair, parts_of

PLACE = Path(__file__).parent
RUN = m.RunInfo("recorded-20260101-000000-abcdef", "recorded", "somewhere", 1, 1.0, 0, 1, (3, 11), "0.1.0")


def converse(run, happen, sent, version=m.VERSION):
    """Play the client's part; ``happen(line)`` acts in the job, ``sent(type)`` waits.

    ``version`` is the agent's.
    """
    rows = run.stream("step, loss", on="batch")
    means = run.stream("mean(e.loss for e in events)", on="batch")
    arrays = run.stream("np.arange(3.0) * step", on="batch", every=2, name="arrays")
    recorder = run.stream("step", on="batch", when="loss > 0.9", before=1)
    windows = run.stream("first(e.step for e in events)", on="batch", window=3)
    for query in ("foo(loss)", "mean(e.loss for e in events) + step"):
        with contextlib.suppress(QueryError):
            run.stream(query, on="batch")
            raise AssertionError(f"{query} is no query.")
    handed = run.stream("loss", on="batch", name="curve")
    run.export(handed)
    rows.grant(math.inf)  # on a busy machine less would have events skipped
    for step in range(1, 7):
        happen(f"emit batch {json.dumps({'step': step, 'loss': step / 4})}")
    windows.close_window()
    happen("emit epoch {}")
    assert run.stats()["run"] == run.id
    results = []
    for code in ("step * 2", "1 / 0"):
        asking = threading.Thread(target=lambda code=code: results.append(outcome(run, code)))
        asking.start()
        sent(m.Call)
        happen('emit batch {"step": 7, "loss": 0.5}')
        asking.join(60)
    with contextlib.suppress(CommandPending):
        run.call("step", on="never", timeout=0, id="waits")
    results.append(run.cancel("waits").outcome)
    happen("beat")
    run.session.transport.send(encode(m.Beat()))
    run.session.transport.send(encode(m.Got(1)))
    assert [stream.name for stream in run.streams] == ["curve", "commands"]
    reader = run.stream("curve")
    run.export(reader, False)
    arrays.close()
    streams = rows, means, arrays, recorder, windows, handed, reader
    if version >= m.UNSAFE_SINCE:
        streams = *streams, run.stream("step + 1", on="batch", unsafe=True)
        happen('emit batch {"step": 8, "loss": 0.5}')
    happen("close")
    return {
        "values": [[json.loads(json.dumps(v, default=lambda a: a.tolist())) for v in s.values] for s in streams],
        "partial": [[r.partial for r in s.records] for s in streams],
        "numbers": [[(r.number, r.event) for r in s.records] for s in streams],
        "results": results, "state": [run.state, run.reason, *(s.state for s in streams)],
    }  # fmt: skip


def outcome(run, code):
    """Return the result of a command, or its error."""
    try:
        return run.call(code)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


class Tape(MemoryTransport):
    """A link in memory that records what passes."""

    def __init__(self, link, lines):
        super().__init__(link)
        self.lines = lines

    def start(self, receiver, timeout):
        on_frame = receiver.on_frame

        def taped(frame):
            self.lines.append("< " + frame.hex())
            on_frame(frame)

        receiver.on_frame = taped
        super().start(receiver, timeout)

    def send(self, frame):
        self.lines.append("> " + frame.hex())
        super().send(frame)


def happens(agent, line):
    """Do the action of a line in the job."""
    what, *rest = line.split(" ", 2)
    if what == "emit":
        agent.emit(rest[0], **json.loads(rest[1]))
    elif what == "beat":
        parts_of(agent).dispatcher.on_heartbeat_timer()
    else:
        agent.close("the job is done")


def agent_in_memory():
    """Return an agent of the run that all transcripts are of."""
    agent, run = pair("recorded")
    run.close()
    parts_of(agent).dispatcher.run = parts_of(agent).dispatcher.statistics.run = RUN
    return agent


def record():
    """Return the lines of the transcript, and the client's results."""
    session.named_process = lambda: "somebody@somewhere, pid 1"
    agent, lines = agent_in_memory(), []
    run = Run(Tape(parts_of(agent).connection, lines), run=RUN)

    def happen(line):
        lines.append("! " + line)
        happens(agent, line)

    def sent(kind):
        tag = encode_tag(kind)
        deadline = time.monotonic() + 60
        while not any(line.startswith("> ") and tag in line for line in lines[-3:]):
            assert time.monotonic() < deadline
            time.sleep(0.001)

    return lines, converse(run, happen, sent)


def encode_tag(kind):
    """Return the tag of a type of message, as it stands in a line."""
    return kind.__struct_config__.tag.encode().hex()


if __name__ == "__main__":
    folder = PLACE / ".".join(map(str, m.VERSION))
    folder.mkdir(exist_ok=True)
    lines, made = record()
    (folder / "conversation.txt").write_text("\n".join(lines) + "\n")
    (folder / "outcome.json").write_text(json.dumps(made, indent=1) + "\n")
    sys.stdout.write(f"{len(lines)} lines in {folder}\n")
