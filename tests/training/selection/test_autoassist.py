"""The method "autoassist", and what its assistant sees."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

import looptap.testing
from looptap.streams.errors import ControlError
from looptap.training.selection import Selection
from looptap.training.selection.audit import Audit
from looptap.training.selection.features import SparseFeatures, features_of, pixels, pixels_and_class, tfidf

COUNT, WIDTH, BATCH = 96, 5, 8


class Chances:
    """A generator whose chance for an instance depends on its place in the walk only."""

    def __init__(self, walk):
        self.walk = walk
        rng = np.random.default_rng(7)
        self.values = rng.random(20_000, np.float32)
        self.orders = [rng.permutation(COUNT) for _ in range(100)]
        self.used, self.bit_generator = 0, rng.bit_generator

    def random(self, count, dtype):
        return self.values[self.walk.walked : self.walk.walked + count]

    def permutation(self, shard):
        self.used += 1
        return self.orders[self.used - 1].copy()


def algorithm_1(features, chances, losses_of, steps, rate=0.01, decay=1e-3):
    """Run the paper's algorithm in double precision; yield its state after each step."""
    phi, constant, gamma, total, count = [0.0] * WIDTH, 0.0, 0.0, 0.0, 0.0
    order, orders, place = [], iter(chances.orders), 0

    def g(index):
        return 1 / (1 + math.exp(-sum(p * x for p, x in zip(phi, features[index].tolist(), strict=True)) - constant))

    for step in range(steps):
        batch = []
        while len(batch) < BATCH:
            if not order:
                order = next(orders).tolist()
                order = [i for i in order if i not in batch] + [i for i in order if i in batch]
            index = order.pop(0)
            if chances.values[place] < 1 - gamma + gamma * g(index):
                batch.append(index)
            place += 1
        losses = losses_of(step, batch)
        total, count = 0.75 * total + 0.25 * sum(losses), 0.75 * count + 0.25 * BATCH
        threshold = total / count
        slopes, steps_of_constant, right = [0.0] * WIDTH, 0.0, 0
        for index, loss in zip(batch, losses, strict=True):
            z, found = float(loss > threshold), g(index)
            right += (found > 0.5) == bool(z)
            slopes = [old + (found - z) * x / BATCH for old, x in zip(slopes, features[index].tolist(), strict=True)]
            steps_of_constant += (found - z) / BATCH
        phi = [(1 - decay) * p - rate * slope for p, slope in zip(phi, slopes, strict=True)]
        constant = (1 - decay) * constant - rate * steps_of_constant
        gamma = 0.95 * gamma + 0.05 * right / BATCH
        yield batch, threshold, gamma, [*phi, constant]


def test_it_does_what_the_published_algorithm_does():
    rng = np.random.default_rng(0)
    features = rng.standard_normal((COUNT, WIDTH)).astype(np.float32)
    hard = features[:, 0] > 0.5
    selection = Selection(COUNT, BATCH, "autoassist", features=features)
    selection.walk.rng = chances = Chances(selection.walk)
    selection.learning_rate = 2.0  # else it hardly moves in so few steps
    batches, losses, known = [], [], []
    for _ in range(16):
        for batch in selection:
            step = len(batches)
            found = np.where(hard[batch], 2.0, 0.3) * np.exp(-step / 200) + 0.01 * rng.random(len(batch))
            selection.observe(batch, losses=torch.tensor(found))
            batches.append(batch)
            losses.append(found.astype(np.float32).tolist())
            known.append(
                (selection.threshold, selection.gamma, selection.state_dict()["methods"]["autoassist"]["phi"].tolist())
            )
    assert selection.note == ""
    assert len(batches) > 70
    assert selection.skipped > 200
    plain = algorithm_1(features, chances, lambda step, _: losses[step], len(batches), rate=2.0)
    for step, (batch, threshold, gamma, phi) in enumerate(plain):
        assert batch == batches[step], step
        assert known[step] == (pytest.approx(threshold, 1e-5), pytest.approx(gamma), pytest.approx(phi, 1e-3, 1e-4))


def images():
    """Return dark images, which are easy, and bright ones of random classes."""
    rng = np.random.default_rng(1)
    y = rng.integers(0, 2, 600)
    x = rng.random((600, 12, 12), np.float32) * 0.1
    x[:450, 0, 0] = 4.0 * y[:450]
    x[450:] += 0.8
    return x, y


def train(selection, x, y, epochs):
    torch.manual_seed(0)
    model = torch.nn.Linear(x.shape[1] * x.shape[2], 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = torch.from_numpy(x).flatten(1), torch.from_numpy(y)
    for _ in range(epochs):
        for batch in selection:
            logits = model(inputs[batch])
            loss = selection.mean(batch, functional.cross_entropy(logits, targets[batch], reduction="none"))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            selection.observe(batch, logits=logits, targets=targets[batch])


def test_the_assistant_learns_which_images_are_hard_and_its_judgement_is_shown():
    x, y = images()
    selection = Selection(600, 20, "autoassist", features=pixels(x, side=4))
    assert (selection.gamma, math.isnan(selection.threshold)) == (0.0, True)
    selection.learning_rate = 0.5
    train(selection, x, y, 20)
    assert selection.note == ""
    assert selection.auc > 0.8
    assert selection.accuracy > selection.majority - 0.05
    assert 0.6 < selection.gamma < 1
    assert selection.table.seen[:450].mean() < 0.8 * selection.table.seen[450:].mean()
    assert np.isnan(Selection(600).gamma)


def test_an_instance_is_judged_by_the_threshold_of_its_time():
    audit = Audit()
    for level in (4.0, 0.4, 0.04):  # the losses fall while the model learns
        predicted = np.array([level, level, level / 9], np.float32)
        audit.add(predicted, predicted, cut=level / 2, threshold=level / 2)
    quality = audit.quality()
    assert (quality.accuracy, quality.auc, quality.majority) == (1.0, 1.0, pytest.approx(2 / 3))


def test_ratings_are_compared_with_those_of_their_time():
    """Stored scores of an epoch ago do not fall while the mean score does."""
    rng, audit = np.random.default_rng(0), Audit()
    won = pairs = 0
    for step in range(300):
        level, predicted = 0.99**step, rng.random(16).astype(np.float32)
        losses = ((predicted + rng.random(16)) * level).astype(np.float32)
        important = losses > level
        audit.add(predicted, losses, cut=level, threshold=level)
        difference = predicted[important][:, None] - predicted[~important]
        won, pairs = won + (difference > 0).sum(), pairs + difference.size
    quality = audit.quality()
    assert quality.auc == pytest.approx(won / pairs, abs=0.015)
    assert quality.lift == pytest.approx(1.5, abs=0.05)  # of those rated above 1/2, 3 of 4 are important


def test_a_resumed_run_draws_the_same_batches():
    x, y = images()
    selection = Selection(600, 20, "autoassist", features=pixels(x))
    train(selection, x, y, 2)
    state = selection.state_dict()
    other = Selection(600, 20, "autoassist", features=pixels(x))
    other.load_state_dict(state)
    assert (other.gamma, other.threshold) == (selection.gamma, selection.threshold)
    assert list(selection) == list(other)
    assert list(selection) == list(other)
    wider = Selection(600, 20, "autoassist", features=pixels(x, side=4))
    with pytest.raises(ValueError, match="of the state has 64 features; here are 16"):
        wider.load_state_dict(state)
    assert (wider.steps, wider.epoch, wider.table.seen.sum()) == (0, 0, 0)


def test_an_assistant_that_was_turned_off_continues_where_it_was():
    x, y = images()
    selection = Selection(600, 20, "autoassist", features=pixels(x))
    train(selection, x, y, 1)
    gamma = selection.gamma
    selection.method = "uniform"
    assert np.isnan(selection.gamma)
    selection.method = "autoassist"
    assert selection.gamma == gamma > 0


def test_without_features_it_is_refused_and_nothing_changes():
    with pytest.raises(
        ControlError, match=r"'autoassist' needs features: Selection\(\.\.\., features=pixels\(images\)"
    ):
        Selection(10, 2, "autoassist")
    selection = Selection(10, 2, "infobatch")
    with pytest.raises(ControlError, match="needs features"):
        selection.method = "autoassist"
    assert (selection.method, np.isnan(selection.gamma)) == ("infobatch", True)
    given = Selection(10, 2, "autoassist", features=np.ones((10, 3)))
    with pytest.raises(ControlError, match="needs features"):
        selection.load_state_dict(given.state_dict())
    assert selection.method == "infobatch"


def test_a_client_that_turns_to_it_without_features_is_refused_in_a_sentence():
    selection = Selection(10, 2, "infobatch")
    both = looptap.testing.pair()
    both.agent.expose(selection=selection)
    with pytest.raises(looptap.CommandPending) as pending:
        both.run.set("selection.method", "autoassist", timeout=0)
    both.agent.emit("batch")
    with pytest.raises(ControlError, match="needs features"):
        both.run.outcome(pending.value.id)
    both.run.close()
    both.agent.close()
    assert selection.method == "infobatch"


def test_features_that_fail_in_mid_run_leave_plain_sampling_and_a_note():
    calls = []

    def failing(indices):
        calls.append(len(indices))
        if len(calls) > 5:
            raise OSError("the disk is gone")
        return np.ones((len(indices), 2))

    selection = Selection(64, 8, "autoassist", features=failing)
    with pytest.warns(RuntimeWarning, match="the disk is gone"):
        assert len([selection.observe(batch, losses=torch.ones(8)) for batch in selection]) == 8
    assert "the disk is gone" in selection.note
    assert selection.taken == 64
    assert 64 <= selection.walk.walked < 72


@pytest.mark.parametrize(
    ("features", "error", "text"),
    [
        (np.ones(10), ValueError, r"features of shape \(10,\) must be \(n, d\)"),
        (np.ones((9, 2)), ValueError, "features have 9 rows for 10 instances"),
        (np.full((10, 2), np.nan), ValueError, "not finite"),
        (np.ones((10, 0)), ValueError, "rows of no numbers"),
        ([["a"]] * 10, TypeError, "must be numbers"),
        ("pixels", TypeError, "must be an array"),
        (lambda indices: np.ones(len(indices)), ValueError, r"returned shape \(2,\) for 2 indices"),
    ],
)
def test_features_that_do_not_fit_are_refused(features, error, text):
    with pytest.raises(error, match=text):
        Selection(10, 2, "autoassist", features=features)


def test_pixels_are_means_and_the_class_is_as_if_it_had_a_column_each():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (20, 9, 11, 3)).astype(np.uint8)
    dense = pixels(x, side=3).table
    assert dense.shape == (20, 27)
    assert dense[4, 9] == pytest.approx(x[4, 0:3, 0:3, 1].mean() / 255, 1e-5)
    assert np.allclose(pixels(torch.from_numpy(x).permute(0, 3, 1, 2), side=3).table, dense)
    labels = rng.integers(0, 4, 20)
    found = pixels_and_class(x, labels, side=3, classes=4)
    whole = np.concatenate([dense, np.eye(4, dtype=np.float32)[labels]], 1)
    ids, weights, errors = np.array([3, 3, 17]), rng.random(31, np.float32), rng.random(3, np.float32)
    assert np.allclose(found.rows(ids).dot(weights), whole[ids] @ weights, atol=1e-5)
    assert np.allclose(found.rows(ids).gradient(errors), errors @ whole[ids], atol=1e-5)
    for wrong in (x[0, 0], x[:0], np.array(["a"])):
        with pytest.raises(ValueError, match="images of shape"):
            pixels(wrong)
    with pytest.raises(ValueError, match="side=10 must be from 1 to 9"):
        pixels(x, side=10)
    with pytest.raises(ValueError, match="labels from 0 to 3 must be from 0 to 2"):
        pixels_and_class(x, labels, classes=3)


def test_texts_become_sparse_rows_that_are_as_a_matrix():
    texts = ["the cat sat", "the dog", "", "a cat and a cat"]
    found = tfidf(texts, [[1, 2], [3], [4, 4, 4], []], buckets=50)
    assert (found.size, found.width) == (4, 102)
    whole = np.zeros((4, 102), np.float32)
    for row in range(4):
        part = slice(found.starts[row], found.starts[row + 1])
        np.add.at(whole[row], found.columns[part], found.values[part])
    assert np.linalg.norm(whole[:, :50], axis=1) == pytest.approx([1, 1, 0, 1], rel=1e-5)
    assert whole[:, 50].tolist() == pytest.approx([1.2, 0.8, 0, 2.0])  # lengths, in mean lengths
    assert whole[:, 101].tolist() == pytest.approx([4 / 3, 2 / 3, 2, 0])
    rng = np.random.default_rng(0)
    ids, weights, errors = np.array([3, 0, 2, 3]), rng.random(102, np.float32), rng.random(4, np.float32)
    assert np.allclose(found.rows(ids).dot(weights), whole[ids] @ weights, atol=1e-5)
    assert np.allclose(found.rows(ids).gradient(errors), errors @ whole[ids], atol=1e-5)
    assert len(found.rows(ids[:0]).dot(weights)) == 0
    with pytest.raises(ValueError, match="1 others for 4 texts"):
        tfidf(texts, ["a"])
    with pytest.raises(TypeError, match="must be a sequence of texts"):
        tfidf("a text")
    with pytest.raises(ValueError, match=r"columns from 0 to 9 must be from 0 to 7"):
        features_of(SparseFeatures([0, 2], [0, 9], [1, 1], 8), 1)
    selection = Selection(4, 2, "autoassist", features=found)
    assert selection.learning_rate == 0.5


def test_the_assistant_learns_which_texts_are_hard():
    rng = np.random.default_rng(0)
    common = 1 / np.arange(1, 501)
    texts = [rng.choice(500, rng.integers(5, 15), p=common / common.sum()).tolist() for _ in range(1200)]
    rare = np.array([np.mean([word > 50 for word in text]) > 0.35 for text in texts])
    losses = (0.3 + 2 * rare * rng.random(1200)).astype(np.float32)
    selection = Selection(1200, 30, "autoassist", features=tfidf(texts))
    for _ in range(15):
        for batch in selection:
            selection.observe(batch, losses=torch.from_numpy(losses[batch]))
    assert selection.note == ""
    assert selection.auc > 0.75
