"""Run a script with looptap's hooks and an agent in memory; print its streams.

`python observed.py SCRIPT QUERIES [AFTER]`: QUERIES is JSON, a list of [query, type of events]. They are asked after so
many steps of optimizers. The last line of the output is JSON: the values of each query with the numbers of their
events, its errors, and the counts of events.
"""

import json
import sys
import types
from pathlib import Path

import torch  # noqa: F401 - the hooks are placed in it

from looptap.integrations.auto.frameworks import watch_frameworks
from looptap.integrations.auto.hooks.run_events import RunEvents
from looptap.integrations.auto.hooks.torch_hooks import place_hooks
from looptap.testing import pair, parts_of


class LateQuestions(RunEvents):
    """Asks after so many steps of optimizers, in the training thread."""

    def __init__(self, agent, ask, after):
        super().__init__(lambda: agent)
        self._ask, self._left = ask, after
        self._count()

    def after_step(self, optimizer):
        super().after_step(optimizer)
        self._count()

    def _count(self):
        if not self._left:
            self._ask()
        self._left -= 1


def main(script, queries, after):
    agent, run = pair("observed", groups=("step", "epoch"))
    streams = []

    def ask():
        streams.extend([run.stream(query, on=on, budget=float("inf")) for query, on in queries])

    events = LateQuestions(agent, ask, after)
    place_hooks(events)
    watch_frameworks(events)
    sys.argv = [script]
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    module.__file__ = script
    exec(compile(Path(script).read_text(), script, "exec"), vars(module))
    agent.close()
    found = [
        {
            "values": [plain(value) for value in stream.values],
            "events": [record.event for record in stream.records],
            "errors": stream.error_count,
            "reason": stream.reason,
            "notes": stream.notes,
            "said": stream.traceback,
        }
        for stream in streams
    ]
    counts = {name: source.number for name, source in parts_of(agent).sources.types() if source.number}
    print(json.dumps({"streams": found, "events": counts}))


def plain(value):
    if isinstance(value, tuple):
        return [plain(one) for one in value]
    if hasattr(value, "tolist"):
        return value.tolist()
    return value if isinstance(value, int | float | str) else str(value)


main(sys.argv[1], json.loads(sys.argv[2]), int(*sys.argv[3:]))
