"""Injection into processes that run without looptap."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from programs import UNTESTED, need
from waiting import soon

import looptap
from looptap.cli.commands.runs.injecting.injection import inject
from looptap.cli.commands.runs.injecting.target import InjectError, target, why_not_traced
from looptap.cli.entry_point import exit_code

pytestmark = pytest.mark.usefixtures("processes")

JOB = """
import hashlib, sys, time, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters())
data = TensorDataset(torch.randn(64, 8))
loader = DataLoader(data, batch_size=8, shuffle=True, num_workers=1, persistent_workers=True)
ending = None
for epoch in range(100_000):
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        if epoch < 40:  # what is compared; later it waits to be ended
            continue
        if ending is None:
            state = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
            ending = hashlib.sha256(state + bytes(torch.get_rng_state().tolist())).hexdigest()
            print(ending, flush=True)
        time.sleep(0.01)
    if epoch == 0:
        print("ready", sorted(vars(sys.modules["__main__"])) if "looptap" in sys.modules else "", flush=True)
"""


@pytest.fixture(scope="module")
def gdb():
    """Need a gdb that can call a function in a process of this machine."""
    program = need("gdb", "LOOPTAP INJECT IS")
    if forbidden := why_not_traced():
        pytest.skip(forbidden)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        call = "print ((int (*)(void)) getpid)()"
        options = ["-n", "-q", "-batch", "-iex", "set debuginfod enabled off"]
        said = subprocess.run([program, *options, "-p", str(child.pid), "-ex", call], capture_output=True, text=True)
        child.kill()
    # An older gdb does not know the registers of each newer processor.
    if f"$1 = {child.pid}" not in said.stdout:
        pytest.skip(f"LOOPTAP INJECT IS {UNTESTED}: gdb cannot call here: {said.stderr.strip().splitlines()[-1:]}")


@pytest.fixture
def start():
    """Return a function that starts the job and waits for its first epoch."""
    started = []

    def begin():
        child = subprocess.Popen([sys.executable, "-c", JOB], stdout=subprocess.PIPE, text=True)
        started.append(child)
        assert child.stdout is not None
        assert child.stdout.readline().startswith("ready")
        return child

    yield begin
    for child in started:
        child.kill()
        child.communicate()


@pytest.mark.promise("inject")
@pytest.mark.usefixtures("gdb")
def test_a_job_that_never_heard_of_looptap_becomes_a_run_and_computes_the_same(directory, start):
    bare = start().stdout.readline()
    job = start()
    done = inject(target(job.pid), "injected")
    assert done.method in ("gdb", "sys.remote_exec")
    assert done.version == looptap.__version__
    found = soon(lambda: next((one for one in looptap.runs() if one.name == "injected" and one.alive), None))
    assert found.pid == job.pid
    assert job.stdout.readline() == bare
    with looptap.attach("injected") as attached:
        assert attached.stacks(20)["threads"]
    assert exit_code(["inject", str(job.pid), "--yes"]) == 1  # it is a run already
    assert job.poll() is None


def test_processes_that_may_not_be_injected_are_refused_with_a_sentence():
    with pytest.raises(InjectError, match="this command itself"):
        target(os.getpid())
    with pytest.raises(InjectError, match="no process 4194305"):
        target(4_194_305)
    shell = subprocess.Popen(["sleep", "60"])
    try:
        with pytest.raises(InjectError, match="no Python that looptap knows"):
            target(shell.pid)
    finally:
        shell.kill()
    zombie = f"/proc/{shell.pid}/stat"
    soon(lambda: ") Z" in Path(zombie).read_text())  # until it is waited for
    with pytest.raises(InjectError, match="has ended"):
        target(shell.pid)
    shell.wait()


@pytest.mark.skipif(os.name != "posix" or os.getuid() != 0, reason="only root can start a process of another user")
def test_a_process_of_another_user_is_refused_for_root_too():
    with subprocess.Popen(["/bin/sleep", "60"], user=65_534) as other:
        try:
            with pytest.raises(InjectError, match="belongs to the user 65534"):
                target(other.pid)
        finally:
            other.kill()


@pytest.mark.promise("inject")
def test_nothing_is_done_without_a_yes(start, capsys):
    job = start()
    assert exit_code(["inject", str(job.pid)]) == 2
    text = capsys.readouterr().err
    assert "a debugger stops it" in text
    assert "nothing was done: confirm it with --yes" in text
    assert job.poll() is None
