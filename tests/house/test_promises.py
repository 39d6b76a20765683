"""Each promise of docs/safety.md is shown by `make test`."""

import ast
import functools
import re
from collections import defaultdict

from places import ROOT, SUPPORT, TESTS
from trees import tree_of

FILES = [path for path in sorted(TESTS.rglob("test_*.py")) if "soak" not in path.parts]
ROW = re.compile(r"\| ([^|`]+) \| .* \| ([^|]*`[^|]+) \| [^|]* \|")


@functools.cache
def trees():
    """Return the syntax tree of each file of tests."""
    return {str(path.relative_to(TESTS)): tree_of(path) for path in FILES}


@functools.cache
def shared():
    """Return the syntax trees of what tests share."""
    return [tree_of(path) for path in (*TESTS.rglob("conftest.py"), *SUPPORT.glob("*.py"))]


def rows():
    """Yield the ids and the test files of each promise."""
    for line in (ROOT / "docs/safety.md").read_text().splitlines():
        if (row := ROW.fullmatch(line)) and row[1] not in ("id", "module"):
            yield row[1].split(", "), re.findall(r"`([\w/]+\.py)`", row[2])


def calls(tree, name):
    """Yield the texts that are passed to each ``pytest.mark.name(...)`` in a tree."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == f"pytest.mark.{name}":
            yield [ast.literal_eval(one) for one in node.args]


def functions(tree):
    """Yield each function at the top, and whether it is a fixture."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node, any("pytest.fixture" in ast.unparse(one) for one in node.decorator_list)


def named(function):
    """Return the fixtures that a function asks for."""
    return {one.arg for one in function.args.args} | {
        name for one in function.decorator_list for names in calls(one, "usefixtures") for name in names
    }


def in_first_tier(file):
    """Yield the names of a file's tests that start no process, or show a promise."""
    tree = trees()[file]
    fixtures = defaultdict(set)
    for one in (*shared(), tree):
        for function, is_fixture in functions(one):
            if is_fixture:
                fixtures[function.name] |= named(function)
    module = [one for one in tree.body if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "pytestmark"]
    of_all = {name for one in module for names in calls(one, "usefixtures") for name in names}
    for function, is_fixture in functions(tree):
        if function.name.startswith("test") and not is_fixture:
            needed, new = set(), named(function) | of_all
            while new := new - needed:
                needed |= new
                new = set().union(*(fixtures[name] for name in new))
            long = any(ast.unparse(one) == "pytest.mark.long" for one in function.decorator_list)
            if any(calls(function, "promise")) or not (long or "processes" in needed):
                yield function.name


def test_each_id_has_a_marked_test_and_each_mark_an_id():
    ids = {one for names, _ in rows() for one in names} - {"–"}
    marked = {one for tree in trees().values() for names in calls(tree, "promise") for one in names}
    assert len(ids) > 50
    assert marked == ids


def test_each_promise_has_a_test_in_the_first_tier():
    first = {file: list(in_first_tier(file)) for file in trees()}
    found = [(names, files) for names, listed in rows() if (files := [file for file in listed if file in trees()])]
    assert len(found) > 190
    assert [(names, files) for names, files in found if not any(first[file] for file in files)] == []


def test_a_mark_stands_in_a_file_that_its_promise_names():
    of_id = defaultdict(set)
    for names, files in rows():
        for name in names:
            of_id[name] |= set(files)
    misplaced = [
        (file, name)
        for file, tree in trees().items()
        for names in calls(tree, "promise")
        for name in names
        if file not in of_id[name]
    ]
    assert misplaced == []
