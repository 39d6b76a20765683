"""Echoes of a loader that skips instances: indices stay, lengths are followed."""

from __future__ import annotations

import collections
import itertools
import pickle

import numpy as np
import pytest
import torch
from clocks import Clock
from torch.utils.data import BatchSampler, DataLoader, Dataset, Sampler

from looptap.training.echoing import AFTER, BATCH, BEFORE, MODES, SHUFFLED, Echo
from looptap.training.instances import IndexedItem, WithIndex, expected_length, merge_copies, next_length
from looptap.training.progress import Progress
from looptap.training.selection import Selection


class Tens(Dataset):
    """A data set whose item i is ten times i, as a tensor and as a number."""

    def __len__(self):
        return 120

    def __getitem__(self, i):
        return torch.full((2,), 10.0 * i), 10 * i


class Choosy(Sampler):
    """A resumable batch sampler that keeps ``kept`` of the instances it offers."""

    def __init__(self, count=120, size=8, kept=1.0):
        self.count, self.batch_size, self.kept = count, size, kept
        self.rng, self.order, self.place, self.given, self.inside = np.random.default_rng(0), [], 0, 0, False
        self.drawn: list[int] = []

    def __iter__(self):
        if not self.inside:
            self.order, self.place, self.given, self.inside = self.rng.permutation(self.count).tolist(), 0, 0, True
        while self.place < self.count:
            batch = []
            while self.place < self.count and len(batch) < self.batch_size:
                if self.rng.random() < self.kept:
                    batch.append(self.order[self.place])
                self.place += 1
            if batch:
                self.given += 1
                self.drawn += batch
                yield batch
        self.inside = False

    def __len__(self):
        return max(1, round(self.expected_length))

    @property
    def expected_length(self):
        if not self.inside:
            return self.count * self.kept / self.batch_size
        return self.given + (self.count - self.place) * self.kept / self.batch_size

    @property
    def next_length(self):
        return self.count * self.kept / self.batch_size

    def state_dict(self):
        names = ("order", "place", "given", "inside")
        return {"rng": self.rng.bit_generator.state, **{name: getattr(self, name) for name in names}}

    def load_state_dict(self, state):
        self.__dict__.update(state | {"rng": self.rng})
        self.rng.bit_generator.state = state["rng"]


def shifted(item):
    """Augment an item of the data set, which has no index."""
    x, i = item
    return x + torch.rand(()), i


def choosy(mode, factor=3, *, workers=0, kept=1.0, persistent=False, **how):
    sampler = Choosy(kept=kept)
    loader = DataLoader(WithIndex(Tens()), batch_sampler=sampler, num_workers=workers, persistent_workers=persistent)
    augment = {BEFORE: {"augment": shifted}, AFTER: {"augment": shifted}}.get(mode, {"augment_batch": shifted})
    return Echo(loader, factor, mode, **augment, **how), sampler


def checked(batch):
    """Return the indices of a batch, after checking that each is its item's."""
    assert isinstance(batch, IndexedItem)
    index, (x, i) = batch
    assert index.dtype == torch.int64
    assert torch.equal(10 * index, i)
    shift = x - i.unsqueeze(1)
    assert torch.all((shift >= 0) & (shift < 1.01))
    assert torch.any(shift > 0)
    return index.tolist()


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_an_index_stays_with_its_item_through_buffer_and_augmentation(mode, workers, persistent):
    echo, sampler = choosy(mode, workers=workers, persistent=persistent)
    for kept in (1.0, 0.5, 0.25):
        sampler.kept, sampler.drawn = kept, []
        steps, counts, lengths = 0, collections.Counter(), []
        for batch in echo:
            found = checked(batch)
            unique, _ = merge_copies(found, np.ones(len(found)))
            assert set(unique.tolist()) == set(found)
            steps += 1
            counts.update(found)
            lengths.append(expected_length(echo))
        assert counts == {index: 3 for index in sampler.drawn}
        assert abs(lengths[-1] - steps) <= 4
        assert lengths[0] == pytest.approx(3 * 15 * kept, rel=0.5)
        assert next_length(echo) == pytest.approx(3 * 15 * kept, abs=1)


@pytest.mark.parametrize("mode", MODES)
def test_the_length_of_an_echo_is_that_of_its_loader_times_the_factor(mode):
    echo, sampler = choosy(mode, 2.5)
    assert expected_length(echo) == pytest.approx(37.5, abs=0.5)
    assert len(echo) == round(expected_length(echo))
    sampler.kept = 0.31
    expected = 120 * 0.31 / 8 * 2.5
    assert expected_length(echo) == pytest.approx(expected, abs=0.0 if mode in (BATCH, SHUFFLED) else 1.0)
    batches = iter(echo)
    next(batches)
    inside = expected_length(echo)
    sampler.kept = 1.0
    assert expected_length(echo) > inside + 5
    assert next_length(echo) == pytest.approx(37.5, abs=0.5)
    echo.factor = 1.0
    assert next_length(echo) == 15.0


def test_an_echo_of_a_loader_of_unknown_length_has_none():
    echo = Echo(DataLoader(Endless()), 2)
    assert expected_length(echo) is None
    assert next_length(echo) is None
    with pytest.raises(TypeError, match="unknown"):
        len(echo)


class Endless(torch.utils.data.IterableDataset):
    def __iter__(self):
        while True:
            yield 0


def test_a_sampler_whose_len_changes_is_followed_too():
    class Fewer(BatchSampler):
        kept = 1.0

        def __len__(self):
            return round(15 * self.kept)

    sampler = Fewer(range(120), 8, False)
    echo = Echo(DataLoader(Tens(), batch_sampler=sampler), 2, AFTER)
    assert len(echo) == 30
    sampler.kept = 0.5
    assert len(echo) == 16
    assert len(Echo(DataLoader(Tens(), batch_size=7), 2, AFTER)) == 35  # ceil(240 / 7), not twice 18


@pytest.mark.parametrize("mode", [BATCH, AFTER, BEFORE])
@pytest.mark.parametrize("every", [None, 16])
def test_progress_follows_an_echo_of_a_loader_that_skips_more_and_more(mode, every):
    echo, sampler = choosy(mode, 2)
    clock, looked = Clock(), []
    progress = Progress(echo, epochs=8, validate_every=every, clock=clock)
    for _ in range(8):
        for _ in progress.train():
            clock.now += 1.0
            looked.append((clock.now, progress.remaining.median))
            if every and (progress.steps + 1) % every == 0:
                progress.validated(0.5)
            sampler.kept = max(0.5, sampler.kept - 0.003)
        if not every:
            progress.validated(0.5)
    assert progress.estimator.forecasts <= (8 if not every else progress.steps // every + 1) + 1
    late = [(left, clock.now - now) for now, left in looked if sampler.kept == 0.5][-40:]
    assert len(late) == 40
    assert np.abs(np.diff(late, axis=1)).mean() < 6.0  # seconds, a batch each


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("workers", [0, 2])
def test_the_rest_of_an_epoch_is_not_of_the_length_of_the_next(mode, workers):
    """A sampler that has drawn its last batch states its next epoch."""
    selection = Selection(44, batch_size=8, switch="off")
    loader = DataLoader(WithIndex(Tens()), batch_sampler=selection, num_workers=workers)
    echo = Echo(loader, 2, mode, buffer=24, augment_batch=None if mode == AFTER else shifted)
    for length in (12, 10, 12):
        steps = 0
        for index, (x, _) in echo:
            steps += 1
            last = expected_length(echo)
            assert last == pytest.approx(length, abs=1)
            selection.observe(index, losses=x[:, 0] / 1000)
        assert last == steps == length


# ---------------------------------------------------------------- resume


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_with_a_state_of_its_own_continues_where_it_was(mode, workers):
    echo, sampler = choosy(mode, 2, workers=workers, kept=0.7)
    batches = iter(echo)
    for _ in range(7):
        checked(next(batches))
    states = pickle.dumps([echo.state_dict(), sampler.state_dict()])
    wanted = [checked(batch) for batch in batches]
    second, resumed = choosy(mode, 2, workers=workers, kept=0.7)
    state, own = pickle.loads(states)
    second.load_state_dict(state)
    resumed.load_state_dict(own)
    assert [checked(batch) for batch in second] == wanted


@pytest.mark.usefixtures("processes")
@pytest.mark.promise("echo", "selection")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("workers", [0, 2])
def test_an_echo_of_a_selection_loses_and_repeats_nothing_over_a_resume(mode, workers):
    """The first epoch draws each instance once, so that an echo of 2 has each twice."""

    def begun():
        selection = Selection(Tens(), batch_size=8)
        loader = DataLoader(WithIndex(Tens()), batch_sampler=selection, num_workers=workers)
        return Echo(loader, 2, mode, augment_batch=None if mode == AFTER else shifted), selection

    def trained(batches, selection, counts):
        for index, (x, _) in batches:
            selection.observe(index, losses=x[:, 0] / 1000)
            counts.update(index.tolist())
            yield

    echo, selection = begun()
    progress, counts = Progress(echo, epochs=1), collections.Counter()
    steps = trained(progress.train(), selection, counts)
    for _ in range(9):
        next(steps)
    assert expected_length(echo) == pytest.approx(30, abs=1)
    states = pickle.dumps([echo.state_dict(), selection.state_dict(), progress.state_dict()])
    again, resumed = begun()
    later = Progress(again, epochs=1)
    for one, state in zip((again, resumed, later), pickle.loads(states), strict=True):
        one.load_state_dict(state)
    assert len(resumed.state_dict()["drawn"]) == len(pickle.loads(states)[1]["drawn"])  # a checkpoint before any step
    for _ in trained(later.train(), resumed, counts):
        assert expected_length(again) == pytest.approx(30, abs=1)
    assert counts == dict.fromkeys(range(120), 2)
    assert later.epoch == 1
    assert selection.note == resumed.note == ""


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("workers", "stops"), [(0, range(1, 24)), (2, [9, 12])])
def test_an_echo_of_a_selection_that_is_resumed_twice_makes_the_steps_of_one_that_is_not(mode, workers, stops):
    """Also at the end of an epoch, while echoes of the last batches wait."""

    def begun(state=None):
        selection = Selection(48, batch_size=8, switch="on")
        loader = DataLoader(WithIndex(Tens()), batch_sampler=selection, num_workers=workers)
        echo = Echo(loader, 2, mode, buffer=24, augment_batch=None if mode == AFTER else shifted)
        if state is not None:
            for one, own in zip((echo, selection), pickle.loads(state), strict=True):
                one.load_state_dict(own)
        return echo, selection, trained(echo, selection)

    def trained(echo, selection):
        while echo.epoch < 2:
            for index, (x, _) in echo:
                selection.observe(index, losses=x[:, 0] / 1000)
                yield index.tolist()

    echo, selection, steps = begun()
    whole = [*steps]
    epochs = echo.epoch, selection.epoch
    for stop in stops:
        found = []
        echo, selection, steps = begun()
        for count in (stop, 1):
            found += itertools.islice(steps, count)
            length = selection.expected_length
            state = pickle.dumps([echo.state_dict(), selection.state_dict()])
            steps.close()
            echo, selection, steps = begun(state)
            assert selection.expected_length == length
        assert [*found, *steps] == whole
        assert (echo.epoch, selection.epoch) == epochs
        assert echo.note == selection.note == ""
