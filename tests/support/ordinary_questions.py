"""What people ask about a job: drawn from a grammar, and found in files.

``python tests/support/ordinary_questions.py`` prints the table of docs/queries.md: the refused ones.
"""

from __future__ import annotations

import ast
import json
import random
import re
import shlex
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from documented import PAGES, ROOT, blocks
from ordinary_jobs import JOBS
from ordinary_terms import ANY, EVERYWHERE, NUMBER, TERMS

from looptap.streams.errors import QueryError
from looptap.streams.events import Event
from looptap.streams.harmless.refusal import RefusedQuery
from looptap.streams.language.compiler import QuerySpec, compile_query

COUNT = 300
"""Questions drawn from the grammar."""


MISREAD = re.compile("an operator on (builtin_function_or_method|function) ")
"""The reason where a name that the job lacks is a function of the language: ``max + 1``."""


class Answer(NamedTuple):
    """What became of a question about a job."""

    job: str
    question: str
    outcome: str
    """answered, refused, or failed: an error of the question's own."""
    reason: str


def drawn(seed: int = 0) -> list[tuple[str, str]]:
    """Return jobs and questions about them."""
    dice, found = random.Random(seed), []
    every = [(job, *term) for job in TERMS for term in TERMS[job]]
    every += [(dice.choice(list(TERMS)), *term) for term in EVERYWHERE]
    dice.shuffle(every)
    for job, is_number, template in (every * 2)[:COUNT]:
        shape = dice.choice([*ANY, *NUMBER] if is_number else ANY)
        bare, of_event = template.replace("{e}", ""), template.replace("{e}", "e.")
        found.append((job, shape.replace("EVENT", of_event).replace("TERM", bare)))
    return found


def written() -> dict[str, list[str]]:
    """Return the questions of README and docs, of the notebooks, of the tests."""
    docs = [question for page in PAGES for block in blocks(page)
            for question in _questions_in(block.text, block.language)]  # fmt: skip
    notebooks = [question for path in sorted((ROOT / "notebooks").glob("*.ipynb"))
                 for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"
                 for question in _questions_in("".join(cell["source"]), "python")]  # fmt: skip
    tests = [question for path in sorted((ROOT / "tests").rglob("test_*.py")) if _is_ordinary(path)
             for question in _questions_in(path.read_text(), "python")]  # fmt: skip
    return {"docs": _once(docs), "notebooks": _once(notebooks), "tests": _once(tests)}


def _is_ordinary(path: Path) -> bool:
    """Return False for tests of what queries may not do."""
    parts = path.relative_to(ROOT).parts
    text = path.read_text()
    return "proving" not in parts and "unsafe" not in text and "Refused" not in text and "guarded_jobs" not in text


def _once(questions: list[str]) -> list[str]:
    return list(dict.fromkeys(questions))


def _questions_in(text: str, language: str) -> Iterator[str]:
    if language == "python":
        try:
            tree = ast.parse(text)
        except SyntaxError:
            return
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and not any(k.arg in ("unsafe", "of") for k in node.keywords):
                yield from _of_call(node)
    elif language == "sh":
        for line in text.replace("\\\n", " ").splitlines():
            yield from _of_command(line)


def _of_call(call: ast.Call) -> Iterator[str]:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    owner = ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    place = {"stream": 1 if owner == "agent" else 0, "Rule": 0}.get(name)
    if place is None or len(call.args) <= place:
        return
    given = call.args[place]
    if isinstance(given, ast.Lambda):
        yield ast.unparse(given)
    elif isinstance(given, ast.Constant) and isinstance(given.value, str):
        yield given.value


def _of_command(line: str) -> Iterator[str]:
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        return
    asks = words[:1] == ["looptap"] and len(words) > 3 and words[1] in ("watch", "plot", "top", "keep")
    if asks and not {"--unsafe", "--of"} & {*words} and not words[3].startswith("-"):
        yield words[3]


def ask(question: str, job: str, things: dict[str, Any]) -> Answer:
    """Ask a question at one event of a job."""
    functions = {n: v for n, v in things.items() if callable(v) and not hasattr(v, "parameters")}
    observables = {n: v for n, v in things.items() if n not in functions}
    try:
        spec = QuerySpec(question, known=frozenset(observables), functions=functions)
        pipeline = compile_query(spec)
        outputs = list(pipeline.push(Event(dict(observables)), 1, 0.0))
        outputs += pipeline.flush()
    except RefusedQuery as error:
        reason = str(error).partition("\n")[0]
        return Answer(job, question, "failed" if MISREAD.search(reason) else "refused", reason)
    except QueryError as error:  # as it is compiled
        refused = "is not known to be harmless" in str(error)
        return Answer(job, question, "refused" if refused else "failed", str(error).partition("\n")[0])
    except Exception as error:
        return Answer(job, question, "failed", f"{type(error).__name__}: {error}")
    failed = next((str(value) for flags, value in outputs if flags & 2), "")
    if failed:
        last = failed.strip().splitlines()
        reason = next((line for line in last if "Refused" in line), last[-1])
        return Answer(job, question, "refused" if "Refused" in failed else "failed", reason)
    return Answer(job, question, "answered", "")


def answers() -> dict[str, list[Answer]]:
    """Ask each drawn question about its job, and each written one about all jobs."""
    torch.manual_seed(0)
    jobs = {name: make() for name, make in JOBS.items()}
    found = {"grammar": [ask(question, job, jobs[job]) for job, question in drawn()]}
    for source, questions in written().items():
        found[source] = [_best([ask(question, job, things) for job, things in jobs.items()]) for question in questions]
    return found


def _best(tried: list[Answer]) -> Answer:
    return min(tried, key=lambda one: ("answered", "refused", "failed").index(one.outcome))


def share(found: list[Answer]) -> float:
    """Return the share of answered questions among those answered or refused."""
    return sum(one.outcome == "answered" for one in found) / len(found)


def table(found: dict[str, list[Answer]]) -> str:
    """Return the refused questions as the table of docs/queries.md."""
    rows: dict[str, str] = {}
    published = [one for source, every in found.items() if source != "tests" for one in every]
    for one in (one for one in published if one.outcome == "refused"):
        reason = one.reason.removeprefix("QueryError: ").removeprefix("Refused: ").rstrip(".")
        question = " ".join(one.question.split()).replace("|", "\\|")
        rows.setdefault(question, _without_paths(reason).replace("|", "\\|"))
    lines = [f"| `{question}` | {reason} |" for question, reason in sorted(rows.items())]
    return "\n".join(["| question | why it is refused |", "|---|---|", *lines])


def _without_paths(reason: str) -> str:
    """Return a reason without folders and numbers of lines."""
    return re.sub(r"\((?:/[^/():]*)*/([^/():]+):\d+\)", r"(\1)", reason)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    every = answers()
    for source, given in every.items():
        counts = Counter(one.outcome for one in given)
        print(source, counts, file=sys.stderr)
        if "-v" in sys.argv:
            for one in given:
                if one.outcome != "answered":
                    print(f"  {one.outcome} [{one.job}] {one.question!r}: {one.reason}", file=sys.stderr)
    print(table(every))
