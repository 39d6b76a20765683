"""A notebook shows the text of an error of looptap, and folds its traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import warm

PROGRAM = """
import json, nbformat
from nbclient import NotebookClient
cells = ["import looptap", "looptap.attach('no-such-run')", "1 / 0"]
book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
NotebookClient(book, allow_errors=True, kernel_name="python3", timeout=300).execute()
print(json.dumps([cell.outputs for cell in book.cells]))
"""


@pytest.mark.usefixtures("processes")
def test_an_error_is_one_text_with_the_traceback_folded(place, tmp_path):
    environment = {**os.environ, "IPYTHONDIR": str(tmp_path)}
    command = [sys.executable, "-c", PROGRAM]
    done = warm.run(command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stderr
    _, (folded, error), (other,) = json.loads(done.stdout.splitlines()[-1])
    assert "<details><summary>The traceback</summary>" in folded["data"]["text/html"]
    assert "in attach" in folded["data"]["text/html"]
    (text,) = error["traceback"]
    assert text.startswith("NoSuchRun: No run matches 'no-such-run'")
    assert len(other["traceback"]) > 1, "errors of other code are shown as ever"
