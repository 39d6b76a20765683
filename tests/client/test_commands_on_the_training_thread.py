"""A command that would wait for an event of its own thread says so at once."""

from __future__ import annotations

import pytest
from training_loop import training
from waiting import soon

import looptap
from looptap import CommandPending, ControlError
from looptap.testing import pair

COMMANDS = {
    "set": lambda run: run.set("settings['rate']", 0.1),
    "undo": lambda run: run.undo(),
    "trigger": lambda run: run.trigger("evaluate"),
    "checkpoint": lambda run: run.checkpoint(),
    "stop": lambda run: run.stop(),
    "pause": lambda run: run.pause(0.001),
    "code": lambda run: run.call("e.step"),
    "profile": lambda run: run.profile("trace.json.gz"),
    "memory": lambda run: run.memory(),
}


def declare(agent):
    agent.expose(settings={"rate": 0.5})
    agent.trigger("evaluate", lambda: 1)
    agent.checkpoint(lambda: "saved")


@pytest.fixture
def job(directory):
    """Return an agent whose loop is the test, and a run that has changed something."""
    with looptap.Agent("own", may_pause=True) as agent, looptap.attach("own") as run:
        declare(agent)
        agent.emit("batch", step=1)
        with pytest.raises(CommandPending) as pending:
            run.set("settings['rate']", 0.2, timeout=0)
        assert soon(lambda: any(one["id"] == pending.value.id for one in run.commands))
        agent.emit("batch", step=2)
        assert run.outcome(pending.value.id).new == 0.2
        yield agent, run


@pytest.mark.parametrize("what", COMMANDS)
def test_it_says_so_and_how_to_avoid_it(job, what):
    agent, run = job
    said = rf"\({what}.* this very thread raises.*timeout=0, or from another thread"
    with pytest.raises(CommandPending, match=said) as waits:
        COMMANDS[what](run)
    if what in ("code", "profile", "memory"):
        return
    with pytest.raises(CommandPending, match=r"\(outcome.* this very thread raises"):
        run.outcome(waits.value.id)
    agent.emit("batch", step=3)
    assert run.outcome(waits.value.id).number == 3


def test_what_needs_no_event_is_answered(job):
    _, run = job
    done = run.commands[0]["id"]
    assert run.set("settings['rate']", 0.9, id=done).new == 0.2
    with pytest.raises(ControlError, match="there is no control 'rat'"):
        run.set("rat", 1.0)
    with pytest.raises(CommandPending) as pending:
        run.call("1", timeout=0)
    assert run.cancel(pending.value.id).outcome == "cancelled"


def test_in_memory_it_is_the_same():
    agent, run = pair("own")
    declare(agent)
    agent.emit("batch", step=1)
    for wait in (lambda: run.call("e.step"), lambda: run.trigger("evaluate", on="epoch")):
        with pytest.raises(CommandPending, match="this very thread"):
            wait()
    agent.close()


def test_events_of_another_thread_may_be_waited_for(directory):
    with looptap.Agent("other") as agent, looptap.attach("other") as run:
        declare(agent)
        agent.emit("epoch")
        with training(agent, step=1):
            assert run.call("e.step", on="batch") == 1
            assert run.set("settings['rate']", 0.3).new == 0.3
            with pytest.raises(CommandPending, match="the next 'epoch' event, which this very thread"):
                run.call("1", on="epoch")


@pytest.mark.parametrize("memory", [True, False])
def test_another_thread_may_take_over(directory, memory):
    agent, run = pair("over") if memory else (agent := looptap.Agent("over"), looptap.attach("over"))
    agent.emit("batch", step=1)
    with training(agent, step=2):
        assert run.call("e.step") == 2
    run.close()
    agent.close()
