"""A state that lacks a part is refused in a sentence that names the part."""

from __future__ import annotations

import importlib
import inspect
import pickle
import pkgutil

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import looptap.training
from looptap.training.echoing import Echo
from looptap.training.prioritized import Prioritized
from looptap.training.progress import Progress
from looptap.training.sampling.instance_table import InstanceTable
from looptap.training.sampling.permutation_walk import PermutationWalk
from looptap.training.selection import METHODS, Selection
from looptap.training.selection.honest_gain import HonestGain
from looptap.training.selection.switch import Switch

COUNT = 24
REFUSED = r"is not what the state_dict\(\) of .* returned: .* (is|are) missing\.$"


def selection(method="norm"):
    found = Selection(COUNT, 4, method, switch="on", features=np.eye(COUNT))
    for _ in range(2):
        for batch in found:
            found.observe(batch, losses=torch.tensor(batch) / COUNT + 0.1)
    return found


def prioritized(method="published"):
    torch.manual_seed(0)
    x, model = torch.randn(COUNT, 3), nn.Linear(3, 2)
    found = Prioritized(COUNT, model, 4, method, k=0.1, r=0.1, switch="on")
    for _ in range(2):
        for batch in found:
            logits, targets = model(x[batch]), torch.tensor(batch) % 2
            model.zero_grad()
            found.backward(batch, functional.cross_entropy(logits, targets, reduction="none"))
            found.observe(batch, logits=logits, targets=targets)
    return found


def echo(batches):
    found = Echo(DataLoader(TensorDataset(torch.arange(COUNT)), 4), 2, "example_after_augment")
    running = iter(found)
    for _ in range(batches):
        next(running)
    return found


def walk():
    found = PermutationWalk(np.arange(COUNT), 0)
    found.following(5)
    return found


OWNERS = {
    **{f"Selection {method}": lambda method=method: selection(method) for method in METHODS},
    **{
        f"Prioritized {method}": lambda method=method: prioritized(method)
        for method in ("published", "repaired", "loss")
    },
    "Echo": lambda: echo(0),
    "Echo within an epoch": lambda: echo(3),
    "Progress": lambda: Progress([0] * 4, epochs=2),
    "Estimator": lambda: Progress([0] * 4, epochs=2).estimator,
    "PermutationWalk": walk,
    "Switch": Switch,
    "AverageGradient": lambda: prioritized().average,
}


def without_each_part(state, path=()):
    """Yield states that lack one part, or have another thing in place of a dict."""
    for name, part in state.items():
        yield (*path, name), {other: value for other, value in state.items() if other != name}
        if isinstance(part, dict):
            yield (*path, name), state | {name: None}
            for where, broken in without_each_part(part, (*path, name)):
                yield where, state | {name: broken}


def plain(state):
    """Return a state as text, which compares also what is not a number."""
    return repr({name: part for name, part in state.items() if name != "elapsed"})


FIRST = pytest.mark.promise("training", "S18")  # in `make test`; the others take long


@pytest.mark.long
@pytest.mark.parametrize("name", [pytest.param(one, marks=FIRST) if one == "Echo" else one for one in OWNERS])
def test_each_part_that_is_missing_is_named_and_nothing_changes(name):
    owner = OWNERS[name]()
    state = pickle.loads(pickle.dumps(owner.state_dict()))
    tried = [*without_each_part(state), *((None, wrong) for wrong in (None, [], "state", {"kind": "Mapped"}))]
    assert len(tried) > 6
    for path, broken in tried:
        if path is not None and path[-1] == "average" and broken.get("average", 0) is None:
            continue  # a state of a run without a model
        before = plain(owner.state_dict())
        with pytest.raises(
            ValueError, match=r"is not what the state_dict\(\) of .* returned: .* (is|are) missing\.$"
        ) as said:
            owner.load_state_dict(broken)
        if path is not None:
            assert path[-1] in str(said.value)
        assert plain(owner.state_dict()) == before
    owner.load_state_dict(state)


@pytest.mark.parametrize("state", [None, [], [1.0, 2.0], {}, "sums"])
def test_sums_of_a_gain_that_are_cut_off_are_refused(state):
    gain = HonestGain()
    with pytest.raises(ValueError, match="must be 6 sums"):
        gain.load_state_dict(state)
    broken = selection().state_dict() | {"gain": [1.0]}
    with pytest.raises(ValueError, match="must be 6 sums"):
        selection().load_state_dict(broken)


def test_a_table_of_which_an_array_is_missing_is_refused():
    table, ids = InstanceTable(COUNT), np.arange(3)
    for name in table.state_dict(ids):
        state = {other: part for other, part in table.state_dict(ids).items() if other != name}
        with pytest.raises(ValueError, match=f"of an InstanceTable returned: {name} is missing"):
            table.load_state_dict(state)


def test_a_state_of_a_method_that_is_not_there_is_refused_in_a_sentence():
    with pytest.raises(ValueError, match="of the method 'published'; here are norm"):
        selection().load_state_dict(prioritized().state_dict())


def test_no_class_that_loads_a_state_is_left_out():
    """Each checks by `require_state`, a method by that of its base class."""
    unchecked = []
    for module in pkgutil.walk_packages(looptap.training.__path__, "looptap.training."):
        for name, kind in vars(importlib.import_module(module.name)).items():
            if inspect.isclass(kind) and kind.__module__ == module.name and "load_state_dict" in vars(kind):
                text = inspect.getsource(kind.load_state_dict)
                if "require_state(" not in text and "super().load_state_dict(" not in text:
                    unchecked.append(name)
    assert unchecked == ["HonestGain"]  # a list, of which the length is checked
