"""The compiled tap and pure Python do the same (make soak: more programs)."""

from __future__ import annotations

import copy
import gc
import inspect
import json
import os
import pickle
import pydoc
import subprocess
import sys
import threading
import types
import weakref
from pathlib import Path

import pytest
import tap_programs
import torch
from counts import FULL
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import looptap
from looptap.agent.loop.tap.choice import compiled, forget_agents
from looptap.streams.native.compiled import which_tap
from looptap.testing import pair, parts_of

SUPPORT = Path(tap_programs.__file__)
BOTH = {"compiled tap": "0", "pure Python": "1"}


class Versions:
    """A process with the tap and one without, which run the same programs."""

    def __init__(self) -> None:
        self.processes = {
            name: subprocess.Popen(
                [sys.executable, SUPPORT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                env={**os.environ, "LOOPTAP_PURE": pure},
            )
            for name, pure in BOTH.items()
        }  # fmt: skip

    def run(self, program: dict) -> dict[str, str]:
        for process in self.processes.values():
            process.stdin.write(json.dumps(program) + "\n")
            process.stdin.flush()
        answers = [json.loads(process.stdout.readline()) for process in self.processes.values()]
        return dict(answers)

    def close(self) -> None:
        for process in self.processes.values():
            process.stdin.close()
            process.wait(300)
            process.stdout.close()


@pytest.fixture(scope="module")
def versions(processes):
    if which_tap() == "pure Python" and os.environ.get("LOOPTAP_PURE", "0") in ("", "0"):
        pytest.skip("the tap was not built: there is no C compiler here")
    both = Versions()
    yield both
    both.close()


def mostly(common, rare):
    return st.one_of(common, common, rare)


event = mostly(st.sampled_from(["batch", "epoch"]), st.sampled_from(list(tap_programs.EVENTS)))
usual = st.fixed_dictionaries({"step": st.just("int"), "loss": st.sampled_from(["float", "float32", "gradient"])})
unusual = st.dictionaries(
    st.sampled_from(["step", "loss", "x", "text", "self", "event"]), st.sampled_from(list(tap_programs.MAKE))
)
step = mostly(
    st.one_of(
        st.tuples(st.just("emit"), event, mostly(usual, unusual)),
        st.tuples(st.just("several"), st.sampled_from(["batch", "epoch", "fold"]), st.integers(1, 12)),
        st.tuples(st.just("several"), st.just("batch"), st.integers(1, 5), st.sampled_from(list(tap_programs.MAKE))),
        st.tuples(st.just("spelled"), st.sampled_from(["batch", "other"]), st.integers(1, 6)),
    ),
    st.one_of(
        st.tuples(st.just("attach"), st.integers(0, len(tap_programs.QUERIES) - 1), event),
        st.tuples(st.just("wrong"), st.integers(0, len(tap_programs.WRONG) - 1)),
        st.tuples(st.just("detach"), st.integers(0, 9)),
        st.tuples(st.just("end_group"), st.sampled_from(["batch", "epoch", "other"])),
        st.tuples(st.just("advance"), st.just(0.25)),
        st.tuples(st.just("mark"), event),
        *[st.tuples(st.just(what)) for what in ("deliver", "trigger", "switch", "reload", "close")],
    ),
)
programs = st.fixed_dictionaries(
    {
        "history": st.booleans(), "pending": st.sampled_from([1, 4, 256]), "fast": st.sampled_from([True, True, False]),
        "steps": st.lists(step, max_size=40),
    }
)  # fmt: skip


@pytest.mark.promise("S18", "S20")
@pytest.mark.timeout(7200 if FULL else 600)
@settings(max_examples=3000 if FULL else 60, suppress_health_check=[HealthCheck.too_slow])
@given(programs)
def test_both_do_the_same_with_any_program(versions, program):
    seen = versions.run(program)
    assert set(seen) == set(BOTH)  # each ran in its own process
    assert seen["compiled tap"] == seen["pure Python"]


@pytest.mark.parametrize("value", tap_programs.MAKE)
def test_both_read_the_same_of_any_value(versions, value):
    queries = [["attach", which, "batch"] for which in (0, 1, 5)]
    before = [["several", "batch", 4], ["deliver"], ["several", "batch", 4]]  # from here on events only have to be kept
    events = [["emit", "batch", {"step": "int", "loss": of}] for of in ("float", value, value, "float32", value)]
    after = [["several", "batch", 3, value], ["deliver"], ["several", "batch", 3], ["emit", "epoch", {"x": value}]]
    for order in (events + after, after + events):
        steps = [*queries, *before, *order]
        seen = versions.run({"history": False, "pending": 256, "fast": True, "steps": steps})
        assert seen["compiled tap"] == seen["pure Python"]


@pytest.mark.usefixtures("processes")
def test_the_version_says_which_runs():
    for name, pure in BOTH.items():
        if name == "compiled tap" and which_tap() != name and "LOOPTAP_PURE" not in os.environ:
            continue  # it was not built
        command = [Path(sys.executable).parent / "looptap", "--version"]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "LOOPTAP_PURE": pure})
        assert done.stdout.strip().endswith(f", {name}"), done.stdout + done.stderr


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("there", ["none", "older"])
def test_a_module_that_is_missing_or_of_older_sources_is_left_out_without_a_word(there):
    module = "None" if there == "none" else "types.ModuleType('looptap._tap')"
    code = (
        f"import sys, types; sys.modules['looptap._tap'] = {module}\n"
        "import looptap; from looptap.streams.native.compiled import which_tap\n"
        "looptap.Agent('x', enabled=False).emit('batch', step=1); print(which_tap())"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("pure Python\n", "")


# ------------------------------------------------------------ emit is the function that it stands for


def test_emit_shows_its_signature_its_text_and_its_source():
    emit = looptap.Agent.emit
    assert inspect.isfunction(emit)
    assert inspect.isroutine(emit)
    assert str(inspect.signature(emit)) == "(self, event: 'str', /, **observables: 'Any') -> 'None'"
    assert str(inspect.signature(looptap.Agent("x", enabled=False).emit)).startswith("(event: 'str', /")
    assert emit.__doc__.startswith("Emit ``event``")
    assert "Emit ``event``" in pydoc.render_doc(emit)
    assert "def emit(self" in inspect.getsource(emit)
    assert emit.__qualname__ == "Agent.emit"
    assert repr(emit).startswith("<function Agent.emit at 0x")
    assert weakref.ref(emit)() is emit


def test_emit_is_pickled_and_copied_as_a_function_is():
    emit = looptap.Agent.emit
    agent = looptap.Agent("x", enabled=False)
    assert pickle.loads(pickle.dumps(emit)) is emit
    assert copy.copy(emit) is copy.deepcopy(emit) is emit
    bound = pickle.loads(pickle.dumps(agent.emit))
    assert type(bound) is types.MethodType
    assert bound.__self__.name == "x"
    assert agent.emit == agent.emit
    assert hash(agent.emit) == hash(agent.emit)


def test_wrong_arguments_are_refused_in_the_words_of_python():
    agent = looptap.Agent("x", enabled=False)
    with pytest.raises(TypeError, match=r"Agent.emit\(\) missing 1 required positional argument: 'event'"):
        agent.emit()
    with pytest.raises(TypeError, match=r"Agent.emit\(\) takes 2 positional arguments but 3 were given"):
        agent.emit("batch", 1)
    with pytest.raises(TypeError, match=r"Agent.emit\(\) missing 2 required positional arguments"):
        looptap.Agent.emit()


def test_a_class_below_an_agent_may_have_its_own_emit():
    class Counting(looptap.Agent):
        calls = 0

        def emit(self, event, /, **observables):
            type(self).calls += 1
            super().emit(event, **observables)

    class Both(Counting, dict):  # a base of another layout
        pass

    for kind in (Counting, Both):
        agent = kind("x", enabled=False)
        before = kind.calls
        for _ in range(3):
            agent.emit("batch", step=1)
        assert kind.calls == before + 3


def test_emit_may_be_replaced_for_one_agent_and_for_all(monkeypatch):
    agent, run = pair("patched")
    stream = run.stream("step", on="batch")
    for step in range(3):
        agent.emit("batch", step=step)
    seen = []
    with monkeypatch.context() as patch:
        patch.setattr(agent, "emit", lambda event, **observables: seen.append(event))
        agent.emit("batch", step=10)
    with monkeypatch.context() as patch:
        original = looptap.Agent.emit
        patch.setattr(looptap.Agent, "emit", lambda self, event, **how: (seen.append(2), original(self, event, **how)))
        agent.emit("batch", step=3)
    agent.emit("batch", step=4)
    assert seen == ["batch", 2]
    assert stream.values == [0, 1, 2, 3, 4]
    agent.close()


def test_an_emit_with_other_code_runs_that():
    class Host:
        def __init__(self):
            self._types = parts_of(pair("x").agent).sources.by_name

        @compiled
        def emit(self, event, /, **observables):
            observables["seen"].append("first")

        def other(self, event, /, **observables):
            observables["seen"].append("other")

    host, seen = Host(), []
    source = host._types["batch"]
    source.has_work = False
    host.emit("batch", seen=seen)
    Host.emit.__code__ = Host.other.__code__
    host.emit("batch", seen=seen)
    if which_tap() == "compiled tap":
        assert (seen, source.number) == (["other"], 1)  # the first one was counted, and not passed on
    else:
        assert seen == ["first", "other"]


def test_code_that_runs_while_sources_are_forgotten_may_emit():
    class Host:
        def __init__(self, agent):
            self._types = {"batch": parts_of(agent).sources.by_name["batch"]}
            self._types["batch"].has_work = False

        @compiled
        def emit(self, event, /, **observables):
            self._types[event].number += 1

    class Last:
        def __del__(self):
            hosts[1].emit("batch")

    agents = [pair(f"agent{n}").agent for n in range(3)]
    hosts = [Host(agents[0]), Host(agents[1])]
    hosts[0]._types["last"] = Last()
    hosts[0].emit("batch")
    hosts[0]._types = {}
    forget_agents()  # the last name of that dict, whose end raises an event of the second one
    hosts.pop()
    hosts.append(Host(agents[2]))  # where the second one was, most likely
    hosts[1].emit("batch")
    assert [parts_of(agent).sources.counts() for agent in agents] == [{"batch": 1}] * 3


def test_a_torn_agent_gets_an_error_and_no_crash():
    class Odd:
        def __getattr__(self, name):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        looptap.Agent.emit(Odd(), "batch")
    with pytest.raises(AttributeError):
        looptap.Agent.emit(object(), "batch")
    with pytest.raises(AttributeError):
        looptap.Agent.emit(object.__new__(looptap.Agent), "batch")


# ------------------------------------------------------------ what the shortcut remembers


def test_events_of_several_agents_are_counted_where_they_belong():
    agents = [pair(f"agent{n}").agent for n in range(3)]
    for round in range(50):
        for n, agent in enumerate(agents):
            for _ in range(n + 1):
                agent.emit("batch", step=round)
            agent.emit("epoch" if round % 2 else "other")
    counts = [parts_of(agent).sources.counts() for agent in agents]
    assert counts == [{"batch": 50 * (n + 1), "epoch": 25, "other": 25} for n in range(3)]
    for agent in agents:
        agent.close()
        agent.emit("batch", step=1)
    assert [parts_of(agent).sources.counts() for agent in agents] == counts  # a closed agent counts nowhere


def test_an_agent_dies_with_its_last_name_and_the_next_one_counts_from_one():
    gone = []
    for n in range(20):
        agent = looptap.Agent("x", enabled=False)
        for _ in range(n + 1):
            agent.emit("batch", step=1)
        gone.append(weakref.ref(agent))
        del agent
        gc.collect()
        assert gone[-1]() is None
    agent, _ = pair("alive")
    agent.emit("batch", step=1)
    assert parts_of(agent).sources.counts() == {"batch": 1}
    agent.close()


def test_threads_count_each_event_once():
    agent, _ = pair("threads")
    barrier = threading.Barrier(4)

    def raise_events():
        barrier.wait()
        for step in range(5000):
            agent.emit("batch", step=step, loss=0.5)
            agent.emit("epoch", step=step)

    threads = [threading.Thread(target=raise_events) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sources = parts_of(agent).sources
    assert sources.counts() == {"batch": 20_000, "epoch": 20_000}
    assert sources.by_name["batch"].groups_ended == 20_000
    agent.close()


def test_an_idle_epoch_ends_the_groups_inside():
    agent, run = pair("groups", groups=("batch", "epoch", "fold"))
    sources = parts_of(agent).sources.by_name
    for _ in range(3):
        for _ in range(5):
            agent.emit("batch", step=1)
        agent.emit("epoch")
    agent.emit("fold")
    batch, epoch, fold = (sources[name] for name in ("batch", "epoch", "fold"))
    assert (batch.number, batch.group_start, batch.groups_ended) == (15, 15, 4)
    assert (epoch.number, epoch.group_start, epoch.groups_ended) == (3, 3, 1)
    assert (fold.number, fold.groups_ended) == (1, 0)
    stream = run.stream("sum(e.step for e in events)", on="batch")  # attached at the start of a group: whole
    agent.emit("batch", step=7)
    agent.emit("epoch")
    assert [(record.value, record.partial) for record in stream.records] == [(7, False)]
    agent.close()


def test_tensors_do_not_outlive_their_event():
    agent, run = pair("lifetimes")
    streams = [run.stream(query, on="batch") for query in ("loss", "step, loss", "x.sum()")]
    for step in range(5):
        loss, x = torch.tensor(0.5), torch.ones(3)
        watched = [weakref.ref(loss), weakref.ref(x)]
        agent.emit("batch", step=step, loss=loss, x=x)
        agent.emit("idle", step=step, loss=loss, x=x)
        del loss, x
        assert [one() for one in watched] == [None, None]
    assert all(stream.arrived for stream in streams)
    agent.close()
