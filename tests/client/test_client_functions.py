"""Functions as queries: pickled with closures, or sent as source text."""

from __future__ import annotations

import importlib
import math
import pickle
import sys
import textwrap
import threading

import numpy as np
import pytest

from looptap.client.streams.code import code_of, portable_source, query_name
from looptap.integrations.tee.bars import outer_bar
from looptap.streams.errors import QueryError
from looptap.streams.language.compiler import QuerySpec, compile_query

FACTOR = 3


def doubled(e):
    return e.loss * 2


def helped(e):
    return doubled(e) + 1


def unpickled(code):
    """Return what the job makes of the code."""
    return pickle.loads(code.pickled)


class Event:
    loss = 4.0


def test_text_is_sent_unchanged():
    code = code_of("step, loss")
    assert (code.text, code.pickled) == ("step, loss", b"")


def test_a_function_says_which_python_pickled_it():
    assert code_of(doubled).python == sys.version_info[:2]


def test_a_lambda_works_in_the_job_as_in_the_client():
    assert unpickled(code_of(lambda e: e.loss + 1))(Event) == 5.0


def test_a_function_brings_its_closure_and_its_globals():
    offset = 10
    assert unpickled(code_of(lambda e: e.loss * FACTOR + offset))(Event) == 22.0
    assert unpickled(code_of(lambda e, by=7: e.loss * by))(Event) == 28.0


@pytest.mark.parametrize("value", [None, 3, ["loss"], object])
def test_a_query_that_is_neither_text_nor_function_is_refused(value):
    if callable(value):
        assert code_of(value).pickled
    else:
        with pytest.raises(QueryError, match=r"text or a function, not an? "):
            code_of(value)


def test_an_object_that_cannot_be_pickled_is_named():
    lock = threading.Lock()
    with pytest.raises(QueryError, match=r"cannot travel .*lock"):
        code_of(lambda e: lock.locked())


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """Import a module of the user's own, which the job does not have."""
    source = """
        import math
        def inner(x):
            return math.sqrt(x)
        class Scale:
            by = 10
        def outer(e):
            return inner(e.loss) * Scale.by
        """
    (tmp_path / "users_own.py").write_text(textwrap.dedent(source))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("users_own")
    sys.modules.pop("users_own", None)


def test_functions_of_the_users_own_modules_are_sent_by_value(own_module):
    outer, local = own_module.outer, code_of(lambda e: own_module.__name__)
    direct, wrapped = code_of(outer), code_of(lambda e: outer(e) + 1)
    del sys.modules["users_own"]
    sys.path_importer_cache.clear()
    sys.path[:] = [place for place in sys.path if "own_module" not in place]
    assert unpickled(direct)(Event) == 20.0
    assert unpickled(wrapped)(Event) == 21.0
    assert local.pickled


def test_functions_of_installed_packages_are_sent_by_name():
    assert len(code_of(np.linalg.norm).pickled) < 200
    assert unpickled(code_of(math.sqrt)) is math.sqrt


def test_a_function_sees_the_names_of_the_language_without_importing_them():
    code = code_of(lambda e: isnan(e.loss))  # noqa: F821 - a helper of the language
    assert unpickled(code)(Event) is False
    assert code.text == "lambda e: isnan(e.loss)"


# ---------------------------------------------------------------- as text


def test_a_lambda_is_cut_out_of_the_statement_around_it():
    pair = (lambda e: e.loss, lambda e: e.loss + 1)
    assert [portable_source(f) for f in pair] == ["lambda e: e.loss", "lambda e: e.loss + 1"]


def test_two_equal_lambdas_on_one_line_are_one_text():
    pair = [lambda e: e.loss, lambda e: e.loss]
    assert portable_source(pair[1]) == "lambda e: e.loss"


def test_a_function_is_its_source():
    def twice(e):
        """Twice."""
        return e.loss * 2

    text = portable_source(twice)
    assert text.startswith("def twice(e):\n    ")
    assert compile_query(QuerySpec(text)).push(Event)[0] == (0, 8.0)


def test_a_lambda_over_several_lines_is_its_source():
    f = lambda e: (  # noqa: E731 - a lambda is what is tested
        e.loss + 1
    )
    assert compile_query(QuerySpec(portable_source(f))).push(Event)[0] == (0, 5.0)


def needs_closure():
    offset = 1
    return lambda e: e.loss + offset


@pytest.mark.parametrize(
    "function",
    [needs_closure(), helped, lambda e: e.loss * FACTOR, lambda e, by=2: e.loss * by, math.sqrt, len],
    ids=["closure", "own function", "own constant", "default", "builtin", "C"],
)
def test_a_function_with_outside_references_has_no_source_text(function):
    assert portable_source(function) is None


def test_a_name_that_means_the_same_on_both_sides_needs_nothing():
    assert portable_source(lambda e: np.sqrt(e.loss) + math.pi) == "lambda e: np.sqrt(e.loss) + math.pi"


def test_a_function_without_source_has_no_text():
    assert portable_source(eval("lambda e: e.loss")) is None


def test_the_source_of_a_function_changed_in_the_file_is_not_used(own_module, tmp_path):
    (tmp_path / "users_own.py").write_text("def inner(x):\n    return 0\n" * 3)
    assert portable_source(own_module.inner) is None


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("step,\n   loss", "step, loss"),
        (doubled, "doubled"),
        (lambda e: e.loss, "lambda e: e.loss"),
        (math.sqrt, "sqrt"),
    ],
)
def test_a_query_is_named_after_its_text_or_function(code, name):
    assert query_name(code) == name


def test_a_function_of_looptap_itself_is_the_one_that_the_job_has():
    assert unpickled(code_of(outer_bar)) is outer_bar
