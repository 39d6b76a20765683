"""An assistant in a thread beside the loop."""

from __future__ import annotations

import gc
import multiprocessing
import sys
import threading
import time
import warnings

import numpy as np
import pytest
import torch
import warm
from torch.utils.data import DataLoader, TensorDataset
from waiting import LIMIT_SECONDS, soon

from looptap.streams.errors import ControlError
from looptap.training.sampling.instance_table import InstanceTable
from looptap.training.sampling.permutation_walk import PermutationWalk
from looptap.training.selection import Selection, WithIndex
from looptap.training.selection.features import DenseFeatures, tfidf
from looptap.training.selection.methods.autoassist import AutoAssist
from looptap.training.selection.methods.side_assistant import (
    MAX_BATCHES_AHEAD,
    MAX_PENDING_LOSSES,
    AssistantSettings,
    assist,
)

COUNT = 400
X = np.random.default_rng(0).standard_normal((COUNT, 6)).astype(np.float32)
LOSSES = np.where(X[:, 0] > 0.5, 2.0, 0.2).astype(np.float32)


def beside(**how):
    return Selection(COUNT, 10, "autoassist", asynchronous=True, **{"features": X, **how})


def steps(selection, until, pause=0.0):
    """Train until a condition holds; return the batches."""
    found, begun = [], time.monotonic()
    while True:
        for batch in selection:
            found.append(batch)
            selection.observe(batch, losses=torch.from_numpy(LOSSES[batch]))
            if until():
                return found
            assert time.monotonic() - begun < LIMIT_SECONDS, selection
            time.sleep(pause)


@pytest.fixture
def selection():
    found = beside()
    yield found
    found.close()


def threads():
    return [one for one in threading.enumerate() if one.name == "looptap-assistant"]


def test_it_learns_makes_batches_and_selects(selection):
    selection.learning_rate = 1.0
    steps(selection, lambda: selection.gamma > 0.8 and selection.skipped > 1000 and selection.auc > 0.8, 0.002)
    assert selection.note == ""
    seen = selection.table.seen
    assert seen[LOSSES > 1].mean() > 1.2 * seen[LOSSES < 1].mean()
    assert 0.2 < selection.threshold < 2
    assert selection.beside.starved < selection.steps
    state = selection.state_dict()
    again = Selection(COUNT, 10, "autoassist", features=X)
    again.load_state_dict(state)
    assert again.gamma == pytest.approx(selection.gamma, abs=0.1)


class Scripted:
    """Queues whose lengths are scripted; they note what the assistant does."""

    def __init__(self, lengths):
        self.lengths, self.done, self.losses = iter(lengths), [], iter(range(100))
        self.wants_batch = self.closed = False
        self._next()

    def _next(self):
        length = next(self.lengths, None)
        self.closed, self.wants_batch = length is None, length is not None and length < MAX_BATCHES_AHEAD

    def put_batch(self, made):
        self.done.append(made)
        self._next()

    def next_losses(self):
        self._next()
        step = next(self.losses)
        if step == 3:
            return None
        self.done.append(step)
        return np.arange(4), np.array([1, 2, 3, step], np.float32)


def test_it_makes_a_batch_while_fewer_than_c_wait_and_else_learns():
    """Algorithm 2, beside Algorithm 1 on the same batches and losses."""
    queues = Scripted([0, 1, 8, 7, 8, 8, 9, 8, 3])
    method, plain = (AutoAssist(InstanceTable(0), AssistantSettings(DenseFeatures(X), 0.5)) for _ in range(2))
    walk, again = PermutationWalk(np.arange(COUNT), 3), PermutationWalk(np.arange(COUNT), 3)
    assist(queues, method, walk, 10)
    assert [one if isinstance(one, int) else "batch" for one in queues.done] == [
        "batch", "batch", 0, "batch", 1, 2, 4, "batch"
    ]  # fmt: skip
    for one in queues.done:
        if isinstance(one, int):
            plain.observe(np.arange(4), np.array([1, 2, 3, one], np.float32), None)
        else:
            before, found = again.walked, again.take(10, plain.acceptance)
            assert one.accepted.indices.tolist() == found.indices.tolist()
            assert one.prediction.tolist() == plain.predicted(found.indices).tolist()
            assert one.offered == again.walked - before
    assert method.phi.tolist() == plain.phi.tolist()
    assert method.gamma == plain.gamma > 0


def test_every_instance_counts_once_an_epoch(selection):
    for epoch in range(1, 6):
        for batch in selection:
            selection.observe(batch, losses=torch.from_numpy(LOSSES[batch]))
        assert epoch * COUNT <= selection.walk.walked < epoch * COUNT + 200
        assert selection.epoch == epoch


class Held:
    """A function of features that stands still in the assistant's thread."""

    def __init__(self):
        self.calls, self.stands, self.may_go_on = 0, threading.Event(), threading.Event()

    def __call__(self, indices):
        self.calls += 1
        if self.calls > 3 and threading.current_thread().name == "looptap-assistant":
            self.stands.set()
            self.may_go_on.wait(LIMIT_SECONDS)
        return X[indices]


def test_the_queues_are_bounded_and_what_does_not_fit_is_counted():
    held = Held()
    selection = beside(features=held)
    steps(selection, held.stands.is_set)
    before = selection.beside.dropped
    for _ in range(MAX_PENDING_LOSSES + 5):
        selection.observe([1, 2], losses=torch.ones(2))
    assert selection.beside.dropped >= before + 5
    drawn = selection.steps + 3 * MAX_BATCHES_AHEAD
    steps(selection, lambda: selection.steps > drawn)  # it stands still, the loop does not
    held.may_go_on.set()
    soon(lambda: selection.beside.waiting == MAX_BATCHES_AHEAD)
    assert selection.note == ""
    selection.close()


class Failing:
    """A function of features that fails when it is called for the third time."""

    calls = 0

    def __call__(self, indices):
        self.calls += 1
        if self.calls > 3:
            raise OSError("the disk is gone")
        return X[indices]


def test_features_that_fail_in_the_thread_leave_plain_sampling_and_a_note_until_it_is_set_again():
    failing = Failing()
    selection = beside(features=failing)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        steps(selection, lambda: selection.beside.ended)
    assert "OSError: the disk is gone): sampling is plain until you set the method again." in selection.note
    taken, walked = selection.taken, selection.walk.walked
    batches = steps(selection, lambda: selection.taken > taken + 10 * COUNT)
    assert selection.walk.walked - walked == 10 * len(batches)
    failing.calls = -(10**6)
    selection.method = "autoassist"
    steps(selection, lambda: selection.beside.waiting > 0)
    assert selection.beside.ended == ""
    selection.close()


def test_without_a_thread_sampling_is_plain(monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    selection = beside()
    with pytest.warns(RuntimeWarning, match="it could not start: can't start new thread"):
        next(iter(selection))
    selection.close()


@pytest.mark.promise("S19", "S23")
@pytest.mark.parametrize("end", ["close", "turn", "collect"])
def test_it_ends_when_it_is_closed_turned_off_or_collected(end):
    selection = beside()
    steps(selection, lambda: selection.beside.waiting > 0)
    match end:
        case "close":
            selection.close()
        case "turn":
            selection.method = "uniform"
        case "collect":
            del selection
            gc.collect()
    soon(lambda: not threads())


@pytest.mark.usefixtures("processes")
def test_an_ordinary_end_of_the_job_waits_for_nothing():
    code = (
        "import numpy as np, sys, time\n"
        "from looptap.training.selection import Selection\n"
        "s = Selection(100, 10, 'autoassist', asynchronous=True, features=np.ones((100, 3)))\n"
        "while not s.beside.waiting: next(iter(s)); time.sleep(0.01)\n"
    )
    done = warm.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_SECONDS * 2)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.usefixtures("processes")
def test_workers_of_a_loader_are_forked_beside_it(selection):
    data = TensorDataset(torch.from_numpy(X))
    loader = DataLoader(
        WithIndex(data),
        batch_sampler=selection,
        num_workers=2,
        multiprocessing_context=multiprocessing.get_context("fork"),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork where threads run
        for _ in range(3):
            for indices, _ in loader:
                selection.observe(indices, losses=torch.from_numpy(LOSSES[indices.numpy()]))
    assert selection.note == ""
    assert selection.epoch == 3
    steps(selection, lambda: selection.beside.waiting > 0)


def test_each_rank_has_an_assistant_and_takes_as_many_steps():
    lengths = []

    def agree(mine):
        lengths.append(mine)
        return 18.0

    ranks = [beside(rank=rank, world=2, agree=agree) for rank in range(2)]
    for rank, selection in enumerate(ranks):
        batches = steps(selection, lambda one=selection: one.beside.waiting > 0)
        assert {index % 2 for batch in batches for index in batch} == {rank}
        epoch = selection.epoch
        batches = steps(selection, lambda one=selection, last=epoch: one.epoch == last + 2, 0.001)
        assert selection.given == 1
        assert {index % 2 for batch in batches for index in batch} == {rank}
        assert selection.note == ""
    for selection in ranks:
        selection.close()
    assert lengths


def test_texts_have_an_assistant_too():
    selection = beside(features=tfidf([f"word{n % 7} and word{n % 5}" for n in range(COUNT)], buckets=64))
    steps(selection, lambda: selection.beside.waiting > 0 and selection.gamma > 0)
    assert selection.note == ""
    selection.close()


def test_what_cannot_work_beside_the_loop_is_refused():
    with pytest.raises(TypeError, match="asynchronous='process' must be True or False"):
        Selection(COUNT, 10, "autoassist", asynchronous="process", features=X)
    with pytest.raises(ControlError, match="is for the method 'autoassist'"):
        Selection(COUNT, 10, "norm", asynchronous=True)
