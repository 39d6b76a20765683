"""What a run was started with: settings, command line, commit, changes, machine."""

from __future__ import annotations

import argparse
import dataclasses
import enum
import json
import os
import subprocess
import sys
import threading
import types
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from waiting import soon

import looptap
from looptap.agent.run import working_tree
from looptap.agent.run.configuration import SHOWN_VARIABLES
from looptap.agent.run.flat_settings import MAX_SETTINGS, flat_settings
from looptap.protocol.errors import NotAllowed
from looptap.protocol.secret_names import HIDDEN
from looptap.testing import pair

# ---------------------------------------------------------------- settings


class Kind(enum.Enum):
    SGD = 1


@dataclasses.dataclass
class Model:
    width: int = 64
    act: str = "relu"


@dataclasses.dataclass
class Config:
    lr: float = 0.1
    model: Model = dataclasses.field(default_factory=Model)


class Plain:
    lr = 0.1
    depth = 3

    def method(self):
        raise AssertionError

    @property
    def computed(self):
        raise AssertionError

    class Inner:
        pass


class Pair(NamedTuple):
    a: int
    b: int


def changed():
    plain = Plain()
    plain.lr = 0.2
    return plain


@pytest.mark.parametrize(
    ("config", "settings"),
    [
        ({"lr": 0.1, "model": {"width": 64, "in": {"x": True}}}, {"lr": 0.1, "model.width": 64, "model.in.x": True}),
        (argparse.Namespace(lr=0.1, name=None), {"lr": 0.1, "name": None}),
        (types.SimpleNamespace(lr=0.1, model=Model()), {"lr": 0.1, "model.width": 64, "model.act": "relu"}),
        (Config(), {"lr": 0.1, "model.width": 64, "model.act": "relu"}),
        (changed(), {"lr": 0.2, "depth": 3, "Inner": f"{__name__}.Plain.Inner"}),
        (Plain, {"lr": 0.1, "depth": 3, "Inner": f"{__name__}.Plain.Inner"}),
        (Pair(1, 2), {"a": 1, "b": 2}),
        ({1: "a", ("b", 2): "c"}, {"1": "a", "['b', 2]": "c"}),
        ({}, {}),
        (
            {
                "kind": Kind.SGD, "path": Path("a/b"), "device": torch.device("cpu"), "dtype": torch.bfloat16,
                "np": np.float32(0.5), "betas": (0.9, 0.999), "tags": {"x"}, "big": 10**50, "nan": float("nan"),
                "tensor": torch.zeros(3, 4), "array": np.zeros(5), "model": torch.nn.Linear(2, 2), "f": len,
                "many": list(range(100)), "cls": Model,
            },
            {
                "kind": "SGD", "path": "a/b", "device": "cpu", "dtype": "torch.bfloat16", "np": 0.5,
                "betas": [0.9, 0.999], "tags": ["x"], "big": "an integer of 167 bits", "nan": float("nan"),
                "tensor": "Tensor (3, 4) torch.float32", "array": "ndarray (5,) float64",
                "model": "<torch.nn.modules.linear.Linear>", "f": "builtins.len", "many": "<list> of 100",
                "cls": f"{__name__}.Model",
            },
        ),
    ],
)  # fmt: skip
def test_settings_of_every_usual_kind_are_flat_and_plain(config, settings):
    found = flat_settings(config)
    assert found.note == ""
    assert repr(found.settings) == repr(settings)


@pytest.mark.parametrize("kind", ["attrs", "omegaconf", "pydantic"])
def test_settings_of_other_libraries_are_read_if_they_are_there(kind):
    library = pytest.importorskip(kind)
    if kind == "attrs":
        config = library.make_class(
            "Config", {"lr": library.field(default=0.1), "model": library.field(default=None)}
        )()
        settings = {"lr": 0.1, "model": None}
    elif kind == "omegaconf":
        config = library.OmegaConf.create({"lr": 0.1, "twice": "${lr}", "model": {"width": 64}})
        settings = {"lr": 0.1, "twice": 0.1, "model.width": 64}
    else:
        config = library.create_model("Config", lr=(float, 0.1))()
        settings = {"lr": 0.1}
    assert flat_settings(config).settings == settings


class Hostile(dict):
    def items(self):
        yield "lr", 0.1
        raise SystemExit("never")


class Evil:
    def __repr__(self):
        raise AssertionError("never called")

    __str__ = __repr__

    def __getattr__(self, name):
        raise RuntimeError(name)


@pytest.mark.usefixtures("processes")
def test_nothing_that_is_handed_in_raises_runs_code_or_grows(caplog):
    endless: dict = {"lr": 0.1}
    endless["self"] = endless
    assert flat_settings(endless).settings["self.self.lr"] == 0.1
    found = flat_settings({f"n{n}": n for n in range(5000)})
    assert (len(found.settings), found.note) == (MAX_SETTINGS, "more than the first 1,000")
    assert flat_settings(Hostile()) == ({"lr": 0.1}, "those after the first 1: SystemExit while they were read")
    assert flat_settings(3).note == "its type is int, whose settings are not known"
    assert len(flat_settings({"a": "x" * 10**6}).settings["a"]) < 600
    assert flat_settings({"evil": Evil(), "lr": 1}).settings["lr"] == 1
    for config in (Hostile(), 3, Evil(), {"evil": Evil()}, [1, 2], "text"):
        agent, run = pair("job", config=config)
        agent.emit("batch")
        assert run.config.host
        agent.close()
    assert "some of config= is left out" in caplog.text


def test_secrets_are_hidden_by_their_names():
    found = flat_settings(
        {
            "hf_token": "x", "db": {"password": "x", "url": "pg://me:pw@host/x"}, "aws_secret_access_key": "x",
            "max_tokens": 5, "tokenizer": "gpt2", "pad_token": "<pad>", "num_keys": 3, "api_key": None, "key_dim": 64,
        }
    )  # fmt: skip
    assert found.settings == {
        "hf_token": HIDDEN, "db.password": HIDDEN, "db.url": f"pg://{HIDDEN}@host/x", "aws_secret_access_key": HIDDEN,
        "max_tokens": 5, "tokenizer": "gpt2", "pad_token": "<pad>", "num_keys": 3, "api_key": None, "key_dim": 64,
    }  # fmt: skip


# ---------------------------------------------------------------- a real job in a repository

JOB = """
import argparse, looptap, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--api-key")
config = parser.parse_args()
agent = looptap.Agent("configured", config=config)
agent.stream("loss", "step, loss", keep=True)
step = 0
while not agent.stop_requested:
    agent.emit("batch", step=step, loss=1 / (step + 1))
    step += 1
    time.sleep(0.002)
agent.close()
"""


@pytest.fixture
def repository(processes, tmp_path):
    """Return a repository with a job whose script has a change that is not committed."""
    folder = tmp_path / "code"
    folder.mkdir()

    def git(*words):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)

    try:
        git("init", "-q")
    except FileNotFoundError:
        pytest.skip("git is not installed")
    (folder / "train.py").write_text(JOB)
    git("add", "train.py")
    git("commit", "-q", "-m", "first")
    (folder / "train.py").write_text(JOB + "\n# a change\n")
    return folder


@pytest.mark.promise("config")
def test_a_job_shows_and_stores_what_it_was_started_with(repository, directory, here):
    secret = {"LOOPTAP_DIR": str(directory), "OMP_NUM_THREADS": "1", "MY_PASSWORD": "hunter2"}
    command = [sys.executable, str(repository / "train.py"), "--lr", "0.25", "--api-key", "hunter2"]
    environment = {name: value for name, value in os.environ.items() if name != "LOOPTAP_STORE"} | secret
    with subprocess.Popen(command, cwd=repository, env=environment) as job:
        try:
            soon(lambda: any(run.alive for run in looptap.runs()))
            with looptap.attach("configured") as run:
                soon(lambda: run.config.diff_note != "being read")
                config = run.config
                assert dict(config) == {"lr": 0.25, "api_key": HIDDEN}
                assert config.command[-4:] == ("--lr", "0.25", "--api-key", HIDDEN)
                assert config.directory == str(repository)
                assert len(config.commit) == 40
                assert config.dirty
                assert "+# a change" in config.diff
                assert config.versions["looptap"] == run.info.looptap
                assert config.environment["OMP_NUM_THREADS"] == "1"
                assert set(config.environment) <= set(SHOWN_VARIABLES)
                assert "hunter2" not in repr(config)
                out = here("ls", "configured")[1]
                assert "lr=0.25" in out
                assert config.commit in out
                detail = json.loads(here("ls", "configured", "--json")[1])[0]["config"]
                assert detail["settings"]["lr"] == 0.25
                lines = here("ls")[1].splitlines()
                assert len(lines) == 1
                assert "configured  alive for" in lines[0]
                run.stop()
            assert job.wait(300) == 0
        finally:
            job.kill()
    (path,) = (repository / "looptap-runs").glob("*.looptap")
    with looptap.open(path) as stored:
        assert dict(stored.config) == {"lr": 0.25, "api_key": HIDDEN}
        assert stored.config.diff == config.diff
        assert stored.config.commit == config.commit
    assert b"hunter2" not in path.read_bytes()
    assert here("ls")[1].startswith("No runs found")
    (line,) = here("ls", "--all")[1].splitlines()
    assert "configured  ended" in line
    assert f"stored in {path}" in line


def test_without_config_no_process_is_started_and_no_file_is_made(directory, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LOOPTAP_STORE")
    monkeypatch.setattr(subprocess, "Popen", None)
    with looptap.Agent("bare") as agent, looptap.attach("bare") as run:
        agent.emit("batch")
        assert dict(run.config) == {}
        assert run.config.command
        assert (run.config.diff, run.config.diff_note) == ("", "")
    assert not (tmp_path / "looptap-runs").exists()


def test_settings_alone_are_stored(directory, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LOOPTAP_STORE")
    with looptap.Agent("alone", config={"lr": 0.1}) as agent:
        agent.emit("batch")
        path = tmp_path / "looptap-runs" / f"{agent.run.id}.looptap"
        soon(path.exists)
    with looptap.open(path) as stored:
        assert stored.config["lr"] == 0.1


def test_the_shortest_run_has_its_settings_in_its_file(directory, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LOOPTAP_STORE")
    never = threading.Event()
    monkeypatch.setattr("looptap.agent.run.configuration._repository", lambda: never.wait(300) and (None, ""))
    try:
        for n in range(20):
            looptap.Agent(f"short-{n}", config={"lr": n}).close()
        table = looptap.compare(["looptap-runs"])
        assert sorted(table.values("lr")) == list(range(20))
        assert {row.config.diff_note for row in table} == {"the run ended before it was read"}
    finally:
        never.set()


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("what", ["endless", "silent", "missing", "failing"])
def test_git_is_given_up_in_bounded_time_and_bytes(what, monkeypatch, tmp_path):
    script = {
        "endless": "while true; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done", "silent": "sleep 1000",
        "failing": "exit 128",
    }.get(what)  # fmt: skip
    if script is not None:
        (tmp_path / "git").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin" if script else str(tmp_path))
    monkeypatch.setattr(working_tree, "DIFF_TIMEOUT_SECONDS", 0.5)
    monkeypatch.setattr(working_tree, "_REAP_TIMEOUT_SECONDS", 60.0)
    if what == "endless":
        monkeypatch.setattr(working_tree, "DIFF_TIMEOUT_SECONDS", 60.0)
    found = working_tree.uncommitted(tmp_path)
    notes = {"endless": "the first 131,072 bytes", "silent": "git took longer than 0.5 s",
             "missing": "git cannot be asked: FileNotFoundError", "failing": "git ended with 128"}  # fmt: skip
    assert found.note == notes[what]
    assert len(found.text) <= working_tree.MAX_DIFF_BYTES


def test_a_slow_git_holds_up_neither_the_job_nor_its_end(directory, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LOOPTAP_STORE")
    begun, go = threading.Event(), threading.Event()

    def slow(folder):
        begun.set()
        assert go.wait(300)
        return working_tree.Diff("late")

    monkeypatch.setattr("looptap.agent.run.configuration.uncommitted", slow)
    monkeypatch.setattr("looptap.agent.run.configuration._repository", lambda: (tmp_path, "c" * 40))
    try:
        with looptap.Agent("slow", config={"lr": 0.1}) as agent, looptap.attach("slow") as run:
            assert begun.wait(300)
            agent.emit("batch")
            assert run.config["lr"] == 0.1
            assert run.config.diff_note == "being read"
    finally:
        go.set()


@pytest.mark.usefixtures("processes")
@pytest.mark.promise("S41")
def test_git_runs_no_program_of_the_repository(tmp_path):
    ran = tmp_path / "ran"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\necho $0 $@ >> {ran}\ncat\n")
    program.chmod(0o755)
    repository = tmp_path / "repository"

    def git(*words: str) -> None:
        mine = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
        subprocess.run(["git", *mine, "-C", repository, *words], check=True, capture_output=True)

    repository.mkdir()
    git("init")
    for name in ("a", "b", "c", "d"):
        (repository / f"x.{name}").write_text("old\n")
    git("add", ".")
    git("commit", "-m", "x")
    attributes = ["*.a filter=fa", "*.b filter=f.b diff=db", "*.c diff=dc", "*.d filter=fd"]
    (repository / ".gitattributes").write_text("\n".join(attributes))
    for setting in (
        "filter.fa.clean", "filter.f.b.process", "filter.fd.clean", "diff.db.textconv", "diff.dc.command",
        "diff.external", "core.fsmonitor", "core.pager", "pager.diff", "core.sshCommand", "core.askPass",
    ):  # fmt: skip
        git("config", setting, str(program))
    git("config", "filter.fd.required", "true")
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "post-index-change").symlink_to(program)
    git("config", "core.hooksPath", str(hooks))
    ran.unlink(missing_ok=True)  # what git itself ran to set that up
    for name in ("a", "b", "c", "d"):
        (repository / f"x.{name}").write_text("new\n")
    found = working_tree.uncommitted(repository)
    assert (found.note, found.text.count("+new")) == ("", 4)
    assert not ran.exists(), ran.read_text()


# ---------------------------------------------------------------- viewers


def test_the_config_is_hidden_from_viewers_until_it_is_shared(directory, monkeypatch, tmp_path, here):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LOOPTAP_STORE")
    with looptap.Agent("shown", config={"lr": 0.1}) as agent, looptap.attach("shown") as run:
        agent.stream("loss", "loss")
        agent.emit("batch", loss=1.0)
        hidden, shared = run.share(streams="loss"), run.share(streams="loss", config=True)
        assert [share.config for share in run.shares] == [False, True]
        with looptap.attach(hidden.path) as viewer:
            with pytest.raises(NotAllowed, match="its share does not show it"):
                _ = viewer.config
            assert viewer.stream("loss").wait(1)
        with looptap.attach(shared.path) as viewer:
            config = viewer.config
            assert dict(config) == {"lr": 0.1}
            assert config.versions
            assert (config.command, config.diff, dict(config.environment), config.directory) == ((), "", {}, "")
            shared.revoke()
        assert "lr=0.1" not in here("ls", hidden.path)[1]
        assert "'loss', the config" in here("share", "shown", "--stream", "loss", "--config")[1]
