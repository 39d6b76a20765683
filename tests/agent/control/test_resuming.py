"""Resume from a checkpoint: event numbers, controls, repeated events, commands."""

from __future__ import annotations

import signal
import sys
import textwrap
import threading
import time

import pytest
import torch
import warm
from waiting import soon

import looptap
from looptap.testing import pair, parts_of

JOB = """
    import os, sys, time
    import torch
    import looptap

    checkpoint, store = sys.argv[1:]
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    settings = {"scale": 1.0}
    agent = looptap.Agent("resumed", store=store)
    agent.expose(model=model)
    agent.control("scale", lambda: settings["scale"], lambda x: settings.update(scale=x), minimum=0)
    agent.stream("loss", "step, loss", keep=True)
    step = 0
    if os.path.exists(checkpoint):
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        step = state["step"]
        agent.load_state_dict(state["agent"])
    while not agent.stop_requested:
        step += 1
        torch.manual_seed(step)
        x = torch.randn(8, 4)
        loss = settings["scale"] * ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.001 * p.grad
        agent.emit("batch", step=step, loss=loss)
        time.sleep(0.001)
        if step % 50 == 0 and settings["scale"] == 2.0 and not os.path.exists(checkpoint):
            agent.emit("epoch")
            state = {"model": model.state_dict(), "step": step, "agent": agent.state_dict()}
            torch.save(state, checkpoint + ".new")
            os.replace(checkpoint + ".new", checkpoint)
    agent.close()
"""


def stored(store):
    """Return the newest event in the file of the run."""
    for file in store.glob("*.looptap"):
        try:
            with looptap.open(file) as run:
                return run.events().get("batch", 0)
        except looptap.StoreError:
            break  # it has just been made
    return 0


@pytest.mark.promise("resume")
@pytest.mark.usefixtures("processes")
def test_a_killed_job_resumes_from_its_checkpoint_and_marks_repeated_events(directory, tmp_path):
    store = tmp_path / "store"
    command = [sys.executable, "-c", textwrap.dedent(JOB), str(tmp_path / "checkpoint.pt"), str(store)]
    with warm.Popen(command) as job:
        try:
            soon(lambda: any(run.alive for run in looptap.runs()), 100)
            with looptap.attach("resumed") as run:
                first = run.id
                run.set("scale", 2.0)
                soon(lambda: (tmp_path / "checkpoint.pt").exists())
                start = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["step"]
                soon(lambda: stored(store) > start + 20)
        finally:
            job.send_signal(signal.SIGKILL)
            job.wait()
    (file,) = store.glob("*.looptap")
    with looptap.open(file) as old:
        before = {r.event: r.value for r in old.stream("loss").records}
        assert old.events()["batch"] == max(before)
    with warm.Popen(command) as job:
        try:
            soon(lambda: any(run.alive for run in looptap.runs()), 100)
            with looptap.attach("resumed") as run:
                soon(lambda: "loss" in [one.name for one in run.streams])  # else it would be a query of that name
                loss = run.stream("loss")
                soon(lambda: loss.latest is not None and loss.latest.step > max(before) + 20)
                reported, commands = run.stats(), run.stream("commands")
                assert run.controls["scale"].value == 2.0
                soon(lambda: commands.arrived)
                run.stop()
            job.wait(300)
        finally:
            job.kill()
    assert reported["resumed_at"] == {"batch": start, "epoch": 1}
    assert (reported["lineage"], reported["resumed_from"]) == ([first], first)
    assert tuple(reported["rewound"]["batch"]) == (start + 1, max(before))
    done = commands.values[0]
    assert (done.what, done.old, done.new, done.client) == ("set scale", 1.0, 2.0, "the host")
    assert (done.event, done.number, done.outcome) == ("batch", start, "done")
    (file,) = set(store.glob("*.looptap")) - {file}
    with looptap.open(file) as new:
        kept = new.stream("loss")
        for records in (loss.records, kept.records):
            assert records[0].event == start + 1 == records[0].value.step  # the numbers go on with the steps
            assert [r.again for r in records] == [r.event <= max(before) for r in records]
            for record in records:
                if record.again and record.event in before:
                    assert record.value == before[record.event]  # the same loop, with the same control
        assert new.metadata["resumed_from"] == first
        assert new.stream("commands").values[0] == done
        assert new.events()["batch"] == kept.records[-1].event


def test_repeated_events_are_marked_from_the_first_value_even_if_the_sender_is_busy(directory, tmp_path):
    store = tmp_path / "store"
    with looptap.Agent("first", store=store) as agent:
        agent.stream("loss", "loss", on="batch", keep=True)
        agent.emit("batch", loss=0.0)
        state = agent.state_dict()
        for _ in range(500):
            agent.emit("batch", loss=0.0)
    with looptap.Agent("second", store=store) as agent:
        agent.stream("loss", "loss", on="batch", keep=True)
        held, go = threading.Event(), threading.Event()
        soon(lambda: agent.emit("batch", loss=1.0) or parts_of(agent).connection.link.wakes)  # now a flush is due soon
        parts_of(agent).connection.post(lambda: held.set() or go.wait(300))
        assert held.wait(300)
        time.sleep(0.05)  # it is due
        agent.load_state_dict(state)
        for _ in range(200):
            agent.emit("batch", loss=0.0)
        go.set()
        file = parts_of(agent).recorder.writer.path
    with looptap.open(file) as kept:
        repeated = [(r.event, r.again) for r in kept.stream("loss").records if r.value == 0.0]
    assert repeated == [(number, True) for number in range(2, 202)]


def test_an_agent_that_goes_back_in_its_own_process_marks_repeated_events():
    agent, run = pair()
    loss, mean = run.stream("loss", on="batch"), run.stream("mean(e.loss for e in events)", on="batch")
    for step in range(5):
        agent.emit("batch", loss=float(step))
        if step == 2:
            state = agent.state_dict()
    agent.load_state_dict(state)
    for step in range(3, 7):
        agent.emit("batch", loss=float(step))
    agent.emit("epoch")
    assert [(r.number, r.event, r.again) for r in loss.records] == [
        (1, 1, False), (2, 2, False), (3, 3, False), (4, 4, False), (5, 5, False),
        (6, 4, True), (7, 5, True), (8, 6, False), (9, 7, False),
    ]  # fmt: skip
    assert [(r.value, r.partial) for r in mean.records] == [(2.0, True), (4.5, True)]
    assert run.stats()["rewound"] == {"batch": (4, 5)}


def test_a_window_that_a_resume_cuts_is_partial_and_the_next_one_is_not():
    agent, run = pair()
    for _ in range(3):
        agent.emit("batch")
    state = agent.state_dict()
    agent, run = pair()
    agent.load_state_dict(state)
    count = run.stream("len(events)", on="batch")
    for _ in range(2):
        agent.emit("batch")
    agent.emit("epoch")
    agent.emit("batch")
    agent.emit("epoch")
    assert [(r.value, r.partial) for r in count.records] == [(2, True), (1, False)]


def test_a_control_that_cannot_be_set_back_is_on_record_and_stops_nothing(caplog):
    agent, run = pair()
    values = {"a": 1.0, "b": 2.0, "c": 3.0}
    for name in "abc":
        agent.control(name, lambda name=name: values[name], lambda x, name=name: values.update({name: x}))
    state = agent.state_dict()
    agent, run = pair()
    values.update(a=9.0, b=9.0)
    agent.control("a", lambda: values["a"], lambda x: 1 / 0)
    agent.control("b", lambda: values["b"], lambda x: values.update(b=x), maximum=1.0)
    agent.load_state_dict(state)
    assert values == {"a": 9.0, "b": 9.0, "c": 3.0}
    found = {(v.what, v.outcome.split(":")[0]) for v in run.stream("commands").values}
    assert found == {("set a", "failed"), ("set b", "refused"), ("set c", "refused")}
    assert len(caplog.records) == 3


def test_a_malformed_state_is_refused_except_by_an_inert_agent():
    agent, _ = pair()
    state = agent.state_dict()
    for wrong in (None, {}, {**state, "looptap": 2}, {**state, "events": {"batch": -1}}, {**state, "run": 3}):
        with pytest.raises(ValueError, match="is not the state of an agent"):
            agent.load_state_dict(wrong)
    inert = looptap.Agent("inert", enabled=False)
    inert.load_state_dict(state)
    assert inert.state_dict()["events"] == {}


def test_the_state_has_values_set_by_path_and_none_of_optimizers():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.5))
    agent, run = pair()
    agent.expose(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    for name, value in (("model[1].p", 0.25), ("optimizer.lr", 0.2)):
        with pytest.raises(looptap.CommandPending):
            run.set(name, value, timeout=0)
    agent.emit("batch")
    assert agent.state_dict()["controls"] == {"model[1].p": 0.25}


def test_the_stream_of_commands_has_all_of_them_and_its_name_is_taken():
    agent, run = pair()
    value = [0.5]
    agent.control("a", lambda: value[0], lambda x: value.insert(0, x), maximum=1)
    early = run.stream("commands")
    assert (early.values, early.state) == ([], "live")
    with pytest.raises(looptap.CommandPending) as pending:
        run.set("a", 0.75, timeout=0)
    agent.emit("batch")
    with pytest.raises(looptap.ControlError):
        run.set("a", 2.0)
    run.outcome(pending.value.id)  # asking again is no second command
    late = run.stream("commands")
    assert early.values == late.values
    assert [(v.what, v.old, v.new, v.event, v.number) for v in late.values] == [
        ("set a", 0.5, 0.75, "batch", 1), ("set a", None, None, "", 0),
    ]  # fmt: skip
    assert [v.outcome[:7] for v in late.values] == ["done", "refused"]
    assert [v.id for v in late.values] == [record["id"] for record in run.commands]
    with pytest.raises(ValueError, match="stream of all commands"):
        agent.stream("commands", "loss")
    agent.close()
    assert early.state == "ended"
