"""Mutation tests: a module gets one of many small faults; its tests must fail.

`make mutants`, or `make mutants MODULES="agent/handoff/value_ring.py store/writer.py"`. Everything happens on copies of
the tree in a temporary directory. Of each module up to ``--most`` faults are tried, the same ones each time; those that
no test notices are listed, with their line. `allowed.txt` names those that make no observable difference.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TypeAlias

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "looptap"
ALLOWED = Path(__file__).with_name("allowed.txt")
TESTS = {
    "agent/control/rank_consensus.py": "test_rank_consensus.py test_cancelling.py",
    "agent/loop/overhead_budget.py": "test_budget.py",
    "agent/control/command.py": "test_controls.py test_cancelling.py test_rank_consensus.py test_interrupts.py",
    "agent/control/command_log.py": "test_command_log.py test_controls.py test_cancelling.py test_rank_consensus.py",
    "agent/server/exporter.py": "test_exporter.py test_delivery.py test_back_off.py test_queries.py "
    "test_declared_streams.py",
    "agent/handoff/value_ring.py": "test_delivery.py test_queries.py test_declared_streams.py test_stream.py "
    "test_hand_over.py",
    "agent/server/access_grants.py": "test_sharing.py",
    "agent/io/authenticator.py": "test_wire_access.py test_sharing.py",
    "client/ranks/window_assembler.py": "test_window_assembler.py test_merging.py",
    "protocol/values/tensors.py": "test_codec.py test_bounds_of_values.py",
    "protocol/values/packing.py": "test_codec.py test_bounds_of_values.py",
    "protocol/values/unpacking.py": "test_codec.py test_bounds_of_values.py",
    "protocol/files/connection.py": "test_wire_files.py test_prepared_files.py test_advertisement.py",
    "protocol/values/footprint.py": "test_bounds_of_values.py",
    "protocol/keys.py": "test_wire_files.py test_wire_access.py",
    "protocol/files/regular_files.py": "test_prepared_files.py",
    "protocol/roles.py": "test_wire_access.py test_sharing.py",
    "store/layout/database.py": "test_prepared_files.py test_store_reader.py",
    "store/paged_buffer.py": "test_store_reader.py test_prepared_files.py test_store_export.py",
    "store/reader.py": "test_prepared_files.py test_store_reader.py",
    "store/layout/schema.py": "test_prepared_files.py test_store_reader.py",
    "store/layout/written_file.py": "test_gone_files.py",
    "store/writer.py": "test_store_writer.py test_gone_files.py",
    "streams/stream/buffer.py": "test_stream.py test_store_reader.py test_window_assembler.py",
    "streams/aggregations/distributions.py": "test_reducers.py test_merging.py",
    "streams/stream/feed.py": "test_stream.py test_queries.py",
    "streams/aggregations/moments.py": "test_reducers.py test_merging.py",
    "streams/operators/windows.py": "test_language.py test_reducers.py test_merging.py test_queries.py",
}
"""Modules in which a silent fault would cost data or safety, and the names of the tests that would notice."""

Way: TypeAlias = list[tuple[str, int | None]]
"""The fields that lead from the top of a tree to a node, with the index in those that are lists."""

SLOWER, LEAST_SECONDS = 4.0, 30.0
"""A fault after which the tests take so many times as long as without, and so many seconds more, was noticed."""


@dataclass(frozen=True)
class Fault:
    """One change of a module: its index and position there, and the new text."""

    module: str
    line: int
    what: str
    text: str

    @property
    def name(self) -> str:
        """The name in `allowed.txt`, which does not depend on the line."""
        return f"{self.module}: {self.what}"


# ---------------------------------------------------------------- making faults

_OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult, ast.Mod: ast.Add,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift, ast.Lt: ast.LtE, ast.LtE: ast.Lt,
    ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
_UNTOLD = ("annotation", "returns", "decorator_list", "bases")
_SILENT = (ast.Assign, ast.AugAssign, ast.Expr, ast.Raise, ast.Delete)


def faults(module: str, source: str) -> list[Fault]:
    """Yield every fault of a module, in the order of its lines."""
    tree = ast.parse(source)
    found = []
    for what, line, path, change in _places(tree):
        changed = copy.deepcopy(tree)
        _replace(changed, path, change)
        found.append(Fault(module, line, what, ast.unparse(changed)))
    return found


def names(module: str, source: str) -> set[str]:
    """Return the names in `allowed.txt` of a module's faults."""
    return {Fault(module, line, what, "").name for what, line, _, _ in _places(ast.parse(source))}


def _places(tree: ast.AST) -> Iterator[tuple[str, int, Way, Callable[[ast.AST], ast.AST]]]:
    """Yield the faults of a tree: name, line, path to the node, and the change."""
    named = Counter[str]()
    for path, node, inside in _nodes(tree):
        changes = list(_changes(node))
        begun, before = (ast.unparse(each).partition("\n")[0][:100] if changes else "" for each in (inside, node))
        for what, change in changes:
            name = f"{before} → {what}" if begun == before else f"{begun}: {before} → {what}"
            named[name] += 1
            name += f" ({named[name]})" if named[name] > 1 else ""
            yield name, getattr(node, "lineno", 0), path, change


def _nodes(tree: ast.AST) -> Iterator[tuple[Way, ast.AST, ast.AST]]:
    """Yield the nodes that may be changed, but no texts, types or messages."""

    def walk(node: ast.AST, path: Way, inside: ast.AST) -> Iterator[tuple[Way, ast.AST, ast.AST]]:
        for name, value in ast.iter_fields(node):
            if name in _UNTOLD or isinstance(node, ast.JoinedStr | ast.Raise):
                continue
            for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
                if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                    continue
                if isinstance(child, ast.AST):
                    statement = child if isinstance(child, ast.stmt) else inside
                    yield [*path, (name, index)], child, statement
                    yield from walk(child, [*path, (name, index)], statement)

    yield from walk(tree, [], tree)


def _changes(node: ast.AST) -> Iterator[tuple[str, Callable[[ast.AST], ast.AST]]]:
    """Yield the faults of a node: the name and the change."""
    if isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign) and type(node.op) in _OPERATORS:
        other = _OPERATORS[type(node.op)]
        yield other.__name__, lambda new: _set(new, op=other())
    if isinstance(node, ast.BoolOp):
        for index in range(len(node.values)):
            yield f"without part {index + 1}", lambda new, index=index: _without(new, index)
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _OPERATORS:
        other = _OPERATORS[type(node.ops[0])]
        yield other.__name__, lambda new: _set(new, ops=[other(), *new.ops[1:]])
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        for value in (True, False) if not isinstance(node, ast.While) else (False,):
            yield f"if {value}", lambda new, value=value: _set(new, test=ast.Constant(value))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "without not", lambda new: new.operand
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield f"{node.value + 1!r}", lambda new: ast.Constant(new.value + 1)
    if isinstance(node, ast.Constant) and type(node.value) is bool:
        yield f"{not node.value}", lambda new: ast.Constant(not new.value)
    if isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
        yield "return None", lambda new: ast.Return(ast.Constant(None))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("min", "max"):
        other_name = "max" if node.func.id == "min" else "min"
        yield other_name, lambda new: _set(new, func=ast.Name(other_name))
    if isinstance(node, _SILENT) and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
        yield "nothing", _nothing
    if isinstance(node, ast.Break | ast.Continue):
        yield "nothing", _nothing


def _nothing(node: ast.AST) -> ast.AST:
    return ast.Pass()


def _set(node: ast.AST, **fields: object) -> ast.AST:
    for name, value in fields.items():
        setattr(node, name, value)
    return node


def _without(node: ast.AST, index: int) -> ast.AST:
    assert isinstance(node, ast.BoolOp)
    left = node.values[:index] + node.values[index + 1 :]
    return left[0] if len(left) == 1 else _set(node, values=left)


def _replace(tree: ast.AST, path: Way, change: Callable[[ast.AST], ast.AST]) -> None:
    parent = tree
    for name, index in path[:-1]:
        value = getattr(parent, name)
        parent = value if index is None else value[index]
    name, index = path[-1]
    value = getattr(parent, name)
    if index is None:
        setattr(parent, name, ast.fix_missing_locations(change(value)))
    else:
        value[index] = ast.fix_missing_locations(change(value[index]))


# ---------------------------------------------------------------- trying them


_WARM = """
import os, signal, sys
for name in "torch numpy zmq msgspec pandas yaml typer rich cloudpickle".split():
    try:
        __import__(name)
    except ImportError:
        pass
for line in sys.stdin:
    if (pid := os.fork()) == 0:
        os.setsid()
        os.nice(10)
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
        import pytest
        os._exit(int(pytest.main(line.split())))
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
"""Runs pytest for each line of arguments, in a fork of a process that has imported all that is large."""


class Tree:
    """A copy of the tree in which one fault at a time is tried."""

    def __init__(self, place: Path, tiers: list[str]) -> None:
        self.place, self._tiers = place, tiers
        listed = ["git", "ls-files", "-co", "--exclude-standard"]
        for name in subprocess.run(listed, cwd=ROOT, capture_output=True, text=True).stdout.splitlines():
            source, target = ROOT / name, place / name
            if source.is_symlink() or source.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target, follow_symlinks=False)
        environment = {**os.environ, "PYTHONPATH": str(place / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        environment["HYPOTHESIS_STORAGE_DIRECTORY"] = str(place / ".hypothesis")
        self._environment = environment
        self._start()

    def _start(self) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-c", _WARM], cwd=self.place, env=self._environment, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def passes(self, tests: list[str], seconds: float) -> bool:
        """Return True if the tests pass here within ``seconds``."""
        asks, says = self._child.stdin, self._child.stdout
        assert asks is not None
        assert says is not None
        asks.write(f"-n 0 -x -q -p no:cacheprovider {' '.join([*self._tiers, *tests])}\n")
        asks.flush()
        group = int(says.readline())
        alarm = threading.Timer(seconds, _kill, [group])
        alarm.start()
        code = says.readline()
        alarm.cancel()
        _kill(group)  # with whatever the tests have started
        if not code:  # a fault that takes all memory may end this one, too
            self.close()
            self._start()
        return code == "0\n"

    def close(self) -> None:
        """End the process."""
        self._child.communicate()

    def notices(self, fault: Fault, tests: list[str], seconds: float) -> bool:
        """Return True if a test fails with the fault in place."""
        path = self.place / PACKAGE.relative_to(ROOT) / fault.module
        before = path.read_text()
        path.write_text(fault.text)
        try:
            return not self.passes(tests, seconds)
        finally:
            path.write_text(before)


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def allowed() -> dict[str, str]:
    """Return the faults that make no observable difference, with reasons."""
    lines = [line for line in ALLOWED.read_text().splitlines() if line and not line.startswith("#")]
    return {name.strip(): why.strip() for name, _, why in (line.rpartition(" | ") for line in lines)}


def named(test: str) -> list[str]:
    """Return the paths in the tree of the tests of this name."""
    return [str(path.relative_to(ROOT)) for path in sorted((ROOT / "tests").rglob(test))]


def tried(module: str, most: int) -> list[Fault]:
    """Return the faults of a module to try: all, or the same ``most`` each time."""
    known = allowed()
    found = [fault for fault in faults(module, (PACKAGE / module).read_text()) if fault.name not in known]
    if len(found) > most:
        found = sorted(random.Random(module).sample(found, most), key=lambda fault: fault.line)
    return found


def main() -> int:
    """Try the faults and print those that no test noticed; return 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="*", help="such as agent/handoff/value_ring.py; by default all")
    parser.add_argument("--most", type=int, default=40, help="faults of a module")
    parser.add_argument("--jobs", type=int, default=2, help="faults at a time")
    parser.add_argument("--minutes", type=float, default=600.0, help="after which no more faults are tried")
    parser.add_argument("--all", action="store_true", help="run also the tests that are no part of `make test`")
    options = parser.parse_args()
    if unknown := set(options.modules) - TESTS.keys():
        parser.error(f"no tests are named for {', '.join(sorted(unknown))}; there are {', '.join(TESTS)}")
    end = time.monotonic() + 60 * options.minutes
    left, rows = [], []
    with tempfile.TemporaryDirectory(prefix="looptap-mutants-") as folder:
        tiers = [] if options.all else ["-m", "tier1"]
        trees = [Tree(Path(folder) / str(number), tiers) for number in range(options.jobs)]
        for module in options.modules or TESTS:
            tests = [file for name in TESTS[module].split() for file in named(name)]
            begun = time.monotonic()
            if not trees[0].passes(tests, 900.0):
                print(f"{module}: its tests fail without a fault", flush=True)
                left.append(Fault(module, 0, "nothing", ""))
                continue
            seconds = SLOWER * (time.monotonic() - begun) + LEAST_SECONDS
            found = tried(module, options.most)
            judged = _judge(trees, found, tests, seconds, end)
            survivors = [fault for fault, noticed in judged if not noticed]
            left += survivors
            rows.append((module, len(judged), len(judged) - len(survivors)))
            share = 100 * rows[-1][2] / max(1, len(judged))
            print(f"{module}: {rows[-1][2]} of {len(judged)} noticed, {share:.0f}%", flush=True)
            for fault in survivors:
                print(f"  line {fault.line}: {fault.what}", flush=True)
        for tree in trees:
            tree.close()
    tried_in_all, noticed_in_all = sum(row[1] for row in rows), sum(row[2] for row in rows)
    print("\n| module | faults | noticed |\n|---|---|---|\n" + "\n".join(f"| {m} | {t} | {n} |" for m, t, n in rows))
    print(f"| all | {tried_in_all} | {noticed_in_all} |")
    return int(bool(left))


def _judge(
    trees: list[Tree], found: list[Fault], tests: list[str], seconds: float, end: float
) -> list[tuple[Fault, bool]]:
    """Return whether each fault was noticed; each of ``trees`` tries one at a time."""
    waiting: SimpleQueue[Fault] = SimpleQueue()
    for fault in found:
        waiting.put(fault)
    judged: dict[Fault, bool] = {}

    def work(tree: Tree) -> None:
        while time.monotonic() < end:
            try:
                fault = waiting.get_nowait()
            except Empty:
                return
            judged[fault] = tree.notices(fault, tests, seconds)
            if sys.stderr.isatty():
                print(f"\r{fault.module}: {len(judged)} of {len(found)} ", end="", file=sys.stderr, flush=True)

    threads = [threading.Thread(target=work, args=(tree,)) for tree in trees]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [(fault, judged[fault]) for fault in found if fault in judged]


if __name__ == "__main__":
    sys.exit(main())
