"""`QuerySpec.unsafe` reaches the pipeline of each form of a query."""

from __future__ import annotations

import pytest

from looptap.streams.language.compiler import QuerySpec, compile_query

FORMS = [
    "loss",
    "mean(e.loss for e in events)",
    "(e.loss for e in events)",
    "def f(e):\n    return e.loss",
    "lambda e: e.loss",
]


@pytest.mark.parametrize("query", FORMS)
@pytest.mark.parametrize("unsafe", [True, False])
def test_the_pipeline_of_each_form_knows_whether_it_is_unsafe(query: str, unsafe: bool) -> None:
    assert compile_query(QuerySpec(query, unsafe=unsafe)).unsafe is unsafe


def test_a_query_is_not_unsafe_unless_it_is_said() -> None:
    assert not compile_query(QuerySpec("loss")).unsafe
