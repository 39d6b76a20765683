"""Mutation tests (`make mutants`): their faults, tests and modules."""

from __future__ import annotations

import ast
import importlib.util
import sys

import pytest
from places import TESTS

SOURCE = '''
"""A module."""

def found(a: int, b: int) -> int:
    """A function."""
    if a < b and not b:
        raise ValueError(f"{a + b} is too much")
    a = max(a, 3)
    return a * b
'''


@pytest.fixture(scope="module")
def mutate():
    spec = importlib.util.spec_from_file_location("mutate", TESTS / "mutants" / "mutate.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutate"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["mutate"]


def test_each_fault_changes_one_thing_but_no_text_or_type(mutate):
    made = {fault.what: fault.text for fault in mutate.faults("a.py", SOURCE)}
    whole = ast.unparse(ast.parse(SOURCE))
    lines = {
        what: [now for now, before in zip(text.splitlines(), whole.splitlines(), strict=True) if now != before]
        for what, text in made.items()
    }
    assert all(len(changed) == 1 for changed in lines.values())
    assert {changed[0].strip() for changed in lines.values()} == {
        "if True:", "if False:", "if a < b or not b:", "if a <= b and (not b):", "if not b:", "if a < b:",
        "if a < b and b:", "pass", "a = min(a, 3)", "a = max(a, 4)", "return a + b", "return None",
    }  # fmt: skip


def test_named_modules_tests_and_allowed_faults_exist(mutate):
    missing = [name for name in mutate.TESTS if not (mutate.PACKAGE / name).is_file()]
    missing += [name for names in mutate.TESTS.values() for name in names.split() if len(mutate.named(name)) != 1]
    assert missing == []
    allowed = mutate.allowed()
    modules = {name.partition(":")[0] for name in allowed}
    known = set().union(*(mutate.names(module, (mutate.PACKAGE / module).read_text()) for module in modules))
    assert [name for name in allowed if name not in known] == []
    assert all(allowed.values())
