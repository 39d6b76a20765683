"""Jobs on several ranks: streams of one rank, of several, combined and merged."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import sys
import time

import msgspec
import pytest
import warm
from rank_jobs import environment, free_port, ranks, started
from waiting import freeze, soon

import looptap
from looptap.cli import main
from looptap.client.attach import attach, runs
from looptap.protocol.errors import NoSuchRun, SeveralRuns
from looptap.protocol.files.connection import ConnectionFile, publish
from looptap.protocol.keys import RoleKeys
from looptap.protocol.messages import RunInfo
from looptap.streams.errors import QueryError

# ---------------------------------------------------------------- which files are one job


def announced(directory, rank, *, size=4, job="none at node:1", started=1.0, attempt=0, name="many", **process):
    """Write the connection file of a rank of a job that does not exist."""
    info = RunInfo(
        f"{name}-{started}-{rank}", name, "host", 1, started, rank=rank, ranks=size, job=job, attempt=attempt
    )
    file = ConnectionFile.of(info, RoleKeys.fresh("operator"), ("ipc:///nowhere/socket",))
    return publish(msgspec.structs.replace(file, process=msgspec.structs.replace(file.process, **process)), directory)


def listed():
    return [(sorted(run.members) or [run.rank], run.missing, run.alive) for run in runs()]


def test_the_ranks_of_a_job_are_one_run_and_those_without_an_agent_are_named(directory):
    for rank in (0, 1, 3):
        announced(directory, rank)
    announced(directory, 2, start="0")
    assert listed() == [([0, 1, 2, 3], (2,), True)]
    assert "without rank 2" in str(runs()[0])


def test_two_simultaneous_jobs_of_one_name_are_not_mixed(directory):
    for rank in (0, 1):
        announced(directory, rank, size=2, job="none at node:1")
        announced(directory, rank, size=2, job="none at node:2", started=2.0)
    assert listed() == [([0, 1], (), True)] * 2
    with pytest.raises(SeveralRuns, match="2 runs match 'many'"):
        attach("many")


def test_a_restart_is_a_run_of_its_own(directory):
    announced(directory, 0, size=2, start="0", started=1.0)
    announced(directory, 1, size=2, start="0", started=1.1)
    announced(directory, 1, size=2, attempt=1, started=5.0)  # rank 0 is not there again yet
    assert listed() == [([1], (0,), True), ([0, 1], (), False)]


def test_files_of_another_machine_whose_place_was_taken_count_as_ended(directory):
    for rank in (0, 1):
        announced(directory, rank, size=2, host="far", started=1.0)
        announced(directory, rank, size=2, host="far", started=9.0)
    assert listed() == [([0, 1], (), None), ([0, 1], (), False)]


def test_the_lowest_rank_with_an_agent_is_meant_unless_one_is_named(directory):
    from looptap.client.attach import resolve

    for rank in (1, 3):
        announced(directory, rank)
    assert resolve("many").rank == 1
    assert resolve("many", rank=3).rank == 3
    assert resolve("many-1.0-3").rank == 3
    with pytest.raises(NoSuchRun, match="no agent on rank 0; there is one on: ranks 1, 3"):
        resolve("many", rank=0)


# ---------------------------------------------------------------- over gloo


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Return the directory in which the job of this module announces itself."""
    place = tmp_path_factory.mktemp("ranks")
    place.chmod(0o700)
    before = os.environ.get("LOOPTAP_DIR")
    os.environ["LOOPTAP_DIR"] = str(place)
    yield place
    os.environ.pop("LOOPTAP_DIR") if before is None else os.environ.__setitem__("LOOPTAP_DIR", before)


@pytest.fixture(scope="module")
def job(processes, place):
    """Run two ranks over gloo with 20 batches an epoch; rank 1 is always 3 ms late."""
    with ranks(place, 2, slow="time.sleep(0.003 * rank)") as children:
        started(place, 2)
        yield children


@pytest.fixture
def run(job, place):
    with attach("many", directory=place) as run:
        yield run


def complete(stream):
    """Return the records of values that lack no rank."""
    return [record for record in stream.records if not record.partial]


@pytest.mark.promise("runs")
def test_a_job_is_one_run_with_its_ranks(run, place):
    (found,) = runs(place)
    assert (sorted(found.members), found.missing) == ([0, 1], ())
    assert run.info.rank == 0
    assert list(run.ranks) == [0, 1]
    assert run.ranks.size == 2
    assert run.ranks[0] is run
    assert run.ranks[1].info.rank == 1
    assert run.ranks[1].ranks[0] is run
    assert {rank: stats["run"] for rank, stats in run.ranks.each(lambda one: one.stats()).items()} == {
        0: run.id,
        1: run.ranks[1].id,
    }
    with pytest.raises(NoSuchRun, match=r"no rank 2: the run .* has ranks 0-1"):
        run.ranks[2]


def test_the_values_of_all_ranks_come_in_the_order_of_their_events(run):
    stream = run.stream("step, loss, rank_twice", ranks="all", history=False)
    stream.wait(60)
    stream.close()
    found = [(record.event, record.rank) for record in stream.records]
    assert found == sorted(found)
    begin = max(next(event for event, rank in found if rank == r) for r in (0, 1))
    end = min(next(event for event, rank in reversed(found) if rank == r) for r in (0, 1))
    inside = [one for one in found if begin <= one[0] <= end]
    assert inside == [(event, rank) for event in range(begin, end + 1) for rank in (0, 1)]
    assert stream.dropped == 0
    assert all(r.value == (r.event - 1, 100 * r.rank + (r.event - 1) % 100, 2 * r.rank) for r in stream.records)


def test_a_stream_of_all_ranks_begins_with_the_history_of_each(run):
    stream = run.stream("step, loss", ranks="all")
    soon(lambda: {record.rank for record in stream.records if not record.history} == {0, 1}, detail="live values come")
    stream.close()
    for rank in (0, 1):
        own = [record for record in stream.records if record.rank == rank]
        assert (own[0].event, own[0].history, own[-1].history) == (1, True, False)
        assert [record.history for record in own] == sorted((record.history for record in own), reverse=True)
        assert all(after.event > before.event for before, after in itertools.pairwise(own))
        assert all(record.value == (record.event - 1, 100 * rank + (record.event - 1) % 100) for record in own)
    assert {one.name for one in run.ranks[1].scalars} >= {"step", "loss", "rank_twice"}


def test_values_of_one_event_are_combined(run):
    how = {"mean": 50, "max": 100, "sum": 100, "list": None}
    streams = {name: run.stream("loss", ranks="all", combine=name) for name in how}
    spread = run.stream("loss, step", combine=lambda values: values[-1].loss - values[0].loss)
    for name, stream in streams.items():
        soon(lambda stream=stream: len(complete(stream)) >= 10, detail="values of both ranks come")
        for record in complete(stream):
            own = (record.event - 1) % 100
            assert record.value == {
                "mean": 50 + own, "max": 100 + own, "sum": 100 + 2 * own, "list": [own, 100 + own]
            }[name]  # fmt: skip
    soon(lambda: complete(spread), detail="values of both ranks come")
    assert {record.value for record in complete(spread)} == {100.0}
    assert not any(stream.records[0].partial for stream in (*streams.values(), spread))


def test_partial_results_are_merged_over_groups_events_and_seconds(run):
    query = "sum(e.loss for e in events), len(events), min(e.step for e in events), max(e.step for e in events)"
    windows = {"group": None, "count": 8, "seconds": looptap.seconds(0.2)}
    streams = {name: run.stream(query, ranks="all", combine="merge", window=window) for name, window in windows.items()}
    for name, stream in streams.items():
        soon(lambda stream=stream: len(complete(stream)) >= 3, detail=f"windows of both ranks come ({name})")
        for record in complete(stream):
            total, count, first, last = record.value
            if name != "seconds":
                size = {"group": 20, "count": 8}[name]
                assert (count, first % size, last - first) == (2 * size, 0, size - 1)
                assert total == sum(100 * rank + step % 100 for rank in (0, 1) for step in range(first, last + 1))
        firsts = [record.value[2] for record in complete(stream)]
        assert firsts == sorted(set(firsts))


def test_reductions_of_the_ranks_are_combined_by_the_number_of_their_window(run):
    stream = run.stream("max(e.loss for e in events)", ranks=[0, 1], combine="list", window=10)
    soon(lambda: len(complete(stream)) >= 3, detail="windows of both ranks come")
    assert all(high - low == 100 and not record.event % 10 for record in complete(stream)
               for low, high in [record.value])  # fmt: skip


def test_the_skew_is_the_time_between_the_first_and_the_last_rank(run):
    stream = run.skew()
    soon(lambda: len(complete(stream)) >= 50, detail="events of both ranks come")
    late = [record.value for record in complete(stream) if record.value.slowest == 1]
    assert len(late) > 25
    assert sorted(one.spread for one in late)[len(late) // 2] > 0.002
    assert {one.uncertainty for one in late} == {0.0}
    assert not stream.records[0].partial  # it begins with an event that both have
    assert stream.drawn == ("spread",)
    plot = looptap.plot(stream)
    soon(plot.pull, detail="the values are drawn")
    assert len(plot.pictures()[0].marks) == 1
    windows = stream.query("max(v.spread for v in values)", window=20)
    assert windows.wait(1)[0] > 0


def test_on_the_command_line_code_runs_on_all_ranks_or_on_those_that_are_named(job, place, capsys):
    for which, expected in (("all", {"0": 0, "1": 1}), ("1", 1), ("0", 0)):
        with pytest.raises(SystemExit) as done:
            main(["call", "many", "rank", "--ranks", which, "--json"])
        assert (done.value.code, json.loads(capsys.readouterr().out)["result"]) == (0, expected)


def test_a_relay_merges_on_the_way(job, place):
    query = "sum(e.loss for e in events), len(events), max(e.rank_twice for e in events)"
    with attach("many", directory=place) as run:
        direct = run.stream(query, combine="merge")
        relayed = run.stream(query, combine="merge", relay=True, timeout=300)
        (part,) = relayed.parts.values()

        def common():
            ours, theirs = ({r.event: r.value for r in complete(stream)} for stream in (direct, relayed))
            return [(ours[event], theirs[event]) for event in ours.keys() & theirs.keys()]

        soon(lambda: len(common()) >= 3, detail="windows of both ranks come by both ways")
        assert all(ours == theirs for ours, theirs in common())
        assert "ranks 0-1 by a relay" in relayed.notes
        assert "; ranks 0-1" in repr(relayed)
        assert relayed.latest.v2 == 2
        child = part.run.session.transport.running.process
        with pytest.raises(QueryError, match="relay=True merges"):
            run.stream("loss", combine="mean", relay=True)
        with pytest.raises(QueryError, match="carries merged values"):
            part.run.set("a", 1, ranks=0)
    assert child.poll() is not None
    with attach("many", directory=place, follow=True) as run, pytest.raises(QueryError, match="without follow=True"):
        run.stream(query, combine="merge", relay=True)


@pytest.mark.parametrize("how", [{"combine": "mean"}, {"combine": "merge", "relay": True, "timeout": 300}])
def test_an_unsafe_query_is_on_record_on_each_rank(run, how):
    query = "sum(e.loss * 7 for e in events)"

    def on_record():
        replies = run.ranks.each(lambda rank: rank.command_records())
        return [[one.outcome for one in replies[rank] if one.what == "unsafe"][-1:] for rank in (0, 1)]

    stream = run.stream(query, unsafe=True, **how)
    soon(lambda: on_record() == [["running"], ["running"]])
    assert [one.name for one in run.command_records()][-1] == query
    stream.close()
    soon(lambda: on_record() == [["ended"], ["ended"]])


def test_arguments_that_do_not_fit_together_are_refused(run):
    for how, why in (
        ({"combine": "average"}, "must be one of 'mean'"),
        ({"combine": "merge"}, "yields at each event, and has nothing to merge"),
        ({"combine": "mean", "throttle": 0.1}, "throttle= picks others"),
        ({"combine": "mean", "when": "loss > 3"}, "when= picks others"),
        ({"ranks": [7]}, "the run has ranks 0-1"),
        ({"ranks": "both"}, "a list of ranks, or 'all'"),
        ({"ranks": "all", "patience": -1}, "patience=-1"),
    ):
        with pytest.raises(QueryError, match=why):
            run.stream("loss", **how)
    with pytest.raises(QueryError, match="as text"):
        run.stream(lambda events: len(events), combine="merge")
    soon(lambda: not run.stats()["queries"], detail="nothing of them is left")


def test_a_stream_that_is_dropped_leaves_no_query_behind(run):
    def queries():
        return [len(stats["queries"]) for stats in run.ranks.each(lambda one: one.stats()).values()]

    stream = run.stream("loss", ranks="all", combine="mean")
    assert queries() == [1, 1]
    del stream
    soon(lambda: queries() == [0, 0], detail="the queries are gone")


def test_the_stacks_of_all_ranks(run):
    stacks = run.stacks(ranks="all")
    assert sorted(stacks) == [0, 1]
    assert all("all_reduce" in text or "sleep" in text or "emit" in text or "<string>" in text
               for text in (stacks[rank]["threads"][0]["stack"] for rank in (0, 1)))  # fmt: skip


def test_the_ranks_on_the_command_line(job, place, capsys):
    def printed(*words):
        with pytest.raises(SystemExit, match="0"):
            main(words)
        return capsys.readouterr().out

    watched = printed("watch", "many", "loss", "--ranks", "all", "--combine", "sum", "--count", "3", "--json")
    values = [json.loads(line) for line in watched.splitlines()][:3]
    assert all(value["value"] == 100 + 2 * ((value["event"] - 1) % 100) for value in values if not value["without"])
    soon(lambda: "  rank 1  " in printed("watch", "many", "step", "--ranks", "0-1", "--count", "9"))
    picture = place / "loss.txt"
    printed("plot", "many", "rank", "--ranks", "all", "--save", str(picture), "--after", "0.5")
    assert "rank rank 1" in picture.read_text()
    printed("plot", "many", "loss", "--ranks", "all", "--combine", "sum", "--save", str(picture), "--after", "0.5")
    assert "rank 1" not in picture.read_text()
    assert sorted(json.loads(printed("stacks", "many", "--ranks", "all", "--json"))) == ["0", "1"]
    assert "rank 1, process " in printed("stacks", "many", "--ranks", "all")
    (listed,) = json.loads(printed("ls", "--json"))
    assert (listed["ranks"], listed["missing"]) == (2, [])
    assert [(one["rank"], one["pid"], one["alive"]) for one in listed["members"]] == [
        (rank, process.pid, True) for rank, process in enumerate(job)
    ]
    assert "many, 2 ranks  alive" in printed("ls")
    text = printed("ls", "many")
    assert "many, 2 ranks  alive" in text
    assert f"ranks 0-1: pids {job[0].pid}" in text
    page = printed("top", "many")
    assert f"0 alive ({socket.gethostname()}, pid {job[0].pid})  1 alive" in page
    assert "rank 0 of 2" in page


# ---------------------------------------------------------------- stragglers and the dead

LIGHT = """
import sys, time, looptap
with looptap.Agent("light", budget=float("inf")) as agent:
    step, begin = 0, float(sys.argv[1])
    while not agent.stop_requested:
        time.sleep(max(0.0, begin + 0.005 * step - time.monotonic()))
        agent.emit("batch", step=step)
        step += 1
"""


@pytest.fixture
def light(processes, directory):
    """Run two ranks without torch, whose n-th events are due at the same moment."""
    command = [sys.executable, "-c", LIGHT, str(time.monotonic())]
    port = free_port()
    children = [warm.Popen(command, env=environment(directory, rank, 2, port)) for rank in (0, 1)]
    started(directory, 2, "light")
    yield children
    for child in children:
        child.send_signal(signal.SIGCONT)
        child.kill()
        child.wait()


def test_a_straggler_is_waited_for_up_to_the_timeout_and_named(light):
    with attach("light") as run:
        stream = run.stream("step", ranks="all", combine="list", patience=0.3)
        soon(lambda: complete(stream), detail="values of both ranks come")
        before = stream.arrived
        freeze(light[1].pid)
        soon(lambda: stream.records[-1].partial and stream.absent[-1].ranks == (1,), detail="values lack rank 1")
        soon(lambda: 1 in stream.waiting, detail="it shows who is waited for")
        assert "lacks rank 1" in repr(stream)
        light[1].send_signal(signal.SIGCONT)
        soon(lambda: not stream.records[-1].partial, detail="rank 1 comes up with the other")
        lacking = [absent.number for absent in stream.absent if absent.ranks == (1,) and absent.number > before]
        assert lacking == [record.number for record in stream.records if record.partial and record.number > before]
        assert stream.late[1] == len(lacking)
        assert stream.dropped == 0


def newest(stream, rank):
    """Return the newest event of a rank."""
    return max(record.event for record in stream.records if record.rank == rank)


def test_without_combine_late_values_are_kept_and_counted(light):
    with attach("light") as run:
        stream = run.stream("step", ranks="all", patience=0.2, history=False)
        soon(lambda: {record.rank for record in stream.records} == {0, 1}, detail="values of both ranks come")
        freeze(light[1].pid)
        soon(lambda: newest(stream, 0) > newest(stream, 1) + 50, detail="rank 0 continues alone")
        soon(lambda: 1 in stream.waiting, detail="rank 1 is waited for")
        light[1].send_signal(signal.SIGCONT)
        soon(lambda: stream.late.get(1), detail="late values come")
        stream.close()
        events = [record.event for record in stream.records if record.rank == 1]
        assert events == list(range(events[0], events[-1] + 1))
        assert stream.dropped == 0


@pytest.mark.promise("runs")
def test_a_dead_rank_is_named_and_the_rest_continue(light):
    with attach("light") as run:
        stream = run.stream("step", ranks="all", combine="list")
        merged = run.stream("len(events)", combine="merge", window=10)
        soon(lambda: complete(stream) and complete(merged), detail="values of both ranks come")
        light[1].kill()
        soon(lambda: 1 in stream.gone, detail="the death is reported")
        assert "gone" in stream.states[1]
        assert stream.states[0] == "live"
        seen = stream.arrived
        soon(lambda: stream.arrived > seen + 20 and merged.latest == 10, detail="the other continues")
        assert stream.state == "live"
        assert stream.records[-1].partial
        assert run.ranks.missing == (1,)
        assert runs()[0].missing == (1,)
        again = run.stream("step", ranks="all")
        assert any("rank 1" in note for note in again.notes)
        light[0].kill()
        soon(lambda: stream.state == "failed", detail="the stream ends with the last")
        assert "rank 1:" in stream.reason or "gone" in stream.reason
