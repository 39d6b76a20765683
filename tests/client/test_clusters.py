"""Jobs on clusters: launchers and ways in, with stand-ins for their programs.

``srun`` and ``kubectl`` are scripts here that do with their arguments, environment, input and output what the real ones
do where looptap uses them. Neither Slurm nor Kubernetes is asked.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

import pytest
import rank_jobs
from waiting import soon

import looptap

pytestmark = [pytest.mark.usefixtures("processes"), pytest.mark.skipif(sys.platform == "win32", reason="starts shells")]

SRUN = """#!{python}
# srun [--jobid=N] [--overlap] [-nN] COMMAND...: tasks with Slurm's variables and the environment of the caller
import os, subprocess, sys
words, tasks = sys.argv[1:], int(os.environ.get("SLURM_NTASKS", "1"))
while words and words[0].startswith("-"):
    word = words.pop(0)
    if word.startswith("--jobid="):
        os.environ["SLURM_JOB_ID"] = word.partition("=")[2]
    elif word.startswith("-n"):
        tasks = int(word[2:])
    elif word != "--overlap":
        sys.exit(f"srun: unrecognized option '{{word}}'")
step = "1" if "--overlap" in sys.argv else "0"
common = dict(os.environ, SLURM_NTASKS=str(tasks), SLURM_STEP_ID=step)
running = [subprocess.Popen(words, env=dict(common, SLURM_PROCID=str(task), SLURM_LOCALID=str(task)),
                            stdin=None if task == 0 else subprocess.DEVNULL) for task in range(tasks)]
sys.exit(max(one.wait() for one in running))
"""
KUBECTL = """#!{python}
# kubectl exec -i POD -- COMMAND...: the command in the pod, whose environment is its own
import os, sys
assert sys.argv[1:3] == ["exec", "-i"] and sys.argv[4] == "--", sys.argv
pod, words = sys.argv[3], sys.argv[5:]
if not os.path.isdir(os.path.join({pods!r}, pod)):
    sys.exit(f'Error from server (NotFound): pods "{{pod}}" not found')
print("Defaulted container \\"train\\" out of: train, sidecar", file=sys.stderr, flush=True)
inside = {{"PATH": os.environ["PATH"], "HOME": os.path.join({pods!r}, pod), "LOOPTAP_DIR": os.path.join({pods!r}, pod)}}
os.execvpe(words[0], words, inside)
"""
LOOPTAP = """#!/bin/sh
exec {python} -m looptap.cli "$@"
"""
TRAIN = """
import os, torch, torch.distributed as dist, time, looptap
torch.set_num_threads(1)
dist.init_process_group("gloo")
with looptap.Agent("train", listen="tcp://127.0.0.1:*", budget=float("inf")) as agent:
    step = 0
    while not agent.stop_requested:
        loss = torch.tensor(float(dist.get_rank()))
        dist.all_reduce(loss)
        agent.emit("batch", step=step, loss=loss.item(), rank=dist.get_rank())
        step += 1
        time.sleep(0.005)
"""


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """Put the programs of a cluster on PATH; return the folder of this test."""
    programs, pods = tmp_path / "bin", tmp_path / "pods"
    for folder in (programs, pods, pods / "train-0"):
        folder.mkdir(mode=0o700)
    for name, text in {"srun": SRUN, "kubectl": KUBECTL, "looptap": LOOPTAP}.items():
        program = programs / name
        program.write_text(text.format(python=sys.executable, pods=str(pods)))
        program.chmod(0o755)
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "shared").mkdir(mode=0o700)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return tmp_path


def test_tasks_of_srun_are_the_ranks_of_one_run_in_a_shared_directory(cluster, monkeypatch):
    monkeypatch.setenv("LOOPTAP_DIR", str(cluster / "shared"))
    for name, value in {"SLURM_NTASKS": "2", "SLURM_JOB_ID": "17", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", str(rank_jobs.free_port()))
    train = f"{shlex.quote(sys.executable)} {shlex.quote(str(cluster / 'train.py'))}"
    command = ["srun", "bash", "-c", f"RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS exec {train}"]
    job = subprocess.Popen(command)
    try:
        found = rank_jobs.started(cluster / "shared", 2, "train")
        with looptap.attach("command:srun --jobid=17 --overlap -n1 looptap bridge train", timeout=300) as run:
            assert run.id == found.id
            assert run.stream("loss", on="batch").wait(5, timeout=300)[-1] == 1.0
        with found.attach() as run:  # as on the login node
            stream = run.stream("loss, rank", on="batch", ranks="all")
            soon(lambda: {row.rank for row in stream.values} == {0, 1})
            assert {row.loss for row in stream.values} == {1.0}
            assert {one.outcome for one in run.stop(timeout=300).ranks.values()} == {"done"}
        assert job.wait(300) == 0
    finally:
        rank_jobs.end([job])


def test_a_run_in_a_pod_is_reached_by_kubectl_exec(cluster, monkeypatch):
    monkeypatch.setenv("LOOPTAP_DIR", str(cluster / "shared"))  # here, and not in the pod
    environment = rank_jobs.environment(cluster / "pods" / "train-0", 0, 1, rank_jobs.free_port())
    job = subprocess.Popen([sys.executable, str(cluster / "train.py")], env=environment)
    try:
        soon(lambda: [run for run in looptap.runs(cluster / "pods" / "train-0") if run.alive], 120)
        with looptap.attach("command:kubectl exec -i train-0 -- looptap bridge train", timeout=300) as run:
            stream = run.stream("step, loss", on="batch")
            assert stream.wait(20, timeout=300)
            run.stop(timeout=300)
        assert job.wait(300) == 0
        with pytest.raises(looptap.LooptapError, match='pods "train-1" not found'):
            looptap.attach("command:kubectl exec -i train-1 -- looptap bridge train", timeout=300)
    finally:
        rank_jobs.end([job])
