"""`looptap.guard`: each rule fires where it is true only; every gap is reported."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import msgspec
import pytest
import warm
from places import ROOT
from relays import Proxy
from training_loop import training
from waiting import soon

import looptap
from looptap.cli.commands.watching.guard import rules_of
from looptap.client.guard.actions import end_process
from looptap.client.guard.watch import SiblingComparison, StreamJudge
from looptap.protocol.files.connection import publish, read_connection_file
from looptap.protocol.process.identity import Process
from looptap.testing import pair

NAN = math.nan


def fired(guard):
    """Return the firings, without times and the random parts of run ids."""
    return [(f.run.rsplit("-", 3)[0], f.rule, f.event, f.action) for f in guard.firings]


def under_guard(guard, *agents):
    names = {agent.run.id for agent in agents}
    soon(lambda: names <= {watched.run for watched in guard.watched})


@pytest.mark.usefixtures("processes")
def test_a_rule_fires_once_for_a_run_and_does_all_its_actions_in_order(directory, tmp_path):
    seen, posted = [], []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self):
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *arguments):
            pass

    server = HTTPServer(("127.0.0.1", 0), Hook)
    serving = threading.Thread(target=server.serve_forever, args=(0.01,))
    serving.start()
    report = tmp_path / "report"
    shell = f'echo "$LOOPTAP_RULE $LOOPTAP_VALUE $LOOPTAP_PID" > {report}'
    hook = f"http://127.0.0.1:{server.server_port}/"
    actions = [seen.append, "log", hook, f"shell: {shell}", "shell: exit 3", "call: step", "checkpoint", "stop"]
    record = tmp_path / "record.jsonl"
    with (
        looptap.Agent("digits-a") as agent,
        looptap.guard("digits-*", [looptap.Rule("loss > 5", actions=actions)], record=record) as guard,
    ):
        agent.checkpoint(lambda: "saved.pt")
        under_guard(guard, agent)
        losses = iter([1.0, 7.5])

        def train():
            agent.emit("batch", step=1, loss=next(losses, 9.0))
            return len(guard.firings) == len(actions)

        soon(train)
        assert agent.stop_requested
        outcomes = [f.outcome for f in guard.firings]
        assert all((f.event, f.value) == (2, 7.5) for f in guard.firings)
    server.shutdown()
    serving.join()
    server.server_close()
    assert outcomes[:3] == ["done", "logged", "answered 204"]
    assert outcomes[3:6] == ["exit code 0", "failed: exit code 3", "done: 1"]
    assert outcomes[6].startswith("checkpoint: 'saved.pt', at batch ")
    assert outcomes[7].startswith("stop, at batch ")
    assert report.read_text() == f"loss > 5 7.5 {os.getpid()}\n"
    assert [posted[0]["value"], seen[0].event] == [7.5, 2]
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert [line["outcome"] for line in lines] == outcomes


def test_rules_of_every_kind_fire_at_the_first_event_at_which_they_are_true(directory):
    rules = [
        looptap.Rule("isnan(loss)", budget=math.inf),  # a loop that does nothing grants no time to any
        looptap.Rule("loss > 5", lasting=3, budget=math.inf),
        looptap.Rule("mean(e.loss for e in events)", window=4, above=6, budget=math.inf),
        looptap.Rule("sum(e.loss for e in events)", below=0, name="a negative epoch", budget=math.inf),
        looptap.Rule(lambda e: e.loss < -90, name="a function", budget=math.inf),
    ]
    with looptap.Agent("digits-b") as agent, looptap.guard("digits-b", rules, dry_run=True) as guard:
        under_guard(guard, agent)
        for loss in [6, 6, 1, 6, 7, 8, 8, 2, NAN, NAN, -99]:
            agent.emit("batch", loss=float(loss))
        agent.emit("epoch")
        for loss in [-5.0, 1.0]:
            agent.emit("batch", loss=loss)
        agent.emit("epoch")
        soon(lambda: len(guard.firings) == 5)
        assert all(f.outcome == "dry run: not done" for f in guard.firings)
        assert {rule: event for _, rule, event, _ in fired(guard)} == {
            "isnan(loss)": 9, "loss > 5": 6, rules[2].name: 8, "a function": 11, "a negative epoch": 13,
        }  # fmt: skip


def test_no_event_of_five_runs_with_ten_thousand_each_is_missed(directory):
    rule = looptap.Rule("step % 5000 == 4999", show="step", again=0.0, budget=math.inf)
    agents = [looptap.Agent(f"many-{i}") for i in range(5)]
    with looptap.guard("many-*", [rule], dry_run=True) as guard:
        under_guard(guard, *agents)
        for step in range(10_000):
            for agent in agents:
                agent.emit("batch", step=step)
        for agent in agents:
            agent.close()
        assert guard.wait(300)
        assert [(w.judged, w.missing) for w in guard.watched] == [(10_000, 0)] * 5
        assert sorted((f.run, f.value) for f in guard.firings) == sorted(
            (agent.run.id, step) for agent in agents for step in (4999, 9999)
        )


def test_events_at_which_a_rule_cannot_be_judged_are_reported_and_end_a_row():
    agent, run = pair("gaps")
    judge = StreamJudge(looptap.Rule("loss > 5", lasting=3), run, None)
    for loss in (6.0, 6.0, None, 6.0, 6.0, 6.0):
        agent.emit("batch", **({} if loss is None else {"loss": loss}))
    news = list(judge.new_judgements())
    assert [(each.kind, each.event) for each in news] == [("gap", 4), ("", 6), ("problem", 6)]
    assert news[0].value.startswith("1 values are missing so far: ")
    assert "loss" in news[2].value
    assert (judge.judged, judge.missing) == (5, 1)
    agent.close()
    assert list(judge.new_judgements()) == []
    assert judge.over


def test_a_stalled_loop_is_detected_and_a_pause_is_not_a_stall(directory):
    rule = looptap.Rule.stalled(minutes=1.5 / 60)
    with looptap.Agent("still", may_pause=60.0) as agent, looptap.guard("still", [rule]) as guard:
        under_guard(guard, agent)
        with training(agent, 0.001), looptap.attach("still") as run:
            run.pause(60.0)
            soon(lambda: run.paused > 2.5)
            assert run.idle > 1.5
            assert guard.firings == []
        soon(lambda: guard.firings)
        (firing,) = guard.firings
        assert firing.value >= 1.5
        assert (firing.action, firing.outcome, firing.event) == ("log", "logged", None)


def test_a_run_is_judged_by_its_siblings_when_they_get_there_and_nan_is_worst():
    table = SiblingComparison(looptap.Rule.worse_than_siblings("loss", by=1.5, at_least=3, lasting=2))
    for step in (1.0, 2.0):
        table.add("ahead", step, 1.6, int(step))
        table.add("nan", step, NAN, int(step))
        assert table.new_judgements("ahead") == []
        table.add("a", step, 1.0, int(step))
        table.add("b", step, 1.0, int(step))
        table.add("c", step, 1.4, int(step))
    # the siblings of "ahead" have the median 1.2, and its bound is 1.8
    assert table.new_judgements("ahead") == []
    assert {news.event for news in table.new_judgements("nan")} == {2}
    assert table.new_judgements("a") == table.new_judgements("b") == table.new_judgements("c") == []
    for step in (3.0, 4.0):
        for run in "abc":
            table.add(run, step, 1.0, int(step))
        table.add("ahead", step, 1.6, int(step))
    assert [news.event for news in table.new_judgements("ahead")] == [4]
    accuracy = SiblingComparison(looptap.Rule.worse_than_siblings("right", by=1.5, at_least=2, higher_is_better=True))
    for run, right in (("a", 0.9), ("b", 0.8), ("low", 0.2)):
        accuracy.add(run, 1.0, right, 1)
    assert [bool(accuracy.new_judgements(run)) for run in ("a", "b", "low")] == [False, False, True]


@pytest.mark.usefixtures("processes")
def test_a_later_run_is_guarded_and_a_killed_one_ends(directory):
    code = (
        "import looptap, time\nagent = looptap.Agent('late')\nwhile True:\n"
        "    agent.emit('batch', loss=float('nan'))\n    time.sleep(0.01)"
    )
    with looptap.guard("late", [looptap.Rule("isnan(loss)", actions=["shell: kill -9 $LOOPTAP_PID"])]) as guard:
        job = warm.Popen([sys.executable, "-c", code])
        try:
            assert job.wait(300) == -9
        finally:
            job.kill()
            job.wait()
        assert guard.wait(300)
        assert [f.outcome for f in guard.firings] == ["exit code 0"]


def test_an_invalid_rule_is_refused_in_a_sentence():
    for wrong, said in (
        (lambda: looptap.Rule("loss >"), "loss >"),
        (lambda: looptap.Rule("loss > 5", actions=["stopp"]), "'stopp' is no action"),
        (lambda: looptap.Rule("loss > 5", actions="stop"), "must be a list"),
        (lambda: looptap.Rule("loss > 5", lasting=0), "lasting=0"),
        (lambda: looptap.Rule.stalled(minutes=0), "a number above 0"),
        (lambda: looptap.Rule.worse_than_siblings("loss", by=0.5), "by=0.5"),
        (lambda: looptap.Rule.of({"query": "loss > 5", "at": "epoch"}), "knows no 'at'; it knows on, "),
        (lambda: looptap.Rule.of({"on": "epoch"}), "either a query"),
        (lambda: looptap.guard("x", []), "needs rules"),
    ):
        with pytest.raises(looptap.QueryError) as error:
            wrong()
        assert said in str(error.value)


def test_the_shell_guards_by_a_file_of_rules(directory, tmp_path, here):
    rules = tmp_path / "rules.yaml"
    rules.write_text("runs: small\nrules:\n- query: isnan(loss)\n  on: batch\n  actions: [stop]\n- stalled: 1e1\n")
    with looptap.Agent("small") as agent:

        def train():
            while not agent.stop_requested:
                agent.emit("batch", loss=NAN)
                threading.Event().wait(0.001)
            agent.close()

        thread = threading.Thread(target=train)
        thread.start()
        code, out, err = here("guard", rules, "--once", "--json")
        thread.join()
    assert err.startswith("looptap: watching small-")
    line = json.loads(out)
    assert (code, line["rule"], line["action"]) == (1, "isnan(loss)", "stop")
    assert line["outcome"].startswith("stop, at batch ")
    rules.write_text("rules:\n\n- query: gradient > 5\n  on: batch\n")
    with looptap.Agent("small") as agent:

        def err():
            while not (agent.stats()["queries"] and agent.stats()["queries"][0]["errors"] > 10):
                agent.emit("batch", loss=0.5)
                threading.Event().wait(0.001)
            agent.close()

        thread = threading.Thread(target=err)
        thread.start()
        _, out, _ = here("guard", rules, "small", "--once")
        thread.join()
    assert "problem: no observable 'gradient'" in out
    assert out.splitlines()[0].endswith("rules.yaml, line 3)")
    page = (ROOT / "docs" / "guard.md").read_text()
    rules.write_text(page.partition("```yaml")[2].partition("```")[0])
    assert [rule.name for rule in rules_of(str(rules))[1]] == [
        "isnan(loss)", "loss > 5", "no event for 10 min", "loss worse than its siblings",
    ]  # fmt: skip
    as_json = tmp_path / "rules.json"
    as_json.write_text('[{"query": "loss > 5", "window": "30s"}]')
    nothing = "looptap: no run matches 'missing', and nothing was judged.\n"
    assert here("guard", as_json, "missing", "--once") == (0, "", nothing)
    for text, said in (
        ("runs: a\nrules:\n- query: loss\n- query: loss\n  action: stop", "line 4: A rule with query knows no 'actio"),
        ("rules:\n- query: loss\n- query: loss\n  above: high", "line 3: above='high' must be a number."),
        ("rules:\n- query: mean(loss)\n  window: 3x", "line 2: '3x': a window is a number of events (100)"),
        ("rules:\n- query: a: b", "line 2: this is not valid YAML: mapping values are not allowed here. Quote a text"),
        ("rules:\n- query: a\n  query: b", "line 3: this is not valid YAML: 'query' appears twice"),
        ("rules:\n- !!python/name:os.system x", "line 2: this is not valid YAML: could not determine a constructor"),
        ("rule:\n- query: loss > 5", "line 2: there is no 'rule'; there are rules and runs."),
        ("runs: a", "rules is a list of one rule or more, not None. Such as:"),
    ):
        rules.write_text(text)
        err = here("guard", rules)[2]
        assert f"rules.yaml, {said}" in err or f"rules.yaml, line 1: {said}" in err
    assert "nothing.yaml cannot be read: " in here("guard", tmp_path / "nothing.yaml")[2]


@pytest.mark.promise("runs")
@pytest.mark.usefixtures("processes")
def test_the_three_bad_jobs_of_eight_are_ended(directory):
    pytest.importorskip("torch")
    demo = [sys.executable, "-m", "looptap.examples.guarded", "--steps", "600"]
    done = warm.run(demo, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    ended = [line.split()[0] for line in done.stdout.splitlines() if line.endswith("ended by the guard")]
    assert ended == ["explodes", "stalls", "learns-nothing"], done.stdout
    assert "Values that the rules did not see: 0" in done.stdout, done.stdout


@pytest.mark.promise("runs")
@pytest.mark.usefixtures("processes")
def test_a_hanging_loop_is_killed_after_an_ignored_stop_if_asked_to(directory):
    code = "import looptap, time\nagent = looptap.Agent('hangs-%s')\nagent.emit('batch')\ntime.sleep(300)"
    rules = [looptap.Rule.stalled(minutes=0.5 / 60, actions=["stop"], kill=0.5)]
    with looptap.guard("hangs-a", rules) as guard:
        job, other = (warm.Popen([sys.executable, "-c", code % name]) for name in "ab")
        try:
            assert job.wait(300) == -signal.SIGTERM
            soon(lambda: "kill" in [firing.action for firing in guard.firings])
            assert other.poll() is None
        finally:
            for each in (job, other):
                each.kill()
                each.wait()
        # Until the guard finds that the process is gone, it may say that the run is silent.
        (stop, kill) = [firing for firing in guard.firings if firing.action != "problem"]
    assert stop.outcome.startswith("failed: CommandPending")
    assert (kill.action, kill.outcome) == ("kill", f"SIGTERM to process {job.pid}")


def test_kill_spares_processes_that_have_ended_or_are_elsewhere_and_needs_a_request():
    never, process = threading.Event(), Process.this()
    gone = msgspec.structs.replace(process, start="1")
    assert end_process(gone, 0.0, never) == "not needed: the run has ended"
    elsewhere = msgspec.structs.replace(process, host="other", machine="other")
    assert end_process(elsewhere, 0.0, never) == "failed: the process is on other, and can only be ended there"
    never.set()
    assert end_process(process, math.inf, never) == "not done: the guard was closed before"
    with pytest.raises(looptap.QueryError, match="runs that ignore a 'stop'"):
        looptap.Rule("loss > 5", kill=30)


def test_values_lost_with_a_link_are_reported_with_that_reason(directory, tmp_path_factory):
    far = tmp_path_factory.mktemp("far")
    far.chmod(0o700)
    rule = looptap.Rule("step < 0", budget=math.inf)
    with looptap.Agent("far", listen="tcp") as agent:
        (path,) = directory.glob("*.json")
        file = read_connection_file(path)
        with Proxy(file.endpoints[0]) as proxy:
            publish(msgspec.structs.replace(file, endpoints=(proxy.endpoint,)), far)
            with looptap.guard("far", [rule], directory=far) as guard:
                under_guard(guard, agent)
                agent.emit("batch", step=1)
                soon(lambda: guard.watched[0].judged == 1)
                proxy.swallow()
                for step in range(5):
                    agent.emit("batch", step=step)
                soon(lambda: agent.stats()["queries"][0]["sent"] == 6)
                proxy.cut()

                def train():
                    agent.emit("batch", step=9)
                    return guard.watched[0].missing

                soon(train)
                assert guard.watched[0].missing >= 5
                (gap,) = [each for each in guard.firings if each.action == "gap"][:1]
                assert "the link was lost (1 times so far) with what was on its way" in gap.outcome
