"""What PyTorch users ask for, drawn as a colleague would draw it."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image as PILImage

from looptap.protocol.values.packing import pack
from looptap.protocol.values.unpacking import unpack
from looptap.streams.stream.stream import stream_of
from looptap.streams.values.snapshots import snapshot
from looptap.visualizers.drawing.picture import Bars, Images, Line, Points
from looptap.visualizers.plot import Plot

RNG = np.random.default_rng(0)
AREAS = np.kron(RNG.integers(1, 5, (4, 4)), np.ones((16, 16), int))
"""A segmentation: areas of one class each."""
ATTENTION = torch.softmax(torch.from_numpy(RNG.normal(size=(4, 12, 12))), -1)
PIL = PILImage.fromarray(RNG.integers(0, 255, (32, 48, 3), dtype=np.uint8))


def pictured(values, query="", fields=None):
    """Return the kind and the picture of values that crossed the wire."""
    arrived = [unpack(pack(snapshot(value)[0])) for value in values]
    stream = stream_of(arrived, fields=fields, name=query)
    stream.text = query
    plot = Plot(stream)
    plot.pull()
    picture = plot.pictures()[0]
    assert picture.marks
    return plot.cells[0].chart.kind, picture


KINDS = [
    ("a few rates", "[g['lr'] for g in optimizer.param_groups]", [0.1, 0.01], "line"),
    ("rates in a tuple", "tuple(g['lr'] for g in optimizer.param_groups)", (0.1, 0.01), "line"),
    ("rates of a scheduler", "scheduler.get_last_lr()", [0.1, 0.01], "line"),
    ("many numbers made alike", "[p.norm() for p in parameters]", [0.1] * 20, "curve"),
    ("accuracies of ten classes", "per_class_acc", torch.rand(10), "curve"),
    ("a loss with a dimension", "loss", torch.ones(1), "line"),
    ("a loss with two dimensions", "loss", torch.ones(1, 1), "line"),
    ("logits of one sample", "output", torch.rand(1, 10), "curve"),
    ("outputs of one column", "output", torch.rand(64, 1), "curve"),
    ("attention of a head", "attn[0]", ATTENTION[0], "heatmap"),
    ("attention of four heads", "attn", ATTENTION, "images"),
    ("attention of three heads", "attn", ATTENTION[:3], "images"),
    ("a latent image", "latents[0]", torch.randn(4, 16, 16), "images"),
    ("activations of one sample", "act", torch.randn(1, 16, 14, 14), "images"),
    ("an RGB tensor", "x[0]", torch.rand(3, 16, 16), "image"),
    ("an RGBA tensor", "x[0]", torch.rand(4, 16, 16), "image"),
    ("a normalized RGB tensor", "x[0]", torch.randn(3, 16, 16), "image"),
    ("an RGB tensor of whole numbers", "x[0]", torch.randint(0, 256, (3, 16, 16)), "image"),
    ("a boolean mask", "mask", torch.rand(32, 32) > 0.5, "image"),
    ("three boolean masks", "masks", torch.rand(3, 32, 32) > 0.5, "images"),
    ("a segmentation", "seg", torch.from_numpy(AREAS), "heatmap"),
    ("four segmentations", "segs", torch.from_numpy(np.stack([AREAS] * 4)), "images"),
    ("three segmentations", "segs", torch.from_numpy(np.stack([AREAS] * 3)), "images"),
    ("counts of a hundred classes", "confusion(target, output, 100)", RNG.integers(0, 50, (100, 100)), "confusion"),
    ("counts of an untrained model", "cm", np.eye(20, dtype=int)[[3] * 20] * 7, "confusion"),
    ("few counts", "cm", np.eye(50, dtype=int), "confusion"),
    ("a gray picture of bytes", "gray", RNG.integers(0, 255, (32, 48), dtype=np.uint8), "image"),
    ("a picture of bytes", "frame", RNG.integers(0, 255, (32, 48, 3), dtype=np.uint8), "image"),
    ("a batch of bytes", "frames", RNG.integers(0, 255, (4, 32, 48, 3), dtype=np.uint8), "images"),
    ("PIL", "pil", PIL, "image"),
    ("a list of PIL", "pils", [PIL, PIL], "images"),
    ("a clip", "clip", torch.rand(8, 3, 16, 16), "images"),
    ("clips", "clips", torch.rand(2, 8, 3, 16, 16), "images"),
    ("a sound", "waveform", torch.randn(16_000), "curve"),
    ("a sound of one channel", "waveform", torch.randn(1, 16_000), "curve"),
    ("a sound of two channels", "batch.audio", torch.randn(2, 16_000), "curve"),
    ("many numbers", "weights", torch.randn(16_000), "histogram"),
    ("a spectrogram", "mel", torch.rand(80, 200), "heatmap"),
    ("counts by name", "Counter(e.label for e in events)", Counter({"cat": 3, "dog": 5}), "bars"),
    ("means by name", "group_by(((e.kind, e.loss) for e in events), mean)", {"cat": 0.3, "dog": 0.5}, "bars"),
    ("scores of tokens", "list(zip(tokens, scores))", [("the", 0.1), ("cat", 0.7)], "bars"),
    ("tokens", "tokens", ["the", "cat", "sat"], "table"),
    ("no number at all", "grad", torch.empty(0), "curve"),
    ("no box at all", "boxes", torch.empty(0, 4), "heatmap"),
]  # fmt: skip


@pytest.mark.parametrize(("query", "value", "kind"), [one[1:] for one in KINDS], ids=[one[0] for one in KINDS])
def test_a_value_is_drawn_as_what_it_is(query, value, kind):
    assert pictured([value] * 3, query)[0] == kind


PARTS = [
    ("fpr, tpr", (np.linspace(0, 1, 50), np.linspace(0, 1, 50) ** 0.5), "curve"),
    ("recall, precision", (np.linspace(1, 0, 50), np.linspace(0, 1, 50)), "curve"),
    ("pred, target", (torch.rand(64), torch.rand(64)), "scatter"),
    ("fc1.weight.grad, fc2.weight.grad", (torch.rand(64), torch.rand(64)), "ridgeline"),
    ("x, recon", (torch.rand(4, 3, 16, 16), torch.rand(4, 3, 16, 16)), "images"),
    ("x, target, pred", (torch.rand(4, 3, 16, 16), torch.arange(4), torch.arange(4)), "images"),
    ("image, mask", (torch.rand(3, 64, 64), torch.from_numpy(AREAS)), "images"),
]  # fmt: skip


@pytest.mark.parametrize(("query", "value", "kind"), PARTS, ids=[query for query, *_ in PARTS])
def test_two_parts_are_drawn_together(query, value, kind):
    names = tuple(part.strip().replace(".", "_") for part in query.split(","))
    found, picture = pictured([value] * 3, query, names)
    assert found == kind
    if kind in ("curve", "scatter"):
        assert (picture.x.title, picture.y.title) == names
        newest = picture.marks[-1]
        assert isinstance(newest, Line if kind == "curve" else Points)
        np.testing.assert_allclose(newest.x, value[0])
        np.testing.assert_allclose(newest.y, value[1])


def test_batches_side_by_side_are_a_picture_each_sample():
    _, picture = pictured([(torch.rand(4, 3, 16, 16), torch.rand(4, 3, 16, 16))], "x, recon", ("x", "recon"))
    (images,) = picture.marks
    assert isinstance(images, Images)
    assert [image.shape for image in images.images] == [(16, 34, 3)] * 4
    assert set(images.captions) == {"x | recon"}


def test_none_is_no_value_and_no_gap():
    _, picture = pictured([(i, 1.0 / (i + 1) if i % 5 == 0 else None) for i in range(40)], "step, val", ("step", "val"))
    (line,) = picture.marks
    assert line.x.tolist() == list(range(0, 40, 5))
    assert np.isfinite(line.y).all()
    assert not picture.badges
    _, picture = pictured([{"loss": 1 / (i + 1), "val": 0.5 if i % 5 == 0 else None} for i in range(40)], "logs")
    assert [(mark.name, len(mark.x)) for mark in picture.marks] == [("loss", 40), ("val", 8)]


def test_nan_beside_none_is_still_a_gap_that_is_counted():
    values = [(i, math.nan if i == 20 else math.inf if i == 30 else None if i % 2 else 1.0) for i in range(40)]
    _, picture = pictured(values, "step, loss", ("step", "loss"))
    line, odd = picture.marks
    assert np.flatnonzero(np.isnan(line.y)).tolist() == [10, 15]
    assert isinstance(odd, Points)
    assert odd.x.tolist() == [20.0, 30.0]
    assert picture.badges[0].endswith("2 numbers are NaN or infinite")


def test_parts_without_names_are_named_by_their_place():
    _, picture = pictured([(1, 2, 3, 4), (5, 6, 7, 8)], "x.shape")
    assert [mark.name for mark in picture.marks] == [f"x.shape[{place}]" for place in range(4)]


def test_the_rates_of_groups_are_lines_over_the_events():
    _, picture = pictured([[0.1 * 0.9**i, 0.01] for i in range(20)], "[g['lr'] for g in optimizer.param_groups]")
    assert [(mark.name, len(mark.x)) for mark in picture.marks] == [("[0]", 20), ("[1]", 20)]
    assert picture.x.title == "event"


def test_the_channels_of_a_sound_are_a_line_each():
    _, picture = pictured([torch.stack([torch.zeros(9_000), torch.ones(9_000)])], "audio")
    assert [(mark.name, mark.y[0]) for mark in picture.marks] == [("audio[0]", 0.0), ("audio[1]", 1.0)]
    assert len({mark.color for mark in picture.marks}) == 2


def test_counts_by_name_are_bars_of_the_newest_window():
    _, picture = pictured([Counter(cat=3, dog=5), Counter(cat=9, dog=1)], "Counter(e.label for e in events)")
    (bars,) = picture.marks
    assert isinstance(bars, Bars)
    assert (bars.labels, bars.heights.tolist()) == (("cat", "dog"), [9.0, 1.0])


EDGES = [
    [(1, 0.5)],
    [(i, 0.1) for i in range(20)],
    [(2**60 + i, 0.1 * i) for i in range(20)],
    [(i, 2**60 + i) for i in range(20)],
    [(i, 10**400) for i in range(5)],
    [{f"layer {n}": float(n) for n in range(200)}] * 20,
    [(i % 5, 1.0) for i in range(20)],
    [None, None, (1, 0.5)],
    [(None, 0.5), (1, None), (2, 0.5)],
    [(i, -1e-7 * i) for i in range(20)],
]


@pytest.mark.parametrize("values", EDGES, ids=range(len(EDGES)))
def test_lines_of_any_numbers_have_something_to_see(values):
    kind, picture = pictured(values, "step, loss", ("step", "loss") if isinstance(values[-1], tuple) else None)
    assert kind in ("line", "layers")
    assert not any("skipped" in badge for badge in picture.badges)


def test_a_zero_has_no_sign_beside_an_axis_of_rows():
    rows = [{"loss": -0.0, "lr": 1.0}, {"loss": 2.0, "lr": 2.0}]
    plot = Plot(stream_of([rows], name="runs"), chart="parallel")
    plot.pull()
    first = next(mark for mark in plot.pictures()[0].marks if mark.notes)  # the lines lie under the axes
    assert [text for _, text in first.notes] == ["0", "2"]
