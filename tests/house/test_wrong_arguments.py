"""A wrong argument is reported under the name that was called, not of a part."""

import importlib
import inspect
import re
from types import FunctionType

import pytest

import looptap
from looptap.testing import pair

TRAINING = ("echoing", "prioritized", "progress", "selection")
CLASSES = sorted(
    {
        one
        for module in (looptap, *(importlib.import_module(f"looptap.training.{name}") for name in TRAINING))
        for one in (getattr(module, name) for name in module.__all__)
        if isinstance(one, type) and one.__module__.startswith("looptap.")
    },
    key=lambda one: one.__name__,
)
NAMES = {one.__name__ for one in CLASSES}


@pytest.fixture(scope="module")
def objects():
    agent, run = pair("wrong")
    stream, at_hand = run.stream("step"), looptap.stream_of([1.0, 2.0])
    return {type(one): one for one in (agent, run, stream, at_hand, looptap.plot(at_hand))}


def methods(cls: type) -> dict[str, FunctionType]:
    """Return the public methods of ``cls`` that our own modules define, by name."""
    found = {name: inspect.getattr_static(cls, name) for name in dir(cls) if not name.startswith("_")}
    return {
        name: one
        for name, one in found.items()
        if isinstance(one, FunctionType) and one.__module__.startswith("looptap.")
    }


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_each_method_has_the_name_of_a_class_that_users_know(cls):
    public = {f"{base.__name__}.{name}" for base in cls.__mro__ if base.__name__ in NAMES for name in methods(base)}
    assert {one.__qualname__ for one in methods(cls).values()} - public == set()


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_wrong_argument_is_reported_by_the_method_that_was_called(cls, objects):
    this = objects.get(cls, object())
    for name, method in methods(cls).items():
        if inspect.Parameter.VAR_KEYWORD in {one.kind for one in inspect.signature(method).parameters.values()}:
            continue
        called = re.escape(method.__qualname__)
        with pytest.raises(TypeError, match=rf"^{called}\(\) got an unexpected keyword") as caught:
            method(this, no_such_argument=1)
        assert caught.value.args[0].partition(".")[0] in NAMES, name


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda on: on[looptap.Agent].control("lr", minium=0), "Agent.control() got an unexpected keyword"),
        (lambda on: on[looptap.Agent].control("lr"), "Agent.control() missing 2 required positional arguments"),
        (lambda on: on[looptap.Agent].trigger(), "Agent.trigger() missing 2 required positional arguments"),
        (lambda on: on[looptap.Run].set("lr", 1, 2), "Run.set() takes 3 positional arguments but 4 were given"),
        (lambda on: on[looptap.Run].stream("step", windows=3), "Run.stream() got an unexpected keyword"),
        (lambda on: on[looptap.Run].skew(rank=1), "Run.skew() got an unexpected keyword argument 'rank'"),
        (lambda on: looptap.compare(on[looptap.Stream], lgo="y"), "compare() got an unexpected keyword argument 'lgo'"),
        (lambda on: on[looptap.Plot].add(on[looptap.Stream], colour="red"), "Plot.add() got an unexpected keyword"),
        (lambda on: pair("wrong", group=()), "pair() got an unexpected keyword argument 'group'"),
    ],
)  # fmt: skip
def test_the_message_names_what_the_user_called(objects, call, named):
    with pytest.raises(TypeError) as caught:
        call(objects)
    assert str(caught.value).startswith(named)
