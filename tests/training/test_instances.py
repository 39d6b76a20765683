"""Index of an instance, its copies in a batch, and expected length of an epoch."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from looptap.training.indexed_stream import indexed_stream
from looptap.training.instances import WithIndex, expected_length, index_array, merge_copies, stated_length


class Squares(Dataset):
    """A dataset of items that carry their index, with batched access and epochs."""

    def __init__(self, count=10):
        self.count, self.epoch, self.asked = count, None, []

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return index * index

    def __getitems__(self, indices):
        self.asked.append(indices)
        return [index * index for index in indices]

    def set_epoch(self, epoch):
        self.epoch = epoch


class Stream(IterableDataset):
    """A stream that knows its length, without indices."""

    def __iter__(self):
        return iter(range(3))

    def __len__(self):
        return 3


class Nameless:
    """A dataset with indices, and no length."""

    def __getitem__(self, index):
        return index


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_yields_each_index_beside_its_item_in_whatever_order_it_draws(workers):
    loader = DataLoader(WithIndex(Squares()), batch_size=3, shuffle=True, num_workers=workers)
    indices, items = (torch.cat(some) for some in zip(*loader, strict=True))
    assert indices.dtype == torch.int64
    assert sorted(indices.tolist()) == list(range(10))
    assert torch.equal(indices**2, items)


def test_the_data_set_behind_it_is_reached_as_before():
    plain = Squares()
    dataset = WithIndex(plain)
    dataset.set_epoch(3)
    assert plain.epoch == 3
    assert dataset.count == len(dataset) == 10
    assert dataset.__getitems__([np.int64(4), torch.tensor(2)]) == [(4, 16), (2, 4)]
    assert plain.asked == [[4, 2]]  # one request
    assert [type(index) for index, _ in dataset.__getitems__([np.int64(4)])] == [int]
    again = pickle.loads(pickle.dumps(dataset))
    assert again[3] == (3, 9)
    assert again.epoch == 3
    assert not hasattr(WithIndex([1, 2]), "set_epoch")


def test_only_instances_have_an_index_and_each_has_one():
    dataset = WithIndex(TensorDataset(torch.arange(4)))
    assert dataset[-1][0] == 3
    assert [index for index, _ in dataset] == [0, 1, 2, 3]  # which ends
    for outside in (4, -5):
        with pytest.raises(IndexError, match=f"{outside} is outside a data set of 4"):
            dataset[outside]
    assert [index for index, _ in WithIndex(Subset(Squares(), [7, 8]))] == [0, 1]
    assert [index for index, _ in Subset(WithIndex(Squares()), [7, 8])] == [7, 8]


@pytest.mark.parametrize(
    ("dataset", "sentence"),
    [
        (Stream(), "no indices"), (iter([1]), "no indices"), (3, "no indices"), (None, "no indices"),
        (DataLoader([1, 2]), "loader.dataset"), (Nameless(), "no length"),
    ],
)  # fmt: skip
def test_a_loader_without_indices_is_refused_in_a_sentence(dataset, sentence):
    with pytest.raises(TypeError, match=sentence):
        WithIndex(dataset)


@given(st.lists(st.tuples(st.integers(0, 6), st.floats(-1e6, 1e6)), max_size=40), st.booleans())
def test_copies_are_merged_like_a_loop_over_them_would(pairs, as_tensors):
    wanted: dict[int, list[float]] = {}
    for index, value in pairs:
        wanted.setdefault(index, []).append(value)
    indices, values = [index for index, _ in pairs], [value for _, value in pairs]
    given_ = (torch.tensor(indices, dtype=torch.int64), torch.tensor(values, dtype=torch.float64))
    unique, means = merge_copies(*(given_ if as_tensors else (indices, values)))
    assert unique.tolist() == sorted(wanted)
    assert means.tolist() == pytest.approx([sum(wanted[index]) / len(wanted[index]) for index in sorted(wanted)])
    assert merge_copies(indices, values, keep="last")[1].tolist() == [wanted[index][-1] for index in sorted(wanted)]


@pytest.mark.promise("selection")
def test_values_of_any_kind_are_merged():
    logits = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], dtype=torch.bfloat16, requires_grad=True)
    unique, rows = merge_copies(torch.tensor([5, 1, 5]), logits)
    assert unique.tolist() == [1, 5]
    assert rows.tolist() == [[3.0, 4.0], [3.0, 4.0]]
    assert merge_copies([5, 1, 5], logits, keep="last")[1].tolist() == [[3.0, 4.0], [5.0, 6.0]]
    assert merge_copies(np.array([1, 1], np.int32), np.array([1, 2]))[1].tolist() == [1.5]
    unique, means = merge_copies([2, 1, 2], [math.nan, 1.0, 1.0])
    assert unique.tolist() == [1, 2]
    assert means[0] == 1.0
    assert math.isnan(means[1])


@pytest.mark.parametrize(
    ("indices", "values", "keep", "error", "sentence"),
    [
        ([1, 2], [1.0], "mean", ValueError, r"shape \(1,\) are not one for each of 2"),
        ([1], 1.0, "mean", ValueError, r"shape \(\)"),
        ([[1]], [1.0], "mean", ValueError, r"shape \(1, 1\)"),
        ([1.5], [1.0], "mean", TypeError, "whole numbers"),
        ([True], [1.0], "mean", TypeError, "whole numbers"),
        (["a"], [1.0], "mean", TypeError, "whole numbers"),
        ([1], [1.0], "first", ValueError, "keep='first'"),
    ],
)  # fmt: skip
def test_copies_that_cannot_be_merged_are_refused_in_a_sentence(indices, values, keep, error, sentence):
    with pytest.raises(error, match=sentence):
        merge_copies(indices, values, keep)
    assert index_array([]).dtype == np.int64


class Halving(BatchSampler):
    """A dataset whose length is not a whole number."""

    expected_length: object = 4.5

    def __init__(self, expected=4.5):
        super().__init__(range(10), 2, False)
        self.expected_length = expected


class Broken:
    """A loader whose every method fails."""

    def __len__(self):
        raise RuntimeError("no")

    @property
    def expected_length(self):
        raise RuntimeError("no")

    @property
    def batch_sampler(self):
        raise RuntimeError("no")


def test_the_expected_length_is_what_a_loader_states_or_else_has():
    plain = DataLoader(Squares(), batch_size=4)
    assert (expected_length(plain), stated_length(plain)) == (3.0, None)
    selecting = DataLoader(Squares(), batch_sampler=Halving())
    assert expected_length(selecting) == stated_length(selecting) == 4.5
    selecting.batch_sampler.expected_length = 2.25
    assert expected_length(selecting) == 2.25
    assert expected_length(DataLoader(Stream())) == 3.0
    assert expected_length(Broken()) is None
    assert expected_length(None) is None
    assert expected_length(iter([])) is None


@pytest.mark.parametrize("stated", [None, math.nan, math.inf, -1.0, True, "4", 10**400])
def test_a_length_that_is_no_number_counts_for_nothing(stated):
    assert expected_length(DataLoader(Squares(), batch_sampler=Halving(stated))) == 5.0


def test_the_items_of_a_stream_come_with_the_index_that_they_say():
    stream = indexed_stream([{"key": "0007"}, {"key": "0002"}], lambda row: int(row["key"]))
    assert list(stream) == [(7, {"key": "0007"}), (2, {"key": "0002"})]
    assert (len(stream), expected_length(stream)) == (2, 2.0)
    assert expected_length(indexed_stream(iter([]), len)) is None
    again = pickle.loads(pickle.dumps(indexed_stream(Counted(), abs)))
    again.set_epoch(3)
    assert (again.stream.epoch, again.epoch) == (3, 3)
    assert not hasattr(stream, "set_epoch")
    for arguments, sentence in [((3, abs), "stream=3 cannot be iterated"), (([], 3), "index=3 is not a function")]:
        with pytest.raises(TypeError, match=sentence):
            indexed_stream(*arguments)


class Counted(Stream):
    def set_epoch(self, epoch):
        self.epoch = epoch
