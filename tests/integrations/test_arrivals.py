"""Waiting for a module to be imported."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from looptap.integrations.arrivals import Arrivals, once_imported


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """Two modules that are not imported yet."""
    for name in ("lt_one", "lt_two"):
        (tmp_path / f"{name}.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "lt_one", "lt_two"
    for name in ("lt_one", "lt_two"):
        sys.modules.pop(name, None)


def hooks():
    return [one for one in sys.meta_path if isinstance(one, Arrivals)]


def test_a_search_imports_nothing_and_the_call_still_follows_the_import(fresh):
    came = []
    before = hooks()
    for name in fresh:
        once_imported(name, lambda module: came.append(module.__name__))
    for name in fresh:
        assert importlib.util.find_spec(name).origin.endswith(f"{name}.py")
    assert came == []
    import lt_one
    import lt_two

    assert came == [*fresh]
    assert (lt_one.value, lt_two.value) == (1, 1)
    assert type(lt_one.__loader__).__module__ == "_frozen_importlib_external"
    assert hooks() == before
    once_imported("lt_one", came.append)
    assert came[-1] is lt_one
