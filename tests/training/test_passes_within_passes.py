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
