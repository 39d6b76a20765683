"""Parts of `make bench-echo`: files arrive intact and late; misses are reported."""

from __future__ import annotations

import math
import time

import baselines
import baselines_page
import echo_page
import pytest
import torch
from data_sets import Cached, Fetched, Listed
from digit_files import decoded, files, pictures
from echoed_training import DIGITS, Outcome, digits_echo, train
from file_server import serving
from fresh_to_target import Job
from promises import promises
from time_to_target import FIXED

from looptap.training.echoing import BEFORE, Echo


@pytest.mark.usefixtures("processes")
def test_the_server_hands_out_pictures_late():
    made, targets = files()
    assert all(file.startswith(b"\x89PNG") for file in made)
    with serving(made[:40], latency=0.02) as server:
        data = Fetched(server.port, decoded, targets[:40].tolist())
        begun = time.monotonic()
        found = [data[index] for index in range(5)]
        assert time.monotonic() - begun >= 5 * 0.02
        assert all(torch.equal(image, pictures()[0][at]) and target == targets[at]
                   for at, (image, target) in enumerate(found))  # fmt: skip
        data.close()
        server.latency = 0.0
        echo = digits_echo(data, 0, 3.0, buffer=32, size=8, workers=1)
        batches = iter(echo)
        images, _ = next(batches)
        assert images.shape == (8, 1, 24, 24)
        assert (echo.fresh, echo.seen) == (8, 8)
        batches.close()


def test_a_training_ends_at_the_target_and_is_scored_the_same_way_afterwards():
    values = iter([0.1, 0.5, 0.3, 0.6, 0.7, 0.9] * 2)
    task = DIGITS._replace(target=0.5, every=2, score=lambda model: next(values))
    batches = [[torch.rand(4, 1, 24, 24), torch.arange(4)]] * 20
    first = train(task, Echo(batches, 2), 0.01, 0, steps=30)
    assert (first.reached, first.steps, first.fresh) == (True, 10, 20)
    assert [score for _, score in first.scores] == [0.1, 0.5, 0.3, 0.6, 0.7]
    next(values)
    late = train(task, Echo(batches, 2), 0.01, 0, steps=12, later=True)
    assert (late.reached, late.steps, late.fresh) == (True, 10, 20)
    assert late.seconds == late.scores[-1][0]
    weights = []
    task = task._replace(score=lambda model: weights.append(next(model.parameters()).sum().item()) or 0.0)
    for later in (False, True):
        missed = train(task, Echo(batches, 2), 0.01, 0, steps=6, later=later)
        assert (missed.reached, missed.steps) == (False, 6)
    assert weights[:3] == weights[3:]
    assert len(set(weights)) == 3


def made_up(factor, seconds, *, reached=True):
    expected = {other: min(other, 6.0) for other in FIXED}
    scores = [(0.0, 0.1), (seconds, 0.9)]
    return Outcome(reached, 100, int(6400 / factor), seconds, scores, 0.06, 0.01, factor, expected)


def test_a_missed_promise_is_reported():
    timed = {f"{e:g}": [made_up(e, 60 / min(e, 6.0))] * 3 for e in FIXED} | {"auto": [made_up(5.9, 10.2)] * 3}
    fast = [{"bare": (0.01, math.nan), "1": (0.01, 0.5), "auto": (0.0101, 0.5)}]
    finals = {Job("digits", 64, BEFORE, e, 300, 0.05, 0, True): made_up(e, 1.0) for e in (1.0, 2.0, 5.0)}
    waiting = [(0.06, 0.061)] * 3
    costs = {("batch", 1): (0.02, 0.01, 0.0102), ("batch", 0): (0.2, 0.01, 0.012)}
    found = promises(timed, fast, finals, waiting, costs)
    assert [promise.held for promise in found] == [True] * 11
    timed["5"] = [made_up(5.0, 13.0)] * 2 + [made_up(5.0, 13.0, reached=False)]
    timed["auto"] = [made_up(1.0, 12.0)] * 3
    fast[0]["auto"] = (0.012, 0.5)
    finals[Job("digits", 64, BEFORE, 2.0, 300, 0.05, 0, True)] = made_up(2.0, 1.0)._replace(scores=[(1.0, 0.89)])
    costs["batch", 1] = (0.04, 0.01, 0.0104)
    found = promises(timed, fast, finals, waiting, costs)
    assert [promise.held for promise in found] == [True, True, True, False, False, False, True, True, True, True, False]
    slow = made_up(1.0, 60)._replace(expected={other: min(other, 5.0) for other in FIXED})
    low = promises(timed | {"1": [slow] * 3}, fast, finals, waiting, costs)
    assert [promise.held for promise in low][7:9] == [False, True]  # 8 is foretold by 5, not by 1
    timed["5"] = [made_up(5.0, 20.0, reached=False)] * 3
    assert not promises(timed, fast, finals, waiting, costs)[2].held
    lines = "\n".join([*echo_page.kept(found), *echo_page.times(timed, 0.001)])
    assert lines.count("**no**") == 4
    assert "not reached" in lines
    assert "0 of 3" in lines


def test_a_cache_keeps_what_it_read_as_far_as_it_may():
    made, targets = files()
    read = []
    data = Listed(made[:8], targets[:8].tolist(), decode=lambda file: read.append(file) or decoded(file))
    cached = Cached(data, 24, 0.25)
    for _ in range(2):
        for index in range(8):
            image, target = cached[index]
            assert torch.equal(image, pictures()[0][index])
            assert target == targets[index]
    assert len(read) == 8 + 6  # two of eight fit


def test_the_section_of_the_rivals_says_first_where_echoing_loses(tmp_path):
    def run(accuracy, factor=1.0):
        return {"scores": [[1.0, 0.1], [2.0, accuracy]], "steps": 100, "fresh": 6400, "factor": factor}

    rows = {way.name: [run(0.5 + 0.01 * way.workers, 1.0), run(0.5)] for way in baselines.ways(8)}
    rows["`auto`, 2 workers"] = [run(0.6, 5.9), run(0.6, 6.1)]
    table = {"seconds": 2.0, "tuned": 8, "rows": rows, "load": 1.0, "up": 0.08, "down": 0.013, "wait": 0.002}
    steady = {"factors": [4.0, 4.1], "median": 4.0, "least": 3.9, "most": 4.2, "inside": 1.0}
    filling = {name: [{"seconds": 3.0, "steps": 100}] for name in ("1.0", "auto")}
    changes = [[0.1, 2.0, None], [0.2, 6.0, 2.1], [0.3, 2.0, 2.1]]
    auto = {"steady": {"0": steady, "4": steady}, "changes": changes, "filling": filling, "load": 1.0}
    rows["2 workers, decoded data cached"] = [run(0.9), run(0.8)]
    baselines_page.write(tmp_path, {"latency": table, "processor": table, "auto": auto})
    page = tmp_path / "echoing-benchmarks.md"
    page.write_text(f"# What echoing saves\n\nAbove.\n\n{page.read_text()}")
    baselines_page.write(tmp_path, {"latency": table, "processor": table, "auto": auto})
    text = page.read_text()
    assert text.startswith("# What echoing saves\n\nAbove.\n\n## Echoing and its alternatives")
    assert text.count("## Echoing and its alternatives") == 1
    first = text[text.index("### ") :]
    assert first.startswith("### Where echoing loses")
    assert "better without echoing: 2 workers, decoded data cached (85.0%)" in first
    assert "| `auto`, 2 workers | 60.0% (60.0%–60.0%) | 100 | 6,400 | 6 |" in text
    assert "| three times as slow | 6.00 | 0 batches |" in text
    assert {path.name for path in tmp_path.glob("*.png")} == {"echoing-baselines.png", "echoing-auto.png"}
