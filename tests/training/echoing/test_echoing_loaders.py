"""Echoes of real packages' loaders, bit-identical at a factor of 1."""

from __future__ import annotations

import collections
import io
import pickle
import random
import tarfile
import warnings

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler

from looptap.streams.errors import ControlError
from looptap.training.echoing import AFTER, BATCH, BEFORE, MODES, SHUFFLED, Echo
from looptap.training.host_loader import rebuildable, workers_of
from looptap.training.indexed_stream import indexed_stream
from looptap.training.instances import IndexedItem, WithIndex, expected_length, merge_copies, next_length

COUNT, SIZE = 44, 8


class Tens(Dataset):
    """Item i is ten times i."""

    def __len__(self):
        return COUNT

    def __getitem__(self, i):
        return torch.full((2,), 10.0 * i), i


class Stream(IterableDataset):
    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        start, step = (worker.id, worker.num_workers) if worker else (0, 1)
        return ((torch.full((2,), 10.0 * i), i) for i in range(start, COUNT, step))


class Negated(DataLoader):
    """A loader of its own: other data than its data set holds, and more of it."""

    def __iter__(self):
        for x, i in super().__iter__():
            yield -x, i
        yield torch.zeros(1, 2), torch.tensor([-1])

    def __len__(self):
        return super().__len__() + 1


def generator():
    return torch.Generator().manual_seed(1)


def settings(workers=0):
    return {"batch_size": SIZE, "shuffle": True, "num_workers": workers, "generator": generator()}


def own(workers=0):
    return Negated(Tens(), **settings(workers))


def indexed(workers=0):
    return Negated(Tens(), batch_sampler=BatchSampler(RandomSampler(Tens(), generator=generator()), SIZE, True),
                   num_workers=workers)  # fmt: skip


def stateful(workers=0):
    loader = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    return loader(Tens(), **settings(workers))


def prepared(workers=0, **how):
    accelerate = pytest.importorskip("accelerate")
    configuration = accelerate.DataLoaderConfiguration(**how)
    return accelerate.Accelerator(cpu=True, dataloader_config=configuration).prepare(
        DataLoader(Tens(), **settings(workers))
    )


def prepared_stateful(workers=0):
    pytest.importorskip("torchdata")
    return prepared(workers, use_stateful_dataloader=True, use_seedable_sampler=True, data_seed=5)


def dispatched(workers=0):
    return prepared(workers, dispatch_batches=True)


def of_fabric(workers=0):
    fabric = pytest.importorskip("lightning_fabric").Fabric(accelerator="cpu", devices=1)
    return fabric.setup_dataloaders(DataLoader(Tens(), **settings(workers)))


def combined(workers=0):
    lightning = pytest.importorskip("pytorch_lightning.utilities")
    some = {"a": DataLoader(Tens(), **settings(workers)), "b": DataLoader(Tens(), 4)}
    return lightning.CombinedLoader(some, "max_size_cycle")


class Graphs(Dataset):
    def __len__(self):
        return COUNT

    def __getitem__(self, i):
        from torch_geometric.data import Data

        edges = torch.tensor([[0, 1], [1, 0]])
        return Data(x=torch.full((2 + i % 3, 2), 10.0 * i), edge_index=edges, i=i)


def graphs(workers=0):
    return pytest.importorskip("torch_geometric.loader").DataLoader(Graphs(), **settings(workers))


def shards():
    """Return a WebDataset of two tar files."""
    webdataset = pytest.importorskip("webdataset")
    for number in range(2):
        with tarfile.open(web.folder / f"shard-{number}.tar", "w") as shard:
            for i in range(number, COUNT, 2):
                with io.BytesIO(str(i).encode()) as file:
                    entry = tarfile.TarInfo(f"{i:04d}.cls")
                    entry.size = len(file.getvalue())
                    shard.addfile(entry, file)
    files = [str(web.folder / f"shard-{number}.tar") for number in range(2)]
    return webdataset.WebDataset(files, shardshuffle=False).decode()


def web(workers=0):
    """Return a pipeline over two tar files, which it batches and shuffles."""
    some = shards().to_tuple("cls").batched(4)
    loader = pytest.importorskip("webdataset").WebLoader(some, batch_size=None, num_workers=workers)
    return loader.unbatched().shuffle(20, rng=random.Random(2)).batched(SIZE)


def web_indices(workers=0):
    """Return a WebLoader of samples whose index is the number in their key."""
    stream = indexed_stream(shards(), lambda sample: int(sample["__key__"]))
    return pytest.importorskip("webdataset").WebLoader(stream, batch_size=SIZE, num_workers=workers)


def web_batch_indices(workers=0):
    """Return the batches of a pipeline with the indices that they hold."""
    return indexed_stream(web(workers), lambda batch: batch[0])


def rows():
    """Return a Hugging Face data set."""
    datasets = pytest.importorskip("datasets")
    return datasets.Dataset.from_dict({"x": [[10.0 * i] * 2 for i in range(COUNT)], "i": list(range(COUNT))})


def mapped(workers=0):
    return DataLoader(rows().with_format("torch"), **settings(workers))


def mapped_indices(workers=0):
    return DataLoader(WithIndex(rows().with_format("torch")), **settings(workers))


def stream_of_rows():
    return rows().to_iterable_dataset(num_shards=4).shuffle(seed=3, buffer_size=10).with_format("torch")


def streamed(workers=0):
    return DataLoader(stream_of_rows(), SIZE, num_workers=workers)


def streamed_indices(workers=0):
    return DataLoader(indexed_stream(stream_of_rows(), lambda row: int(row["i"])), SIZE, num_workers=workers)


def batches_of_rows(workers=0):
    """Return a stream of batches without a DataLoader; it has a state of its own."""
    return rows().to_iterable_dataset(num_shards=4).with_format("torch").batch(SIZE)


WITH_INDICES = (mapped_indices, streamed_indices, web_indices, web_batch_indices)
LOADERS = (
    own, stateful, prepared, prepared_stateful, dispatched, of_fabric, combined, graphs, web, mapped, streamed,
    batches_of_rows, *WITH_INDICES,
)  # fmt: skip
KNOWN = (graphs, mapped, streamed)
"""Those whose batches a DataLoader with the same settings makes too."""
IN_PROCESS = (batches_of_rows,)


@pytest.fixture(autouse=True)
def quiet(tmp_path, monkeypatch):
    """Let the packages warn of what is theirs; ours are errors still."""
    monkeypatch.setattr(web, "folder", tmp_path, raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", category=RuntimeWarning)
        yield


def plain(batch):
    """Return a batch as lists and dicts."""
    if hasattr(batch, "to_dict"):
        batch = batch.to_dict()
    if isinstance(batch, dict):
        return {key: plain(value) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        return [type(batch).__name__, *map(plain, batch)]
    return batch.tolist() if hasattr(batch, "tolist") else batch


def seed(number):
    torch.manual_seed(number)
    np.random.seed(number)
    random.seed(number)


def states():
    return torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate()


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("make", LOADERS)
def test_at_a_factor_of_one_the_batches_are_those_of_the_loader(make, workers):
    if workers and make in IN_PROCESS:
        pytest.skip("it has no workers")
    make()  # what packages draw while they are imported comes before the seed
    seed(3)
    loader = make(workers)
    expected = [[plain(batch) for batch in loader] for _ in range(2)]
    after = states()
    for mode in (BATCH, SHUFFLED) if not workers else (BATCH,):
        seed(3)
        echo = Echo(make(workers), 1, mode)
        assert [[plain(batch) for batch in echo] for _ in range(2)] == expected
        assert states() == after
        assert echo.fresh == echo.seen
        assert echo.note == ""


@pytest.mark.parametrize("make", LOADERS)
def test_each_batch_is_echoed_as_it_is(make):
    seed(3)
    expected = [plain(batch) for batch in make()]
    seed(3)
    echo = Echo(make(), 3, BATCH)
    found = [plain(batch) for batch in echo]
    assert found == [batch for batch in expected for _ in range(3)]
    assert echo.seen == 3 * echo.fresh
    assert echo.fresh == {own: COUNT + 1, combined: 84}.get(make, COUNT)  # 84: of the first of both, again and again


@pytest.mark.long
@pytest.mark.parametrize("factor", [1, 2.5])
@pytest.mark.parametrize("mode", [BATCH, SHUFFLED])
@pytest.mark.parametrize("make", LOADERS)
def test_a_resumed_epoch_continues_where_it_was(make, mode, factor):
    seed(3)
    echo, kept, found = Echo(make(), factor, mode, buffer=3 * SIZE), {}, []
    for batch in echo:
        found.append(plain(batch))
        if len(found) in (1, 2, 4):
            kept[len(found)] = pickle.dumps(echo.state_dict())
    for at, state in kept.items():
        seed(7)
        again = Echo(make(), factor, mode, buffer=3 * SIZE)
        again.load_state_dict(pickle.loads(state))
        before = states()
        assert [plain(batch) for batch in again] == found[at:]
        if make not in (web, web_batch_indices):  # whose buffer draws from random
            assert states() == before
        assert (again.fresh, again.seen, again.note) == (echo.fresh, echo.seen, "")


# ---------------------------------------------------------------- insertion points


def test_a_loader_that_makes_its_batches_by_itself_is_echoed_after_it():
    plain_loader = Negated(Tens(), SIZE)
    with pytest.warns(RuntimeWarning, match="a Negated makes its own batches, so whole batches are echoed"):
        echo = Echo(Negated(Tens(), SIZE), 1, AFTER)
    assert "mode='after" not in echo.note
    assert echo.mode == BATCH
    assert [plain(batch) for batch in echo] == [plain(batch) for batch in plain_loader]
    with pytest.raises(ControlError, match="a Negated yields batches: echo batches"):
        echo.mode = AFTER
    with pytest.warns(RuntimeWarning, match="To echo examples, pass a torch DataLoader"):
        shifted = Echo(Negated(Tens(), SIZE), 2, BEFORE, augment_batch=lambda batch: [batch[0] + 1, batch[1]])
    assert torch.equal(next(iter(shifted))[0], next(iter(plain_loader))[0] + 1)
    for loader in (Negated(Tens(), SIZE), [[1, 2]]):
        with pytest.raises(ControlError, match=r"it works on examples, and a \w+ yields batches. Give augment_batch="):
            Echo(loader, 2, augment=abs)


def overriding(**own):
    return type("Overriding", (DataLoader,), own)(Tens(), **settings())


def patched(loader):
    theirs = loader._get_iterator
    loader._get_iterator = lambda: (plain(batch) for batch in theirs())
    return loader


@pytest.mark.parametrize(
    ("make", "known"),
    [
        (lambda: DataLoader(Tens(), **settings()), True),
        (lambda: overriding(__len__=lambda self: 3, more=1), True),
        (lambda: overriding(collate_fn=lambda self, some: some), True),  # the instance has its own
        (lambda: overriding(_get_iterator=lambda self: iter([])), False),
        (lambda: overriding(__getattribute__=lambda self, name: object.__getattribute__(self, name)), False),
        (lambda: overriding(collate_fn=property(lambda self: list, lambda self, value: None)), False),
        (lambda: patched(DataLoader(Tens(), **settings())), False),
        (graphs, True),
        (stateful, False),
        (prepared, False),  # which says that its class is DataLoader
        (of_fabric, False),
        ([].copy, False),
    ],
)
def test_what_a_loader_is_known_by(make, known):
    assert rebuildable(make()) is known


def test_a_collate_function_or_generator_that_is_changed_later_is_used():
    loader = DataLoader(Tens(), SIZE)
    echo = Echo(loader, 1, AFTER)
    list(echo)
    loader.collate_fn = list
    assert isinstance(next(iter(echo)), list)
    assert type(next(iter(echo))[0]) is tuple


def some_tokens(examples):
    """Collate as a language model's masking does: with random numbers."""
    return collections.UserDict(x=torch.stack([x for x, _ in examples]) + torch.rand(1), i=[i for _, i in examples])


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("mode", MODES)
def test_a_collate_function_of_the_host_runs_where_the_loader_runs_it(mode, workers):
    def make():
        seed(3)
        return DataLoader(Tens(), collate_fn=some_tokens, **settings(workers))

    expected = [(batch["x"].tolist(), batch["i"]) for batch in make()]
    after = states()
    echo = Echo(make(), 1, mode, augment=lambda item: item)
    found = list(echo)
    assert [(batch["x"].tolist(), batch["i"]) for batch in found] == expected
    assert {type(batch) for batch in found} == {collections.UserDict}
    assert states() == after
    if workers:  # here it draws numbers of its own
        echo = Echo(make(), 2, mode, augment=lambda item: item)
        assert {type(batch) for batch in echo} == {collections.UserDict}
        assert states() == after


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("mode", [AFTER, BEFORE])
def test_turning_the_factor_loses_nothing_of_batches_in_flight(mode):
    echo = Echo(DataLoader(Tens(), collate_fn=some_tokens, **settings(2)), 1, mode, augment=lambda item: item)
    times, found, kept = {2: 3, 9: 1}, [], {}
    for batch in echo:
        found.append(sorted(batch["i"]))
        kept[len(found)] = pickle.dumps(echo.state_dict())
        echo.factor = times.get(echo.steps, echo.factor)
    counts = collections.Counter(i for some in found for i in some)
    assert set(counts) == set(range(COUNT))
    assert set(counts.values()) <= {1, 3}
    for at in (1, 3, 4, len(found) - 1):
        again = Echo(DataLoader(Tens(), collate_fn=some_tokens, **settings(2)), 1, mode, augment=lambda item: item)
        again.load_state_dict(pickle.loads(kept[at]))
        rest = []
        for batch in again:
            rest.append(sorted(batch["i"]))
            again.factor = times.get(again.steps, again.factor)
        if at != 1:  # workers begin again, so what is in flight when the factor is turned is another number
            assert sorted(map(str, rest)) == sorted(map(str, found[at:]))


@pytest.mark.parametrize("make", KNOWN)
def test_examples_of_known_loaders_are_echoed_before_they_are_batched(make):
    if make is not streamed:
        seed(3)
        expected = [plain(batch) for batch in make()]
        seed(3)
        assert [plain(batch) for batch in Echo(make(), 1, AFTER)] == expected
    counts = collections.Counter()
    for batch in (echo := Echo(make(), 2, AFTER, buffer=20)):
        counts.update((batch["i"] if make is not graphs else batch.i).tolist())
        assert echo.fill_bytes >= 0
    assert counts == dict.fromkeys(range(COUNT), 2)
    assert echo.seen == 2 * echo.fresh == 2 * COUNT


def test_graphs_that_wait_count_with_their_memory_and_stay_as_they_were():
    echo = Echo(graphs(), 3, SHUFFLED, buffer=1000)
    seen = []
    for batch in echo:
        assert batch.x[:, 0].tolist() == (10.0 * batch.i[batch.batch]).tolist()
        batch.x += 1000
        seen.append(echo.fill_bytes)
    assert max(seen) > SIZE * 2 * 2 * 4  # the tensors of one batch at least


# ---------------------------------------------------------------- state of their own


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("factor", [1, 2])
@pytest.mark.parametrize("data", [Tens, Stream])
def test_a_stateful_loader_with_workers_reads_on_where_it_was(data, factor):
    loader = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    read = torch.zeros(1).share_memory_()

    class Counted(data):
        def __getitem__(self, i):
            read.add_(1)
            return super().__getitem__(i)

    def make():
        how = settings(2) if data is Tens else {"batch_size": SIZE, "num_workers": 2}
        return Echo(loader((Counted if data is Tens else data)(), **how), factor)

    echo, found, states_of = make(), [], {}
    for _ in range(2):
        for batch in echo:
            found.append(plain(batch))
            states_of[len(found)] = pickle.dumps(echo.state_dict())
        states_of[len(found)] = pickle.dumps(echo.state_dict())
    for at in (3, 5, len(found) // 2, len(found) // 2 + 3):
        again = make()
        again.load_state_dict(pickle.loads(states_of[at]))
        read.zero_()
        rest = [plain(batch) for batch in again]
        if at < len(found) // 2:
            assert rest == found[at : len(found) // 2]
            rest += [plain(batch) for batch in again]
        assert rest == found[at:]
        if data is Tens and at > len(found) // 2:
            assert read.item() <= COUNT - SIZE  # the first batch of the epoch was not read again


class Resumable(BatchSampler):
    """A batch sampler whose state the job saves."""

    place = 0

    def __iter__(self):
        for at in range(self.place, COUNT, SIZE):
            self.place = at + SIZE
            yield list(range(at, min(at + SIZE, COUNT)))
        self.place = 0

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"]


def test_a_sampler_that_continues_by_itself_is_not_skipped_twice():
    def make():
        sampler = Resumable(range(COUNT), SIZE, False)
        return Echo(Negated(Tens(), batch_sampler=sampler), 2), sampler

    (echo, sampler), found = make(), []
    batches = iter(echo)
    for _ in range(5):
        found.append(plain(next(batches)))
    kept = pickle.dumps([echo.state_dict(), sampler.state_dict()])
    expected = [plain(batch) for batch in batches]
    again, resumed = make()
    state, own_state = pickle.loads(kept)
    again.load_state_dict(state)
    resumed.load_state_dict(own_state)
    with pytest.warns(RuntimeWarning, match="1 echoes that waited at the checkpoint are lost"):
        rest = [plain(batch) for batch in again]
    assert rest == expected[1:]
    assert again.dropped == 1


# ---------------------------------------------------------------- index, copies, expected length


@pytest.mark.parametrize("make", [own, indexed, stateful, prepared, prepared_stateful, dispatched, of_fabric, graphs])
def test_index_copies_and_expected_length_are_those_of_the_convention(make, monkeypatch):
    inner = Graphs if make is graphs else Tens
    monkeypatch.setitem(globals(), inner.__name__, lambda: WithIndex(inner()))
    if make in (own, indexed):
        monkeypatch.setattr(Negated, "__iter__", DataLoader.__iter__)
        monkeypatch.setattr(Negated, "_get_iterator", lambda self: DataLoader._get_iterator(self))
        monkeypatch.setattr(Negated, "__len__", DataLoader.__len__)
    echo = Echo(make(), 2, SHUFFLED, augment_batch=lambda batch: batch, buffer=2 * SIZE)
    fresh = COUNT // SIZE if make is indexed else -(-COUNT // SIZE)
    counts, steps = collections.Counter(), 0
    assert (expected_length(echo), next_length(echo), len(echo)) == (2 * fresh, 2 * fresh, 2 * fresh)
    for batch in echo:
        steps += 1
        assert isinstance(batch, IndexedItem)
        index, found = batch
        values = found.i if make is graphs else found[1]
        assert torch.equal(index, values)
        unique, _ = merge_copies(index, np.ones(len(index)))
        assert len(unique) == len(index)  # of a batch that is echoed whole each instance is there once
        counts.update(index.tolist())
        assert abs(expected_length(echo) - 2 * fresh) <= 1
    assert steps == 2 * fresh
    assert set(counts.values()) == {2}
    assert len(counts) == (COUNT if make is not indexed else fresh * SIZE)
    echo.factor = 3
    assert next_length(echo) == 3 * fresh


@pytest.mark.parametrize("mode", [SHUFFLED, AFTER])
@pytest.mark.parametrize("make", WITH_INDICES)
def test_indices_of_hugging_face_and_webdataset_stay_with_their_copies(make, mode):
    if mode == AFTER and make in (web_indices, web_batch_indices):
        pytest.skip("its batches are echoed")
    length = None if make is not mapped_indices else -(-COUNT // SIZE)
    assert expected_length(make()) == length
    echo = Echo(make(), 2, mode, buffer=2 * SIZE)
    counts, kept = collections.Counter(), {}
    for batch in echo:
        assert isinstance(batch, IndexedItem)
        index, item = batch
        values = item[0] if isinstance(item, list | tuple) else item["cls"] if "cls" in item else item["i"]
        assert index.tolist() == values.tolist()
        counts.update(index.tolist())
        kept.update(zip(*merge_copies(index, 3.0 * values), strict=True))
        assert expected_length(echo) is None or abs(expected_length(echo) - 2 * length) <= 1
    assert counts == dict.fromkeys(range(COUNT), 2)
    assert kept == {i: 3.0 * i for i in range(COUNT)}


def test_the_length_of_a_combined_loader_is_known_from_its_first_batch_on():
    echo = Echo(combined(), 2)
    assert expected_length(echo) is None
    steps = 0
    for _ in echo:
        steps += 1
        assert expected_length(echo) == 22
    assert (steps, len(echo)) == (22, 22)


def test_set_epoch_reaches_the_loader_that_has_one():
    seen = []

    class Own(Negated):
        def set_epoch(self, epoch):
            seen.append(epoch)

    Echo(Own(Tens(), SIZE)).set_epoch(3)
    assert seen == [3]


def test_the_workers_of_a_loader_inside_another_are_found():
    for make in (own, stateful, prepared, of_fabric, combined, web):
        assert workers_of(make(2)) == 2
    assert workers_of([[1, 2]]) == 0


@pytest.mark.parametrize("mode", [BATCH, SHUFFLED])
@pytest.mark.parametrize(("factor", "expected"), [(1, "000101"), (2, "000100010001"), (3, "000100010001000101")])
def test_accelerate_applies_accumulated_gradients_after_the_last_echo(mode, factor, expected):
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=4)
    model = torch.nn.Linear(2, 1)
    loader = accelerator.prepare(DataLoader(Tens(), **settings()))
    echo = Echo(loader, factor, mode, buffer=3 * SIZE)
    for _ in range(2):
        found = ""
        for _, i in echo:
            with accelerator.accumulate(model):
                found += str(int(accelerator.sync_gradients))
            assert len(accelerator.gather_for_metrics(i)) == len(i)
        assert found == expected
        assert not accelerator.gradient_state.in_dataloader


@pytest.mark.parametrize(("factor", "most"), [(1, 0), (2, COUNT // SIZE + 1)])
def test_the_state_of_a_loader_is_not_asked_for_while_nothing_is_echoed(factor, most):
    """It may cost more than the batch."""
    asked = []

    class Asked(list):
        def state_dict(self):
            asked.append(1)
            return {}

        def load_state_dict(self, state):
            pass

    echo = Echo(Asked([torch.zeros(SIZE, 2)] * (COUNT // SIZE)), factor)
    assert len(list(echo)) == factor * (COUNT // SIZE)
    assert len(asked) == most
