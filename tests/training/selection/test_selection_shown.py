"""A client's view of a selection: numbers, arrays and samples on their charts."""

from __future__ import annotations

import random

import numpy as np
import PIL.Image
import pytest
import torch
from selecting import COUNT, Pictures, trained
from torch.utils.data import Dataset, TensorDataset

import looptap
from looptap.testing import Clock, pair
from looptap.training.selection import Selection, WithIndex
from looptap.training.selection.audit import Audit
from looptap.training.selection.samples import read_samples


@pytest.fixture(scope="module")
def selection():
    return trained(data := Pictures("tensor"), samples=data)


def asked(selection, query):
    """Return the stream of a query of which one value has come."""
    agent, run = pair()
    agent.expose(assistant=selection)
    stream = run.stream(query)
    agent.emit("batch", step=1)
    assert len(stream.values) == 1, (stream.notes, stream.traceback)
    return agent, stream


NUMBERS = (
    *("accuracy", "majority", "auc", "balanced_accuracy", "lift", "threshold", "gain", "net_gain", "kept", "skipped"),
    *("gamma", "seconds_saved", "seconds_spent", "cost_seconds", "step_seconds"),
)
OTHERS = {
    "acceptance_by_class": "bars", "ages": "histogram", "scores": "histogram", "calibration": "scatter",
    "skipped_samples(4)": "images", "kept_samples(4)": "images", "quality": "line",
}  # fmt: skip


@pytest.mark.parametrize(("name", "kind"), [*((name, "line") for name in NUMBERS), *OTHERS.items()])
def test_each_observable_can_be_asked_for_and_has_the_right_chart_on_each_surface(selection, tmp_path, name, kind):
    agent, stream = asked(selection, f"assistant.{name}")
    agent.emit("batch", step=2)
    plot = looptap.plot(stream)
    plot.pull()
    assert plot.cells[0].chart.kind == kind
    picture = plot.pictures()[0]
    assert picture.marks
    if name in OTHERS:
        for suffix in ("png", "html", "txt"):
            plot.save(tmp_path / f"chart.{suffix}")
            assert (tmp_path / f"chart.{suffix}").stat().st_size > 100
    agent.close()


def test_a_dict_by_class_arrives_with_its_classes(selection):
    agent, stream = asked(selection, "assistant.acceptance_by_class")
    assert set(stream.latest) == {0, 1, 2}
    assert all(0.2 <= share <= 1 for share in stream.latest.values())
    agent.close()


@pytest.mark.parametrize("form", ["tensor", "array", "dict"])
def test_samples_that_are_skipped_and_kept_come_as_pictures_with_what_is_known_of_them(form):
    selection = trained(data := Pictures(form), samples=data)
    agent, stream = asked(selection, "assistant.skipped_samples(9), assistant.kept_samples(9)")
    skipped, kept = stream.latest
    assert len(skipped) == len(kept) == 9
    assert all(row["index"] < 200 for row in skipped)
    assert max(row["drawn"] for row in skipped) < min(row["drawn"] for row in kept)
    label = "kind" if form == "dict" else "label"
    shape = {"tensor": (1, 6, 6), "array": (6, 6, 1), "dict": (6, 6)}[form]
    assert all(row["image"].shape == shape and row[label] == row["index"] % 3 for row in (*skipped, *kept))
    agent.close()


def test_reading_samples_leaves_all_random_numbers_and_the_data_set_as_they_are():
    def drawn(data):
        return [torch.rand(1).item(), random.random(), np.random.rand(), data.own.random(), data.reads,
                torch.rand(1, generator=data.transform).item()]  # fmt: skip

    found = []
    for reads in (False, True):
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        selection = trained(WithIndex(Pictures("tensor")), 2)
        if reads:
            selection.skipped_samples(9)
            selection.kept_samples(5)
        found.append(drawn(selection.data.dataset))
    assert found[0] == found[1]


def test_a_query_does_not_read_a_data_set_whose_code_is_not_proven_harmless():
    data = Pictures("tensor")
    before = torch.get_rng_state().tolist(), random.getstate(), str(data.own.bit_generator.state)
    agent, stream = asked(trained(data), "assistant.skipped_samples(3)")
    assert data.reads == 0
    assert before == (torch.get_rng_state().tolist(), random.getstate(), str(data.own.bit_generator.state))
    for row in stream.latest:
        assert row["sample"].startswith("not read: ")
        assert row["sample"].endswith("with samples= the data set is read as it is")
        assert row["index"] < 200
        assert row["drawn"] >= 0
    agent.close()


class Decoded(Dataset):
    """Pictures that are kept as bytes and decoded by code without effects."""

    def __init__(self):
        self.pictures, self.labels = np.arange(COUNT * 36).reshape(COUNT, 36).astype(np.uint8), torch.arange(COUNT) % 3

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return torch.as_tensor(self.pictures[index]).reshape(6, 6) / 255, int(self.labels[index])


@pytest.mark.parametrize("indexed", [False, True])
def test_a_query_reads_a_data_set_whose_code_is_proven_harmless(indexed):
    agent, stream = asked(trained(WithIndex(Decoded()) if indexed else Decoded()), "assistant.kept_samples(3)")
    for row in stream.latest:
        assert row["image"].shape == (6, 6)
        assert row["label"] == row["index"] % 3
    agent.close()


class Overriding(Selection):
    """A selection of the job, whose own method counts its calls."""

    calls = 0

    def skipped_samples(self, count=9):
        self.calls += 1
        return super().skipped_samples(count)


@pytest.mark.parametrize(
    ("query", "make"),
    [
        ("assistant.skipped_samples(2)", Overriding),  # code of the job
        ("assistant.kept_samples(2)", Overriding),  # it might call code of the job
        ("assistant.observe([0], losses=np.ones(1))", Selection),  # not declared for queries
        ("assistant.load_state_dict(assistant.state_dict())", Selection),
    ],
)
def test_a_method_that_is_not_declared_for_queries_is_not_run_as_it_is(query, make):
    selection = make(Pictures("tensor"), 20, switch="on", epochs=10)
    agent, run = pair()
    agent.expose(assistant=selection)
    stream = run.stream(query)
    agent.emit("batch", step=1)
    assert stream.traceback.startswith("Refused: "), stream.traceback
    assert (selection.steps, selection.data.reads) == (0, 0)
    assert getattr(selection, "calls", 0) == 0
    agent.close()


def test_instances_without_images_are_rows_of_a_table():
    data = TensorDataset(torch.arange(COUNT * 16.0).reshape(COUNT, 16), torch.arange(COUNT) % 3)
    agent, stream = asked(trained(data), "assistant.skipped_samples(3)")
    row = stream.latest[0]
    assert row["label"] == row["index"] % 3
    first = 16 * row["index"]
    assert row["input"] == ", ".join(f"{first + place:.3g}" for place in range(6)) + ", … (16)"
    plot = looptap.plot(stream)
    plot.pull()
    assert plot.cells[0].chart.kind == "table"
    agent.close()


@pytest.mark.parametrize(
    "image", [torch.zeros(3, 224, 100), np.zeros((224, 100, 3), np.uint8), PIL.Image.new("L", (90, 300))]
)
def test_large_images_are_shown_small(image):
    (row,) = read_samples([(image, 1)], np.array([0]))
    size = getattr(row["image"], "size", None) if hasattr(image, "thumbnail") else row["image"].shape
    assert max(size) in (56, 64)


def test_samples_need_a_data_set_and_a_small_count():
    selection = trained(COUNT)
    with pytest.raises(TypeError, match="pass it instead of its length"):
        selection.kept_samples()
    for wrong in (0, 65, 2.5):
        with pytest.raises(ValueError, match=r"from 1 to 64"):
            selection.skipped_samples(wrong)


def test_what_several_queries_read_at_a_step_is_computed_once(selection, monkeypatch):
    calls = []
    quality = Audit.quality
    monkeypatch.setattr(Audit, "quality", lambda *args: calls.append(1) or quality(*args))
    selection.observe([0], losses=torch.tensor([0.5]))
    agent, run = pair()
    agent.expose(assistant=selection)
    streams = [run.stream(f"assistant.{name}") for name in ("accuracy", "majority", "auc", "lift", "quality")]
    agent.emit("batch")
    assert len(calls) == 1
    selection.observe([1], losses=torch.tensor([0.5]))
    agent.emit("batch")
    assert len(calls) == 2
    assert all(len(stream.values) == 2 for stream in streams)
    agent.close()


def test_the_seconds_saved_are_those_of_the_steps_at_which_instances_were_skipped():
    clock = Clock()
    selection = Selection(100, 10, switch="on", clock=clock)

    def epochs(count, seconds):
        for _ in range(count):
            for batch in selection:
                clock.advance(seconds)
                selection.observe(batch, losses=torch.tensor(batch) / 50.0)

    epochs(8, 1.0)
    saved = selection.seconds_saved
    assert saved == pytest.approx(selection.skipped / 10, rel=0.3)
    selection.switch = "off"
    epochs(8, 9.0)
    assert saved <= selection.seconds_saved < 1.2 * saved
    other = Selection(100, 10)
    other.load_state_dict(selection.state_dict())
    clock.advance(1.0)
    other.observe([0], losses=torch.tensor([0.5]))
    other.observe([1], losses=torch.tensor([0.5]))
    assert other.seconds_saved == pytest.approx(selection.seconds_saved, rel=0.01)
