"""Loops in the epoch of another one, over the same loader, and resumes."""

from __future__ import annotations

import itertools
import pickle

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from looptap.training.echoing import AFTER, MODES, Echo
from looptap.training.instances import WithIndex
from looptap.training.progress import Progress
from looptap.training.selection import Selection

OUTER, INNER = 1, 2
SYSTEMS = ["selection", *(f"echo {mode}" for mode in MODES), *(f"echo of a selection, {mode}" for mode in MODES)]


def _marked(system):
    """Return a system as a parameter; each third shows the promise quickly."""
    quick = SYSTEMS.index(system) % 3 == 0
    return pytest.param(system, marks=pytest.mark.promise("echo", "selection") if quick else pytest.mark.long)


class Tens(Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, i):
        return torch.full((2,), 10.0 * i), 10 * i


def shifted(item):
    x, i = item
    return x + torch.rand(()), i


class Training:
    """A loop over a system; `log` has the batches and counts of each step."""

    def __init__(self, system, saved, within, state=None, workers=0):
        torch.manual_seed(0)
        self.parts, self.log = {}, []
        self.saved, self.within = saved, within  # (depth, step): where it saves, and after which a loop follows
        if "selection" in system:
            sampler = self.parts["selection"] = Selection(48, 8, "uniform", switch="on", epochs=9)
            loader = DataLoader(WithIndex(Tens()), batch_sampler=sampler, num_workers=workers)
        else:
            self.order = torch.Generator().manual_seed(3)
            loader = DataLoader(WithIndex(Tens()), 8, shuffle=True, generator=self.order, num_workers=workers)
        if "echo" in system:
            mode = system.split()[-1]
            augment = None if mode == AFTER else shifted
            loader = self.parts["echo"] = Echo(loader, 2, mode, buffer=24, augment_batch=augment)
        self.progress = self.parts["progress"] = Progress(loader, epochs=3)
        for name, own in pickle.loads(state or pickle.dumps({})).items():
            self.parts[name].load_state_dict(own)

    def counts(self):
        """Return what the passes have counted; in the inner loop, what it alone decides."""
        outer, found = self.saved[0] == OUTER, []
        for name, of_all, of_outer in (
            ("echo", "steps seen fresh dropped fill", "epoch"), ("selection", "steps taken", "epoch given"),
            ("progress", "", "steps epoch"),
        ):  # fmt: skip
            if name in self.parts:
                found += [getattr(self.parts[name], one) for one in f"{of_all} {of_outer if outer else ''}".split()]
        return found

    def epoch(self, depth=OUTER, done=0):
        """Train an epoch after ``done`` steps; yield the state where it is saved."""
        for step, (indices, (x, _)) in enumerate(self.progress.train(), done + 1):
            if "selection" in self.parts:
                self.parts["selection"].observe(indices, losses=x[:, 0] / 1000)
            if (depth, step) in self.within:
                yield from self.epoch(depth + 1)
            self.log.append((depth, step, indices.tolist(), self.counts()))
            if (depth, step) == self.saved:
                yield pickle.dumps({name: part.state_dict() for name, part in self.parts.items()})


@pytest.mark.parametrize("after", [False, True], ids=["alone", "with one in it"])
@pytest.mark.parametrize("before", [False, True], ids=["", "after one in it"])
@pytest.mark.parametrize("depth", [OUTER, INNER], ids=["outer", "inner"])
@pytest.mark.parametrize("system", [*map(_marked, SYSTEMS)])
def test_a_resumed_loop_continues_with_loops_in_it_as_one_that_is_not_resumed(system, depth, before, after):
    for step in (2, 5) if system == "selection" else (2, 5, 9, 10, 11):
        within = {(depth, step)} if before else set()
        within |= {(OUTER, 3)} if depth == INNER else set()
        within |= {(depth, step + 1)} if after else set()
        check(system, depth, step, within)


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("depth", [OUTER, INNER], ids=["outer", "inner"])
@pytest.mark.parametrize("system", SYSTEMS[-4:])
def test_a_resumed_loop_with_workers_continues_with_loops_in_it(system, depth):
    within = {(OUTER, 3), (depth, 9), (depth, 10)}
    check(system, depth, 9, within, workers=2)


@pytest.mark.promise("echo", "selection")
@pytest.mark.parametrize("system", SYSTEMS)
def test_a_checkpoint_between_two_epochs_continues_with_a_whole_one(system):
    whole = Training(system, (OUTER, 0), set())
    assert [*whole.epoch()] == []
    done, state = len(whole.log), {name: part.state_dict() for name, part in whole.parts.items()}
    resumed = Training(system, (OUTER, 0), set(), pickle.dumps(state))
    if "selection" not in system:
        resumed.order.set_state(whole.order.get_state())  # the job's to save, between epochs
    for _ in (*whole.epoch(), *resumed.epoch()):
        pass
    assert resumed.log == whole.log[done:]


def test_a_look_at_a_batch_with_an_iterator_that_is_kept_is_no_part_of_a_checkpoint():
    for system in SYSTEMS[1:]:
        training = Training(system, (OUTER, 4), set())
        loader = training.parts["echo"]
        batches, kept = iter(loader), iter(loader)
        first = [next(batches), next(kept), next(batches)]
        state, rest = pickle.dumps(training.parts["echo"].state_dict()), [*batches]
        assert len(first) + len(rest) == 1 + 12
        assert loader.epoch == 1  # of the one that is kept
        if "selection" not in system:
            again = Training(system, (OUTER, 4), set()).parts["echo"]
            again.load_state_dict(pickle.loads(state))
            assert [index.tolist() for index, _ in again] == [index.tolist() for index, _ in rest]


@pytest.mark.parametrize("mode", MODES)
def test_a_checkpoint_after_a_pass_that_failed_is_of_the_next_one_while_a_traceback_keeps_that(mode):
    echo, kept = Echo(DataLoader(Tens(), 8), 2, mode, augment_batch=None if mode == AFTER else shifted), []

    def train(fails_at=None):
        batches = iter(echo)
        for number, _ in enumerate(batches):
            if number == fails_at:
                raise RuntimeError

    try:
        train(fails_at=5)
    except RuntimeError as error:
        kept.append(error)
    train()
    assert (echo.epoch, echo.state_dict()["inside"]) == (2, False)


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("keeps", [False, True], ids=["", "kept"])
@pytest.mark.parametrize("ahead", [0, 1, 2, 4, 5, 9])
def test_a_selection_continues_the_epoch_of_a_pass_that_failed(ahead, keeps):
    """Also while a traceback keeps it, and if the worker had read the whole epoch."""
    selection, kept = Selection(48, 8, "uniform", switch="on", epochs=9), []
    workers = {"num_workers": 1, "prefetch_factor": ahead} if ahead else {}
    loader = DataLoader(WithIndex(Tens()), batch_sampler=selection, **workers)

    def train(fails_at=None):
        batches, seen = iter(loader), []
        for number, (indices, (x, _)) in enumerate(batches):
            if number == fails_at:
                raise RuntimeError
            selection.observe(indices, losses=x[:, 0])
            seen += indices.tolist()
        return seen

    try:
        train(fails_at=1)
    except RuntimeError as error:
        kept += [error] * keeps
    assert len(train()) == 40
    assert selection.epoch == 1
    assert sorted(train()) == [*range(48)]
    assert (selection.epoch, selection.state_dict()["inside"]) == (2, False)


@pytest.mark.usefixtures("processes")
def test_a_selection_ends_an_epoch_of_which_each_third_step_is_observed():
    selection = Selection(56, 8, "uniform", switch="on", epochs=9)
    loader = DataLoader(WithIndex([torch.zeros(2)] * 56), batch_sampler=selection, num_workers=2)
    for epoch in range(3):
        seen = []
        for number, (indices, x) in enumerate(loader):
            seen += indices.tolist()
            if number % 3 == 2:
                selection.observe(indices, losses=x[:, 0])
        assert sorted(seen) == [*range(56)]
        assert len(loader) == 7
        assert selection.epoch == epoch


@pytest.mark.usefixtures("processes")
def test_a_pass_within_one_that_workers_have_read_to_its_end_is_whole():
    selection = Selection(48, 8, "uniform", switch="on", epochs=9)
    loader = DataLoader(WithIndex(Tens()), batch_sampler=selection, num_workers=1, prefetch_factor=9)
    outer = []
    for indices, (x, _) in loader:
        outer += indices.tolist()
        selection.observe(indices, losses=x[:, 0])
        if len(outer) == 16:
            assert sorted(index for inner, _ in loader for index in inner.tolist()) == [*range(48)]
    assert sorted(outer) == [*range(48)]
    assert selection.epoch == 2


def check(system, depth, step, within, workers=0):
    whole = Training(system, (depth, step), within, workers=workers)
    for saved in whole.epoch():
        state, done = saved, len(whole.log)
    resumed = Training(system, (depth, step), within, state, workers=workers)
    wanted = itertools.takewhile(lambda row: row[0] >= depth, whole.log[done:])
    assert [*resumed.epoch(depth, step)] == []
    assert resumed.log == [*wanted], (step, within)
    if depth == OUTER:
        for _ in (*whole.epoch(), *resumed.epoch()):
            pass
        assert resumed.log == whole.log[done:], (step, within)
    assert "".join(part.note for part in resumed.parts.values()) == ""
