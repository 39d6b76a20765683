"""What a query finds in a script by name, and what is left untouched."""

import copy
import pickle
import sys
import weakref
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.utils.data import DataLoader, IterableDataset

from looptap.agent.agent import emit_found
from looptap.agent.loop.sight.frames import find, in_sight, kind_of_file, may_come, no_value, path_to
from looptap.integrations.auto.hooks.gradients import has_gradients
from looptap.integrations.auto.hooks.passes import LoaderPasses
from looptap.integrations.auto.hooks.script_agent import ScriptAgent
from looptap.integrations.auto.hooks.updates import ThreadUpdate
from looptap.integrations.auto.sight.known_optimizers import KnownOptimizers
from looptap.integrations.auto.sight.models import models_trained_by, scheduler_of
from looptap.integrations.auto.sight.root_inputs import RootInputs
from looptap.streams.events import FoundObservables
from looptap.testing import pair

of_the_module = 7


def seen(name):
    return find(sys._getframe(1), name)


# ---------------------------------------------------------------- frames


def test_names_are_found_from_the_inside_out_and_then_in_the_module():
    number, outer = 1, "outer"

    def inner():
        number = 2
        return seen("number"), seen("outer"), seen("of_the_module"), number

    assert inner() == (2, "outer", 7, 2)
    assert (number, outer) == (1, "outer")


def test_modules_functions_classes_and_what_an_event_has_by_itself_are_no_observables():
    sys_, rank = sys, 6
    for name in ("sys_", "copy", "seen", "SimpleNamespace", "rank", "__name__", "nothing"):
        with pytest.raises(KeyError):
            seen(name)
    assert (sys_, rank) == (sys, 6)
    assert {"name"} <= set(in_sight(sys._getframe()))


def test_variables_named_like_words_of_the_query_language_are_there_and_listed_by_no_message():
    mean, events = 5, 6
    assert (seen("mean"), seen("events")) == (mean, events)
    assert {"mean", "events"}.isdisjoint(in_sight(sys._getframe()))


def test_modules_of_torch_are_found_by_the_names_of_the_script_after_its_variables():
    functional = nn.functional
    assert seen("functional") is functional
    assert seen("nn") is nn

    def inner():
        functional = 1
        return seen("functional"), functional

    def outer():
        torch_again = torch

        def innermost():
            return seen("torch_again"), seen("nn")

        return innermost(), torch_again

    assert inner() == (1, 1)
    assert outer() == ((torch, nn), torch)


def test_the_condition_of_a_flight_recorder_calls_torch_by_the_names_of_the_script():
    agent, run = pair("recorded", groups=("step",), history=False)
    stream = run.stream("step", on="step", when="nn.functional.relu(x).sum() > 1", before=1)

    def emit(step):
        values = {"step": step, "x": torch.full((2,), step - 2.0), "nn": nn}
        emit_found(agent, "step", lambda: FoundObservables({}, values.__getitem__, lambda: values))

    for step in range(4):
        emit(step)
    assert (stream.values, stream.traceback) == ([2, 3], "")


def test_a_function_or_a_module_of_the_script_is_not_waited_for():
    frame = sys._getframe()
    assert not any(may_come(frame, name) for name in ("seen", "copy", "SimpleNamespace"))
    assert may_come(frame, "later")
    later = sys
    words = [no_value(frame, name) for name in ("seen", "copy", "later", "SimpleNamespace", "of_the_module", "nowhere")]
    assert (words, later) == (["function", "module", "module", "class", "", ""], sys)


class Fields:
    field: int = 0

    def method(self):
        of_a_method = self.field
        return of_a_method


def test_a_field_of_a_class_is_no_variable_that_is_waited_for():
    frame = sys._getframe()
    assert not may_come(frame, "field")
    assert may_come(frame, "of_a_method")


def test_the_path_to_an_attribute_or_a_key_in_sight_is_found_and_runs_no_code():
    class Asked:
        def __getattr__(self, name):
            raise AssertionError(name)

    state = SimpleNamespace(epoch=3, logs={"kd": 0.5}, net=nn.Sequential(nn.Linear(1, 1)))
    state.itself, holder = state, Asked()
    holder.inside = SimpleNamespace(deep=SimpleNamespace(deeper=SimpleNamespace(deepest=1)))
    frame = sys._getframe()
    paths = [path_to(frame, name) for name in ("epoch", "kd", "inside", "deeper", "deepest", "nowhere", "append")]
    assert paths == ["state.epoch", "state.logs['kd']", "holder.inside", "holder.inside.deep.deeper", "", "", ""]
    assert path_to(frame, "itself") == "state.itself"


def test_frames_of_libraries_come_after_those_of_the_user_and_of_torch_never():
    assert kind_of_file(torch.nn.__file__) == kind_of_file(weakref.__file__) == "hidden"
    assert kind_of_file(pytest.__file__) == "library"
    assert kind_of_file(__file__) == "user"


def test_what_is_read_keeps_nothing_alive():
    thing = nn.Linear(1, 1)
    gone = weakref.ref(thing)
    assert seen("thing") is thing
    del thing
    assert gone() is None


def test_a_dict_of_the_own_variables_stays_as_the_function_left_it():
    def function():
        mine = 1
        given = locals()
        with pytest.raises(KeyError):
            find(sys._getframe(), "mine")
        return given, mine

    given, _ = function()
    assert given["mine"] == 1


class Proxy:
    """An object that counts what is asked of it."""

    def __init__(self):
        object.__setattr__(self, "asked", [])

    def __getattribute__(self, name):
        object.__getattribute__(self, "asked").append(name)
        raise AttributeError(name)

    @property
    def __class__(self):
        raise AssertionError("asked for its class")


def test_objects_of_the_script_are_not_asked_anything():
    proxy = Proxy()
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert seen("proxy") is proxy
    assert [module for _, module in models_trained_by(optimizer, sys._getframe())] == [model]
    assert object.__getattribute__(proxy, "asked") == []


# ---------------------------------------------------------------- events


def test_only_names_that_queries_use_are_searched_for_and_none_without_a_query():
    agent, run = pair("lazy", groups=("step",), history=False)
    searched = []

    def search(name):
        searched.append(name)
        return {"a": 1, "b": [2], "c": 3}[name]

    def emit():
        emit_found(agent, "step", lambda: FoundObservables({}, search, lambda: "abc"))

    emit()
    assert searched == []
    stream = run.stream("lambda e: (e.a, e.b)", on="step")
    emit()
    assert (stream.values, sorted(set(searched))) == ([(1, [2])], ["a", "b"])
    emit()
    assert len(stream.values) == 2
    assert sorted(set(searched)) == ["a", "b"]


def test_a_missing_name_lists_those_in_sight():
    agent, run = pair("lazy", groups=("step",), history=False)
    stream = run.stream("los", on="step")
    emit_found(agent, "step", lambda: FoundObservables({}, {"loss": 1.0}.__getitem__, lambda: ["loss"]))
    assert stream.error_count == 1
    assert stream.values == []


# ---------------------------------------------------------------- models


def test_the_model_is_the_module_with_most_of_the_parameters_and_fewest_others():
    class Trainer:
        def __init__(self):
            self.net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
            self.other = nn.Linear(9, 9)

    trainer = Trainer()
    both = nn.ModuleList([trainer.net, trainer.other])
    optimizer = torch.optim.SGD(trainer.net.parameters(), lr=0.1)
    assert [module for _, module in models_trained_by(optimizer, sys._getframe())] == [trainer.net]
    optimizer = torch.optim.SGD(both.parameters(), lr=0.1)
    assert [module for _, module in models_trained_by(optimizer, sys._getframe())] == [both]


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # what Dynamo imports
def test_of_a_compiled_model_and_the_module_in_it_the_compiled_one_is_the_model():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert [module for _, module in models_trained_by(optimizer, sys._getframe())] == [model]
    net = torch.compile(model)
    assert [module for _, module in models_trained_by(optimizer, sys._getframe())] == [net]


def test_several_optimizers_have_the_names_of_the_script_and_are_let_go():
    first = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    known = KnownOptimizers()
    assert known.add(first, sys._getframe()).name == "first"
    gone = weakref.ref(first)
    del first
    assert gone() is None
    second = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    known.add(second, sys._getframe())
    assert len(known.by_id) == 1
    assert not known.several


def test_each_of_several_optimizers_is_a_control_by_its_own_name_the_first_too():
    agent, run = pair("gan")
    script, update = ScriptAgent(lambda: agent), ThreadUpdate({})
    net_g, net_d = nn.Linear(1, 1), nn.Linear(2, 2)
    optim_g = torch.optim.SGD(net_g.parameters(), lr=0.1)
    optim_d = torch.optim.SGD(net_d.parameters(), lr=0.2)
    script.raise_event("step", update, optim_g)
    assert {name.partition(".")[0] for name in run.controls} == {"optimizer"}
    script.raise_event("step", update, optim_d)
    assert {name.partition(".")[0] for name in run.controls} == {"optim_g", "optim_d"}
    assert (run.controls["optim_g.lr"].value, run.controls["optim_d.lr"].value) == (0.1, 0.2)
    assert {"net_d", "model"} <= {*run.modules()}


def test_the_modules_of_a_loop_that_updates_its_weights_itself_are_listed():
    own = pair("own", history=True)
    script, update = ScriptAgent(lambda: own.agent), ThreadUpdate({})
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()
        script.raise_event("step", update)
        own.beat()
    assert list(own.run.modules()) == ["model", "0", "1"]


def test_the_optimizer_of_a_second_training_takes_the_place_of_the_first():
    agent, run = pair("folds")
    script, update = ScriptAgent(lambda: agent), ThreadUpdate({})
    kept = []
    for rate in (0.1, 0.2):
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        kept.append(optimizer)  # as until the garbage collection
        script.raise_event("step", update, optimizer)
    assert {name.partition(".")[0] for name in run.controls} == {"optimizer"}
    assert run.controls["optimizer.lr"].value == 0.2


@pytest.mark.parametrize(("arguments", "keywords", "x", "y"), [
    ((1.0,), {}, 1.0, None), ((1.0, 2.0), {}, 1.0, 2.0), ((), {"input_ids": 1.0, "labels": 3.0}, 1.0, 3.0),
    ((), {"labels": 3.0, "input_ids": 1.0}, 1.0, 3.0), ((), {"input_ids": 1.0, "attention_mask": 3.0}, 1.0, None),
])  # fmt: skip
def test_inputs_and_target_are_those_of_the_last_forward_pass(arguments, keywords, x, y):
    class Model(nn.Module):
        def forward(self, *arguments, **keywords):
            return torch.zeros(1, requires_grad=True)

    model = Model()
    inputs = RootInputs(model)
    assert not inputs.ask()
    tensors = [torch.tensor(one) for one in arguments]
    model(*tensors, **{name: torch.tensor(one) for name, one in keywords.items()})
    with torch.no_grad():
        model(torch.tensor(9.0))
    assert inputs.read("x") == x
    if y is None:
        with pytest.raises(KeyError):
            inputs.read("y")
    else:
        assert inputs.read("y") == y


def test_a_model_whose_inputs_are_noted_is_saved_as_if_they_were_not():
    model = nn.Linear(2, 2)
    plain = pickle.dumps(model)
    inputs = RootInputs(model)
    inputs.ask()
    assert model._forward_pre_hooks
    assert pickle.dumps(model) == plain
    assert not copy.deepcopy(model)._forward_pre_hooks
    model(torch.ones(1, 2))
    assert inputs.read("x").shape == (1, 2)


class Wrapped:
    """An optimizer in another one, as Accelerate wraps it."""

    def __init__(self, optimizer):
        self.optimizer = optimizer


def test_a_schedule_that_drives_an_optimizer_by_a_wrapper_is_found():
    agent, run = pair("wrapped")
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=1.0)
    trainer = SimpleNamespace(lr_scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5))
    trainer.lr_scheduler.optimizer = Wrapped(optimizer)
    assert scheduler_of(optimizer, sys._getframe()) is trainer.lr_scheduler
    agent.expose(optimizer=optimizer, scheduler=trainer.lr_scheduler)
    assert run.controls["optimizer.lr"].driven == "StepLR"


def test_a_variable_that_a_function_of_the_query_language_hides_is_named():
    agent, run = pair("hidden")
    stream = run.stream("step, norm", on="batch")
    agent.emit("batch", step=1)
    assert "the query language's own norm: call it, norm(" in stream.traceback
    assert "A variable of the job of that name is e['norm']." in stream.traceback


# ---------------------------------------------------------------- gradients


@pytest.mark.filterwarnings("ignore:FSDP")
def test_gradients_are_dropped_if_absent_or_zeroed_and_never_where_fsdp_keeps_them_elsewhere():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 40_000))  # the second has more numbers than a first look reads
    optimizer = torch.optim.SGD(model.parameters())
    assert not has_gradients(optimizer)
    (model(torch.ones(1, 2)) * 0).sum().backward()
    assert has_gradients(optimizer)
    model(torch.ones(1, 2)).sum().backward()
    assert has_gradients(optimizer)
    model[0].zero_grad()
    assert has_gradients(optimizer)
    model.zero_grad(set_to_none=False)
    assert not has_gradients(optimizer)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = dist.init_device_mesh("cpu", (1,))
        sharded = [FullyShardedDataParallel(nn.Linear(2, 2), device_id=torch.device("cpu"), use_orig_params=names)
                   for names in (False, True)]  # fmt: skip
        for one in (*sharded, fully_shard(nn.Linear(2, 2), mesh=mesh)):
            assert has_gradients(torch.optim.SGD(one.parameters()))
    finally:
        dist.destroy_process_group()


# ---------------------------------------------------------------- passes


class Endless(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(6.0))


class Loop:
    """A loop over DataLoaders that counts its steps and the events of its passes."""

    def __init__(self):
        self.passes, self.steps, self.events = LoaderPasses({}), 0, []

    def batches(self, loader, most=99):
        iterator = iter(loader)
        for _ in range(most):
            overdue, event = self.passes.before_batch(iterator, self.steps, torch.is_grad_enabled())
            self.events += filter(None, ["epoch" if overdue else None, event])
            try:
                yield next(iterator)
            except StopIteration:
                return

    def train(self, loader, most=99):
        for _ in self.batches(loader, most):
            self.steps += 1

    def evaluate(self, loader):
        with torch.no_grad():
            for _ in self.batches(loader):
                pass


DATA = list(torch.arange(6.0))


def test_a_pass_with_steps_is_an_epoch_and_one_without_gradients_an_evaluation():
    loop, train, test = Loop(), DataLoader(DATA, batch_size=2), DataLoader(DATA, batch_size=3)
    for _ in range(2):
        loop.train(train)
        loop.evaluate(test)
    assert loop.events == ["epoch", "evaluation"] * 2


def test_a_pass_that_breaks_off_or_has_no_length_ends_when_the_next_one_begins():
    for loader in (DataLoader(DATA, batch_size=1), DataLoader(Endless(), batch_size=1)):
        loop = Loop()
        for _ in range(3):
            loop.train(loader, 4)
        assert loop.events == ["epoch", "epoch"]


def test_an_evaluation_in_the_middle_of_an_epoch_does_not_end_it():
    loop, train, test = Loop(), DataLoader(DATA, batch_size=2), DataLoader(DATA, batch_size=6)
    for _ in loop.batches(train):
        loop.steps += 1
        loop.evaluate(test)
    assert loop.events == ["evaluation"] * 3 + ["epoch"]


def test_loaders_side_by_side_and_single_batches_of_fresh_iterators_are_no_epochs():
    loop, first, second = Loop(), DataLoader(DATA, batch_size=2), DataLoader(DATA, batch_size=2)
    for _ in zip(loop.batches(first), loop.batches(second), strict=False):
        loop.steps += 1
    assert loop.events == ["epoch"]
    loop = Loop()
    for _ in range(5):
        loop.train(first, 1)
    assert loop.events == []


@pytest.mark.usefixtures("processes")
def test_workers_that_stay_and_samplers_of_any_kind_are_followed():
    loop = Loop()
    loader = DataLoader(DATA, num_workers=1, persistent_workers=True, batch_sampler=[[0, 1], [2, 3]])
    for _ in range(2):
        loop.train(loader)
    assert loop.events == ["epoch"] * 2
