"""Selection: what a loop, its data and its assistant do wrong must not end it."""

from __future__ import annotations

import copy
import itertools
import math
import pickle
import threading
import tracemalloc
import warnings

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from looptap.streams.errors import ControlError
from looptap.training.selection import METHODS, Selection, WithIndex


def walk(selection, epochs, losses):
    """Train nothing for some epochs; return the means of the losses."""
    means = []
    for _ in range(epochs):
        for batch in selection:
            given = losses(batch)
            means.append(float(selection.mean(batch, given)))
            selection.observe(batch, losses=given)
    return means


def ones(batch):
    """Return a loss of 1 for each."""
    return torch.ones(len(batch))


class Failing:
    """Features as a function, which fails from some time on."""

    def __init__(self):
        self.broken = False

    def __call__(self, indices):
        if self.broken:
            raise OSError("the disk is gone")
        return np.stack([np.array([index, 1.0]) for index in indices])  # raises for no indices


@pytest.mark.parametrize("times", [[1.0] * 3, range(10**6, 0, -1)], ids=["stands", "goes back"])
def test_a_clock_that_stands_or_goes_back_ends_nothing(times):
    clock = itertools.cycle(times)
    selection = Selection(64, 8, clock=lambda: float(next(clock)))
    walk(selection, 20, ones)
    assert selection.note == ""
    assert selection.seconds_spent >= 0


def test_an_assistant_that_diverges_says_so_and_the_losses_stay_finite():
    selection = Selection(64, 8, "autoassist", features=np.eye(64))
    selection.learning_rate = math.inf
    assert np.isfinite(walk(selection, 3, lambda batch: torch.rand(len(batch)))).all()
    assert "diverged with learning_rate=inf" in selection.note
    assert 0 < len(selection) <= 8
    selection.learning_rate = 0.01
    selection.note = ""
    walk(selection, 3, lambda batch: torch.rand(len(batch)))
    assert selection.note == ""


@pytest.mark.parametrize("world", [1, 2])
def test_features_that_fail_leave_the_length_and_the_epochs(world):
    features = Failing()
    selection = Selection(64, 8, "autoassist", features=features, rank=0, world=world, agree=float)
    walk(selection, 1, ones)
    features.broken = True
    assert 0 < selection.expected_length <= len(selection) <= 8 // world
    walk(selection, 1, ones)
    assert "the disk is gone" in selection.note
    assert selection.epoch == 2


def test_a_method_whose_features_fail_is_not_taken():
    features = Failing()
    selection = Selection(64, 8, "norm", features=features)
    selection.features.rows = None  # as what a user wrote may be
    with pytest.raises(TypeError):
        selection.method = "autoassist"
    assert selection.method == "norm"
    walk(selection, 2, ones)
    assert selection.note == ""


@pytest.mark.parametrize(
    "targets",
    [np.array([1, 0]), [1, 0], torch.tensor([1, 0], device="meta"), torch.zeros(6, dtype=torch.int64), np.array([2.0])],
    ids=["numpy", "list", "device", "tokens", "numbers"],
)
def test_targets_of_any_kind_leave_the_losses(targets):
    selection = Selection(8, 2)
    selection.observe([3, 4], losses=torch.tensor([1.0, 2.0]), targets=targets)
    assert selection.note == ""
    assert selection.table.loss[[3, 4]].tolist() == [1.0, 2.0]


def test_labels_may_be_large_numbers():
    selection = Selection(8, 2)
    selection.observe([3, 4], losses=torch.ones(2), targets=torch.tensor([2**31 - 1, 5]))
    tracemalloc.start()
    try:
        assert selection.acceptance_by_class == {5: 1.0, 2**31 - 1: 1.0}
        assert tracemalloc.get_traced_memory()[1] < 100_000  # an array with an element for each number has 16 GB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("switch", ["on", "off"])
def test_loops_within_loops_end_no_other_and_offer_all_equally_often(switch):
    selection = Selection(16, 4, switch=switch)
    loader, outer, inner = DataLoader(WithIndex(range(16)), batch_sampler=selection), [], []
    for indices, _ in loader:
        outer.append(indices.tolist())
        selection.observe(indices, losses=torch.ones(4))
        inner.append([batch for batch, _ in loader])
        for _ in loader:  # left early
            break
    assert len(outer) == 4
    assert [len(one) for one in inner] == [4] * 4
    assert (selection.note, selection.epoch, selection.steps) == ("", 5, 4)
    assert len([*loader]) == 4
    selection = Selection(16, 4, switch="off")
    pairs = [*zip(selection, selection, strict=True)]
    assert sorted(i for pair in pairs for batch in pair for i in batch) == sorted([*range(16)] * 2)


def test_two_threads_share_a_walk():
    selection, found = Selection(1000, 4, switch="off"), []
    threads = [threading.Thread(target=lambda: found.extend(selection)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(i for batch in found for i in batch) == sorted([*range(1000)] * 4)


def test_a_checkpoint_in_a_loop_holds_its_own_pass():
    def trained(selection, found, within=0):
        for batch in selection:
            found.append(batch)
            selection.observe(batch, losses=torch.ones(4))
            if len(found) == within:
                assert len([*selection]) == 4
                yield selection.state_dict()

    whole, rest, resumed = [], [], Selection(16, 4, switch="off")
    for state in trained(Selection(16, 4, switch="off"), whole, within=2):
        resumed.load_state_dict(copy.deepcopy(state))
    assert [*trained(resumed, rest)] == []
    assert rest == whole[2:]
    assert len(whole) == 4


def test_indices_that_are_refilled_in_place_are_read_again():
    selection = Selection(16, 4, "infobatch", switch="on")
    walk(selection, 3, lambda batch: torch.tensor([1.0 if index < 8 else 0.1 for index in batch]))
    selection.table.weight[:], selection.table.weighted = np.arange(16), True
    indices = torch.tensor([1, 1])
    assert selection.mean(indices, torch.ones(2)) == 1
    indices[:] = 3  # and the step was left out
    assert selection.mean(indices, torch.ones(2)) == 3
    selection.observe(indices, losses=torch.full((2,), 7.0))
    assert selection.table.loss[3] == 7


def test_a_control_is_refused_in_a_sentence():
    with pytest.raises(ControlError, match=r"learning_rate = nan must be a number, 0\.0 or more"):
        Selection(8, 2).learning_rate = math.nan


@pytest.mark.parametrize("method", METHODS)
def test_a_checkpoint_is_read_by_torch_load_as_it_is(method, tmp_path):
    def new():
        return Selection(64, 8, method, switch="on", features=np.eye(64))

    selection = new()
    walk(selection, 2, lambda batch: torch.tensor(batch) / 64)
    torch.save({"selection": selection.state_dict()}, tmp_path / "checkpoint.pt")
    rest = [*selection]
    resumed = new()
    resumed.load_state_dict(torch.load(tmp_path / "checkpoint.pt", weights_only=True)["selection"])
    assert [*resumed] == rest
    with pytest.raises(ValueError, match=r"\{'model': 1\} is not what the state_dict\(\) of a Selection returned"):
        resumed.load_state_dict({"model": 1})


def test_what_goes_wrong_differently_at_each_step_is_not_a_flood_of_warnings(recwarn):
    warnings.simplefilter("always")
    selection = Selection(8, 2)
    for index in range(1000):
        selection.observe([100 + index], losses=torch.ones(1))
    assert "1099" in selection.note
    assert len(recwarn) == 20


def test_a_data_set_with_another_length_is_noted():
    data = [1.0] * 16
    selection = Selection(data, 4)
    assert len([*selection]) == 4
    assert selection.note == ""
    data += [2.0] * 4
    assert len([*selection]) == 4
    assert "has 20 instances now, and had 16" in selection.note


def test_a_loop_that_ceases_to_observe_and_leaves_its_epochs_sees_other_batches():
    selection = Selection(40, 4)
    walk(selection, 1, ones)
    seen = {index for _ in range(20) for batch in itertools.islice(selection, 3) for index in batch}
    assert seen == set(range(40))


def test_a_copy_has_an_assistant_of_its_own():
    selection = Selection(64, 8, "autoassist", features=np.eye(64), asynchronous=True)
    walk(selection, 1, ones)
    copies = [copy.deepcopy(selection), pickle.loads(pickle.dumps(selection))]
    selection.close()
    for one in copies:
        walk(one, 1, ones)
        assert one.epoch == 2
        assert one.note == ""
        one.close()
