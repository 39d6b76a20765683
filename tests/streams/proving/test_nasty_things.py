"""Questions about objects that run code when used: answered without, or refused."""

from __future__ import annotations

import re
from pathlib import Path

import nasty_things
import pytest
from guarded_jobs import ask
from nasty_things import RUNS, state, things

from looptap.streams.errors import QueryError

QUESTIONS = (Path(nasty_things.__file__).parent / "nasty_questions.txt").read_text().splitlines()


@pytest.mark.filterwarnings("ignore")  # what numpy and torch say about odd questions is not ours
@pytest.mark.parametrize("query", QUESTIONS)
def test_no_question_runs_code_of_the_job_unchecked_or_changes_its_objects(query):
    own = things()
    named = {name: thing for name, thing in own.items() if re.search(rf"\b{name}\b", query)}
    before = state(own)
    RUNS.clear()
    try:
        said = ask(query, **named).traceback or ""
    except QueryError as error:  # at once, since the function is unknown
        said = str(error)
    runs, after = RUNS[:], state(own)
    assert runs == []
    assert {name: (before[name], after[name]) for name in after if before[name] != after[name] and name != "runs"} == {}
    assert "RecursionError" not in said
    assert "Refused" not in said or "unsafe=True" in said
