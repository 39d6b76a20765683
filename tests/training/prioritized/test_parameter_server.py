"""The asynchronous mode: a parameter server and workers, over gloo."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest
import torch
import warm
from places import SUPPORT
from rank_jobs import end, environment, free_port

from looptap.training.prioritized.distributed.async_worker import AsyncWorker
from looptap.training.prioritized.distributed.parameter_server import ParameterServer

JOB = SUPPORT / "async_job.py"
BOUND, STEPS = 2, 150
"""The staleness that the job allows, and the steps of each worker."""


def outcome(folder, kind, world=3):
    """Run a server and workers; return the exit codes and texts of all ranks."""
    port, pipes = free_port(), {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    command = [sys.executable, str(JOB), kind]
    children = [warm.Popen(command, env=environment(folder, rank, world, port), **pipes) for rank in range(world)]
    try:
        texts = [child.communicate(timeout=500)[0].strip() for child in children]
        return [child.poll() for child in children], texts
    finally:
        end(children)


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("kind", ["", "slow"])
def test_workers_train_one_model_and_none_runs_further_ahead_than_allowed(tmp_path, kind):
    codes, texts = outcome(tmp_path, kind)
    assert codes == [0, 0, 0], texts
    served, *workers = (json.loads(text.splitlines()[-1]) for text in texts)
    assert served["updates"] == served["counted"] == 2 * STEPS
    assert served["steps"] == [STEPS, STEPS]
    assert (served["lost"], served["note"]) == ([], "")
    assert served["apart"] <= BOUND + 1  # one that is BOUND ahead gets parameters, and makes one more step
    assert 0 <= served["mean"] <= served["stalest"] <= 2 * BOUND + 2
    assert served["waits"] > 0 or kind == ""
    assert torch.allclose(torch.tensor(served["weights"]), torch.arange(6.0), atol=0.5)
    assert all(mean > 2 for mean in served["running"])  # BatchNorm's averages are those of a worker
    for worker in workers:
        assert sum(worker["losses"][-10:]) < sum(worker["losses"][:10]) / 5
        assert worker["apart"] < 1e-4  # the descents add up to the way of the parameters
        assert worker["seconds"] > 0


@pytest.mark.usefixtures("processes")
@pytest.mark.promise("S23", "prioritized")
def test_the_others_continue_without_a_worker_that_is_killed(tmp_path):
    """They make more steps after it than the bound would allow."""
    codes, texts = outcome(tmp_path, "worker dies", world=4)
    assert codes == [0, -signal.SIGKILL, 0, 0], texts
    served = json.loads(texts[0].splitlines()[-1])
    assert served["lost"] == [1]
    assert served["note"].startswith("Worker 1 is lost after 20 steps: ")
    assert served["steps"] == [20, STEPS, STEPS]


@pytest.mark.usefixtures("processes")
def test_a_server_without_workers_ends_and_says_so(tmp_path):
    codes, texts = outcome(tmp_path, "workers die")
    assert codes == [1, -signal.SIGKILL, -signal.SIGKILL]
    assert "RankLost: All workers are lost after 40 updates. rank 1: " in texts[0]


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("kind", ["server dies", "server fails"])
def test_workers_without_a_server_end_and_say_so(tmp_path, kind):
    codes, texts = outcome(tmp_path, kind)
    assert codes == [-signal.SIGKILL if kind == "server dies" else 1, 1, 1]
    for text in texts[1:]:
        assert "RankLost: The parameter server, rank 0, is gone or silent after" in text
    if kind == "server fails":
        assert texts[0].endswith("OSError: no space left")


def test_bad_input_is_named():
    model = torch.nn.Linear(2, 2)
    with pytest.raises(ValueError, match="staleness=-1 must be 0 or more"):
        ParameterServer(model, torch.optim.SGD(model.parameters()), staleness=-1)
    for make in (lambda: ParameterServer(model, None), lambda: AsyncWorker(model)):
        with pytest.raises(ValueError, match="of 2 ranks or more"):
            make()
