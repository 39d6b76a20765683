"""The commands of a run: rate limit, memory, and unique ids."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import looptap
from looptap.agent.control import command_log
from looptap.agent.control.command import LoopCommand
from looptap.agent.control.command_log import CommandLog
from looptap.protocol.replies import CommandRecord
from looptap.streams.errors import ControlError, EventPassed, NotAgreed

ASKER = object()
SOME = 5


@pytest.fixture
def log(monkeypatch):
    """Return a log that remembers few commands."""
    monkeypatch.setattr(command_log, "MAX_RECORDS", SOME)
    return CommandLog(1_000_000)


@pytest.fixture
def commands():
    """Return a function that makes commands; its ``finished`` lists those that ended."""
    finished = []

    def made(id="x", value=None, size=0):
        command = LoopCommand(None, CommandRecord(id=id, client="", what="call", value=value), finished.append)
        command.size = size
        return command

    made.finished = finished
    return made


def ids(log):
    return [record.id for record in log.records]


def test_a_slot_is_free_a_second_after_it_was_taken(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(command_log, "time", SimpleNamespace(monotonic=lambda: now[0]))
    log = CommandLog(3)
    for at in (100.0, 100.25, 100.5):
        now[0] = at
        log.count()
    for at, room in ((100.75, 0), (101.0, 0), (101.125, 1), (101.375, 1), (101.5, 0), (101.625, 1), (102.0, 0)):
        now[0] = at
        for _ in range(room):
            log.count()
        with pytest.raises(looptap.LimitReached, match=r"^3 commands in a second, the bound"):
            log.count()


def test_pending_commands_are_bounded(log, commands):
    waiting = [log.accept(commands(f"id{n}")) for n in range(SOME)]
    with pytest.raises(looptap.LimitReached, match="commands wait for their events"):
        log.count()
    waiting[2].give_up(ControlError("no"))
    log.count()
    assert all(log.waiting(f"id{n}") is waiting[n] for n in (0, 1, 3, 4))
    assert log.waiting("id2") is None
    assert log.waiting("id9") is None


def test_a_known_id_gets_the_outcome_of_its_command(log, commands):
    assert not log.known("x", ASKER)
    command = log.accept(commands())
    assert log.known("x", ASKER)
    assert log.known("x", ASKER, again=True)
    assert command.requesters == [ASKER, ASKER]
    assert commands.finished == []
    log.give_up("x", ControlError("no"))
    assert commands.finished == [command]
    assert log.known("x", ASKER)
    assert commands.finished == [command, command]
    assert (command.kind, command.error, command.waits) == ("ControlError", "no", False)


@pytest.mark.parametrize("error", [NotAgreed, EventPassed])
def test_a_command_that_ranks_agreed_to_drop_may_be_sent_again(log, commands, error):
    first = commands()
    log.refuse(first, error("not now"))
    assert not log.known("x", ASKER, again=True)
    assert first.requesters == []
    assert log.known("x", ASKER)
    second = log.accept(commands())
    assert log.known("x", ASKER, again=True)
    assert second.requesters == [ASKER]
    assert ids(log) == ["x", "x"]
    assert log.waiting("x") is second


def test_a_command_that_was_done_at_once_or_refused_is_on_record_as_such(log, commands):
    done, refused = commands("done"), commands("refused")
    log.settle(done, 7)
    log.refuse(refused, ControlError("it may not"))
    assert [(record.id, record.outcome, record.error) for record in log.records] == [
        ("done", "done", ""), ("refused", "refused", "it may not"),
    ]  # fmt: skip
    assert (done.value, commands.finished) == (7, [done, refused])
    assert log.waiting("done") is None
    assert log.known("done", ASKER)


def test_a_command_that_ctrl_c_prevented_is_recorded_once_as_not_begun(log, commands):
    accepted, new, begun = log.accept(commands("accepted")), commands("new"), log.accept(commands("begun"))
    assert begun.claim("the loop")
    for command in (accepted, new, begun):
        log.not_begun(command)
    assert ids(log) == ["accepted", "begun", "new"]
    assert ["Ctrl-C in the job came before" in command.error for command in (accepted, new, begun)] == [1, 1, 0]
    assert commands.finished == [accepted, new]


def test_the_oldest_that_are_over_are_forgotten_and_those_that_wait_are_not(log, commands):
    first = log.accept(commands("first"))
    for n in range(SOME - 1):
        log.settle(commands(f"id{n}"), n)
    assert (log.remembered, log.known("id0", ASKER)) == (SOME, True)
    for n in range(SOME - 1, 2 * SOME):
        log.settle(commands(f"id{n}"), n)
        assert log.remembered == SOME
    assert log.waiting("first") is first
    assert [n for n in range(2 * SOME) if log.known(f"id{n}", ASKER)] == [6, 7, 8, 9]
    assert ids(log) == [f"id{n}" for n in range(SOME, 2 * SOME)]  # the newest, in their order


def test_a_command_is_recorded_once_however_often_it_is_reported(log, commands):
    command = log.accept(commands())
    assert command.claim("the loop")
    log.refuse(command, ControlError("no"))
    log.not_begun(command)
    assert (ids(log), log.remembered, command.error) == (["x"], 1, "")  # and what the loop has begun is left to it


def test_the_oldest_results_are_dropped_beyond_their_bytes(monkeypatch, commands):
    monkeypatch.setattr(command_log, "MAX_RECORD_BYTES", 100)
    log, made = CommandLog(10), [commands(f"id{n}", size=40) for n in range(5)]
    for n, command in enumerate(made):
        command.over = n != 0  # the first one waits still
        if n == 1:
            command.requesters.append(ASKER)  # whom its result has yet to reach
        log.accept(command)
    assert [command.size for command in made] == [40, 40, 0, 0, 0]
    assert [bool(command.error) for command in made] == [False, False, True, True, True]
    alike = CommandLog(10)
    made = [commands(f"id{n}", size=size) for n, size in enumerate((40, 0, 40, 40))]
    for command in made:
        command.over = True
        alike.accept(command)
    assert [command.size for command in made] == [0, 0, 40, 40]  # no more than has to go
    assert [bool(command.error) for command in made] == [True, False, False, False]
    exact = CommandLog(10)
    made = [commands(f"id{n}", size=50) for n in range(2)]
    for command in made:
        command.over = True
        exact.accept(command)
    assert [command.size for command in made] == [50, 50]


def test_the_oldest_records_are_dropped_beyond_the_bytes_of_their_code(monkeypatch, commands):
    monkeypatch.setattr(command_log, "MAX_RECORD_BYTES", 100)
    log = CommandLog(10)
    for n in range(3):
        log.accept(commands(f"text{n}", "x" * 50))
    assert ids(log) == ["text1", "text2"]
    for n in range(3):
        log.accept(commands(f"number{n}", 10**9))
    assert ids(log) == ["text1", "text2", "number0", "number1", "number2"]
    log.accept(commands("one", "x"))
    assert ids(log) == ["text2", "number0", "number1", "number2", "one"]
    assert log.known("text0", ASKER)  # that it came is remembered
