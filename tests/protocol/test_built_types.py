"""Types of msgspec: threads that meet one at once, and all types of the product."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest
from places import PACKAGE, ROOMS

TOGETHER = """
import sys, threading
import msgspec
from looptap.protocol.types.built_types import built

sys.setswitchinterval(1e-6)
part = {"a": 1, "b": ["x"], "c": {"k": 1}}
value = {"x": part, "y": [part], "z": {"k": part}}

def kind():
    class Part(msgspec.Struct):
        a: int
        b: list[str]
        c: dict[str, float]

    Part.__module__ = "__main__"
    globals()["Part"] = Part
    return msgspec.defstruct("Whole", [("x", Part), ("y", list[Part]), ("z", dict[str, Part])])

def meet(kind, ready):
    ready.wait()
    assert msgspec.convert(value, CHECKED(kind)).y[0].b == ["x"]

for _ in range(200):
    found, ready = kind(), threading.Barrier(4)
    threads = [threading.Thread(target=meet, args=(found, ready)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print("whole")
"""


def together(checked: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", TOGETHER.replace("CHECKED", checked)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.mark.usefixtures("processes")
def test_threads_that_meet_a_type_at_once():
    ended = together("built")
    assert (ended.returncode, ended.stdout) == (0, "whole\n"), ended.stderr


@pytest.mark.usefixtures("processes")
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="seen on Linux")
def test_it_is_needed():
    """Otherwise msgspec locks by itself, and `built` can go."""
    assert together("(lambda kind: kind)").returncode < 0


def types_named(source: str) -> list[tuple[int, str]]:
    """Return the line and the text of each type that a call passes to msgspec."""
    found = []
    for call in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)):
        function = ast.unparse(call.func)
        if not function.startswith("msgspec."):
            continue
        named = [word.value for word in call.keywords if word.arg == "type"]
        if function.endswith(".Decoder"):
            named += call.args[:1]
        elif function == "msgspec.convert" or function.endswith(".decode"):
            named += call.args[1:2]
        found += [(call.lineno, ast.unparse(kind)) for kind in named]
    return found


def test_every_type_is_built_first():
    named = {
        (path.relative_to(PACKAGE), line): kind
        for room in ROOMS
        for path in (PACKAGE / room).rglob("*.py")
        for line, kind in types_named(path.read_text())
        if path.name != "built_types.py"
    }
    assert len(named) > 15
    assert not {place: kind for place, kind in named.items() if not kind.startswith("built(")}
