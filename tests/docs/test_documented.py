"""The programs that README and docs/ show run, against a real training job."""

from __future__ import annotations

import page_preludes
import pytest
from documented import PAGES, RUN, SHOWN, blocks, programs
from page_tests import TIMEOUT_SECONDS, run_page

NOT_RUN = 17
"""Blocks that a comment leaves out, each with its reason: at most so many."""

pytestmark = pytest.mark.timeout(TIMEOUT_SECONDS)
WITH_PROGRAMS = [page for page in PAGES if programs(page) and page.stem != "cli"]
"""The pages but that of the commands: tests/docs/test_documented_commands.py runs it at the same time."""


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("page", WITH_PROGRAMS, ids=lambda page: page.stem)
def test_the_programs_of_a_page_run(page, place, tmp_path):
    for shown in filter(None, map(page_preludes.adapter, programs(page))):
        pytest.importorskip(page_preludes.SCRIPTS[shown][0])
    run_page(page, place, tmp_path)


def test_each_block_says_in_which_language_it_is():
    found = [block for page in PAGES for block in blocks(page)]
    assert len(found) > 150
    assert [block.place for block in found if block.language not in RUN | SHOWN] == []


def test_few_blocks_are_not_run_and_each_says_why():
    left_out = [block for page in PAGES for block in blocks(page) if block.reason]
    assert len(left_out) <= NOT_RUN, [f"{block.place}: {block.reason}" for block in left_out]
    assert all(block.language in RUN for block in left_out)
    marks = sum(page.read_text().count("<!-- not run:") for page in PAGES)
    assert marks == len(left_out), "a mark stands right before a block"
