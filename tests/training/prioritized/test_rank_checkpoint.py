"""A rank that dies ends the job with its name and a usable checkpoint."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import textwrap
import threading

import pytest
import torch
import warm
from places import SUPPORT
from rank_jobs import end, environment, free_port
from waiting import freeze, soon

from looptap.training.prioritized.distributed.rank_checkpoint import RankCheckpoint
from looptap.training.prioritized.distributed.rank_parts import SavedPart, load_parts, save_part

JOB = SUPPORT / "dying_job.py"


def job(folder, world, *words, **more):
    """Start a rank for each of ``world``; return their processes."""
    port, pipes = free_port(), {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    command = [sys.executable, str(JOB), str(folder), *words]
    return [warm.Popen(command, env=environment(folder, rank, world, port, **more), **pipes) for rank in range(world)]


def reached(folder, world):
    """Wait until all ranks have made 12 steps."""
    soon(lambda: all((folder / f"reached-{rank}").exists() for rank in range(world)), 240)


def usable(folder, world, dead):
    """Check that the parts continue a training, and return them by rank."""
    parts = load_parts(folder)
    assert [part.world for part in parts] == [world] * world
    assert [part.step for part in parts] == sorted((part.step for part in parts), reverse=True)
    by_rank = {part.rank: part for part in parts}
    alive = [by_rank[rank] for rank in range(world) if rank != dead]
    assert min(part.step for part in alive) >= 12 > 10 <= by_rank[dead].step
    assert max(part.step for part in alive) - min(part.step for part in alive) <= 1
    assert parts[0].rank != dead or parts[0].step == parts[1].step
    for one in alive:
        for other in alive:
            if one.step == other.step:
                assert all(torch.equal(a, b) for a, b in zip(*map(weights, (one, other)), strict=True))
    model = torch.nn.Linear(4, 2)
    model.load_state_dict(parts[0].state["model"])
    torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9).load_state_dict(parts[0].state["optimizer"])
    return by_rank


def weights(part):
    return part.state["model"].values()


@pytest.mark.usefixtures("processes")
@pytest.mark.promise("S23", "S27", "prioritized")
def test_ranks_that_lose_another_name_it_and_save(tmp_path):
    children = job(tmp_path, 3)
    try:
        reached(tmp_path, 3)
        children[1].kill()
        texts = [child.communicate(timeout=500)[0] for child in children]
        assert [child.poll() for child in children] == [1, -signal.SIGKILL, 1]
    finally:
        end(children)
    for rank, text in ((0, texts[0]), (2, texts[2])):
        last = text.strip().splitlines()[-1]
        named = f"RankLost: Rank 1 of 3 (process {children[1].pid} on {socket.gethostname()}) was killed or crashed"
        assert named in last, text
        assert f"The state of rank {rank} is in {tmp_path}/rank-{rank}-of-3.pt, after " in last
        assert f"load_parts('{tmp_path}')" in last
    parts = usable(tmp_path, 3, dead=1)
    assert [parts[rank].state["table"]["score"].item() for rank in range(3)] == [0.0, 1.0, 2.0]


@pytest.mark.usefixtures("processes")
def test_under_torchrun_the_survivor_saves_before_the_launcher_ends_it(tmp_path):
    """The launcher sends SIGTERM as soon as a rank has died."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    launcher = warm.Popen([*command, str(JOB), str(tmp_path)], stderr=subprocess.PIPE, text=True, env=env)
    try:
        reached(tmp_path, 2)
        dead = json.loads((tmp_path / "rank-1.alive").read_text())["pid"]
        os.kill(dead, signal.SIGKILL)
        _, text = launcher.communicate(timeout=500)
    finally:
        launcher.terminate()
        launcher.wait(300)
    assert launcher.returncode == 1
    assert f"RankLost: Rank 1 of 2 (process {dead} on {socket.gethostname()}) was killed or crashed during step" in text
    usable(tmp_path, 2, dead=1)


@pytest.mark.usefixtures("processes")
def test_an_exception_of_one_rank_is_its_own_and_the_others_quote_it(tmp_path):
    children = job(tmp_path, 2, "fail")
    try:
        texts = [child.communicate(timeout=500)[0] for child in children]
    finally:
        end(children)
    assert texts[1].strip().endswith("ValueError: no such class: 7")
    assert "RankLost: Rank 1 of 2 (process" in texts[0]
    assert "ended with ValueError: no such class: 7 during step 13. The state of rank 0 is in" in texts[0]


@pytest.mark.soak
def test_a_rank_that_hangs_is_reported_as_one_whose_process_lives(tmp_path):
    children = job(tmp_path, 2, TIMEOUT_SECONDS="20")
    try:
        reached(tmp_path, 2)
        freeze(children[1].pid)
        text = children[0].communicate(timeout=500)[0]
        children[1].kill()
        children[1].communicate(timeout=300)
    finally:
        end(children)
    assert "RankLost: A rank does not answer, and the processes of all ranks live: one hangs" in text
    assert "The state of rank 0 is in" in text


SIGNALLED = """
    import signal, sys, time
    import torch
    from looptap.training.prioritized.distributed.rank_checkpoint import RankCheckpoint
    with RankCheckpoint(sys.argv[1], lambda: {}) as checkpoint:
        for step in range(10**9):
            checkpoint.stepped()
            print(step, flush=True)
            time.sleep(0.01)
"""


@pytest.mark.usefixtures("processes")
def test_a_sigterm_of_another_cause_saves_and_then_ends_the_process(tmp_path):
    command = [sys.executable, "-c", textwrap.dedent(SIGNALLED), str(tmp_path)]
    with warm.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout.readline()
        child.terminate()
        child.communicate(timeout=300)
        assert child.wait(300) == -signal.SIGTERM
    (part,) = load_parts(tmp_path)
    assert part.step >= 1


def test_inside_the_block_only_is_a_handler_installed(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    with RankCheckpoint(tmp_path, dict, rank=0, world=1):
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before
    other = threading.Thread(
        target=lambda: RankCheckpoint(tmp_path, dict, rank=0, world=1).__enter__().__exit__(*[None] * 3)
    )
    other.start()  # outside the main thread there is none
    other.join()


def test_a_save_that_fails_stands_in_the_note_and_the_former_file_stays(tmp_path):
    kept = [{"loss": 1.0}]
    with RankCheckpoint(tmp_path, lambda: kept.pop(), every=1, rank=0, world=1) as checkpoint:
        checkpoint.stepped()
        with pytest.warns(RuntimeWarning, match="after step 2 of rank 0 was not saved: IndexError"):
            checkpoint.stepped()
    assert "IndexError" in checkpoint.note
    assert load_parts(tmp_path) == [SavedPart(0, 1, 1, {"loss": 1.0})]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank-0-of-1.pt"]


SAVING = """
    import itertools, sys, torch
    from pathlib import Path
    from looptap.training.prioritized.distributed.rank_parts import SavedPart, save_part
    for step in itertools.count(int(sys.argv[2])):
        save_part(Path(sys.argv[1]), SavedPart(0, 1, step, {"values": torch.full((5000,), step)}))
        print(step, flush=True)
"""


@pytest.mark.usefixtures("processes")
def test_a_kill_at_any_moment_leaves_a_whole_file(tmp_path):
    chance = random.Random(0)
    for number in range(10):
        command = [sys.executable, "-c", textwrap.dedent(SAVING), str(tmp_path), str(1000 * number)]
        with warm.Popen(command, stdout=subprocess.PIPE) as child:
            assert child.stdout.readline()
            threading.Event().wait(chance.uniform(0, 0.01))
            child.kill()
            child.communicate(timeout=300)
        (part,) = load_parts(tmp_path)
        assert part.step >= 1000 * number
        assert (part.state["values"] == part.step).all()


def test_parts_of_another_number_of_ranks_stay_until_all_ranks_have_saved(tmp_path):
    for rank in range(3):
        save_part(tmp_path, SavedPart(rank, 3, 40 + rank % 2, {}))
    save_part(tmp_path, SavedPart(0, 2, 50, {}))
    assert [(part.rank, part.world) for part in load_parts(tmp_path)] == [(0, 2), (1, 3), (0, 3), (2, 3)]
    save_part(tmp_path, SavedPart(1, 2, 50, {}))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank-0-of-2.pt", "rank-1-of-2.pt"]


@pytest.mark.usefixtures("processes")
def test_bad_input_is_named(tmp_path):
    with pytest.raises(TypeError, match="state=3 must be a function"):
        RankCheckpoint(tmp_path, 3)
    with pytest.raises(ValueError, match="every=0 must be at least 1 step"):
        RankCheckpoint(tmp_path, dict, every=0)
    with pytest.raises(FileNotFoundError, match="no rank has saved"):
        load_parts(tmp_path)
    code = (
        "import fcntl, sys; fcntl.lockf(file := open(sys.argv[1], 'a'), fcntl.LOCK_EX); print(1, flush=True); input()"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "rank-0.alive")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        with pytest.raises(ValueError, match="a living process is rank 0 there"):
            RankCheckpoint(tmp_path, dict, rank=0, world=1).__enter__()
        other.communicate(b"\n")
