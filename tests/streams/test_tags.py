"""Names that are not Python's, such as `train/loss`, in queries, stores, exports."""

from __future__ import annotations

import csv

import pytest
import torch

import looptap
from looptap.store.exchange.csv_parquet import to_csv
from looptap.streams.language.compiler import QuerySpec, compile_query
from looptap.testing import pair

LOSSES = [0.0, 1.0, 2.0, 0.0, 1.0, 2.0]
MAPPED = {
    "e['train/loss']": LOSSES,
    "e['train/loss'] * 2": [0, 2, 4, 0, 2, 4],
    "step, e['train/loss']": list(enumerate(LOSSES)),
    "lambda e: e['train/loss']": LOSSES,
    "(e['train/loss'] for e in events if e['train/loss'] < 2)": [0, 1, 0, 1],
    "events['train/loss']": LOSSES,
    "map(lambda e: e['train/loss'], events)": LOSSES,
    "filter(lambda v: v > 1, events['train/loss'])": [2, 2],
    "accumulate(events['train/loss'])": [0, 1, 3, 3, 4, 6],
    "ema(events['train/loss'], 1)": LOSSES,
    "e['train/loss'] - max(recent(2)['train/loss'])": [0, 0, 0, -2, 0, 0],
    "mean(f['train/loss'] for f in recent(1))": LOSSES,
    "latest('epoch')['val/loss']": [None, None, None, 5, 5, 5],
    "d['key']": [0, 1, 2, 3, 4, 5],
}
REDUCED = {
    "mean(events['train/loss'])": [1, 1],
    "sum(e['train/loss'] for e in events)": [3, 3],
    "max(events['train/loss'], key=lambda v: -v)": [0, 0],
    "reduce(lambda a, e: a + e['train/loss'], events, 0)": [3, 3],
    "[a['train/loss'] for a, b in itertools.pairwise(events)]": [[0, 1], [0, 1]],
    "list(zip(events['train/loss'], events['step']))": [[(0, 0), (1, 1), (2, 2)], [(0, 3), (1, 4), (2, 5)]],
    "group_by(((e.step % 2, e['train/loss']) for e in events), sum)": [{0: 2, 1: 1}, {0: 1, 1: 2}],
    "sum(events['train/loss']) / len(events)": [1, 1],
}


def whole(events):
    return sum(e["train/loss"] for e in events)


def test_a_tag_is_read_in_every_form_of_query():
    agent, run = pair("tags")
    streams = {query: run.stream(query, on="batch") for query in MAPPED}
    reduced = {query: run.stream(query, on="batch", window=3) for query in [*REDUCED, whole]}
    fired = run.stream("step", on="batch", when="e['train/loss'] > 1", before=1)
    wrong = run.stream("train/loss", on="batch")
    for step, loss in enumerate(LOSSES):
        agent.emit("batch", step=step, d={"key": step}, **{"train/loss": torch.tensor(loss)})
        if step == 2:
            agent.emit("epoch", **{"val/loss": 5})
    agent.close()
    assert {query: stream.values for query, stream in streams.items()} == {
        **MAPPED, "accumulate(events['train/loss'])": [0, 1, 3, 0, 1, 3],  # the epoch ends a group
    }  # fmt: skip
    assert {query: stream.values for query, stream in reduced.items()} == {**REDUCED, whole: [3, 3]}
    assert fired.values == [1, 2, 4, 5]
    assert "e['train/loss']" in wrong.traceback


@pytest.mark.parametrize("query", ["e['train/loss'] * 2", "mean(events['train/loss'])", "step, e['train/loss']"])
def test_arithmetic_on_tags_stays_arithmetic(query):
    pipeline = compile_query(QuerySpec(query, known=frozenset({"step", "train/loss"})))
    assert "train/loss" in pipeline.numbers
    assert pipeline.trusted


def test_rows_and_columns_keep_the_name_and_so_do_queries_on_this_side():
    agent, run = pair("tags")
    rows = run.stream("step, e['train/loss']", on="batch")
    for step, loss in enumerate(LOSSES):
        agent.emit("batch", step=step, **{"train/loss": loss})
    agent.close()
    assert rows.latest["train/loss"] == rows.latest[1] == 2.0
    assert rows.latest[-1:] == (2.0,)
    assert list(rows.to_pandas()["train/loss"]) == LOSSES
    assert rows.to_numpy("train/loss").tolist() == LOSSES
    for query, expected in {
        "v['train/loss']": LOSSES, "mean(values['train/loss'])": [1, 1], "sum(v['train/loss'] for v in values)": [3, 3],
    }.items():  # fmt: skip
        derived = rows.query(query, window=3)
        derived.wait(len(expected), timeout=300)
        assert derived.values == expected


def test_a_logged_tag_is_watched_kept_stored_and_exported_under_its_name(directory):
    path = directory / "run.looptap"
    with looptap.Agent("tags", store=path) as agent:
        for loss in LOSSES:
            agent.log(**{"train/loss": loss})
        with looptap.attach("tags") as run:
            stream = run.stream("train/loss")
            assert stream.name == "train/loss"
            stream.wait(len(LOSSES), timeout=300)
            assert stream.values == LOSSES
            assert "train/loss" in repr(looptap.plot(stream).summary())
            run.keep("train/loss")
    stored = looptap.open(path).stream("train/loss")
    assert stored.values == LOSSES
    to_csv(stored, directory / "loss.csv")
    with (directory / "loss.csv").open() as file:
        assert [float(row["value"]) for row in csv.DictReader(file)] == LOSSES
