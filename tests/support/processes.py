"""The fixture of tests that start processes, and the tiers that follow from it.

A test that starts a process without the fixture fails. `make test` runs the tests without it, but for those of
benchmarks and those that are marked as long, and those that are marked with a promise of docs/safety.md;
`make test-all` runs the rest.
"""

from __future__ import annotations

import multiprocessing.util
import os
import sys
from typing import Any

import pytest

STARTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.spawn", "os.system"})
"""The audit events of a start; `warm` raises the first for its programs."""

_HERE = os.getpid()
_item: pytest.Item | None = None
_started: list[str] = []


@pytest.fixture(scope="session")
def processes() -> None:
    """Mark a test, or a fixture, as one that starts processes."""


def starts_processes(item: pytest.Item) -> bool:
    """Return True for a user of the fixture `processes`, and for a long count."""
    return "processes" in getattr(item, "fixturenames", ()) or item.get_closest_marker("soak") is not None


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark a test with its tier."""
    if not item.get_closest_marker("soak"):
        quick = not starts_processes(item) and "benchmarks" not in item.path.parts
        first = item.get_closest_marker("promise") or (quick and not item.get_closest_marker("long"))
        item.add_marker("tier1" if first else "tier2")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Any:
    """Watch what a test without the fixture starts."""
    global _item
    _item = None if starts_processes(item) else item
    _started.clear()
    try:
        return (yield)
    finally:
        _item = None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Any:
    """Fail a test that has started a process where its error was swallowed."""
    done = yield
    if _started:
        pytest.fail(f"a test without the fixture `processes` starts one: {_started[0]}", pytrace=False)
    return done


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if event in STARTS and _item is not None and os.getpid() == _HERE:
        _started.append(f"{event}{arguments[:2]!r}"[:300])
        pytest.fail(f"this starts a process ({event}): use the fixture `processes`")


def _audited(start: Any) -> Any:
    def audited(path: Any, *arguments: Any) -> Any:
        sys.audit("os.posix_spawn", path, *arguments)
        return start(path, *arguments)

    return audited


def pytest_collection_finish() -> None:
    """Refuse a start of a process to tests without the fixture, from now on."""
    multiprocessing.util.spawnv_passfds = _audited(multiprocessing.util.spawnv_passfds)  # raises no event itself
    sys.addaudithook(_watch)
