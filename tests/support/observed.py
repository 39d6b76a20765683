"""Run a script with looptap's hooks and an agent in memory; print its streams.

`python observed.py SCRIPT QUERIES [AFTER [BUDGET]]`: QUERIES is JSON, a list of [query, type of events]. They are asked
after so many steps of optimizers; they share a BUDGET, or nothing limits them. The last line of the output is JSON: the
values of each query with the numbers of their events, its errors, the counts of events, and of how many of them names
were searched for.
"""

import json
import sys
import types
from pathlib import Path

import torch  # noqa: F401 - the hooks are placed in it

from looptap.agent.loop import overhead_budget
from looptap.integrations.auto.frameworks import watch_frameworks
from looptap.integrations.auto.hooks import script_agent
from looptap.integrations.auto.hooks.run_events import RunEvents
from looptap.integrations.auto.hooks.torch_hooks import place_hooks
from looptap.integrations.auto.sight.found_names import ScriptNames
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


class CountedNames(ScriptNames):
    """Names of an event, counted."""

    count = 0

    def __init__(self, *how):
        super().__init__(*how)
        CountedNames.count += 1


def main(script, queries, after=0, budget=None):
    agent, run = pair("observed", groups=("step", "epoch"), budget=float(budget or "inf"))
    streams = []
    script_agent.ScriptNames = CountedNames
    overhead_budget.COLD_CACHE_ALLOWANCE_SECONDS = 1.0  # a busy machine takes none for expensive

    def ask():
        grant = None if budget else float("inf")
        streams.extend([run.stream(query, on=on, budget=grant) for query, on in queries])

    events = LateQuestions(agent, ask, after)
    place_hooks(events)
    watch_frameworks(events)
    sys.argv = [script]
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    module.__file__ = script
    exec(compile(Path(script).read_text(), script, "exec"), vars(module))
    withheld = {one.name: one.withheld for one in run.agent_stats().queries}
    agent.close()
    found = [
        {
            "values": [plain(value) for value in stream.values],
            "events": [record.event for record in stream.records],
            "errors": stream.error_count,
            "withheld": withheld.get(stream.name, 0),
            "reason": stream.reason,
            "notes": stream.notes,
            "said": stream.traceback,
        }
        for stream in streams
    ]
    counts = {name: source.number for name, source in parts_of(agent).sources.types() if source.number}
    print(json.dumps({"streams": found, "events": counts, "searched": CountedNames.count}))


def plain(value):
    if isinstance(value, tuple):
        return [plain(one) for one in value]
    if hasattr(value, "tolist"):
        return value.tolist()
    return value if isinstance(value, int | float | str) else str(value)


main(sys.argv[1], json.loads(sys.argv[2]), *map(int, sys.argv[3:4]), *sys.argv[4:])
