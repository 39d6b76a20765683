"""Data echoing: exact repeats, every kind of loader, no leaks, full checkpoints."""

from __future__ import annotations

import collections
import json
import math
import pickle
import random
import subprocess
import sys
import textwrap
import threading
import time
import traceback
import weakref
from typing import NamedTuple

import numpy as np
import pytest
import torch
import warm
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, IterableDataset

import looptap
from looptap.streams.errors import ControlError
from looptap.streams.preserving import random_state
from looptap.testing import pair
from looptap.training.echoing import AFTER, BATCH, BEFORE, MODES, SHUFFLED, Echo
from looptap.training.echoing.auto_factor import Auto, StageMeter
from looptap.training.echoing.diagnosis import advice
from looptap.training.echoing.pytrees import Packed
from looptap.training.echoing.rng import kept_random, seed_random
from looptap.training.echoing.worker_stages import Reads
from looptap.training.progress import Progress
from looptap.training.progress.clock_ledger import SHORT_WINDOW_SECONDS


class Numbers(Dataset):
    """A dataset of numbers in five types, slow or failing where a test wants that."""

    def __init__(self, n=40, *, rich=False, pause=0.0, bad=None):
        self.n, self.rich, self.pause, self.bad = n, rich, pause, bad

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        time.sleep(self.pause)
        if i == self.bad:
            raise KeyError(f"item {i} is broken")
        x = torch.full((2,), float(i))
        return {"x": x, "i": i, "a": np.full(3, i), "text": str(i)} if self.rich else (x, i)


class Stream(IterableDataset):
    def __init__(self, n=40):
        self.n = n

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        start, step = (worker.id, worker.num_workers) if worker else (0, 1)
        return ((torch.full((2,), float(i)), i) for i in range(start, self.n, step))


def jitter(example):
    """Augment with the global generators, as torchvision does."""
    x, i = example
    return x + 0.5 * torch.rand(1) + 0.1 * random.random() + 0.1 * np.random.rand(), i


def ragged(examples):
    return torch.cat([x[: 1 + i % 2] for x, i in examples]), torch.tensor([i for _, i in examples])


def loader(dataset=None, *, n=40, size=8, workers=0, **how):
    how.setdefault("shuffle", not isinstance(dataset, IterableDataset))
    return DataLoader(dataset or Numbers(n), batch_size=size, num_workers=workers, **how)


def items(batches):
    """Count how often each item was seen."""
    numbers = (batch["i"] if isinstance(batch, dict) else batch[1] for batch in batches)
    return collections.Counter(int(i) for some in numbers for i in some)


def flat(batches):
    return [[x.tolist(), i.tolist()] for x, i in batches]


def random_states():
    return torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate()


# ---------------------------------------------------------------- how often


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_each_item_appears_as_often_as_promised_and_every_epoch_covers_the_data(mode, workers, persistent):
    echo = Echo(loader(workers=workers, persistent_workers=persistent), 3, mode, augment=jitter, buffer=20)
    for epoch in range(2):
        expected = len(echo)
        batches = list(echo)
        assert len(batches) == expected == 15
        assert items(batches) == {i: 3 for i in range(40)}
        assert (echo.fresh, echo.seen, echo.epoch) == (40 * (epoch + 1), 120 * (epoch + 1), epoch + 1)
        assert (echo.fill, echo.fill_bytes) == (0, 0)


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_is_echoed_too(mode, workers):
    echo = Echo(loader(Stream(), workers=workers), 2, mode, augment=jitter, buffer=20)
    for _ in range(2):
        assert items(list(echo)) == {i: 2 for i in range(40)}
    with pytest.raises(TypeError):
        len(echo)


@settings(max_examples=60, deadline=None)
@given(
    mode=st.sampled_from(MODES), factor=st.floats(1, 5), n=st.integers(1, 60), size=st.integers(1, 9),
    buffer=st.integers(1, 80), drop_last=st.booleans(), end=st.sampled_from(["drain", "drop"]), seed=st.integers(0, 99),
)  # fmt: skip
def test_any_factor_with_any_buffer(mode, factor, n, size, buffer, drop_last, end, seed):
    echo = Echo(
        loader(n=n, size=size, drop_last=drop_last), factor, mode, augment=jitter, buffer=buffer, end=end, seed=seed
    )
    counts = collections.Counter()
    for batch in echo:
        assert len(batch[1]) == size or not drop_last
        assert echo.fill <= max(buffer, 2)
        counts.update(items([batch]))
    assert echo.fresh == (n // size * size if drop_last else n)
    assert sum(counts.values()) == echo.seen
    assert all(count <= math.ceil(factor) for count in counts.values())
    if end == "drain" and not echo.dropped:
        assert len(counts) == echo.fresh
        assert all(count >= int(factor) for count in counts.values())


@pytest.mark.parametrize("mode", MODES)
def test_a_fraction_is_right_on_average_and_len_is_the_expectation(mode):
    echo = Echo(loader(n=2000, size=5), 2.25, mode, augment=jitter)
    expected = len(echo)
    batches = list(echo)
    assert set(items(batches).values()) == {2, 3}
    assert echo.seen / echo.fresh == pytest.approx(2.25, abs=0.12)
    assert len(batches) == pytest.approx(expected, rel=0.06)


def test_plain_batches_come_one_after_the_other_and_shuffled_ones_do_not():
    first = [batch[1].tolist() for batch in Echo(loader(), 2, BATCH)]
    assert first[::2] == first[1::2]
    mixed = [batch[1].tolist() for batch in Echo(loader(), 2, SHUFFLED, buffer=40)]
    assert mixed[::2] != mixed[1::2]


@pytest.mark.usefixtures("processes")
def test_an_echo_before_augmentation_is_augmented_again_and_one_after_it_is_not():
    for mode, different in ((BEFORE, 3), (AFTER, 1)):
        values = collections.defaultdict(set)
        for x, i in Echo(loader(workers=2), 3, mode, augment=jitter):
            for value, number in zip(x[:, 0].tolist(), i.tolist(), strict=True):
                values[number].add(value)
        assert {len(found) for found in values.values()} == {different}


def test_augmentation_of_batches_comes_after_the_buffer():
    sizes = []

    def shift(batch):
        sizes.append(len(batch[1]))
        return batch[0] + torch.rand(len(batch[1]), 1), batch[1]

    before = random_states()
    echo = Echo(loader(generator=torch.Generator(), shuffle=True), 2, BEFORE, augment_batch=shift)
    assert items(list(echo)) == {i: 2 for i in range(40)}
    assert sizes == [8] * 10
    assert random_states() == before


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("mode", [AFTER, BEFORE])
def test_items_of_every_kind_and_collate_functions_of_the_host_work(workers, mode):
    echo = Echo(loader(Numbers(rich=True), workers=workers), 2, mode, augment=dict)
    batch = next(iter(echo))
    assert {type(batch[name]) for name in ("x", "i", "a")} == {torch.Tensor}
    assert batch["text"] == [str(i) for i in batch["i"].tolist()]
    assert items(list(echo)) == {i: 2 for i in range(40)}
    echo = Echo(loader(workers=workers, collate_fn=ragged), 2, mode, augment=jitter)
    assert items(list(echo)) == {i: 2 for i in range(40)}


def test_examples_travel_in_few_pieces_of_memory():
    examples = [(torch.ones(1 + i), np.ones(2) * i, {"name": str(i)}) for i in range(5)]
    packed = pickle.loads(pickle.dumps(Packed(examples)))
    for (x, a, meta), (y, b, other) in zip(examples, packed.examples(), strict=True):
        assert torch.equal(x, y)
        assert a.tolist() == b.tolist()
        assert meta == other
    assert len({x.untyped_storage().data_ptr() for x, _, _ in packed.examples()}) == 1
    assert Packed([1, (2, 3)]).examples() == [1, (2, 3)]
    reads = pickle.loads(pickle.dumps(Reads(Stream(3))))
    reads.n = 5
    assert isinstance(reads, Stream)
    assert len(list(reads)) == reads.n == 5


# ---------------------------------------------------------------- what must not happen


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("workers", [0, 2])
def test_with_a_factor_of_one_the_batches_and_the_random_numbers_are_those_of_the_loader(workers):
    torch.manual_seed(3)
    plain, after = flat(loader(workers=workers)), random_states()
    torch.manual_seed(3)
    assert flat(Echo(loader(workers=workers), 1, BATCH)) == plain
    assert random_states() == after


@pytest.mark.parametrize("copies", [True, False])
@pytest.mark.parametrize("normals", [0, 1])
def test_seeded_numbers_leave_the_random_numbers_of_the_job_alone(monkeypatch, copies, normals):
    assert random_state.copies_memory()  # so it does in the numpy that is tested with
    monkeypatch.setattr(random_state, "copies_memory", lambda: copies)

    def drawn():
        return np.random.randn(3).tolist(), np.random.rand(), random.gauss(0, 1), torch.rand(1).item()

    np.random.seed(5)
    np.random.randn(normals)  # of each two one is kept for the next time
    before = random_states()
    found = []
    for _ in range(2):
        with kept_random():
            seed_random("a")
            outer = drawn()
            with kept_random():
                seed_random("b")
                found.append(drawn())
            found.append((outer, drawn()))
        assert random_states() == before
    assert found[:2] == found[2:]
    with kept_random():
        seed_random("a")
        assert found[1] == (drawn(), drawn())
    expected = np.random.RandomState(5)
    expected.randn(normals)
    assert np.random.randn(5).tolist() == expected.randn(5).tolist()


@pytest.mark.parametrize("mode", MODES)
def test_a_change_of_a_batch_by_the_loop_does_not_reach_its_echoes(mode):
    for how in ({}, {"collate_fn": list}):
        for batch in Echo(loader(shuffle=False, **how), 3, mode, augment=lambda example: example):
            pairs = batch if how else zip(*batch, strict=True)
            for x, i in pairs:
                assert x[0] == i
                x += 1000


def test_without_clones_the_echoes_of_a_changed_batch_are_skipped():
    echo, seen = Echo(loader(shuffle=False), 3, BATCH, guard="version"), []
    for x, i in echo:
        seen.append((x[0, 0].item(), i[0].item()))
        x += 1000
    assert "in place" in echo.note
    assert all(x == i for x, i in seen)
    assert (len(seen), echo.dropped) == (1 + 4 * 3, 16)
    untouched = list(Echo(loader(), 2, BATCH, guard="version"))
    assert untouched[0][0] is untouched[1][0]


def test_a_batch_that_is_echoed_is_copied_to_the_device_once():
    for mode, times in ((BATCH, 5), (SHUFFLED, 5), (AFTER, 15)):
        moved = []
        assert len(list(Echo(loader(), 3, mode, transfer=lambda batch, moved=moved: moved.append(0) or batch))) == 15
        assert len(moved) == times


@pytest.mark.usefixtures("processes")
def test_a_failing_worker_is_reported_as_by_the_loader():
    for mode, workers in ((BEFORE, 1), (AFTER, 0), (BATCH, 0)):
        with pytest.raises(KeyError, match="item 7 is broken") as caught:
            list(Echo(loader(Numbers(8, bad=7), workers=workers), 2, mode, augment=jitter))
        traceback.clear_frames(caught.tb)  # a loader's iterator in a cycle takes 5 s to end its workers


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", [Numbers, Stream])
def test_with_a_factor_of_one_a_batch_dropped_by_the_loop_is_freed(mode, kind):
    batches = iter(Echo(loader(kind()), 1, mode, augment=None if mode != BEFORE else jitter, buffer=1))
    for _ in range(3):
        batch = next(batches)
        gone = weakref.ref(batch[0])
        del batch
        assert gone() is None


def test_an_epoch_that_the_loop_leaves_is_over_and_the_next_is_whole():
    for mode in MODES:
        echo = Echo(loader(), 2, mode, augment=jitter, buffer=20)
        for _ in echo:
            if echo.steps == 3:
                break
        assert items(list(echo)) == {i: 2 for i in range(40)}
        assert (echo.epoch, len(echo)) == (2, 10)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["indices", "stream", "any loader"])
def test_passes_may_overlap_as_those_of_a_data_loader(mode, kind):
    def made():
        batches = loader() if kind == "indices" else loader(Stream(40)) if kind == "stream" else [*loader()]
        augment = None if kind == "any loader" else jitter
        return Echo(batches, 2, mode if augment or mode == SHUFFLED else BATCH, augment=augment, buffer=20)

    twice = {i: 2 for i in range(40)}
    echo, outer, inner = made(), [], []
    for batch in echo:  # nested
        outer.append(batch)
        if len(outer) in (2, 4):
            inner.append([*echo])
        if len(outer) == 6:
            for _ in echo:  # left early
                break
    assert [items(one) for one in (outer, *inner)] == [twice] * 3
    assert (echo.epoch, echo.note) == (4, "")
    echo = made()
    pairs = [*zip(echo, echo, strict=True)]
    assert [items(one) for one in zip(*pairs, strict=True)] == [twice] * 2
    left = iter(echo)
    first = next(left)
    assert items([*echo]) == twice
    assert items([first, *left]) == twice


@pytest.fixture
def often():
    """Let threads take turns 500 times as often as usual."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("often")
def test_passes_of_four_threads_do_not_mix():
    for _ in range(40):
        echo, found = Echo(loader(), 2, AFTER, buffer=20), []
        threads = [threading.Thread(target=lambda echo=echo, found=found: found.append([*echo])) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [items(one) for one in found] == [{i: 2 for i in range(40)}] * 4
        assert (echo.steps, echo.seen, echo.fresh, echo.epoch) == (40, 320, 160, 4)


@pytest.mark.parametrize("mode", MODES)
def test_a_checkpoint_in_a_loop_holds_its_own_pass_and_not_one_within_it(mode):
    def made():
        return Echo(loader(), 2, mode, augment=jitter, buffer=20)

    echo, resumed, found, saved = made(), made(), [], []
    for batch in echo:
        found.append(batch)
        if len(found) == 3:
            assert len([*echo]) == 10  # a pass within this one
        if len(found) == 5:
            saved.append(pickle.loads(pickle.dumps(echo.state_dict())))
    resumed.load_state_dict(*saved)
    assert (resumed.epoch, resumed.steps) == (0, 15)
    assert flat(resumed) == flat(found[5:])
    assert (resumed.epoch, resumed.steps) == (echo.epoch, echo.steps) == (2, 20)


def test_the_buffer_keeps_no_more_memory_alive_than_it_may():
    class Large(Numbers):
        def __getitem__(self, i):
            return torch.full((1000,), float(i)), i  # 4 kB and an index

    echo, most = Echo(loader(Large(400)), 2, AFTER, buffer=300, max_bytes=400_000), 0
    for _ in echo:
        most = max(most, echo.fill_bytes)
    assert 300_000 < most < 400_000 + 8 * 4_100
    assert items(list(echo)) == {i: 2 for i in range(400)}


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize("factor", [0.99, 0, -1, math.nan, math.inf, "3", "fast", None, True, [2], np.ones(2)])
def test_an_invalid_factor_is_refused_in_a_sentence(factor):
    with pytest.raises(
        ControlError, match=r"factor = .* must be a number from 1.0 to 64.0, a function .*, or 'auto'\."
    ):
        Echo(loader(), factor)


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"buffer": 0}, "buffer = 0 must be a whole number, 1 examples or more"),
        ({"buffer": 2.5}, "buffer = 2.5 must be a whole number"),
        ({"mode": "nowhere"}, "mode = 'nowhere' must be one of"),
        ({"mode": BEFORE}, "no augmentation comes after it"),
        ({"mode": AFTER, "augment_batch": abs}, "augment_batch= works on echoed batches"),
        ({"max_bytes": 0}, "max_bytes=0 must be a whole number above 0"),
        ({"max_bytes": math.inf}, "max_bytes=inf must be a whole number above 0"),
        ({"end": "stop"}, "end='stop' must be one of 'drain', 'drop'"),
        ({"bound": 0.5}, "bound=0.5 must be a factor, from 1 to 64"),
        ({"loader": [], "mode": AFTER}, "a list yields batches"),
        ({"loader": DataLoader(Numbers(), batch_size=None), "mode": AFTER}, "has no batch_size"),
        ({"loader": iter([1])}, "an iterator is exhausted after one epoch"),
        ({"loader": (batch for batch in [1])}, "an iterator is exhausted after one epoch"),
        ({"loader": iter(loader())}, "an iterator is exhausted after one epoch"),
        ({"loader": 3}, "loader=3 must be a DataLoader"),
        ({"augment": 3}, "augment=3 must be a function."),
        ({"augment_batch": "flip"}, "augment_batch='flip' must be a function."),
        ({"transfer": "cuda"}, "transfer='cuda' must be a function."),
        ({"broadcast": 0}, "broadcast=0 must be a function."),
    ],
)
def test_impossible_arguments_are_refused_in_a_sentence(how, sentence):
    with pytest.raises((ControlError, ValueError, TypeError)) as caught:
        Echo(how.pop("loader", loader()), 2, **how)
    assert sentence in str(caught.value)


def test_a_loader_that_yields_nothing_any_more_is_reported():
    class Once:
        batches = iter([torch.ones(2)])

        def __iter__(self):
            return self.batches

    echo = Echo(Once(), 2)
    assert len(list(echo)) == 2
    with pytest.warns(RuntimeWarning, match="may be exhausted"):
        assert list(echo) == []
    assert "exhausted" in echo.note


def test_a_loader_that_does_not_batch_has_its_items_echoed_whole():
    assert items([(x, [i]) for x, i in Echo(DataLoader(Numbers(), batch_size=None), 2)]) == {i: 2 for i in range(40)}


# ---------------------------------------------------------------- it is turned


def test_a_factor_changed_within_an_epoch_changes_len():
    echo = Echo(loader(n=80, shuffle=False), 2, BATCH)
    seen = []
    for batch in echo:
        seen.append(int(batch[1][0]) // 8)
        if len(seen) == 3:
            assert len(echo) == 20
            echo.factor = 1
            assert len(echo) == 11
        if len(seen) == 6:
            echo.factor = 3
            assert len(echo) == len(seen) + 3 * (9 - seen[-1])
    assert seen == [0, 0, 1, 2, 3, 4, *(n for n in range(5, 10) for _ in range(3))]


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("kind", [Numbers, Stream])
@pytest.mark.parametrize("workers", [0, 2])
def test_in_workers_a_factor_changes_after_their_prefetched_batches(workers, kind):
    echo = Echo(loader(kind(400), workers=workers), 1, BEFORE, augment=jitter, buffer=8)
    batches = iter(echo)
    for _ in range(5):
        next(batches)
    echo.factor = 4
    counts = items(list(batches))
    assert echo.seen == sum(counts.values()) + 40
    late = [i for i, count in counts.items() if count == 4]
    assert 400 - 40 - 64 - 8 * 2 * workers - 8 <= len(late) <= 360


def test_a_schedule_is_a_function_of_the_step_and_one_that_fails_leaves_the_factor():
    echo = Echo(loader(n=80), lambda step: 1 + step // 4, BATCH)
    assert len(list(echo)) > 10
    assert echo.factor > 2
    before = echo.factor
    echo.factor = lambda step: math.nan
    with pytest.warns(RuntimeWarning, match="schedule of the factor failed"):
        assert len(list(echo)) > 10
    assert echo.factor == before


@pytest.mark.usefixtures("processes")
def test_a_mode_changes_at_the_next_epoch_also_in_persistent_workers():
    for dataset in (Numbers(), Stream()):
        echo = Echo(loader(dataset, workers=2, persistent_workers=True), 2, BATCH, augment=jitter)
        for mode in (AFTER, BEFORE, SHUFFLED, BATCH):
            batches = iter(echo)
            found = [next(batches)]
            echo.mode = mode
            assert items([*found, *batches]) == {i: 2 for i in range(40)}
            assert echo.mode == mode


def test_a_factor_set_by_a_client_applies_at_the_next_batch(directory):
    echo = Echo(loader(n=4000, shuffle=False), 1, BATCH)
    answers = []

    def client():
        run = looptap.attach("echoed")
        answers.append(run.set("echo.factor", 3))
        for name, value in (
            ("factor", 0.5), ("factor", math.nan), ("factor", "x"), ("factor", [2]), ("buffer", 0), ("mode", BEFORE)
        ):  # fmt: skip
            try:
                run.set(f"echo.{name}", value)
            except looptap.LooptapError as error:
                answers.append(str(error))
        answers.append(run.call("echo.factor, echo.ratio, echo.fresh, echo.fill"))
        answers.append(str(run.set("echo.factor", "auto")))
        answers.append(run.controls["echo.auto"].value)
        run.close()

    with looptap.Agent("echoed") as agent:
        agent.expose(echo=echo)
        asked = threading.Thread(target=client)
        asked.start()
        fresh, deadline = [], time.monotonic() + 60
        while asked.is_alive() and time.monotonic() < deadline:
            for x, _ in echo:
                fresh.append(x[0, 0].item())
                agent.emit("batch")
                if not asked.is_alive():
                    break
        asked.join()
    outcome, low, nan, text, some, none, nowhere, read, said, auto = answers
    at = outcome.number
    assert (outcome.old, outcome.new) == (1.0, 3.0)
    assert len(set(fresh[max(0, at - 3) : at])) == min(3, at)
    assert fresh[at] == fresh[at + 1] == fresh[at + 2] != fresh[at - 1]
    assert "factor = 0.5 must be a number from 1.0 to 64.0" in low
    assert "factor = nan must be a number from 1.0 to 64.0" in nan
    assert "factor = 'x' must be a number from 1.0 to 64.0, a function of the step, or 'auto'." in text
    assert "factor = [2] must be a number" in some
    assert "buffer = 0" in none
    assert "no augmentation comes after it" in nowhere
    assert read[0] == 3.0
    assert "3.0 → 'auto'" in said
    assert auto is True


def test_a_value_that_is_set_back_after_a_resume_leaves_what_drives_it():
    echo = Echo(loader(), "auto")
    echo.factor = echo.factor
    assert echo.auto
    echo.factor = 2
    assert not echo.auto
    agent, run = pair("resumed")
    agent.expose(echo=echo)
    state = agent.state_dict()
    echo.factor = "auto"
    agent.load_state_dict(state)
    assert (echo.factor, echo.auto, echo.mode) == (2.0, False, BATCH)
    run.close()
    agent.close()


def test_progress_follows_a_changed_factor():
    echo = Echo(loader(), 2, AFTER)
    progress = Progress(echo, epochs=1000)
    before = math.inf
    while progress.train_cost is None or progress.train_cost <= before:
        for step, _ in enumerate(progress.train()):
            time.sleep(0.002)  # a step now and then asks the loader for its length
            if step == 3 and progress.train_cost is not None and before == math.inf:
                before = progress.train_cost
                echo.factor = 4


def test_the_remaining_time_follows_a_factor_changed_within_its_window():
    clock = Clock()
    echo = Echo(Slow(clock, 1.0, n=5000), 1, BATCH, clock=clock)
    progress = Progress(echo, max_steps=1200, clock=clock)
    turned, looked = 0.0, []
    for _ in progress.train():
        clock.now += 0.2
        looked.append((clock.now, progress.remaining.median))
        if not turned and progress.elapsed > 90:
            turned, echo.factor = clock.now, 4
        if progress.steps + 1 == 1200:
            break
    before = [left / (clock.now - now) for now, left in looked if turned - 10 < now <= turned]
    since = [(at - turned, left, clock.now - at) for at, left in looked if at < clock.now - 5]
    after = [
        left / truth for passed, left, truth in since if passed > max(SHORT_WINDOW_SECONDS, truth)
    ]  # the window of an estimate
    assert len(after) > 300
    assert min(before) > 1.6  # as it would have been with the factor of then
    assert after == pytest.approx([1.0] * len(after), abs=0.2)


# ---------------------------------------------------------------- resume


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("generator", [True, False])
def test_a_resumed_epoch_continues_bit_for_bit(mode, workers, generator):
    def make():
        how = {"generator": torch.Generator().manual_seed(1)} if generator else {}
        return Echo(loader(workers=workers, **how), 2.5, mode, augment=jitter, buffer=20, seed=4)

    torch.manual_seed(1)
    first, whole, states = make(), [], []
    for epoch in range(2):
        for batch in first:
            whole.append(batch)
            states.append(pickle.dumps(first.state_dict()))
            if (epoch, len(whole)) == (0, 4):
                first.factor = 3
    for at in (1, 4, len(whole) // 2 - 3) if not workers else (4,):  # workers only read; where they begin is one thing
        second = make()
        second.load_state_dict(pickle.loads(states[at]))
        again = second.state_dict()
        before = random_states()
        rest = []
        for batch in second:
            rest.append(batch)
            if second.steps == 4:
                second.factor = 3
        assert random_states() == before
        assert again == pickle.loads(states[at])
        if generator:
            rest += list(second)
        assert flat(rest) == flat(whole[at + 1 : at + 1 + len(rest)])
        assert second.steps == at + 1 + len(rest)
        if generator:
            assert (second.steps, second.seen, second.fresh) == (first.steps, first.seen, first.fresh)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "how", [{"augment": jitter}, {"augment_batch": lambda batch: [batch[0] + np.random.randn(), batch[1]]}]
)
def test_at_a_factor_of_one_a_resume_is_exact_also_after_a_change(mode, how):
    if mode == AFTER:
        how = {}

    def make():
        return Echo(loader(n=96, generator=torch.Generator().manual_seed(1)), 1, mode, **how, buffer=20)

    def go(echo):
        for batch in echo:
            yield batch
            if echo.steps == 8:
                echo.factor = 3

    first, whole, states = make(), [], []
    for batch in go(first):
        whole.append(batch)
        states.append(pickle.dumps(first.state_dict()))
    for at in (0, 4, 8, 15):
        second = make()
        second.load_state_dict(pickle.loads(states[at]))
        if at < 8:
            assert (second.factor, flat(go(second))) == (1.0, flat(whole[at + 1 :]))
        else:
            assert (second.factor, flat(second)) == (3.0, flat(whole[at + 1 :]))
        assert (second.seen, second.fresh, second.dropped) == (first.seen, first.fresh, 0)


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("mode", MODES)
def test_a_stream_that_repeats_itself_is_resumed_exactly(mode, workers):
    def make():
        return Echo(loader(Stream(), workers=workers), 2, mode, augment=jitter, buffer=20)

    echo, seen = make(), []
    for batch in echo:
        seen.append(batch)
        if len(seen) == 4:
            state = pickle.dumps(echo.state_dict())
    again = make()
    again.load_state_dict(pickle.loads(state))
    assert flat(again) == flat(seen[4:])


def test_the_keys_of_a_state_are_those_of_checkpoints_that_were_written_before():
    echo = Echo(loader(), 2, AFTER)
    outside = {"epoch", "steps", "fresh", "seen", "dropped", "factor", "auto", "buffer", "mode", "inside", "kind"}
    outside |= {"guard", "copies", "order"}
    assert set(echo.state_dict()) == outside
    next(iter(echo))
    inside = {"now", "agreed", "_in_epoch", "_epoch_fresh", "_room", "needed", "pending", "items", "source"}
    assert set(echo.state_dict()) == outside | inside


def test_a_state_of_another_kind_is_refused():
    with pytest.raises(ValueError, match="of another kind, 'Streamed'"):
        Echo(loader()).load_state_dict(Echo(loader(Stream())).state_dict())


# ---------------------------------------------------------------- ranks


def test_ranks_change_at_the_same_step_and_take_equal_steps():
    reported = []

    def make(rank):
        def broadcast(value):
            if rank == 0:
                reported.append(value)
            return reported[-1]

        return Echo(loader(n=200, shuffle=False), 1.5, BATCH, broadcast=broadcast, agree_every=8)

    ranks = make(0), make(1)
    steps = 0
    for step, (one, other) in enumerate(zip(*ranks, strict=True)):
        assert one[1].tolist() == other[1].tolist()
        steps = step + 1
        if step == 10:
            ranks[0].factor = 4
        if step == 20:
            ranks[1].factor = 9
    assert ranks[0].factor == ranks[1].factor == 4
    assert steps > 60


RANK = """
    import json, signal, sys
    signal.alarm(300)
    import torch, torch.distributed as dist
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
    from looptap.training.echoing import BEFORE, Echo

    def broadcast(value):
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    rank = int(sys.argv[1])
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
    data, refused = TensorDataset(torch.arange(200.0)), ""
    loader = DataLoader(data, batch_size=5, num_workers=1, sampler=DistributedSampler(data))
    try:
        Echo(loader, "auto")
    except ValueError as error:
        refused = str(error)
    shift = lambda example: (example[0] + torch.rand(1),)
    echo = Echo(loader, 1.5, BEFORE, augment=shift, broadcast=broadcast, agree_every=4, buffer=20)
    factors, places = [], []
    for epoch in range(2):
        echo.set_epoch(epoch)
        for (x,) in echo:
            factors.append(echo._now.factor)
            places += x.flatten().tolist()
            if echo.steps == 6 and rank == 0:
                echo.factor = 3
    print(json.dumps([refused, echo.steps, factors, sorted({int(x) for x in places})]))
    dist.destroy_process_group()
"""


@pytest.mark.promise("S23")
@pytest.mark.usefixtures("processes")
def test_over_gloo_ranks_take_equal_steps_and_change_at_the_same_one(tmp_path):
    code = textwrap.dedent(RANK)
    started = [
        warm.Popen([sys.executable, "-c", code, str(rank), str(tmp_path / "meeting")], stdout=subprocess.PIPE)
        for rank in range(2)
    ]
    answers = [child.communicate(timeout=110)[0] for child in started]
    reported = [json.loads(answer) for answer in answers]
    (refused, steps, factors, some), (_, other_steps, other_factors, others) = reported
    assert "Pass broadcast=" in refused
    assert (steps, factors) == (other_steps, other_factors)
    assert factors[:9] == [1.5] * 8 + [3.0]
    assert len({*some, *others}) >= 199


# ---------------------------------------------------------------- auto


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Slow:
    """Batches that take ``seconds`` of a clock each."""

    def __init__(self, clock, seconds, n=1000):
        self.clock, self.seconds, self.n = clock, seconds, n

    def __iter__(self):
        for _ in range(self.n):
            self.clock.now += self.seconds
            yield torch.zeros(4)


def test_auto_takes_what_reading_costs_and_stops_at_its_bound():
    for seconds, bound, expected in ((0.6, 16, 6.0), (0.6, 4, 4.0), (0.05, 16, 1.0)):
        clock = Clock()
        echo = Echo(Slow(clock, seconds), "auto", bound=bound, clock=clock)
        for _ in echo:
            clock.now += 0.1
        assert echo.factor == pytest.approx(expected, rel=0.01)
        assert echo.ratio == pytest.approx(seconds / 0.1)
        assert (echo.up, echo.down) == (pytest.approx(seconds), pytest.approx(0.1))
    assert "echoing saves nothing" in echo.advice


def simulated(up, down, workers=2, steps=2000, factor=1.0):
    """Run a pipeline with a queue of 4; return the factor of `Auto`, and its changes."""
    meter, auto, changes = StageMeter(workers), Auto(16.0), []
    now = arrival = 0.0
    ready = [0.0] * 4
    copies = 0.0
    noise = random.Random(0)
    for step in range(steps):
        factor, before = auto.next(factor, meter, step), factor
        if factor != before:
            changes.append(factor)
            meter.changed()
        wait = 0.0
        if copies < 1:
            at = ready.pop(0)
            wait = max(0.0, at - now)
            now += wait
            took = up * noise.uniform(0.8, 1.2)
            meter.arrived(wait, now - arrival, {"read": took * workers})
            ready.append(max(ready[-1], arrival) + took)
            arrival = now
            copies += factor
        copies -= 1
        spent = down * noise.uniform(0.9, 1.1)
        now += spent
        meter.handed(spent, 0.0, wait)
    return factor, changes


def test_auto_settles_and_stays():
    for up, down in ((0.06, 0.01), (0.02, 0.01), (0.005, 0.01)):
        for start in (1.0, 16.0):
            factor, changes = simulated(up, down, factor=start)
            assert factor == pytest.approx(max(1.0, up / down), rel=0.15)
            assert len(changes) < 12


def test_auto_settles_within_the_first_batches():
    for up, down in ((0.06, 0.01), (0.03, 0.01)):
        assert simulated(up, down, steps=24)[0] == pytest.approx(up / down, rel=0.15)


class Four(NamedTuple):
    x: object
    text: str


@pytest.mark.parametrize(
    "item",
    [
        lambda i: (torch.full((2,), float(i)), i),
        lambda i: [np.full(3, i), str(i), float(i)],
        lambda i: {"x": torch.full((2,), i), "more": (i, {"y": np.float64(i)})},
        lambda i: Four(torch.tensor(i), str(i)),
        lambda i: torch.full((3,), float(i)),
        lambda i: i,
    ],
)
@pytest.mark.parametrize("mode", [BEFORE, AFTER])
def test_with_a_factor_of_1_the_batches_are_those_of_the_loader(item, mode):
    data = [item(i) for i in range(20)]
    plain = DataLoader(data, 8, shuffle=True, generator=torch.Generator().manual_seed(3))
    echo = Echo(
        DataLoader(data, 8, shuffle=True, generator=torch.Generator().manual_seed(3)), 1, mode, augment=lambda one: one
    )
    for _ in range(2):
        theirs, ours = list(plain), list(echo)
        assert repr(ours) == repr(theirs)
        assert (echo.fill, echo.duplicates) == (0, 0)
    assert (echo.fresh, echo.seen, echo.steps) == (40, 40, 6)


def test_raising_and_lowering_a_factor_of_1_loses_no_item():
    echo, times, found = Echo(loader(n=160), 1, AFTER, buffer=40), {3: 4, 9: 1}, collections.Counter()
    fills = []
    for x, i in echo:
        assert x[:, 0].tolist() == i.tolist()
        found.update(i.tolist())
        fills.append(echo.fill)
        echo.factor = times.get(echo.steps, echo.factor)
    assert set(found) == set(range(160))
    assert sorted(found.values())[:24] == [1] * 24
    assert max(found.values()) == 4
    assert fills[:3] == [0, 0, 0]
    assert 24 <= fills[3] <= 32
    assert sum(found.values()) == echo.seen


def test_items_that_torch_cannot_collate_fail_as_in_its_loader():
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
        next(iter(Echo(DataLoader([torch.zeros(n) for n in (1, 2)], 2), 1, AFTER)))


def test_the_first_batch_comes_soon_and_the_buffer_grows_slowly():
    for factor, most in ((1.5, 16), (2, 16), (6, 32)):
        echo = Echo(loader(n=400), factor, AFTER, buffer=100)
        batches = iter(echo)
        next(batches)
        assert echo.fresh <= 16
        fills = [echo.fill for _ in range(20) if next(batches)]
        assert max(fills) <= most + 20 * 2
        assert max(fills) > most


def test_the_speed_up_that_is_expected():
    meter = StageMeter(2)
    assert math.isnan(meter.speed_up(2.0))
    for _ in range(20):
        meter.arrived(0.05, 0.06, {"read": 0.12})
        meter.handed(0.01, 0.0, 0.05)
    assert [meter.speed_up(factor) for factor in (1.0, 4.0, 6.0, 9.0)] == pytest.approx([1, 4, 6, 6])
    clock = Clock()
    echo = Echo(Slow(clock, 0.6, n=50), 1.0, clock=clock)
    for _ in echo:
        clock.now += 0.1
    assert echo.speed_up(3.0) == pytest.approx(0.7 / 0.3)


def test_a_loop_that_rests_is_slower_and_what_it_takes_without_a_rest_is_foretold():
    meter = StageMeter(2)

    def pairs(many, factor):
        for _ in range(many):
            meter.arrived(0.1, 0.12, {"read": 0.12})  # two workers at once: the second batch is there
            meter.handed(0.014, 0.002, 0.1)
            meter.arrived(0.0, 0.016, {"read": 0.12})
            for _ in range(2 * factor - 1):
                meter.handed(0.010, 0.002, 0.0)

    for _ in range(20):
        meter.arrived(0.05, 0.066, {"read": 0.12})
        meter.handed(0.014, 0.002, 0.05)
    assert meter.down == pytest.approx(0.016)
    pairs(20, 1)
    assert meter.down == pytest.approx(0.012)
    assert meter.stages()["step"] == pytest.approx(0.0125, abs=0.001)
    pairs(20, 2)
    assert meter.down == pytest.approx(0.012)
    for _ in range(600):  # what was long ago says nothing of now
        meter.handed(0.020, 0.002, 0.05)
    assert meter.down == pytest.approx(0.022)


@pytest.mark.parametrize("augment", [None, jitter])
def test_a_batch_has_an_example_twice_only_where_the_buffer_has_no_other(augment):
    echo, most = Echo(loader(n=400), 4, AFTER if augment is None else BEFORE, augment=augment, buffer=64), []
    for _ in echo:
        most.append(echo.duplicates)
    assert sum(most[4:-10]) <= 0.02 * 8 * len(most)  # by chance there would be about one in each
    assert echo.seen == 1600


@pytest.mark.usefixtures("processes")
def test_auto_with_a_loader_that_is_really_slow():
    # 8 items of 4 ms in two workers are 16 ms a batch, and a step takes 4 ms
    echo = Echo(loader(Numbers(600, pause=0.004), workers=2), "auto", SHUFFLED, buffer=32)
    for _ in echo:
        time.sleep(0.004)
        if echo.steps > 160 and echo.factor > 1.5:
            break
    assert 1.5 < echo.factor < 64
    assert echo.bottleneck in ("read", "step")
    assert echo.stages["read"] > 0.03
    assert 0 <= echo.starved < 1


def test_advice_names_what_would_help_more():
    clock = Clock()
    echo = Echo(Slow(clock, 0.6), 2, clock=clock)
    assert (echo.bottleneck, echo.advice) == ("", "")
    assert math.isnan(echo.starved)
    for _ in echo:
        clock.now += 0.1
    assert "num_workers=1 or more" in echo.advice
    assert repr(echo) == "<Echo: factor 2, mode 'batch', R = 6>"
    assert repr(Echo([], "auto")) == "<Echo: factor 1, held by auto, mode 'batch', R is not known yet>"


@pytest.mark.parametrize(
    ("processors", "says"),
    [(2, "in the one worker, and 1 processor has no worker:"), (4, "and 3 processors have no worker:")],
)
def test_advice_counts_the_processors_that_have_no_worker(monkeypatch, processors, says):
    monkeypatch.setattr("looptap.training.echoing.diagnosis.processors", lambda: processors)
    meter = StageMeter(1)
    for _ in range(20):
        meter.arrived(0.06, 0.07, {"read": 0.06})
        meter.handed(0.01, 0.0, 0.06)
    assert says in advice(meter, 1.0, "batch", augmented=False)[1]
