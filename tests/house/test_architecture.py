"""Architecture rules: package sizes, no cycles, naming, threads by folder."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from places import PACKAGE, ROOMS, ROOT
from trees import tree_of

MAX_MODULES = 12
TRAINING_THREAD, IO_THREAD = "looptap.agent.loop", "looptap.agent.io"

UNITS = {
    *(
        "SECONDS",
        "MILLISECONDS",
        "BYTES",
        "PIXELS",
        "POINTS",
        "INCHES",
        "CHARACTERS",
        "LINES",
        "COLUMNS",
        "ROWS",
        "CELLS",
    ),
    *(
        "ITEMS",
        "VALUES",
        "EVENTS",
        "FRAMES",
        "MODULES",
        "COUNT",
        "COUNTS",
        "NUMBER",
        "NUMBERS",
        "SHARE",
        "FACTOR",
        "RATIO",
    ),
    *(
        "DIVISOR",
        "QUANTILES",
        "PRIOR",
        "POWER",
        "VERSION",
        "MAGNITUDE",
        "LIMIT",
        "DISTANCE",
        "HEIGHT",
        "THREADS",
        "STEPS",
    ),
    *(
        "SAMPLES",
        "ITERATIONS",
        "VARIANCE",
        "NOISE",
        "HYSTERESIS",
        "DISCOUNT",
        "CORRELATION",
        "BINS",
        "WEIGHT",
        "BATCHES",
    ),
    *(
        "TICKS",
        "SPREADS",
        "SPREAD",
        "PACES",
        "PERCENT",
        "OBSERVATIONS",
        "PROCESSOR",
        "WINDOWS",
        "START",
        "RECORDS",
        "TIMEOUTS",
    ),
}
"""Words of which one stands in the name of a constant that is a number; or it begins with MAX, MIN or DEFAULT."""

ENUMERATIONS = re.compile(
    r"^_?(PARTIAL|ERROR|TRIGGER|AGAIN|REPEATED|HISTORY|SCALARS|ROWS|PACKED|DONE|FAILED|MISTYPED|INTERRUPTED|VERSION"
    r"|TRAIN|VALIDATION|OTHER|VARINT|FIXED64|BYTES|FIXED32|MEASURE_NEXT)$"
)
"""Numbers that are no amounts: flags, exit codes, kinds."""


@cache
def modules() -> dict[str, Path]:
    """Return every module and package of the product by its dotted name."""
    found = {}
    for room in ROOMS:
        for path in sorted((PACKAGE / room).rglob("*.py")):
            parts = ["looptap", *path.relative_to(PACKAGE).with_suffix("").parts]
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def is_package(module: str) -> bool:
    return modules()[module].name == "__init__.py"


def package_of(module: str) -> str:
    """Return the package of the module, or the module itself directly in a room."""
    if is_package(module):
        return module
    package = module.rpartition(".")[0]
    return package if package.count(".") > 1 else module


@cache
def imports() -> dict[str, dict[str, int]]:
    """Return each module's imports of ours with lines, lazy and type-only ones too."""

    def reached(path: Path) -> Iterator[tuple[str, int]]:
        for node in ast.walk(tree_of(path)):
            match node:
                case ast.Import():
                    yield from ((alias.name, node.lineno) for alias in node.names if alias.name in modules())
                case ast.ImportFrom(module=str(module), level=0):
                    for alias in node.names:
                        full = f"{module}.{alias.name}"
                        yield (full if full in modules() else module), node.lineno
                case ast.Call(args=[ast.Constant(value=str(name)), *_]):
                    if getattr(node.func, "id", getattr(node.func, "attr", "")) == "import_module":
                        yield name, node.lineno

    return {
        module: {target: line for target, line in reached(path) if target in modules() and target != module}
        for module, path in modules().items()
    }


def knots(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected parts of more than one node (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in sorted(graph.get(node, ())):
            if target not in index:
                visit(target)
            if target in stack:
                low[node] = min(low[node], low[target])
        if low[node] == index[node]:
            part = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(part) > 1:
                found.append(sorted(part))

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10_000)
    try:
        for node in sorted(graph):
            if node not in index:
                visit(node)
    finally:
        sys.setrecursionlimit(limit)
    return found


def located(path: Path, line: int, text: str) -> str:
    return f"{path.relative_to(ROOT)}:{line}: {text}"


# ---------------------------------------------------------------- packages and arrows


def test_a_package_has_at_most_twelve_modules():
    sizes: dict[str, int] = defaultdict(int)
    for module in modules():
        if not is_package(module) and not module.endswith("__main__"):
            sizes[module.rpartition(".")[0]] += 1
    assert {package: size for package, size in sizes.items() if size > MAX_MODULES} == {}


def test_a_package_says_its_one_idea_in_a_line():
    first = {
        module: (ast.get_docstring(tree_of(path)) or "").partition("\n")[0]
        for module, path in modules().items()
        if is_package(module)
    }
    assert [module for module, line in first.items() if not line.endswith(".") or len(line) > 117] == []


def test_no_module_imports_itself_by_way_of_others():
    graph = {module: set(targets) for module, targets in imports().items()}
    found = [
        located(modules()[module], imports()[module][target], f"{module} imports {target}")
        for part in knots(graph)
        for module in part
        for target in imports()[module]
        if target in part
    ]
    assert not found, "\n".join(["", *found])


@pytest.mark.parametrize("room", ROOMS)
def test_arrows_between_the_packages_of_a_room_run_one_way(room):
    graph: dict[str, set[str]] = defaultdict(set)
    where: dict[tuple[str, str], list[str]] = defaultdict(list)
    for module, targets in imports().items():
        for target, line in targets.items():
            here, there = package_of(module), package_of(target)
            inside = f"{module}.".startswith(f"looptap.{room}.") and f"{target}.".startswith(f"looptap.{room}.")
            if inside and here != there and not is_package(module):
                graph[here].add(there)
                where[here, there].append(located(modules()[module], line, f"{here} -> {there}"))
    found = [line for part in knots(graph) for here in part for there in part for line in where[here, there]]
    assert not found, "\n".join(["", *found])


def test_code_of_the_loop_and_of_the_io_thread_never_import_each_other():
    found = [
        located(modules()[module], line, f"imports {target}")
        for module, targets in imports().items()
        for target, line in targets.items()
        for here, there in ((TRAINING_THREAD, IO_THREAD), (IO_THREAD, TRAINING_THREAD))
        if f"{module}.".startswith(f"{here}.") and f"{target}.".startswith(f"{there}.")
    ]
    assert not found, "\n".join(["", *found])


# ---------------------------------------------------------------- names


def test_the_name_of_a_class_is_unique_in_the_product():
    places: dict[str, set[str]] = defaultdict(set)
    for path in modules().values():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                places[node.name].add(str(path.relative_to(ROOT)))
    assert {name: sorted(paths) for name, paths in places.items() if len(paths) > 1} == {}


@pytest.mark.parametrize("room", ROOMS)
def test_the_name_of_a_module_is_unique_in_its_room(room):
    places: dict[str, list[str]] = defaultdict(list)
    for module in modules():
        if module.startswith(f"looptap.{room}.") and not is_package(module):
            places[module.rpartition(".")[2]].append(module)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def is_amount(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=value):
            return isinstance(value, int | float) and not isinstance(value, bool)
        case ast.UnaryOp(operand=operand):
            return is_amount(operand)
        case ast.BinOp(left=left, right=right):
            return is_amount(left) and is_amount(right)
        case ast.Tuple(elts=elements):
            return bool(elements) and all(is_amount(one) and not isinstance(one, ast.Tuple) for one in elements)
    return False


def constants(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the module-level names in capitals that are numbers."""
    for node in tree_of(path).body:
        match node:
            case ast.Assign(targets=targets, value=value) if is_amount(value):
                names = [name for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
            case ast.AnnAssign(target=ast.Name() as name, value=value) if value is not None and is_amount(value):
                names = [name]
            case _:
                continue
        yield from ((name.id, node.lineno) for name in names if name.id.isupper())


def says_its_unit(name: str) -> bool:
    words = name.strip("_").split("_")
    return bool(
        ENUMERATIONS.match(name) or UNITS & set(words) or (len(words) > 1 and words[0] in ("MAX", "MIN", "DEFAULT"))
    )


def test_a_constant_says_what_it_is_and_in_which_unit():
    found = [
        located(path, line, name)
        for path in modules().values()
        for name, line in constants(path)
        if not says_its_unit(name)
    ]
    assert not found, "\n".join(["", *found])


@pytest.mark.parametrize(("name", "fine"), [
    ("RECONNECT_DELAY_SECONDS", True), ("MAX_PENDING_WINDOWS", True), ("PATIENCE", False), ("MOST", False),
    ("_LOOK", False), ("_TICK", False), ("GRACE", False), ("PARTIAL", True),
])  # fmt: skip
def test_names_of_constants_are_checked(name, fine):
    assert says_its_unit(name) == fine


# ---------------------------------------------------------------- privacy


def own_names(tree: ast.Module) -> set[str]:
    """Return the private names that this module makes: attributes, members, slots."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                found.add(node.name)
            case ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case ast.Attribute(attr=name, ctx=ast.Store(), value=ast.Name(id="self" | "cls")):
                found.add(name)
            case ast.Assign(targets=[ast.Name(id="__slots__")], value=value):
                found |= {const.value for const in ast.walk(value) if isinstance(const, ast.Constant)}
    return found


FOREIGN = re.compile(
    r"^_(asdict|fields|replace|make|version|modules|parameters|buffers|values|bit_generator|repr_\w+_)$"
)
"""Of the standard library's named tuples, of torch, of numpy, of IPython: not ours."""

EVENT = {"_number", "_source", "_time", "_dt", "_lazies"}
"""What an `Event` says of itself: its public names are the job's observables, so these stand behind an underscore."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__") and not FOREIGN.match(name)


@cache
def ours() -> frozenset[str]:
    """Return all private names that the product makes."""
    return frozenset(name for path in modules().values() for name in own_names(tree_of(path)) if is_private(name))


A_PRIVATE_NAME = re.compile(r"\._[a-z]|import \(?[\w\s,]*\b_[a-z]")
"""What a file without uses of private names does not have: after a dot, or imported."""


def private_uses(path: Path) -> Iterator[str]:
    """Yield private names of other modules that a module imports or uses after a dot."""
    if not A_PRIVATE_NAME.search(path.read_text()):
        return
    tree = tree_of(path)
    own = own_names(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                continue  # of a base class in another module: inheritance is no trespass
            case ast.Attribute(attr=name, value=value) if is_private(name) and name not in own and name in ours():
                if name in EVENT and ast.unparse(value) == "event":
                    continue
                yield located(path, node.lineno, f"{ast.unparse(value)[:60]}.{name}")
            case ast.ImportFrom(module=str(module), names=names) if module.startswith("looptap"):
                yield from (
                    located(path, node.lineno, f"from {module} import {alias.name}")
                    for alias in names
                    if is_private(alias.name)
                )


def test_no_private_name_of_another_module_is_used():
    found = [use for path in modules().values() for use in private_uses(path)]
    assert not found, "\n".join(["", *found])


MAX_PRIVATE_USES_IN_TESTS = 39
"""Places in tests and benchmarks, a third of them names of matplotlib or torch that look like ours."""


def test_tests_and_benchmarks_use_few_private_names_and_none_of_an_agent():
    """What an agent is made of is `looptap.testing.parts_of`."""
    paths = [path for folder in ("tests", "benchmarks") for path in sorted((ROOT / folder).rglob("*.py"))]
    found = [use for path in paths for use in private_uses(path)]
    assert len(found) <= MAX_PRIVATE_USES_IN_TESTS, "\n".join(["", *found])
    assert not [use for use in found if re.search(r"agent(s\[\d\])?\._", use)], "\n".join(["", *found])


# ---------------------------------------------------------------- sizes


@pytest.mark.usefixtures("processes")
def test_the_history_of_each_module_is_found_past_its_move():
    """`git log --follow` needs commits that move and little else."""
    try:
        log = subprocess.run(
            ["git", "rev-list", "--count", "HEAD"], capture_output=True, text=True, cwd=ROOT, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    if int(log.stdout) < 10:
        pytest.skip("a shallow checkout")
    path = modules()["looptap.agent.handoff.value_ring"]
    command = ["git", "log", "--follow", "--name-only", "--format=", "--", str(path)]
    names = set(subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout.split())
    assert "agent/outbox.py" in names
