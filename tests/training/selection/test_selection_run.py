"""Selection in a run: resumes, ranks, steps of all kinds, and what goes wrong."""

from __future__ import annotations

import json
import pickle
import random
import subprocess
import sys

import numpy as np
import pytest
import torch
import warm
from places import ROOT
from rank_jobs import environment, free_port
from torch.nn import functional
from torch.utils.data import BatchSampler, DataLoader, TensorDataset

from looptap import CommandPending, ControlError
from looptap.testing import pair
from looptap.training.selection import METHODS, Selection, WithIndex

COUNT, BATCH = 60, 8
X = torch.randn(COUNT, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()
DATA = TensorDataset(X, Y)


def selection_of(method="norm", **arguments):
    given = {"features": X, "switch": "on", "epochs": 6}
    return Selection(DATA, BATCH, method, **given | arguments)


def steps(selection, epochs=4, workers=0):
    """Train to the end of ``epochs``; yield the instances and the loss of each step."""
    while selection.epoch < epochs:
        for ids, (x, _) in DataLoader(WithIndex(DATA), batch_sampler=selection, num_workers=workers):
            losses = x[:, 1].abs() * (1 + ids % 7) / (selection.steps + 5)
            mean = selection.mean(ids, losses).item()
            selection.observe(ids, losses=losses)
            yield ids.tolist(), mean


def taken(iterator, count):
    return [found for _, found in zip(range(count), iterator, strict=False)]


# ------------------------------------------------------------ resume


@pytest.mark.long
@pytest.mark.parametrize("method", METHODS)
def test_a_resumed_run_makes_the_same_batches_with_the_same_weights_from_any_step(method):
    whole, states, first = [], [], selection_of(method)
    running = steps(first)
    while True:
        states.append(pickle.dumps(first.state_dict()))
        if not (found := taken(running, 1)):
            break
        whole += found
    assert len(whole) > 15
    for done, state in enumerate(states[:-1]):
        resumed = selection_of(method)
        resumed.load_state_dict(pickle.loads(state))
        assert list(steps(resumed)) == whole[done:]
        assert (resumed.epoch, resumed.steps, resumed.taken) == (first.epoch, first.steps, first.taken)
        assert resumed.note == ""


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("place", [1, 5, 6, 7, 8, 11, 14, 15])
def test_a_resumed_run_with_workers_makes_the_same_batches(place):
    first = selection_of()
    running = steps(first, 3, workers=2)
    whole = taken(running, place)
    state = pickle.dumps(first.state_dict())
    rest = list(running)
    resumed = selection_of()
    resumed.load_state_dict(pickle.loads(state))
    assert list(steps(resumed, 3, workers=2)) == rest
    assert len(whole + rest) == first.steps == resumed.steps
    assert first.epoch == resumed.epoch == 3


@pytest.mark.usefixtures("processes")
def test_an_epoch_that_is_left_early_loses_nothing_that_workers_had_in_hand():
    selection, seen = selection_of("uniform"), []
    loader = DataLoader(WithIndex(DATA), batch_sampler=selection, num_workers=2)
    for place, (ids, _) in enumerate(loader):
        seen += ids.tolist()
        selection.observe(ids, losses=torch.ones(len(ids)))
        if place == 2:
            break
    for ids, _ in loader:
        seen += ids.tolist()
    assert set(seen) == set(range(COUNT))
    assert len(seen) < COUNT + BATCH


def test_a_loop_that_never_observes_makes_nothing_grow_and_ends_its_epochs():
    selection = selection_of("uniform")
    for _ in range(3):
        for _ in selection:
            pass
    for batch in selection:
        selection.observe(batch, losses=torch.ones(len(batch)))
    assert selection.epoch == 4


def test_a_state_of_other_data_is_refused():
    with pytest.raises(ValueError, match="60 instances; here are 50"):
        Selection(50, BATCH).load_state_dict(selection_of().state_dict())


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), (2, 3)])
def test_a_run_resumes_on_another_number_of_ranks(before, after):
    def on(rank, ranks):
        return selection_of(rank=rank, world=ranks, agree=lambda number: number)

    old = [on(rank, before) for rank in range(before)]
    for one in old:
        taken(steps(one), 10)
    states = pickle.loads(pickle.dumps([one.state_dict() for one in old]))
    new = [on(rank, after) for rank in range(after)]
    for one in new:
        one.load_state_dict(states[0], *states[1:])
        assert one.note == ""
        assert np.isfinite(one.table.loss).all()
        assert one.epoch == old[0].epoch
        walked = one.walk.walked
        assert len(list(one)) <= -(-len(one.shard) // BATCH)
        assert one.walk.walked - walked >= len(one.shard) - BATCH
    lacking = on(0, after)
    if before > 1:
        lacking.load_state_dict(states[0])
        assert "Of 2 ranks the states of 1" in lacking.note


# ------------------------------------------------------------ ranks

JOB = """
import json, os, sys
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
from looptap.training.selection import Selection, WithIndex

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
generator = torch.Generator().manual_seed(0)
data = TensorDataset(torch.randn(103, 4, generator=generator), torch.randint(0, 2, (103,), generator=generator))
data.tensors[0][:70, 0] = 9.0 * (2 * data.tensors[1][:70] - 1)
selection = Selection(data, 8, epochs=5, switch=["on", "off"][rank], floor=0.05)
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
counts, seen = [], set()
for epoch in range(5):
    count = 0
    for ids, (x, y) in DataLoader(WithIndex(data), batch_sampler=selection):
        logits = model(x)
        loss = selection.mean(ids, torch.nn.functional.cross_entropy(logits, y, reduction="none"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        selection.observe(ids, logits=logits, targets=y)
        count += 1
        seen |= set(ids.tolist())
    counts.append(count)
result = {"counts": counts, "seen": sorted(seen), "kept": selection.kept, "note": selection.note}
print(json.dumps(result | {"weights": model.module.weight.detach().tolist()}))
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.usefixtures("processes")
@pytest.mark.promise("S23", "selection")
def test_ranks_make_equally_many_steps_on_shards_of_their_own(tmp_path):
    """One selects and the other does not; 103 instances are no multiple of 2."""
    port = free_port()
    children = [
        warm.Popen(
            [sys.executable, "-c", JOB], env=environment(tmp_path, rank, 2, port), stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    try:
        first, second = (json.loads(child.communicate(timeout=500)[0].splitlines()[-1]) for child in children)
    finally:
        for child in children:
            child.kill()
            child.wait()
    assert first["counts"] == second["counts"]
    assert first["counts"][0] == 7
    assert first["counts"][-1] < 7
    assert first["kept"] < 0.9 < 1 == second["kept"]
    assert set(first["seen"]) & set(second["seen"]) <= {0}  # the one that stands in for what is missing
    assert set(first["seen"]) | set(second["seen"]) == set(range(103))
    assert first["weights"] == second["weights"]
    assert first["note"] == second["note"] == ""


def test_ranks_without_a_way_to_agree_are_refused():
    with pytest.raises(ValueError, match=r"needs an initialized torch\.distributed, or agree="):
        Selection(100, 8, rank=0, world=2)


# ------------------------------------------------------------ methods in turn


def test_the_method_changes_between_any_two_steps_and_each_instance_is_offered_once_an_epoch():
    selection, rng = selection_of(), random.Random(0)
    names = sorted(METHODS)
    for _ in steps(selection, 8):
        selection.method = rng.choice(names)
        selection.floor, selection.exponent = rng.random(), rng.random()
        assert selection.note == ""
    assert selection.epoch == 8
    assert selection.walk.walked >= 8 * COUNT
    assert (selection.table.seen > 3).all()


def test_a_method_that_was_used_before_continues_where_it_was():
    selection = selection_of("autoassist")
    taken(steps(selection), 20)
    phi, losses = selection.state_dict()["methods"]["autoassist"]["phi"], selection.table.loss.copy()
    selection.method = "norm"
    selection.method = "autoassist"
    assert np.array_equal(selection.state_dict()["methods"]["autoassist"]["phi"], phi)
    assert np.array_equal(selection.table.loss, losses)


# ------------------------------------------------------------ steps of all kinds


def model_and_optimizer():
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(16, 2))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def test_mixed_precision_and_a_gradient_scaler_change_nothing_but_precision():
    selection = selection_of(epochs=8)
    model, optimizer = model_and_optimizer()
    scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
    loader = DataLoader(WithIndex(DATA), batch_sampler=selection)
    for _ in range(8):
        for ids, (x, y) in loader:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = model(x)
                loss = selection.mean(ids, functional.cross_entropy(logits, y, reduction="none"))
            assert logits.dtype == torch.bfloat16
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            selection.observe(ids, logits=logits, targets=y)
    assert selection.note == ""
    assert selection.kept < 0.95
    assert (model(X).argmax(1) == Y).float().mean() > 0.8


def test_accumulated_parts_have_the_gradient_of_the_whole_batch():
    selection = selection_of()
    taken(steps(selection), 12)
    ids = torch.tensor(next(iter(selection)))
    assert not (selection.table.weight[ids.numpy()] == 1).all()
    z = torch.randn(len(ids), 2, requires_grad=True)
    selection.mean(ids, functional.cross_entropy(z, Y[ids], reduction="none")).backward()
    whole, z.grad = z.grad, None
    for part in range(0, len(ids), 2):
        mine = ids[part : part + 2]
        loss = selection.mean(mine, functional.cross_entropy(z[part : part + 2], Y[mine], reduction="none"))
        (loss / 4).backward()
        selection.observe(mine, logits=z[part : part + 2], targets=Y[mine])
    torch.testing.assert_close(z.grad, whole)
    assert selection.note == ""
    assert not selection.state_dict()["drawn"]


def trained(selection, batches=None):
    """Train with dropout; return batches, parameters and the random numbers after."""
    random.seed(1)
    np.random.seed(1)
    model, optimizer = model_and_optimizer()
    drawn = []
    loader = DataLoader(WithIndex(DATA), batch_sampler=selection if batches is None else batches)
    for _ in range(4):
        for ids, (x, y) in loader:
            drawn.append(ids.tolist())
            logits = model(x)
            losses = functional.cross_entropy(logits, y, reduction="none")
            loss = losses.mean() if batches is not None else selection.mean(ids, losses)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if batches is None:
                selection.observe(ids, logits=logits, targets=y)
    numbers = random.random(), np.random.random(), torch.rand(1).item()
    return drawn, [one.detach().clone() for one in model.parameters()], numbers


def test_uniform_trains_as_a_plain_sampler_with_the_same_batches_does_to_the_last_bit():
    drawn, parameters, numbers = trained(selection_of("uniform"))
    epochs = iter([drawn[:8], drawn[8:15], drawn[15:23], drawn[23:]])

    class Same(BatchSampler):
        def __init__(self):
            pass

        def __iter__(self):
            return iter(next(epochs))

        def __len__(self):
            return len(drawn)

    _, wanted, expected = trained(None, Same())
    assert all(torch.equal(one, other) for one, other in zip(parameters, wanted, strict=True))
    assert [len(drawn), numbers] == [30, expected]


@pytest.mark.parametrize("method", METHODS)
def test_no_method_draws_from_the_global_random_numbers_or_touches_modes(method):
    selection, before = selection_of(method), (random.getstate(), np.random.get_state()[1].tolist())
    state = torch.get_rng_state()
    for _ in range(3):
        for batch in selection:
            losses = X[batch, 1].abs().requires_grad_()
            selection.mean(batch, losses).backward()
            selection.observe(batch, losses=losses)
            assert torch.is_grad_enabled()
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
    assert torch.equal(torch.get_rng_state(), state)
    assert selection.note == ""


# ------------------------------------------------------------ what is wrong


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"data": iter(DATA)}, TypeError, "must be a data set with a length"),
        ({"data": object()}, TypeError, "must be a data set with a length"),
        ({"data": []}, ValueError, "has no instances"),
        ({"batch_size": 61}, ValueError, "more than the 60 instances"),
        ({"batch_size": 0}, ValueError, "at least 1"),
        ({"batch_size": 2.5}, TypeError, "whole number"),
        ({"floor": 1.5}, ControlError, "from 0.0 to 1.0"),
        ({"floor": -0.1}, ControlError, "from 0.0 to 1.0"),
        ({"floor": float("nan")}, ControlError, "from 0.0 to 1.0"),
        ({"method": "best"}, ControlError, "must be one of 'norm', 'infobatch', 'autoassist', 'uniform'"),
        ({"switch": True}, ControlError, "'auto'"),
        ({"epochs": 0}, ValueError, "epochs=0"),
        ({"loss": "hinge"}, ValueError, "loss='hinge'"),
        ({"seed": -1}, ValueError, "seed=-1"),
        ({"rank": 2, "world": 2}, ValueError, "rank=2"),
        ({"features": X[:50]}, ValueError, "50 rows for 60"),
    ],
)
def test_wrong_arguments_are_refused_with_the_value_and_the_way_out(arguments, error, words):
    with pytest.raises(error, match=words):
        Selection(**{"data": DATA, "batch_size": BATCH} | arguments)


LOSSES = torch.ones(BATCH)
WRONG = {
    "shape": {"losses": torch.ones(BATCH, 2)},
    "length": {"losses": torch.ones(BATCH - 1)},
    "nothing": {},
    "no targets": {"logits": torch.zeros(BATCH, 2)},
    "shapes of logits": {"logits": torch.zeros(BATCH, 2), "targets": torch.zeros(BATCH, 3)},
    "no tensors": {"logits": "logits", "targets": 3},
    "nan": {"losses": torch.full((BATCH,), torch.nan)},
    "infinite": {"losses": torch.full((BATCH,), torch.inf)},
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("method", ["norm", "infobatch", "uniform"])
def test_a_wrong_observation_is_noted_and_nothing_is_lost(method, wrong):
    selection = selection_of(method)
    before, seen = taken(steps(selection, 9), 9), selection.table.seen.sum()
    losses = selection.table.loss.copy()
    batch = next(iter(selection))
    selection.observe(batch, **WRONG[wrong])
    assert selection.note
    assert len(before) == 9
    assert np.array_equal(selection.table.loss, losses)
    assert selection.table.seen.sum() == seen + BATCH
    if method in ("norm", "infobatch"):  # they leave instances out by themselves
        selection.method = "uniform"
    rest = list(steps(selection, selection.epoch + 2))
    assert {index for ids, _ in rest for index in ids} == set(range(COUNT))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("indices", [[0, COUNT], [-1, 0], [0.5, 1.0], torch.zeros(2, 2), None, "ab", [True, False]])
def test_wrong_indices_give_the_plain_mean_and_a_note(indices):
    selection = selection_of()
    taken(steps(selection), 12)
    known = selection.table.loss.copy(), selection.table.seen.copy()
    losses = torch.tensor([1.0, 2.0])
    assert selection.mean(indices, losses).item() == 1.5
    assert "plain mean" in selection.note
    selection.observe(indices, losses=losses)
    assert "observe" in selection.note
    assert np.array_equal(selection.table.loss, known[0])
    assert np.array_equal(selection.table.seen, known[1])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_losses_that_are_partly_wrong_are_learned_from_where_they_are_right():
    selection = selection_of()
    selection.observe([1, 2, 3], losses=torch.tensor([0.5, torch.nan, torch.inf]))
    assert "not finite" in selection.note
    assert selection.table.loss[[1, 2, 3]].tolist()[0] == 0.5
    assert np.isnan(selection.table.loss[[2, 3]]).all()
    assert selection.table.mean_loss == 0.5


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_method_that_fails_leaves_plain_sampling(monkeypatch):
    selection = selection_of()
    taken(steps(selection, 9), 9)
    monkeypatch.setattr(METHODS["norm"], "acceptance", lambda self, indices: 1 / 0)
    selection.switch = "on"
    offered = [index for ids, _ in steps(selection, selection.epoch + 2) for index in ids]
    assert "failed: division by zero" in selection.note
    assert set(offered) == set(range(COUNT))


def test_copies_of_an_instance_count_by_their_mean():
    selection = selection_of()
    selection.observe([4, 4, 7], losses=torch.tensor([1.0, 3.0, 5.0]))
    assert selection.table.loss[[4, 7]].tolist() == [2.0, 5.0]
    assert selection.table.mean_loss == 3.5


# ------------------------------------------------------------ the page


def test_the_example_at_the_top_of_the_page_runs_as_it_stands():
    page = (ROOT / "docs/selection.md").read_text()
    found = {}
    exec(page.split("```python\n")[1].split("```")[0], found)
    assert found["selection"].epoch == 3
    assert found["selection"].note == ""
    page_methods = {line.split("`")[1] for line in page.splitlines() if line.startswith("| `")}
    assert set(METHODS) <= page_methods


# ------------------------------------------------------------ an agent


def test_a_client_turns_the_controls_and_reads_the_observables():
    agent, run = pair()
    selection = selection_of()
    agent.expose(assistant=selection)
    stream = run.stream("step, assistant.accuracy, assistant.kept")
    scores = run.stream("assistant.scores")
    running = steps(selection, 20)

    def train(count):
        for _ in taken(running, count):
            agent.emit("batch", step=selection.steps)

    train(20)
    assert len(stream.values) == 20, (stream.notes, stream.traceback)
    assert len(scores.values) == 20, (scores.notes, scores.traceback)
    controls = {name.split(".")[-1] for name in run.controls}
    assert {"method", "switch", "floor", "cap", "exponent", "learning_rate"} <= controls
    for name, value in (("floor", 0.5), ("method", "infobatch"), ("switch", "off")):
        with pytest.raises(CommandPending):
            run.set(f"assistant.{name}", value, timeout=0)
    train(2)
    assert (selection.floor, selection.method, selection.switch) == (0.5, "infobatch", "off")
    with pytest.raises(ControlError, match=r"0\.0 to 1\.0"):
        run.set("assistant.floor", 2)
    assert selection.note == ""
