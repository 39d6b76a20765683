"""Scripts under looptap: what they print, and the values of queries."""

import json
import sys
from functools import cache

import warm
from places import TESTS

SCRIPTS = TESTS / "trainers" / "scripts"


def ran(*command):
    """Run Python; return what it printed."""
    done = warm.run([sys.executable, *map(str, command)], capture_output=True, text=True, cwd=TESTS)
    assert done.returncode == 0, done.stderr
    return done


@cache
def plain(script):
    """Return what a script prints without looptap."""
    return ran(SCRIPTS / f"{script}.py").stdout.splitlines()


class Observed:
    """A script under looptap: what it printed, and the values of each query."""

    def __init__(self, script, queries, after=0, budget=""):
        asked = json.dumps([query if isinstance(query, tuple) else (query, "step") for query in queries])
        done = ran(TESTS / "support" / "observed.py", SCRIPTS / f"{script}.py", asked, after, budget)
        *self.lines, last = done.stdout.splitlines()
        found = json.loads(last)
        self.values = [stream["values"] for stream in found["streams"]]
        self.numbers = [stream["events"] for stream in found["streams"]]
        self.failures = [(stream["errors"], stream["reason"]) for stream in found["streams"]]
        self.said = [" ".join([one["said"], one["reason"], *one["notes"]]) for one in found["streams"]]
        self.withheld = [stream["withheld"] for stream in found["streams"]]
        self.events, self.stderr, self.searched = found["events"], done.stderr, found["searched"]
        """``searched``: at how many events names were searched for."""

    def printed(self, word="step"):
        """Return the words of each printed line that begins with ``word``."""
        return [line.split()[1:] for line in self.lines if line.split()[0] == word]


@cache
def observed(script, *queries, after=0, budget=""):
    """Run a script with queries at its steps, or at other events: (query, event).

    They are asked ``after`` so many steps of optimizers, and share a ``budget`` if there is one.
    """
    return Observed(script, queries, after, budget)
