"""The notebooks of notebooks/ run from a clean kernel and are readable as saved."""

import io
import itertools
import json
import os
import re
import shutil
import sys
from base64 import b64decode
from pathlib import Path

import psutil
import pytest
import warm
from PIL import Image
from places import SUPPORT
from tutorials import NOTEBOOKS, PATIENCE, ROOT, WIDGET, executed, pictures, read
from waiting import soon

MOST = 300_000
"""Bytes of a notebook in the repository."""
MARK = "LOOPTAP_TEST_OF_TUTORIALS"

pytestmark = pytest.mark.timeout(2 * PATIENCE)
each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
EXECUTED = [path for path in NOTEBOOKS if path.stem != "first-look" or not shutil.which("chromium")]
"""Where there is a browser, tests/visualizers/browser/test_notebook.py runs the first in it, and sees the same."""


def run(path, into, **extra):
    """Run a notebook in a process of its own, whose children have this test's mark."""
    program = str(SUPPORT / "tutorials.py")
    command = [sys.executable, program, "--short", "--into", str(into), str(path)]
    return warm.run(command, env={**os.environ, MARK: str(into), **extra}, capture_output=True, text=True)


def left(into):
    """Return the processes with the mark that are still there."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == str(into) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.cmdline())
        except psutil.Error:
            continue
    return found


def outputs(book):
    return [output for cell in book.cells if cell.cell_type == "code" for output in cell.outputs]


def test_the_notebooks_that_the_documentation_lists_exist():
    named = set(re.findall(r"notebooks/([\w-]+\.ipynb)\b", (ROOT / "docs/index.md").read_text()))
    assert named == {path.name for path in NOTEBOOKS}
    assert len(named) >= 4


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("path", EXECUTED, ids=lambda path: path.stem)
def test_a_notebook_runs_from_a_clean_kernel_with_pictures_and_ends_its_job(path, tmp_path):
    done = run(path, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    book = read(tmp_path / path.name)
    charts = 0
    for cell in book.cells:
        kinds = [set(output.get("data", {})) for output in cell.get("outputs", ())]
        for this, after in itertools.pairwise([*kinds, set()]):
            if WIDGET in this and "looptap.panel" not in cell.source:
                charts += 1
                assert "image/png" in after, cell.source
    assert charts >= 2
    assert not [output for output in outputs(book) if output.output_type == "error"]
    soon(lambda: not left(tmp_path))


@pytest.mark.usefixtures("processes")
def test_a_job_ends_also_where_a_cell_fails(tmp_path):
    import nbformat

    path = next(path for path in NOTEBOOKS if path.stem == "progressive-results")
    book = read(path)
    last = next(index for index, cell in enumerate(book.cells) if "looptap.attach" in cell.source)
    book.cells[last + 1 :] = [nbformat.v4.new_code_cell("1 / 0")]
    nbformat.write(book, tmp_path / "fails.ipynb")
    done = run(tmp_path / "fails.ipynb", tmp_path)
    assert done.returncode != 0
    assert "ZeroDivisionError" in done.stderr
    soon(lambda: not left(tmp_path))


@pytest.mark.usefixtures("processes")
def test_a_picture_under_a_cell_shows_what_the_cell_saw(tmp_path):
    import nbformat

    cells = [
        "import looptap\nfrom looptap.testing import pair\nagent, run = pair('story')",
        "loss = run.stream('loss', on='batch')",
        "for step in range(9): agent.emit('batch', loss=step)\nlooptap.plot(loss)",
        "for step in range(90): agent.emit('batch', loss=step)\nlooptap.plot(loss)",
    ]
    book = executed(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells]), tmp_path)
    assert [cell.execution_count for cell in book.cells] == [1, 2, 3, 4]
    early, late = ([one.data["image/png"] for one in outputs(book) if "image/png" in one.get("data", {})])
    pixels = [Image.open(io.BytesIO(b64decode(image))).convert("RGB").tobytes() for image in (early, late)]
    assert pixels[0] != pixels[1]


@pytest.mark.long
@each
def test_a_notebook_asks_ordinary_questions_and_sets_no_clock(path):
    code = "\n".join(cell.source for cell in read(path).cells if cell.cell_type == "code")
    assert "math.inf" not in code, "a job that allows queries more says so once, where it makes its agent"
    assert not re.findall(r"monotonic|(?:job|jobs|guard)\.wait\(\d|communicate\(timeout", code)


@each
def test_a_notebook_in_the_repository_has_its_pictures_and_no_error_and_is_small(path):
    assert path.stat().st_size < MOST
    book = read(path)
    __import__("nbformat").validate(book)
    assert sum("image/png" in output.get("data", {}) for output in outputs(book)) >= 2
    assert not [output for output in outputs(book) if output.output_type == "error" or WIDGET in output.get("data", {})]
    counts = [cell.execution_count for cell in book.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1)), "run as a whole, from a clean kernel: make notebooks"


@each
def test_a_picture_on_a_page_is_that_of_the_notebook(path):
    for name, content in pictures(read(path)).items():
        assert (ROOT / name).read_bytes() == content, "make notebooks writes both"
        assert any(f"({Path(name).name})" in page.read_text() for page in (ROOT / name).parent.glob("*.md"))


@each
def test_a_notebook_links_to_existing_pages(path):
    text = "\n".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    assert links
    assert not [link for link in links if not (path.parent / link).exists()]


@each
def test_a_notebook_says_nothing_of_the_machine_that_it_ran_on(path):
    text = json.dumps(outputs(read(path)))
    assert not re.findall(r"site-packages|/venv/|0x[0-9a-f]{6,}|\bpid\b", text)
