"""Commands on several ranks: at the same event on all, or on none (S23)."""

from __future__ import annotations

import os
import signal
import threading

import pytest
import torch.distributed as dist
from agreeing import ended, job, visit
from waiting import freeze, soon

import looptap
from looptap.agent.control import command_kinds, job_hooks, rank_consensus
from looptap.agent.control.knobs.control_watch import WATCHED_EVENTS_COUNT
from looptap.agent.control.process_group import ProcessGroup
from looptap.cli.commands.control.give_command import outcome_of
from looptap.protocol import messages as m
from looptap.protocol.errors import NoAnswer, NoSuchRun, RemoteError
from looptap.streams.errors import CommandCancelled, ControlError, EventPassed, InDoubt, NotAgreed
from looptap.testing import pair, parts_of

# ---------------------------------------------------------------- real ranks


@pytest.mark.promise("S23")
@pytest.mark.usefixtures("processes")
def test_a_command_is_done_at_one_event_on_both_ranks(directory):
    with job(directory, PAUSE=0.001) as (children, run):
        numbers = {}
        for rate in (0.01, 0.02, 0.03):
            outcome = run.set("lr", rate)
            assert {rank: one.new for rank, one in outcome.ranks.items()} == {0: rate, 1: rate}
            (numbers[rate],) = {one.number for one in outcome.ranks.values()}
        assert set(run.checkpoint().ranks) == {0, 1}  # a collective, on both at once
        one, two = run.call("step").values()
        assert one == two
        assert run.call("step * 0 + 7", ranks=1, id="of one") == 7
        assert outcome_of(run, "of one", 5, "call", value="step * 0 + 7").result == 7
        assert set(outcome_of(run, outcome.id, 5, "set", name="lr", value=rate).ranks) == {0, 1}
        with pytest.raises(ControlError, match="another one, and nothing was done"):
            outcome_of(run, outcome.id, 5, "set", name="lr", value=0.9)
        with pytest.raises(ControlError, match="remembers no command with the id 'unknown'; nothing was done"):
            outcome_of(run, "unknown", 5, "stop")
        with pytest.raises(RemoteError, match=r"no space left \(rank 1\) It was done on rank 0"):
            run.trigger("fail")
        with pytest.raises(ControlError, match="from 0 to 1"):
            run.set("lr", 7)
        with pytest.raises(ControlError, match="a pause of 1 of 2 ranks"):
            run.ranks[1].session.requests.send(
                m.Command(run.ranks[1].session.requests.number(), "alone", "pause")
            ).result(60)
        with pytest.raises(ControlError, match="up to 10 s"):  # a quarter of the group's 40
            run.pause(11)
        pause = run.pause(10)
        assert len({one.number for one in pause.ranks.values()}) == 1
        soon(lambda: run.paused)
        assert set(run.resume().ranks) == {0, 1}
        assert run.outcome(pause.id).ranks.keys() == pause.ranks.keys()
        freeze(children[1].pid)
        with pytest.raises(NoAnswer, match="Nothing is done on any rank"):
            run.set("lr", 0.5, timeout=0.5)
        os.kill(children[1].pid, signal.SIGCONT)
        assert run.controls["lr"].value == 0.03
        numbers[0.5] = run.set("lr", 0.5).ranks[1].number
        rule = looptap.Rule("step > 0", on="batch", actions=["checkpoint", "stop"])
        with looptap.guard("agreeing", [rule]) as guard:
            soon(lambda: len(guard.firings) == 2)
            assert [firing.outcome[-13:] for firing in guard.firings] == [", on ranks 0-1"[-13:]] * 2
        one, two = ended(directory, children)
    assert one["rates"] == two["rates"]
    assert one["saved"] == two["saved"]
    assert one["events"] == two["events"]
    assert len(one["saved"]) == 2
    for rate, number in numbers.items():
        assert one["rates"].index(rate) == number - 1


def test_a_command_for_all_ranks_is_not_done_where_one_is_missing(directory):
    """Of a job of two ranks, one has no agent."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANK", "0")
        patch.setenv("WORLD_SIZE", "2")
        patch.setenv("MASTER_PORT", "29500")
        agent = looptap.Agent("lonely")
    with agent, looptap.attach("lonely") as run:
        agent.trigger("tick", lambda: 7)
        with pytest.raises(NoSuchRun, match=r"rank 1 of lonely.* cannot be reached.*ranks=\[0\]"):
            run.trigger("tick")


@pytest.mark.promise("S23")
@pytest.mark.usefixtures("processes")
def test_clients_that_come_go_and_die_in_between_change_no_loss(directory):
    with job(directory, 2, 200, PAUSE=0.01, PATIENCE=0.2) as (children, run):
        killed = visit(run, 200)
        found = ended(directory, children)
    assert killed
    for one in found:
        assert one["losses"] == one["bare"]
        assert one["events"] == 200


# ---------------------------------------------------------------- two ranks in one process


class Ranks:
    """Two agents with a store, each with a loop on a thread, and a client of both."""

    def __init__(self, monkeypatch, patience=0.3):
        self.store, self.broken = dist.HashStore(), None
        for module in (command_kinds, job_hooks, rank_consensus):
            monkeypatch.setattr(module, "group", lambda: ProcessGroup(0, 2, 60.0))
        limits = looptap.Limits(agreement=patience)
        self.agents, self.runs = zip(*(pair(limits=limits, may_pause=300) for _ in range(2)), strict=True)
        self.values = [{"a": 0}, {"a": 0}]
        for agent, values in zip(self.agents, self.values, strict=True):
            agent.control("a", lambda values=values: values["a"], lambda x, values=values: values.update(a=x), type=int)
            parts_of(agent).dispatcher.commands.agreement.ballots.connected = self.connected

    def connected(self):
        if self.broken is not None:
            raise self.broken
        return self.store

    def prepare(self, id, value=1):
        """Prepare "a" on both ranks; return the newest event of each."""
        raw, asked = m.msgspec.Raw(bytes([value])), []
        for run in self.runs:
            asked.append(
                run.session.requests.send(m.Command(run.session.requests.number(), id, "set", "a", raw, ranks=2))
            )
        return [one.result(60).number for one in asked]

    def agree(self, id, number, ranks=(0, 1)):
        """Name the event; return the futures of the outcomes."""
        chosen = [self.runs[rank] for rank in ranks]
        return [run.session.requests.send(m.Agree(run.session.requests.number(), id, number)) for run in chosen]

    def emit(self, *counts):
        """Raise this many events on each rank, on both at the same time."""
        threads = [
            threading.Thread(target=lambda agent=agent, count=count: [agent.emit("batch") for _ in range(count)])
            for agent, count in zip(self.agents, counts, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
            assert not thread.is_alive()


@pytest.fixture
def both(monkeypatch):
    """Return two ranks."""
    ranks = Ranks(monkeypatch)
    yield ranks
    for agent in ranks.agents:
        agent.close()


def test_both_ranks_run_a_command_at_the_named_event(both):
    both.emit(3, 3)
    assert both.prepare("x") == [3, 3]
    outcomes = both.agree("x", 5)
    both.emit(1, 1)
    assert both.values == [{"a": 0}, {"a": 0}]
    both.emit(1, 1)
    assert both.values == [{"a": 1}, {"a": 1}]
    assert [one.result(60).number for one in outcomes] == [5, 5]
    assert [run.outcome("x").number for run in both.runs] == [5, 5]


def test_no_rank_runs_a_command_whose_event_one_had_passed(both):
    both.emit(3, 6)
    both.prepare("x")
    outcomes = both.agree("x", 5)
    with pytest.raises(EventPassed, match="this rank had passed batch 5"):
        outcomes[1].result(60)  # known without an event: it may wait for the other rank by now
    both.emit(2, 0)
    with pytest.raises(EventPassed, match="another rank had already passed"):
        outcomes[0].result(60)
    assert both.runs[0].commands[-1]["waited"] < 0.3  # not until its patience ends
    both.emit(0, 1)
    assert both.values == [{"a": 0}, {"a": 0}]
    assert both.prepare("x", 2) == [5, 7]  # and another event will do
    outcomes = both.agree("x", 9)
    both.emit(4, 2)
    assert [one.result(60).new for one in outcomes] == [2, 2]
    found = [v.outcome.split(":")[0] for v in both.runs[0].stream("commands").values]
    assert found == ["refused", "done"]


@pytest.mark.parametrize("named", [(0,), (1,), ()])
def test_a_command_of_a_client_that_dies_before_it_names_all_ranks_does_not_run(both, named):
    both.emit(1, 1)
    both.prepare("x")
    outcomes = both.agree("x", 2, named)
    both.emit(3, 3)
    for one in outcomes:
        with pytest.raises(NotAgreed, match="not all of 2 ranks reached batch 2"):
            one.result(60)
    assert both.values == [{"a": 0}, {"a": 0}]
    for run in both.runs:
        run.session.transport.send(m_leave())
    assert [len(parts_of(agent).dispatcher.commands.agreement.prepared) for agent in both.agents] == [0, 0]


def m_leave():
    """Return the message of a client that leaves."""
    from looptap.protocol.codec import encode

    return encode(m.Leave())


def test_a_prepared_command_without_an_event_expires(both, monkeypatch):
    monkeypatch.setattr(rank_consensus, "PREPARED_LIFETIME_SECONDS", 0.0)
    both.prepare("x")
    for one in both.agree("x", 1):
        with pytest.raises(NotAgreed, match="forgotten"):
            one.result(60)
    both.emit(2, 2)
    assert both.values == [{"a": 0}, {"a": 0}]


def test_where_the_store_fails_after_the_vote_the_outcome_is_in_doubt(both):
    both.emit(1, 1)
    both.prepare("x")
    failing = [parts_of(agent).dispatcher.commands.agreement for agent in both.agents]

    class Cut:
        """A store whose connection breaks once this rank was counted."""

        def add(self, key, amount):
            both.store.add(key, amount)
            raise RuntimeError("Connection reset by peer")

    failing[1].ballots.connected = Cut
    outcomes = both.agree("x", 2)
    both.emit(1, 1)
    with pytest.raises(InDoubt, match=r"in doubt.*Connection reset.*not done on this rank"):
        outcomes[1].result(60)
    assert both.runs[1].stream("commands").latest.outcome.startswith("in doubt")
    assert both.values[1] == {"a": 0}
    both.emit(2, 2)
    assert both.agents[1].stats()["events"] == {"batch": 4}


def test_a_store_that_cannot_be_reached_prevents_the_command(both):
    both.emit(1, 1)
    both.prepare("x")
    both.broken = ConnectionError("refused")
    outcomes = both.agree("x", 2)
    both.emit(1, 1)
    for one in outcomes:
        with pytest.raises(NotAgreed, match="cannot be reached"):
            one.result(60)
    assert both.values == [{"a": 0}, {"a": 0}]


def test_a_store_that_hangs_holds_the_loop_no_longer_than_it_may(both, monkeypatch):
    monkeypatch.setattr(rank_consensus, "STORE_GRACE_SECONDS", 0.2)
    both.emit(1, 1)
    both.prepare("x")
    free = threading.Event()
    parts_of(both.agents[0]).dispatcher.commands.agreement.ballots.connected = lambda: free.wait(300) and both.store
    (outcome,) = both.agree("x", 2, (0,))
    both.emit(1, 1)
    with pytest.raises(InDoubt, match="has not answered"):
        outcome.result(60)

    def refused():
        try:
            return both.prepare("y") and ""
        except ControlError as error:
            return str(error)

    assert "has not answered for" in soon(refused)  # the thread that asks the store may have begun later
    free.set()


def test_two_commands_for_one_event_are_done_in_one_order(both):
    both.emit(1, 1)
    both.prepare("x", 1)
    both.prepare("y", 2)
    outcomes = [*both.agree("y", 3, (0,)), *both.agree("x", 3), *both.agree("y", 3, (1,))]
    both.emit(2, 2)
    assert [one.result(60).outcome for one in outcomes] == ["done"] * 4
    assert both.values == [{"a": 2}, {"a": 2}]


def test_the_store_does_not_grow_with_every_command(both, monkeypatch):
    monkeypatch.setattr("looptap.agent.control.process_group._DECISION_LIFETIME_SECONDS", 0.0)
    del parts_of(both.agents[0]).dispatcher.commands.agreement.ballots.connected  # the real one
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: both.store)
    for count in range(1, 6):
        both.emit(0 if count > 1 else 1, 0 if count > 1 else 1)
        both.prepare(f"x{count}")
        outcomes = both.agree(f"x{count}", count + 1)
        both.emit(1, 1)
        assert [one.result(60).outcome for one in outcomes] == ["done", "done"]
    assert both.store.num_keys() <= 4


def test_an_event_without_pending_commands_checks_nothing_more(both):
    both.emit(1, 1)
    both.prepare("x")
    source = parts_of(both.agents[0]).sources.by_name["batch"]
    assert (len(source.commands), source.has_work) == (0, False)  # prepared is not pending
    both.agree("x", 3)
    assert source.has_work
    both.emit(3 + WATCHED_EVENTS_COUNT, 2)  # so long it is read if the change lasts, and copied for the history
    source.refresh()
    assert (len(source.commands), source.has_work) == (0, False)


def test_a_job_without_a_process_group_refuses_commands_for_all_ranks():
    agent, run = pair()
    agent.control("a", lambda: 0, lambda x: None)
    command = m.Command(run.session.requests.number(), "x", "set", "a", m.msgspec.Raw(b"\x01"), ranks=2)
    with pytest.raises(ControlError, match=r"torch.distributed is not initialized.*ranks=0"):
        run.session.requests.send(command).result(60)


# ---------------------------------------------------------------- called off


def test_a_command_cancelled_before_its_event_runs_on_no_rank(both):
    both.emit(3, 3)
    both.prepare("x")
    outcomes = both.agree("x", 5)
    assert [both.runs[rank].cancel("x").outcome for rank in (0, 1)] == ["cancelled"] * 2
    for one in outcomes:
        with pytest.raises(CommandCancelled, match="cancelled by"):
            one.result(60)
    both.emit(4, 4)
    assert both.values == [{"a": 0}, {"a": 0}]
    assert [run.commands[-1]["outcome"] for run in both.runs] == ["cancelled"] * 2


def test_a_command_cancelled_on_one_rank_runs_on_none_without_a_wait(monkeypatch):
    both = Ranks(monkeypatch, patience=30.0)
    both.emit(3, 3)
    both.prepare("x")
    outcomes = both.agree("x", 4)
    first = threading.Thread(target=both.agents[0].emit, args=("batch",))
    first.start()
    soon(lambda: both.store.check(["looptap/x/4/in"]))  # it waits for the other rank
    assert both.runs[1].cancel("x").outcome == "cancelled"
    first.join(300)
    assert not first.is_alive()
    both.agents[1].emit("batch")
    for one in outcomes:
        with pytest.raises(CommandCancelled, match="cancelled"):
            one.result(60)
    assert both.runs[0].cancel("x").outcome == "cancelled"
    assert both.values == [{"a": 0}, {"a": 0}]
    for agent in both.agents:
        agent.close()


def test_a_command_cancelled_before_its_event_is_named_does_not_run(both):
    both.emit(3, 3)
    both.prepare("x")
    assert both.runs[0].cancel("x").outcome == "cancelled"
    first, second = both.agree("x", 5)
    both.emit(4, 4)
    with pytest.raises(CommandCancelled, match="cancelled"):
        first.result(60)
    with pytest.raises(NotAgreed, match="not all of 2 ranks"):
        second.result(60)
    assert both.values == [{"a": 0}, {"a": 0}]


@pytest.mark.promise("S23")
@pytest.mark.usefixtures("processes")
def test_on_real_ranks_a_command_is_cancelled_on_all(directory):
    with job(directory, PAUSE=0.001) as (children, run):
        with pytest.raises(looptap.CommandPending) as pending:
            run.set("lr", 0.5, on="never", timeout=0.3)
        outcome = run.cancel(pending.value.id)
        assert (outcome.outcome, set(outcome.ranks)) == ("cancelled", {0, 1})
        with pytest.raises(CommandCancelled):
            run.outcome(pending.value.id)
        late = run.set("lr", 0.02)
        assert {one.outcome for one in run.cancel(late.id).ranks.values()} == {"done"}
        run.stop()
        one, two = ended(directory, children)
    assert 0.5 not in one["rates"]
    assert one["rates"] == two["rates"]
