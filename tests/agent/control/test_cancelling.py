"""Cancelled commands: applied on no rank, answered once, recorded."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import threading

import pytest
from waiting import soon

import looptap
from looptap import CommandCancelled, CommandPending, ControlError
from looptap.protocol import messages as m
from looptap.store.replay_commands import commands_to_replay
from looptap.testing import pair, parts_of


def waiting(ask, *arguments, **how):
    """Return the id of a command that waits for its event."""
    with pytest.raises(CommandPending, match=r"To cancel it, run\.cancel\('") as pending:
        ask(*arguments, timeout=0, **how)
    return pending.value.id


def test_a_cancelled_command_never_runs_and_every_client_learns_of_it():
    agent, run = pair()
    calls = []
    agent.trigger("evaluate", lambda: calls.append(1))
    stream = run.stream("commands")
    id = waiting(run.trigger, "evaluate", on="epoch")
    other = run.session.requests.send(
        m.Command(run.session.requests.number(), id, "outcome")
    )  # another requester waits for it
    outcome = run.cancel(id)
    assert (outcome.outcome, outcome.what, outcome.name, outcome.id) == ("cancelled", "trigger", "evaluate", id)
    assert "cancelled by" in outcome.error
    assert run.cancel(id).outcome == "cancelled"
    with pytest.raises(CommandCancelled, match=r"cancelled by .*pid.*: nothing was done"):
        other.result(60)
    for ask in (lambda: run.outcome(id), lambda: run.trigger("evaluate", on="epoch", id=id)):
        with pytest.raises(CommandCancelled, match="nothing was done"):
            ask()
    assert not parts_of(agent).sources.by_name["epoch"].commands
    agent.emit("epoch")
    assert calls == []
    (record,) = run.commands
    assert (record["outcome"], record["event"], record["number"]) == ("cancelled", "", 0)
    assert [(value.what, value.outcome[:19]) for value in stream.values] == [
        ("trigger evaluate", "cancelled: this com")
    ]


@pytest.mark.parametrize("what", ["set", "checkpoint", "stop", "pause", "call"])
def test_each_kind_of_command_can_be_cancelled(what):
    agent, run = pair(may_pause=60)
    agent.control("a", lambda: 1, lambda value: 1 / 0)
    agent.checkpoint(lambda: 1 / 0)
    ask = {"set": ("a", 2), "call": ("1 / 0",)}.get(what, ())
    id = waiting(getattr(run, what), *ask, on="epoch")
    assert run.cancel(id).outcome == "cancelled"
    agent.emit("epoch")
    assert (agent.stop_requested, run.commands[-1]["outcome"]) == (False, "cancelled")


def test_cancelling_a_finished_command_returns_its_outcome():
    agent, run = pair()
    agent.trigger("good", lambda: 0.75)
    agent.trigger("bad", lambda: 1 / 0)
    good, bad = waiting(run.trigger, "good"), waiting(run.trigger, "bad")
    agent.emit("batch")
    assert (run.cancel(good).outcome, run.cancel(good).result) == ("done", 0.75)
    assert (run.cancel(bad).outcome, run.cancel(bad).error) == ("failed", "ZeroDivisionError: division by zero")
    with pytest.raises(ControlError, match="no command with the id 'other'"):
        run.cancel("other")
    assert [record["outcome"] for record in run.commands] == ["done", "failed"]


def test_commands_that_wait_are_bounded_and_outlast_those_that_are_over():
    agent, run = pair(limits=looptap.Limits(commands_per_second=100_000))
    agent.trigger("evaluate", lambda: 1)
    first = waiting(run.trigger, "evaluate", on="never")
    for _ in range(1100):
        id = waiting(run.trigger, "evaluate")
        agent.emit("batch")
    assert run.cancel(id).outcome == "done"
    assert run.cancel(first).outcome == "cancelled"
    for _ in range(1000):
        id = waiting(run.trigger, "evaluate", on="never")
    with pytest.raises(looptap.LimitReached, match=r"1,000 commands wait .* run\.cancel"):
        run.trigger("evaluate")
    assert run.cancel(id).outcome == "cancelled"
    waiting(run.trigger, "evaluate", on="never")
    assert parts_of(agent).dispatcher.commands.commands.remembered <= 1001


def test_a_command_that_has_begun_is_not_cancelled(directory):
    begun, go = threading.Event(), threading.Event()
    with looptap.Agent("begun") as agent, looptap.attach("begun") as run:
        agent.trigger("long", lambda: begun.set() or go.wait(300))
        id = waiting(run.trigger, "long")
        soon(lambda: run.commands)
        loop = threading.Thread(target=agent.emit, args=("batch",))
        loop.start()
        assert begun.wait(300)
        with pytest.raises(CommandPending, match=r"not cancelled within 0\.05 s: it has begun.*run\.outcome"):
            run.cancel(id, timeout=0.05)
        go.set()
        loop.join(300)
        assert run.cancel(id).outcome == "done"


def test_in_a_fast_loop_each_command_is_either_done_once_or_cancelled(directory):
    done, over = [], threading.Event()

    def train():
        while not over.is_set():
            agent.emit("batch")

    with looptap.Agent("fast", limits=looptap.Limits(commands_per_second=100_000)) as agent:
        agent.control("a", lambda: 0, done.append, type=int)
        thread = threading.Thread(target=train)
        thread.start()
        try:
            with looptap.attach("fast") as run:
                for n in range(300):
                    with contextlib.suppress(CommandPending):
                        run.set("a", n, timeout=0, expected=None, id=f"id{n}")
                    found = run.cancel(f"id{n}")
                    assert (n in done) == (found.outcome == "done"), found
        finally:
            over.set()
            thread.join(300)
    assert len(done) == len(set(done))


def test_a_cancelled_command_is_stored_and_not_replayed(tmp_path, directory):
    with looptap.Agent("kept", store=str(tmp_path)) as agent, looptap.attach("kept") as run:
        agent.trigger("evaluate", lambda: 1)
        run.cancel(waiting(run.trigger, "evaluate", on="never"))
        file = agent.stats()["store"]["file"]
    old = looptap.open(file)
    (stored,) = old.stream("commands").values
    assert (stored.what, stored.outcome.startswith("cancelled: this command was cancelled by ")) == (
        "trigger evaluate", True
    )  # fmt: skip
    saved = old.commands.save(tmp_path / "commands.yaml").read_text()
    assert "cancelled" in saved
    assert commands_to_replay(tmp_path / "commands.yaml") == []


@pytest.fixture
def idle(directory):
    """Return a job that raises no event."""
    with looptap.Agent("idle") as agent:
        agent.control("a", lambda: 1, lambda value: None)
        yield agent


def interrupt(agent):
    """Press Ctrl-C once another command waits."""
    commands = parts_of(agent).dispatcher.commands.commands
    before = len(commands.records)

    def press():
        soon(lambda: len(commands.records) > before)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    return thread


def test_ctrl_c_during_a_wait_says_how_to_continue(idle, capsys):
    thread = interrupt(idle)
    with looptap.attach("idle") as run:
        with pytest.raises(KeyboardInterrupt) as pressed:
            run.set("a", 2)
        thread.join()
        (record,) = run.commands
        (note,) = pressed.value.__notes__
        assert note == (
            f"The command (set a) may still be done, at its next event. To ask for its outcome, "
            f"run.outcome({record['id']!r}): it never runs twice. To cancel it, run.cancel({record['id']!r})."
        )
        assert run.cancel(record["id"]).outcome == "cancelled"


def test_the_shell_cancels_its_own_command(idle, here):
    code, _, err = here("set", "idle", "a", "2", "--timeout", "0.1")
    id = parts_of(idle).dispatcher.commands.commands.records[-1].id
    assert (code, f"looptap cancel idle {id}" in err) == (1, True), err
    assert re.search(rf"set a 2.0  pending  .*  id {id}\n", here("commands", "idle")[1])
    code, out, _ = here("cancel", "idle", id)
    assert (code, out) == (0, f"set a: cancelled, {parts_of(idle).dispatcher.commands.commands.records[0].error}\n")
    code, out, _ = here("cancel", "idle", id, "--json")
    assert (code, json.loads(out)["outcome"]) == (0, "cancelled")
    code, _, err = here("set", "idle", "a", "2", "--id", id)
    assert (code, "cancelled" in err) == (1, True)
    code, _, err = here("call", "idle", "1", "--timeout", "0.1")
    id = parts_of(idle).dispatcher.commands.commands.records[-1].id
    assert (code, f"looptap cancel idle {id}" in err) == (1, True), err
    idle.emit("batch")
    assert here("cancel", "idle", id)[::2] == (1, "looptap: Too late to cancel it: call 1: 1, at batch 1\n")
    assert here("cancel", "idle", "none")[0] == 1
    thread = interrupt(idle)
    code, _, err = here("set", "idle", "a", "3")
    thread.join()
    id = parts_of(idle).dispatcher.commands.commands.records[-1].id
    assert (code, f"looptap cancel idle {id}" in err, f"--id {id}" in err) == (130, True, True), err
