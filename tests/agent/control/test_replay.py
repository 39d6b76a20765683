"""Replay: one run's commands give the same result in another, bit for bit."""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import time
import warnings

import msgspec
import pytest
import torch
import warm
from torch import nn
from training_loop import training

import looptap
from looptap.agent.control.knobs.control_watch import WATCHED_EVENTS_COUNT
from looptap.cli import main
from looptap.protocol.files import command_file
from looptap.store import replay_commands
from looptap.streams.errors import ControlError
from looptap.testing import pair, parts_of


def train(agent, steps=300, ready=None, pace=0.0):
    """Run a small job; return a checksum of all weights, random numbers and losses."""
    torch.manual_seed(7)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    agent.expose(model=model, optimizer=optimizer, scheduler=scheduler)
    agent.trigger("forget", lambda: bool(nn.init.zeros_(model[3].bias).sum()))
    checksum, taken = hashlib.sha256(), 0
    if ready is not None:
        ready.set()
    for step in range(steps):
        x = torch.randn(16, 8)
        loss = nn.functional.cross_entropy(model(x), (x.sum(1) > 0).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        checksum.update(loss.detach().numpy().tobytes())
        agent.emit("batch", step=step, loss=loss)
        if step % 50 == 49:
            agent.emit("epoch", epoch=step // 50)
        taken = step + 1
        if agent.stop_requested:
            break
        time.sleep(pace)
    for parameter in model.parameters():
        checksum.update(parameter.detach().numpy().tobytes())
    checksum.update(torch.get_rng_state().numpy().tobytes())
    agent.close()
    return checksum.hexdigest(), taken


def steer(name, ready, path, failures):
    """Send the job commands, at whatever step it is by then."""
    try:
        assert ready.wait(300)
        with looptap.attach(name) as run:
            run.set("optimizer.lr", 0.1, schedule="scale")
            run.set("model[2].p", 0.123456789012345678)
            run.call("model[0].weight.data.mul_(0.99) is None")
            run.trigger("forget")
            with pytest.raises(ControlError):
                run.set("optimizer.lr", -1.0, schedule="scale")
            run.call("torch.rand(3).sum().item()", on="epoch")
            run.set("optimizer.lr", 1e-05, schedule="freeze")
            run.call(lambda e: e.optimizer.param_groups[0].update(weight_decay=0.01))
            run.set("optimizer.momentum", 0.8, on="epoch")
            run.commands.save(path)
            run.stop()  # it may have ended when this returns
    except BaseException as error:
        failures.append(error)


def test_a_steered_and_a_replayed_run_end_bit_for_bit_alike(directory):
    path, ready, failures = directory / "commands.yaml", threading.Event(), []
    agent = looptap.Agent("steered")
    client = threading.Thread(target=steer, args=("steered", ready, path, failures))
    client.start()
    steered, steps = train(agent, steps=5000, ready=ready, pace=0.001)
    client.join(300)
    assert failures == []
    assert path.read_text().count("\n- ") == 9
    records = parts_of(agent).dispatcher.commands.commands.records
    command_file.save_commands(path, map(msgspec.structs.asdict, records), "steered")
    text = path.read_text()
    assert text.count("\n- ") == 10
    assert "value: 1.0e-05" in text

    bare, _ = train(looptap.Agent("bare"), steps=steps)
    again = looptap.Agent("again", replay=path)
    replayed, taken = train(again, steps=5000)
    records = parts_of(again).dispatcher.commands.commands.records
    assert (replayed, taken) == (steered, steps)
    assert bare != steered
    assert [r.outcome for r in records] == ["done"] * 9
    assert len({(r.event, r.number) for r in records}) > 5
    done = command_file.load_commands(path)
    assert [(r.event, r.number, r.what, r.new) for r in sorted(records, key=lambda r: r.time)] == [
        (e["event"], e["number"], e["what"], e.get("new")) for e in done
    ]


def test_the_yaml_file_round_trips(tmp_path):
    agent, run = pair("saved")
    values = [0.0, 0, False, "", 0.1 + 0.2, 1e-05, -1e300, 5e-324, 12345678901234567, "ü: #\n- 1e5", True, float("inf")]
    agent.control("number", lambda: 0.0, lambda value: None)
    agent.control("text", lambda: "", lambda value: None, type=str)
    agent.control("count", lambda: 0, lambda value: None, type=int)
    agent.control("flag", lambda: False, lambda value: None, type=bool)
    names = {float: "number", str: "text", int: "count", bool: "flag"}
    for value in values:
        with pytest.raises(looptap.CommandPending):
            run.set(names[type(value)], value, timeout=0)
    agent.emit("batch")
    path = run.commands.save(tmp_path / "c.yaml")
    assert [entry["value"] for entry in command_file.load_commands(path)] == values
    assert list(tmp_path.iterdir()) == [path]


def test_the_file_of_a_stored_run_is_replayed_as_its_commands_were(directory, capsys):
    held = {"count": 3, "flag": True}
    with looptap.Agent("first", store=directory) as agent:
        agent.control("count", lambda: held["count"], lambda value: held.update(count=value // 2), type=int)
        agent.control("flag", lambda: held["flag"], lambda value: held.update(flag=value), type=bool)
        with training(agent, 0.001, step=1), looptap.attach("first") as run:
            run.set("count", 9)
            run.set("flag", False)
            run.call("step + 1")
            with pytest.raises(ControlError):
                run.set("count", "many")
            live = run.commands.save(directory / "live.yaml").read_text()
    (path,) = directory.glob("*.looptap")
    with looptap.open(path) as stored:
        assert stored.commands.save(directory / "stored.yaml").read_text() == live
    with pytest.raises(SystemExit) as exit:
        main(["commands", str(path), "--yaml"])
    assert (exit.value.code, capsys.readouterr().out) == (0, live)
    with pytest.raises(SystemExit):
        main(["commands", str(path)])
    assert "  set flag True → False  done" in capsys.readouterr().out
    wanted = [("set", 9), ("set", False), ("call", "step + 1")]
    assert [(one["what"], one["value"]) for one in replay_commands.commands_to_replay(path)] == wanted
    again = looptap.Agent("again", replay=path)
    again.control("count", lambda: 0, held.setdefault, type=int)
    for _ in range(replay_commands.commands_to_replay(path)[-1]["number"]):
        again.emit("batch", step=1)
    assert [record.what for record in parts_of(again).dispatcher.commands.commands.records] == ["set", "set", "call"]
    again.close()
    (directory / "text.looptap").write_text("SQLite format 3")
    with pytest.raises(ControlError, match=r"text\.looptap"):
        looptap.Agent("never", replay=directory / "text.looptap")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("- what", "line 2"),
        ("- {}", "an event, a number and what was done"),
        ('- {"event": "batch", "number": "3", "what": "set"}', "number is '3'"),
        ('- {"event": "batch", "number": 3, "what": "call", "name": "f"}', "without its source text"),
    ],
)
def test_a_file_that_cannot_be_replayed_is_a_sentence_with_its_line(tmp_path, line, sentence):
    path = tmp_path / "c.yaml"
    path.write_text(f"# a\n{line}\n")
    with pytest.raises(ControlError, match=sentence):
        command_file.load_commands(path)
    with pytest.raises(ControlError, match="cannot be read"):
        command_file.load_commands(tmp_path / "nothing")


def test_a_command_that_cannot_be_replayed_is_recorded_and_the_loop_continues(tmp_path, caplog):
    path = tmp_path / "c.yaml"
    path.write_text(
        '- {"event": "batch", "number": 2, "what": "set", "name": "gone", "value": 1}\n'
        '- {"event": "batch", "number": 2, "what": "call", "value": "1 / 0"}\n'
        '- {"event": "batch", "number": 3, "what": "set", "name": "here", "value": 1}\n'
        '- {"event": "batch", "number": 9, "what": "dance"}\n'
    )
    agent, run = pair("replays", replay=path)
    held = []
    agent.control("here", lambda: len(held), held.append, type=int)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(4):
            agent.emit("batch")
    assert held == [1]
    assert [(r["number"], r["outcome"]) for r in run.commands] == [(0, "refused"), (2, "failed"), (3, "done")]
    assert [r.getMessage().split(": ", 2)[1] for r in caplog.records] == ["replay of c.yaml"] * 2
    for _ in range(WATCHED_EVENTS_COUNT):  # so long it is read if the change lasts
        agent.emit("batch")
    assert not parts_of(agent).sources.by_name["batch"].commands


@pytest.mark.promise("runs")
@pytest.mark.usefixtures("processes")
def test_a_job_is_replayed_from_the_shell_without_a_change_of_its_code(tmp_path):
    tmp_path.chmod(0o700)
    path = tmp_path / "c.yaml"
    path.write_text('- {"event": "batch", "number": 3, "what": "stop"}\n')
    code = (
        "import looptap\nagent = looptap.Agent('job')\nsteps = 0\nwhile not agent.stop_requested:\n"
        "    steps += 1\n    agent.emit('batch')\nprint('steps', steps)"
    )
    command = [sys.executable, "-m", "looptap.cli", "replay", str(path), sys.executable, "-c", code]
    environment = {**os.environ, "LOOPTAP_DIR": str(tmp_path)}
    finished = warm.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert (finished.returncode, finished.stdout) == (0, "steps 3\n"), finished.stderr
