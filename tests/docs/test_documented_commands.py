"""The examples of each command's help run, against a real training job."""

from __future__ import annotations

import pytest
from documented import ROOT
from page_tests import TIMEOUT_SECONDS, run_page

pytestmark = pytest.mark.timeout(TIMEOUT_SECONDS)


@pytest.mark.usefixtures("processes")
def test_the_examples_of_the_commands_run(place, tmp_path):
    run_page(ROOT / "docs" / "cli.md", place, tmp_path)
