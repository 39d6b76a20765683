"""The difference between the stacks of the ranks of a job."""

from __future__ import annotations

import pytest
import rank_jobs
from waiting import soon

import looptap
from looptap.cli.app import command_line
from looptap.client.ranks.stack_groups import collective_of, difference, frames_of, stack_groups
from looptap.protocol.statistics import EventActivity, StackReport, ThreadStack

C10D = "/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
LOGGER = "/env/lib/python3.11/site-packages/torch/distributed/c10d_logger.py"
DDP = "/env/lib/python3.11/site-packages/torch/autograd/graph.py"


def report(*frames, batch=7, idle=1.0):
    """Return the report of a rank with these frames of its main thread."""
    stack = "".join(f'  File "{file}", line {line}, in {name}\n    {code}\n' for file, line, name, code in frames)
    thread = ThreadStack(thread="MainThread", ident=1, daemon=False, stack=stack)
    events = {"batch": EventActivity(count=batch, idle=idle)}
    return StackReport(threads=[thread], events=events, paused=0.0, age=9.0, inside=[])


TRAIN = ("train.py", 60, "main", "train()")
WAITS = [TRAIN, ("train.py", 40, "step", "dist.all_reduce(loss)"), (LOGGER, 81, "wrapper", "return func(*args)"),
         (C10D, 2806, "all_reduce", "work.wait()")]  # fmt: skip
LOADS = [TRAIN, ("data.py", 12, "load", "time.sleep(60)")]
BARRIER = [TRAIN, ("train.py", 44, "step", "dist.barrier()"), (C10D, 4600, "barrier", "work.wait()"),
           (C10D, 2806, "all_reduce", "work.wait()")]  # fmt: skip
BACKWARD = [TRAIN, ("train.py", 38, "step", "loss.backward()"), (DDP, 824, "_engine_run_backward", "return run()")]
OWN = [TRAIN, ("model.py", 5, "all_reduce", "x = x.sum()")]


@pytest.mark.parametrize(
    ("stack", "collective"), [(WAITS, "all_reduce"), (BARRIER, "barrier"), (LOADS, ""), (OWN, ""), ([], "")]
)
def test_the_collective_is_the_one_that_the_job_called(stack, collective):
    assert collective_of(frames_of(report(*stack))) == collective


def test_a_loop_beside_the_main_thread_is_found_as_in_a_worker_of_ray_train():
    worker = ("/env/lib/python3.11/site-packages/ray/_private/worker.py", 1069, "main_loop", "run_task_loop()")
    main, loop = report(worker), report(*WAITS)
    stack = loop.threads[0].stack
    threads = [ThreadStack(thread=name, ident=2, daemon=True, stack=stack) for name in ("looptap-io", "train")]
    both = StackReport(threads=[*main.threads, *threads], events={}, paused=0.0, age=9.0, inside=[])
    assert collective_of(frames_of(both)) == "all_reduce"
    assert frames_of(main)[-1].function == "main_loop"


def test_a_backward_pass_may_wait_for_others():
    assert "DDP" in collective_of(frames_of(report(*BACKWARD)))


def test_ranks_are_grouped_and_the_one_that_is_missing_is_named():
    reports = {0: report(*WAITS), 1: report(*LOADS, batch=6, idle=61.0), 2: report(*WAITS), 3: report(*WAITS)}
    first, second = stack_groups(reports)
    assert (first.ranks, second.ranks) == ((0, 2, 3), (1,))
    assert difference(reports) == [
        "4 ranks stand in 2 places",
        "  ranks 0, 2-3: in all_reduce, no event for 1 s, at train.py:40 in step: dist.all_reduce(loss)",
        "  rank 1: in no collective, no event for 61 s, at data.py:12 in load: time.sleep(60)",
        "ranks 0, 2-3 wait for rank 1, which is in no collective",
        "rank 1: 1 batch event behind, at 6, none for 61 s",
    ]


def test_a_rank_that_does_not_answer_is_the_one_that_is_waited_for():
    lines = difference({0: report(*WAITS)}, {1: "no answer within 5 s"}, {0: "process 7 on a", 1: "process 8 on b"})
    assert lines[1:] == [
        "  rank 1: no answer: no answer within 5 s",
        "rank 0 waits for rank 1, which is silent (rank 1 is process 8 on b)",
    ]


@pytest.mark.parametrize(
    ("line", "words"),
    [("work.wait()", "asynchronous collective"), ("total += loss.item()", "the device"), ("x = load()", "")],
)
def test_a_wait_in_c_is_known_by_the_line_of_the_job(line, words):
    found = collective_of(frames_of(report(TRAIN, ("train.py", 41, "step", line))))
    assert words in found
    assert bool(words) == bool(found)


def test_ranks_in_different_collectives_never_meet():
    lines = difference({0: report(*WAITS), 1: report(*BARRIER)})
    assert lines[-1] == "the ranks wait in different collectives, and none of them can end"


def test_ranks_that_stand_together():
    assert difference({0: report(*WAITS), 1: report(*WAITS)})[0] == "all 2 ranks stand at the same line"
    assert difference({}) == []


@pytest.mark.usefixtures("processes")
@pytest.mark.promise("stacks")
def test_a_real_job_whose_rank_sleeps(directory, capsys):
    slow = "time.sleep(300) if rank == 1 and step == 5 else None"
    with rank_jobs.ranks(directory, 2, slow=slow) as job:
        rank_jobs.started(directory, 2)
        with looptap.attach("many") as run:
            soon(lambda: _waits(run), detail="rank 0 waits in all_reduce")
        command_line(["stacks"])(["stacks", "many", "--ranks", "all", "--short"], standalone_mode=False)
        lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "2 ranks stand in 2 places"
    assert any(line.startswith("  rank 0: in all_reduce, no event for ") and ", at <string>:" in line for line in lines)
    assert any(line.startswith("  rank 1: in no collective, no event for ") for line in lines)
    assert f"rank 0 waits for rank 1, which is in no collective (rank 1 is process {job[1].pid} on" in str(lines)


def _waits(run):
    found = run.ranks.each(lambda rank: rank.stack_report(20), "all", 20)
    reports = {rank: one for rank, one in found.items() if isinstance(one, StackReport)}
    counts = {rank: one.events["batch"].count for rank, one in reports.items() if "batch" in one.events}
    sleeps = counts == {0: 6, 1: 5}  # earlier, rank 1 may be between two collectives
    return sleeps and "rank 0 waits for rank 1, which is in no collective" in difference(reports)
