"""The state of a run on some ranks continues on another number of them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from looptap.training.prioritized import Prioritized
from looptap.training.prioritized.distributed import merge_states, resharded, split_state

BATCH = 3


def ranks(size, world, method="norm", seed=0):
    """Return the samplers of all ranks, as one process makes them."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    return [
        Prioritized(
            size, model, BATCH, method, epochs=5, seed=seed, rank=rank, world=world, switch="on",
            agree=lambda length: length,
        )
        for rank in range(world)
    ]  # fmt: skip


def train(sampler, data, steps):
    """Make steps; return the batches."""
    inputs, targets = data
    batches = []
    for batch in itertools.islice(itertools.chain.from_iterable(sampler for _ in range(20)), steps):
        logits = sampler.model(inputs[batch])
        losses = torch.nn.functional.cross_entropy(logits, targets[batch], reduction="none")
        sampler.backward(batch, losses)
        sampler.observe(batch, logits=logits, targets=targets[batch])
        batches.append(batch)
    return batches


def task(size):
    """Return inputs and targets."""
    generator = torch.Generator().manual_seed(size)
    return torch.randn(size, 3, generator=generator), torch.arange(size) % 2


def newest(states, name, key, ids):
    """Return what is known of each id last, by a plain search."""
    found = {}
    for state in states:
        table = {field: np.asarray(values) for field, values in state[name].items()}
        for place, one in enumerate(table["ids"].tolist()):
            row = {field: values[place].item() for field, values in table.items()}
            if one not in found or row[key] > found[one][key]:
                found[one] = row
    return {one: found[one] for one in ids if one in found}


@settings(max_examples=20)
@given(
    before=st.integers(1, 5), after=st.integers(1, 5), size=st.integers(17, 60), steps=st.integers(0, 25),
    method=st.sampled_from(["norm", "loss", "uniform", "published", "repaired"]),
)  # fmt: skip
def test_what_is_known_of_an_example_goes_to_the_rank_that_has_it(before, after, size, steps, method):
    data, old = task(size), ranks(size, before, method)
    for one in old:
        train(one, data, steps)
    states = [one.state_dict() for one in old]
    merged = merge_states(states)
    assert merged["sums"][1] == len(
        {i for state in states for i in state["table"]["ids"].tolist() if not_nan(state, i)}
    )
    new = ranks(size, after, method)
    for rank, sampler in enumerate(new):
        state = split_state(merged, rank, after)
        sampler.load_state_dict(state)
        assert sampler.note == ""
        assert (sampler.epoch, sampler.steps, sampler.method) == (old[0].epoch, steps, method)
        for name, key in (("table", "last"), ("trends", "at")):
            assert str(newest([state], name, key, range(size))) == str(
                newest(states, name, key, sorted(sampler.shard.tolist()))
            )
        assert (sampler.average is None) == (old[0].average is None)
        if sampler.average is not None:
            assert all(map(torch.equal, sampler.average.tensors, old[0].average.tensors))
        assert 0 <= sampler.skipped <= sampler.walk.walked
        assert len(train(sampler, data, 3)) == 3
        assert sampler.note == ""


def not_nan(state, example):
    table = state["table"]
    return not torch.isnan(table["loss"][table["ids"] == example]).any()


@pytest.mark.parametrize(("before", "after"), list(itertools.product(range(1, 6), repeat=2)))
def test_an_epoch_continues_with_what_was_not_offered(before, after):
    size, steps = 64, 3
    data, old = task(size), ranks(size, before, "uniform")
    seen = {example for one in old for batch in train(one, data, steps) for example in batch}
    states = [one.state_dict() for one in old]
    new = ranks(size, after, "uniform")
    rest = []
    for rank, sampler in enumerate(new):
        sampler.load_state_dict(split_state(merge_states(states), rank, after))
        assert len(sampler.walk.rest) <= len(sampler.shard)
        rest += sampler.walk.rest.tolist()
        batches = list(sampler)
        assert sum(map(len, batches)) >= len(set(sampler.shard.tolist()) - seen)
    if before * BATCH * steps < size:
        assert set(rest) == set(range(size)) - seen
    order = [example for state in states for example in state["walk"]["rest"].tolist()]
    assert sorted(set(rest)) == sorted(set(order))


def test_batches_that_workers_had_in_hand_are_offered_again():
    (one,) = ranks(30, 1, "uniform")
    data = task(30)
    (batch,) = train(one, data, 1)
    drawn = list(itertools.islice(iter(one), 2))  # drawn, and no step on them observed
    merged = merge_states([one.state_dict()])
    assert merged["drawn"] == []
    assert sorted(merged["walk"]["rest"].tolist()) == sorted(set(range(30)) - set(batch))
    assert drawn


def test_on_the_same_number_of_ranks_each_has_its_own_state_and_a_newer_one_counts():
    data, old = task(40), ranks(40, 2)
    for one, steps in zip(old, (6, 4), strict=True):
        train(one, data, steps)
    states = [one.state_dict() for one in old]
    assert resharded(states, 1, 2) is states[1]
    assert merge_states(states[::-1])["steps"] == 6
    assert resharded(states, 2, 3)["rank"] == 2
    assert resharded(states[:1], 1, 2)["world"] == 2  # rank 1 has died without a state


def test_random_numbers_of_the_ranks_differ():
    (one,) = ranks(40, 1)
    merged = merge_states([one.state_dict()])
    states = [split_state(merged, rank, 3)["walk"]["rng"]["state"]["state"] for rank in range(3)]
    assert len(set(states)) == 3


def test_states_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="no states to merge"):
        merge_states([])
    with pytest.raises(ValueError, match="different data, of 30 and 40 examples"):
        merge_states([ranks(size, 1)[0].state_dict() for size in (30, 40)])
