"""`looptap web` without a browser: access, what is shown, what a viewer costs."""

import ast
import contextlib
import json
import re
import socket
import struct
import sys
import threading
import time

import psutil
import pytest
import torch
import warm
from listening import bound
from waiting import soon
from web_pages import (
    Peer,
    Shown,
    gone,
    parts_of,
    program,
    request,
    serving,
    shelf_of,
    status_of,
    stripping_proxy,
)

import looptap
from looptap.client.exported_run import exported
from looptap.streams.errors import QueryError
from looptap.streams.operators.windows import sliding
from looptap.streams.stream.stream import Stream, stream_of
from looptap.testing import pair
from looptap.visualizers.first_curves import first_curves
from looptap.visualizers.surfaces.web import page_connection, page_handlers, viewer_link, web_server
from looptap.visualizers.surfaces.web.expressions import ReadableStream, reader_query
from looptap.visualizers.surfaces.web.page_access import PageAccess
from looptap.visualizers.surfaces.web.page_connection import MAX_VIEWERS, MAX_WAITING_REQUESTS_COUNT
from looptap.visualizers.surfaces.web.page_handlers import WRONG_TOKEN_NUMBER
from looptap.visualizers.surfaces.web.run_facts import RunFacts
from looptap.visualizers.surfaces.web.run_rows import RunRows
from looptap.visualizers.surfaces.web.run_shelf import RunShelf, ShelfEntry
from looptap.visualizers.surfaces.web.viewer import Viewer
from looptap.visualizers.surfaces.web.viewer_link import SLOT_BYTES
from looptap.visualizers.surfaces.web.web_server import WebServer

LOSS = [(step, 1 / (1 + step)) for step in range(50)]
LOOP = """
import ctypes, looptap, os, sys, time
agent = looptap.Agent('job')
agent.stream('loss', 'step, loss'); agent.stream('hidden', 'step, loss')
for step in range(100000):
    agent.emit('batch', step=step, loss=0.5); agent.emit('secret')
    time.sleep(0.01)
    if os.path.exists(sys.argv[1]):
        ctypes.PyDLL(None).sleep(1000)  # keeps the interpreter
"""


@pytest.fixture
def stored():
    return Shown([stream_of(LOSS, fields=("step", "loss"), name="loss"), stream_of([3, 1, 2], name="plain")])


@pytest.fixture
def server(stored):
    with serving(stored) as server:
        yield server


# ---------------------------------------------------------------- who is let in


def test_without_the_token_there_are_the_files_of_the_page_alone_which_know_of_no_run(server, stored):
    base, token = server.site.base, server.site.access.token
    for path in (base, f"{base}page.js", f"{base}page.css"):
        status, headers, text = request(server.port, path)
        assert (status, "Set-Cookie" in headers) == (200, False)
        assert text == request(server.port, f"{path}?token={token}")[2]
        assert not [word for word in (token, stored.id, server.site.access.ticket) if word in text]
    for path in (f"{base}?token=x", f"{base}page.js?token={token}x"):
        status, _, text = request(server.port, path)
        assert (status, "not the token" in text) == (403, True)
    assert request(server.port, f"{base}?token=")[0] == 200
    assert request(server.port, f"{base}other?token={token}")[0] == 404
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
        assert request(server.port, f"{base}?token={token}", method)[0] == 405


@pytest.mark.parametrize("token", ["", "x", "None", "\u00e9", None, 7, [], {}])
def test_a_connection_without_the_token_gets_nothing(server, token):
    peer = Peer(server, hello=False, Cookie=f"looptap-localhost-{server.port}={server.site.access.token}")
    peer.say({"t": "hello", "viewer": "viewer-of-a-test", "token": token})
    peer.say({"t": "table", "id": 1, "runs": ["shown"]})
    assert peer.read() is None
    assert (peer.messages, peer.code) == ([], WRONG_TOKEN_NUMBER)
    assert server.viewers.connections == {}
    peer.close()


def test_a_connection_that_does_not_prove_itself_is_closed(server, monkeypatch):
    for said in ({"t": "table", "id": 1, "runs": ["shown"]}, {"t": "hello", "viewer": "short"}, {"t": "bye"}):
        peer = Peer(server, hello=False)
        peer.say(said)
        assert (peer.read(), peer.code) == (None, 1002)
        peer.close()
    monkeypatch.setattr(page_handlers, "GREETING_SECONDS", 0.05)
    peer = Peer(server, hello=False)
    assert (peer.read(), peer.code) == (None, 1002)
    peer.close()


@pytest.mark.parametrize("site", ["cross-site", "same-site", "anything"])
def test_what_another_site_leads_to_is_refused_with_a_way_to_go_on(server, site):
    token = server.site.access.token
    for path, way in (("/", "./"), (f"/?token={token}", f"./?token={token}"), ("/?token=<b>", "./")):
        status, headers, text = request(server.port, path, Sec_Fetch_Site=site)
        assert (status, "Set-Cookie" in headers, "script" in text) == (403, False, False)
        assert f'<a href="{way}">' in text
        assert "<b>" not in text
    for path in ("/page.js", "/page.css", "/socket", "/other"):
        status, _, text = request(server.port, path, Sec_Fetch_Site=site)
        assert (status, text.count("\n")) == (403, 1)
    assert status_of(server, Sec_Fetch_Site=site) == 403
    for here in ("same-origin", "none"):
        assert request(server.port, "/", Sec_Fetch_Site=here)[0] == 200
    assert status_of(server, Sec_Fetch_Site="same-origin") == 101


def test_the_file_that_the_command_opens_leads_to_the_page_once(server):
    path = server.opening_url.partition(str(server.port))[2]
    assert server.site.access.token not in path
    assert request(server.port, "/open?ticket=x", Sec_Fetch_Site="cross-site")[0] == 403
    status, _, text = request(server.port, path, Sec_Fetch_Site="cross-site")
    assert (status, f'content="0; url=./?token={server.site.access.token}"' in text) == (200, True)
    assert request(server.port, path, Sec_Fetch_Site="cross-site")[0] == 403


@pytest.mark.parametrize("host", ["evil.test", "localhost.evil.test", "127.0.0.1.evil.test:80", "", "a b", "[::1"])
def test_another_name_for_this_machine_is_refused_with_a_token_too(server, host):
    token = server.site.access.token
    status, headers, text = request(server.port, f"/?token={token}", Host=host)
    assert status in (400, 403)
    assert "Location" not in headers
    assert token not in text
    assert status_of(server, Host=host or "evil.test") in (400, 403)


@pytest.mark.parametrize(
    "origin",
    [
        "",
        "null",
        "https://evil.test",
        "http://localhost",
        "http://localhost:1",
        "file://",
        "http://[",
        "ws://localhost",
        "https://localhost:{port}",
        "http://127.0.0.1:{port}",
        "http://localhost:{port}.evil.test",
        "http://localhost:{port}/",
    ],
)
def test_only_the_page_itself_may_connect(server, origin):
    assert status_of(server, Origin=origin.format(port=server.port)) == 403
    assert status_of(server) == 101
    assert status_of(server, Origin=f"https://localhost:{server.port}", X_Forwarded_Proto="https") == 101
    assert status_of(server, X_Forwarded_Proto="https") == 403


def test_a_named_host_is_let_in_as_host_and_as_origin_with_its_scheme_and_port(stored):
    with serving(stored, names=["hub.example", "http://lab.example:8000/"]) as server:
        for host in ("hub.example", "hub.example:443", "lab.example:8000", "localhost"):
            assert request(server.port, "/", Host=host)[0] == 200
        assert request(server.port, "/", Host="other.example")[0] == 403
        for origin in ("https://hub.example", "https://HUB.example", "http://lab.example:8000"):
            assert status_of(server, Origin=origin) == 101
        for origin in (
            "http://hub.example", "https://hub.example:8443", "https://a.hub.example", "https://other.example",
            "http://lab.example", "https://lab.example:8000", "http://lab.example:8001", "http://localhost:8000",
        ):  # fmt: skip
            assert status_of(server, Origin=origin) == 403, origin
        assert status_of(server, Host="hub.example:9", Origin="http://hub.example:9") == 101  # without a proxy


@pytest.mark.parametrize("name", ["", "http://", "ftp://hub.example", "https://hub.example/path", "a:port", "http://["])
def test_a_name_that_is_no_host_is_refused_at_the_start(name, capsys):
    from looptap.cli.commands.watching import web

    with pytest.raises(ValueError, match="is no host: write hub"):
        PageAccess([name])
    assert web.web_command(allow_host=[name], port=0) != 0
    assert "is no host" in capsys.readouterr().err


def test_every_reply_forbids_scripts_of_others_frames_and_caches(server):
    for path, site in (("/", "none"), ("/page.js", ""), ("/page.css", ""), ("/", "cross-site"), ("/none", "")):
        _, headers, _ = request(server.port, path, Sec_Fetch_Site=site)
        policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == "'self'"
        assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cache-Control"] == "no-store"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert "Tornado" not in headers["Server"]


def test_loopback_alone_listens_and_leaves_no_half_of_localhost_to_others(server):
    mine = {address for address in bound() if address.endswith(f":{server.port:04X}")}
    assert mine == {f"{address}:{server.port:04X}" for address in ("0100007F", f"{0:024X}01000000")}
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as other:
        taken = WebServer(RunShelf(list))
        with pytest.raises(OSError, match="--port"):
            taken.listen("127.0.0.1", other.getsockname()[1])


def test_the_page_names_its_files_relatively_and_works_below_a_prefix(stored):
    with serving(stored, base="/user/me") as server:
        status, headers, _ = request(server.port, "/user/me?token=x")
        assert (status, headers["Location"]) == (302, "me/?token=x")
        _, _, page = request(server.port, "/user/me/")
        links = re.findall(r'(?:src|href)="([^"]+)"', page)
        assert len(links) == 3
        assert all(link.startswith(("page.", "data:")) for link in links)
        assert request(server.port, "/")[0] == 404
        assert status_of(server) == 101


def test_a_proxy_that_strips_a_prefix_needs_no_setting(stored):
    with serving(stored) as server, stripping_proxy(server.port, "/proxy/8765") as port:
        for path in (f"?token={server.site.access.token}", "page.js"):
            assert request(port, f"/proxy/8765/{path}")[0] == 200


# ---------------------------------------------------------------- what is shown


def viewed(*runs, shelf=None, **rights):
    """Return a viewer without a connection."""

    class NoLink:
        connected = False

        def send_frame(self, *_):
            pass

    shelf = shelf or shelf_of(*runs, **rights)
    return Viewer(shelf, RunRows(shelf), NoLink())


def ask(viewer, kind, **about):
    return viewer.handle({"t": kind, "id": 1, **about})


def declared_job():
    job = pair("web-test")
    settings = {"lr": 0.1}
    job.agent.control("lr", lambda: settings["lr"], lambda lr: settings.update(lr=lr), minimum=0.001, maximum=1)
    job.agent.stream("loss", "step, loss", on="batch")
    job.agent.stream("hidden", "step, key", on="secret")
    job.run.export("loss")
    for step in range(20):
        job.agent.emit("batch", step=step, loss=1 / (1 + step))
        job.agent.emit("secret", step=step, key=step)
    return job, settings


@pytest.mark.promise("web", "T4")
def test_without_operate_no_text_becomes_a_query_of_the_job():
    job, settings = declared_job()
    viewer = viewed(job.run)
    name = job.run.name
    for query in (
        "step, loss",
        "loss.item()",
        "key",
        "sum(e.loss for e in events)",
        "lambda e: e.loss",
        "optimizer",
        "__import__('os')",
        "hidden",
        "2 * key",
    ):
        assert "error" in ask(viewer, "chart", chart="c", q=query, runs=[name]), query
    assert "error" in ask(viewer, "chart", chart="c", q="loss", on="secret", runs=[name])
    for request_ in ({"t": "turn", "name": "lr", "value": 0.5}, {"t": "call", "q": "1"}, {"t": "__class__"}, {}):
        assert "error" in viewer.handle({"id": 1, **request_})
    unsafe = ask(viewer, "chart", chart="c", q="step, loss", runs=[name], unsafe=True)
    assert "looptap web --operate" in unsafe["error"]
    assert job.run.command_records() == []
    assert settings == {"lr": 0.1}
    assert job.run.agent_stats().queries == []
    for query in ("loss", "2 * loss", "log10(loss)"):
        assert "value" in ask(viewer, "chart", chart=query, q=query, runs=[name]), query
    assert all(one.declared == "loss" for one in job.run.attached)
    viewer.close()
    assert job.run.attached == []
    job.agent.close()


def test_without_operate_a_page_learns_of_what_is_shown_and_nothing_else():
    job, _ = declared_job()
    viewer = viewed(job.run)
    facts = ask(viewer, "watch", run=job.run.name)["value"]
    assert [stream["name"] for stream in facts["streams"]] == ["loss"]
    assert {event["name"] for event in facts["events"]} <= {"batch"}
    assert facts["first"] == [{"q": "loss"}]
    assert not {"cost", "queries", "commands", "knobs", "config", "scalars", "gradient", "machine"} & set(facts)
    words = {word["word"] for word in ask(viewer, "words", run=job.run.name)["value"]}
    assert "loss" in words
    assert not {"secret", "key", "lr", "hidden"} & words
    assert "secret" not in json.dumps(facts)
    assert "hidden" not in json.dumps(facts)
    viewer.close()
    job.agent.close()


@pytest.mark.promise("web", "T4")
def test_an_owner_sees_all_of_a_run_and_no_text_becomes_a_query_of_the_job():
    job = pair("web-test", history=True)
    job.agent.stream("hidden", "step, key", on="batch")
    for step in range(20):
        job.agent.emit("batch", step=step, key=step, train_loss=1 / (1 + step))
    viewer, name = viewed(job.run, own=True), job.run.name
    facts = ask(viewer, "watch", run=name)["value"]
    assert [stream["name"] for stream in facts["streams"]] == ["hidden"]
    curve = {"q": "step, train_loss", "on": "batch", "name": "train_loss"}
    assert facts["first"][:2] == [{"q": "hidden"}, curve]
    assert "command" in dict(facts["started_with"])
    assert not {"cost", "queries", "commands", "knobs", "gradient"} & set(facts)
    for shown in (curve, {"q": "train_loss"}, {"q": "hidden"}, {"q": "2 * key"}):
        assert "value" in ask(viewer, "chart", chart=shown["q"], **shown, runs=[name]), shown
    asked = {query.name for query in job.run.agent_stats().queries}
    assert asked <= {"step, train_loss", "train_loss", "hidden"}
    for query in ("train_loss + 1", "train_loss.item()", "exit()", "lambda e: e.train_loss", "train_loss, exit()"):
        assert "error" in ask(viewer, "chart", chart="c", q=query, on="batch", runs=[name]), query
    for request_ in ({"t": "turn", "name": "lr", "value": 0.5}, {"t": "call", "q": "1"}):
        assert "error" in viewer.handle({"id": 1, **request_})
    assert {query.name for query in job.run.agent_stats().queries} == asked
    viewer.close()
    assert job.run.attached == []
    job.agent.close()


def test_who_changed_what_is_no_stream_of_a_reader():
    job, _ = declared_job()
    setter = threading.Thread(target=job.run.set, args=("lr", 0.2))
    setter.start()
    soon(lambda: job.agent.emit("batch", step=0, loss=0.5) or not setter.is_alive())
    reader, operator = viewed(job.run), viewed(job.run, operate=True)
    assert "error" in ask(reader, "chart", chart="c", q="commands", runs=[job.run.name])
    assert "value" in ask(operator, "chart", chart="c", q="commands", runs=[job.run.name])
    for viewer, shown in ((reader, {"loss"}), (operator, {"loss", "hidden", "commands"})):
        facts = ask(viewer, "watch", run=job.run.name)["value"]
        assert {one["name"] for one in facts["streams"]} == shown
        assert facts["first"][0] == {"q": "loss"}
        assert "commands" not in [one["q"] for one in facts["first"]]
        viewer.close()
    job.agent.close()


def test_what_a_reader_waits_for_and_what_fails_names_nothing_else():
    job, _ = declared_job()
    for name, query, on in (("waits", "step", "rare"), ("fails", "step, absent", "batch")):
        job.agent.stream(name, query, on=on)
        job.run.export(name)
    job.agent.emit("batch", step=20, loss=0.5, other=1)
    viewer = viewed(job.run)
    shown = []
    for name in ("waits", "fails", "loss"):
        assert "value" in ask(viewer, "chart", chart=name, q=name, runs=[job.run.name])
    for stream in job.run.attached:
        soon(lambda stream=stream: stream.error_count or stream.name != "fails")
        shown += [stream.outlook(), stream.traceback, *stream.notes, *map(str, stream.values)]
        plot = looptap.plot(stream)
        plot.pull()
        shown += [repr(picture) for picture in plot.pictures()]
    text = "\n".join(shown)
    assert "waiting for the first value of 'waits'" in text
    assert "no observable 'absent'" in text
    assert not [word for word in ("secret", "hidden", "other", "key") if word in text]
    viewer.close()
    job.agent.close()


@pytest.mark.usefixtures("processes")
def test_of_a_run_that_does_not_answer_a_reader_gets_no_reason_that_names_a_query(tmp_path, monkeypatch):
    monkeypatch.setenv("LOOPTAP_DIR", str(tmp_path))
    tmp_path.chmod(0o700)
    job = warm.Popen([sys.executable, "-c", LOOP, str(tmp_path / "held")])
    try:
        soon(looptap.runs)
        with looptap.attach("job") as run:
            run.stream("step, 43 * loss", on="batch").wait(1, timeout=60)
            seen = exported(run, config=False)
            facts = RunFacts(seen)
            (tmp_path / "held").touch()
            soon(lambda: run.state == "silent", 60, detail=lambda: repr(run))
            assert "43 * loss" in run.reason
            assert (seen.state, seen.reason) == ("silent", "")
            assert "43 * loss" not in json.dumps(facts.look())
            facts.close()
            job.kill()
            soon(lambda: run.state == "failed", 60, detail=lambda: repr(run))
            assert seen.reason == run.reason != ""
    finally:
        job.kill()
        job.wait()


def test_a_stream_that_is_no_longer_exported_ends_on_the_pages_of_readers():
    job, _ = declared_job()
    viewer = viewed(shelf=(shelf := shelf_of(job.run)))
    assert "value" in ask(viewer, "chart", chart="c", q="loss", runs=[job.run.name])
    (stream,) = job.run.attached
    job.run.export("loss", False)
    shelf.refresh()
    assert (stream.state, stream.reason) == ("ended", "it is no longer exported")
    assert "error" in ask(viewer, "chart", chart="d", q="loss", runs=[job.run.name])
    viewer.close()
    job.agent.close()


def swept(folder, rates=(0.001, 0.05, 0.1)):
    """Return stored runs, each with a rate in its config."""
    for lr in rates:
        with looptap.Agent(f"run-{lr}", store=folder, config={"lr": lr, "model": {"width": 64}}) as agent:
            agent.stream("loss", "step, loss", on="batch", keep=True)
            for step in range(40):
                agent.emit("batch", step=step, loss=2.0 - 10 * lr)
    return [looptap.open(path) for path in sorted(folder.glob("*.looptap"))]


@pytest.mark.usefixtures("processes")
def test_runs_are_a_table_that_is_filtered_and_sorted_by_expressions(tmp_path):
    runs = swept(tmp_path)
    viewer = viewed(*runs, operate=True)
    names = [run.name for run in runs]
    every = ask(viewer, "table", runs=names)["value"]
    assert every["titles"] == ["name", "state", "duration", "lr", "best(loss)", "final(loss)"]
    assert [row["key"] for row in every["rows"]] == names
    found = ask(viewer, "table", runs=names, where="lr > 0.01 and best(loss) < 1.8", sort="lr")["value"]
    assert [row["cells"][0] for row in found["rows"]] == ["run-0.05", "run-0.1"]
    assert found["all"] == 3
    down = ask(viewer, "table", runs=names, sort="best(loss)", down=True)["value"]
    assert [row["key"] for row in down["rows"]] == names
    assert ask(viewer, "table", runs=names, where="lr > 9", sort="best(loss)")["value"]["rows"] == []
    for wrong, part in (("lr <", "not an expression"), ("rate < 1", "no run has 'rate'"), ("open('x')", "no function")):
        assert part in ask(viewer, "table", runs=names, where=wrong)["error"]
    assert ask(viewer, "table", runs=["gone"])["value"]["without"] == ["There is no run 'gone' here any more."]
    assert ask(viewer, "parallel", chart="p", runs=names, sort="lr")["value"] == {"canvases": ["p.0"]}
    assert "two columns" in ask(viewer, "parallel", chart="q", runs=names, where="lr > 9")["error"]
    viewer.close()
    for run in runs:
        run.close()


@pytest.mark.usefixtures("processes")
def test_settings_scalars_and_commands_are_hidden_from_readers_until_shared(tmp_path):
    runs = swept(tmp_path)
    names = [run.name for run in runs]
    for rights, settings in (({}, []), ({"config": True}, [["lr", "0.001"], ["model.width", "64"]])):
        viewer = viewed(*runs, **rights)
        facts = ask(viewer, "watch", run=names[0])["value"]
        assert facts["config"] == settings
        assert not {"command", "directory", "environment"} & {name for name, _ in facts["started_with"]}
        assert str(tmp_path.cwd()) not in json.dumps(facts)
        titles = ask(viewer, "table", runs=names)["value"]["titles"]
        assert ("lr" in titles) == bool(settings)
        assert "best(loss)" in titles
        assert "error" in ask(viewer, "chart", chart="c", q="step", on="batch", runs=names[:1])
        assert ask(viewer, "diff")["value"] == ""
        viewer.close()
    operator = viewed(*runs, operate=True)
    facts = ask(operator, "watch", run=names[0])["value"]
    assert {"command", "directory"} <= {name for name, _ in facts["started_with"]}
    assert "value" in ask(operator, "chart", chart="c", q="step", on="batch", runs=names[:1])
    operator.close()
    for run in runs:
        run.close()


@pytest.mark.usefixtures("processes")
def test_a_config_of_a_live_run_is_shown_with_operate_and_shared_by_a_word():
    job = pair("web-test", config={"lr": 0.1})
    for rights, shown in (({"operate": True}, True), ({}, False), ({"config": True}, True)):
        viewer = viewed(job.run, **rights)
        facts = ask(viewer, "watch", run=job.run.name)["value"]
        assert facts.get("config", []) == ([["lr", "0.1"]] if shown else [])
        assert ("command" in dict(facts.get("started_with", []))) == ("operate" in rights)
        viewer.close()
    job.agent.close()


def test_an_operator_exports_a_stream_on_the_page_and_readers_may_not():
    job, _ = declared_job()
    operator, reader = viewed(job.run, operate=True), viewed(job.run)
    for viewer in (operator, reader):
        ask(viewer, "watch", run=job.run.name)
    assert "--operate" in ask(reader, "export", name="hidden", on=True)["error"]
    assert "no declared stream" in ask(operator, "export", name="nothing", on=True)["error"]
    for on in (True, False):
        assert "value" in ask(operator, "export", name="hidden", on=on)
        assert {one.name: one.exported for one in job.run.streams}["hidden"] is on
    for viewer in (operator, reader):
        viewer.close()
    job.agent.close()


def test_a_gradient_norm_is_offered_where_the_page_operates_and_no_event_has_one():
    for carried, offered in (({}, True), ({"grad_norm": 0.5}, False)):
        job = pair("web-test", history=True)
        job.agent.emit("batch", step=0, loss=0.5, **carried)
        for operate in (True, False):
            viewer = viewed(job.run, operate=operate)
            facts = ask(viewer, "watch", run=job.run.name)["value"]
            assert ("gradient" in facts) == (offered and operate)
            viewer.close()
        job.agent.close()


def test_with_operate_queries_controls_and_observables_are_there():
    job, settings = declared_job()
    viewer = viewed(job.run, operate=True)
    name = job.run.name
    facts = ask(viewer, "watch", run=name)["value"]
    assert {"cost", "commands", "knobs"} <= set(facts)
    assert "value" in ask(viewer, "chart", chart="c", q="step, 2 * loss", runs=[name])
    job.agent.emit("batch", step=20, loss=0.1)
    assert "SyntaxError" not in (error := ask(viewer, "chart", chart="d", q="step, +", runs=[name])["error"])
    assert "step, +" in error
    assert ask(viewer, "turn", name="lr", value=0.5)["value"] == {"question": ""}
    assert "factor" in ask(viewer, "turn", name="lr", value=0.001)["value"]["question"]
    assert "at its next event?" in ask(viewer, "turn", name="stop")["value"]["question"]

    def applied():
        job.agent.emit("batch", step=0, loss=0.1)
        return settings == {"lr": 0.5}

    soon(applied)
    viewer.close()
    job.agent.close()


def test_with_operate_a_query_may_be_asked_unsafe_and_is_on_record(stored):
    job, _ = declared_job()
    viewer, of_file = viewed(job.run, operate=True), viewed(stored, operate=True)
    name = job.run.name
    ask(viewer, "watch", run=name)
    for chart, how in (("c", {"unsafe": True}), ("d", {}), ("e", {"unsafe": "yes"})):
        assert "value" in ask(viewer, "chart", chart=chart, q="step, 2 * loss", runs=[name], **how)

    def listed():
        return [(row[1], row[4]) for row in viewer.facts()["commands"]]

    soon(lambda: listed() == [("unsafe step, 2 * loss", "running")])
    ask(viewer, "drop", chart="c")
    soon(lambda: listed() == [("unsafe step, 2 * loss", "ended")])
    refused = ask(of_file, "chart", chart="c", q="loss", runs=[stored.name], unsafe=True)
    assert "Only a query of a live run, asked by its operator, can be unsafe" in refused["error"]
    for one in (viewer, of_file):
        one.close()
    job.agent.close()


@pytest.mark.usefixtures("processes")
@pytest.mark.promise("web", "S7")
def test_a_viewers_file_shows_what_was_shared_also_with_operate(tmp_path, monkeypatch):
    monkeypatch.setenv("LOOPTAP_DIR", str(tmp_path))
    tmp_path.chmod(0o700)
    job = warm.Popen([sys.executable, "-c", LOOP, str(tmp_path / "held")])
    try:
        soon(looptap.runs)
        with looptap.attach("job") as run:
            soon(lambda: len(run.streams) == 2)
            soon(lambda: set(run.events()) >= {"batch", "secret"})
            run.export("loss")
            reader = viewed(run)
            facts = ask(reader, "watch", run="job")["value"]
            assert [event["name"] for event in facts["events"]] == ["batch"]
            assert "secret" not in json.dumps(facts)
            reader.close()
            shared = run.share(streams=["loss"], path=tmp_path)
            with looptap.attach(shared.path) as viewed_run:
                viewer = viewed(viewed_run, operate=True)
                facts = ask(viewer, "watch", run="job")["value"]
                assert [one["name"] for one in facts["streams"]] == ["loss"]
                assert not facts["operates"]
                assert "hidden" not in json.dumps(facts)
                for query in ("hidden", "step, loss", "batch"):
                    assert "error" in ask(viewer, "chart", chart="c", q=query, runs=["job"])
                assert "value" in ask(viewer, "chart", chart="c", q="loss", runs=["job"])
                assert "error" in ask(viewer, "turn", name="stop")
                viewer.close()
    finally:
        job.kill()
        job.wait()


HOSTILE = [
    "__import__('os').system('true')", "loss.__class__", "(lambda: 1)()", "[loss for loss in ()]", "open('x')",
    "loss if loss else 1", "f'{loss}'", "loss := 1", "loss and 1", "print(loss)", "abs(*loss)", "abs(x=loss)",
    "'a' * 9", "loss[0]", "1 + 2", "(" * 150, "-" * 290 + "loss",
    "loss\nimport os", "{loss}", "events", "values", "v.loss", "max", "True", "loss + 1e999",
    f"loss + 0x{'f' * 280}",
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_an_expression_of_a_reader_is_arithmetic_and_nothing_else(text):
    with pytest.raises(QueryError):
        reader_query(text, [ReadableStream("loss", ("step", "loss"))])


def test_a_median_of_a_reader_slides_over_few_values():
    streams = [ReadableStream("loss", ("step", "loss"))]
    assert reader_query("median(loss)", streams, sliding(1_000))
    with pytest.raises(QueryError, match="at most, not 1,001"):
        reader_query("median(loss)", streams, sliding(1_001))


def test_an_expression_of_a_reader_is_written_of_few_words_and_bounded(stored):
    streams = [ReadableStream("loss", ("step", "loss"))]
    texts = ["9 ** 9 ** 9 ** loss", "max(loss, 1e300) ** 99999", "1 / loss // 0 % 2 < 3 <= loss", "-(loss - -1)"]
    for text in texts:
        written = reader_query(text, streams).query
        names = {node.id for node in ast.walk(ast.parse(written)) if isinstance(node, ast.Name)}
        assert names <= {"v", "float", "max", "math"}
        begun = time.process_time()
        stored.streams[0].query(written).close()
        assert time.process_time() - begun < 30  # integers of this size would take longer than the universe has been
    derived = stored.streams[0].query(reader_query("2 * loss", streams).query)
    assert derived.values[1] == (1, 1.0)


# ---------------------------------------------------------------- what a viewer costs


class Fed(Stream):
    """A stream that grows as fast as it is read, until it is closed."""

    def __init__(self, name, width=500):
        super().__init__(name, fields=("step", name), buffer=20_000)
        self.width = width
        self.ended = threading.Event()
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        from array import array

        from looptap.streams.stream.buffer import Batch

        number = 1
        while not self.ended.wait(0.005):
            rows = [(number + i, 0.5) for i in range(self.width)]
            events = array("q", range(number, number + self.width))
            self.publish(Batch(number, events, array("d", bytes(8 * self.width)), rows))
            number += self.width


@pytest.fixture
def fed():
    stream = Fed("loss")
    yield Shown([stream])
    stream.ended.set()


@pytest.mark.promise("web", "S12")
def test_a_viewer_that_acknowledges_and_never_reads_is_bounded_and_hinders_no_other(monkeypatch):
    monkeypatch.setattr(viewer_link, "STALLED_AFTER_SECONDS", 600.0)  # longer than the test on a busy machine
    monkeypatch.setattr(web_server, "PING_INTERVAL_SECONDS", 600.0)
    stream = Fed("loss", width=4000)
    with contextlib.ExitStack() as stack:
        stack.callback(stream.ended.set)
        server = stack.enter_context(serving(Shown([stream])))
        good, bad = Peer(server, "viewer-good"), Peer(server, "viewer-bad", buffer=4096)
        stack.callback(good.close)
        stack.callback(bad.close)
        assert good.draw("loss", "shown")["value"] == {"canvases": ["c1.0"]}
        bad.draw("loss", "shown")
        while not good.frames:
            good.read()
        process = psutil.Process()
        link = server.viewers.connections["viewer-bad"].link
        lie = {"t": "canvas", "canvas": "c1.0", "message": {"t": "ack", "page": "test", "n": 1 << 40}}
        soon(lambda: link.unsent > 0 or bad.say(lie))
        most, memory = 0, []
        for frames in (100, 200):  # after a hundred, both charts keep as many points as they may
            count = len(good.frames)
            while len(good.frames) < count + frames:
                for peer in (good, bad):
                    peer.say(lie)
                good.read()
                most = max(most, link.unsent)
            memory.append(process.memory_info().rss)
        assert 0 < most < SLOT_BYTES + 16 * 100_000 + 100_000
        assert memory[1] - memory[0] < 64e6


def test_streams_of_a_viewer_that_is_gone_are_closed_and_two_viewers_share_a_query(monkeypatch):
    monkeypatch.setattr(page_connection, "VIEWER_KEPT_SECONDS", 0.2)
    job, _ = declared_job()
    with serving(job.run, operate=True) as server:
        one, two = Peer(server, "viewer-one"), Peer(server, "viewer-two")
        for peer in (one, two):
            assert "value" in peer.draw("step, 3 * loss", job.run.name)
        assert len(job.run.attached) == 1
        one.close()
        soon(lambda: list(server.viewers.connections) == ["viewer-two"])
        assert len(job.run.attached) == 1
        two.say({"t": "bye"})
        gone(server)
        soon(lambda: not job.run.attached)
        soon(lambda: not job.run.agent_stats().queries)
        two.close()
    job.agent.close()


def test_a_viewer_that_comes_back_finds_its_charts(fed):
    with serving(fed) as server:
        peer = Peer(server)
        peer.draw("loss", "shown")
        viewer = server.viewers.connections["viewer-of-a-test"].viewer
        peer.close()
        soon(lambda: not server.viewers.connections["viewer-of-a-test"].link.connected)
        again = Peer(server)
        assert again.until("hello")["charts"] == ["c1"]
        again.say({"t": "canvas", "canvas": "c1.0", "message": {"t": "ready", "page": "test"}})
        while not again.frames:
            again.read()
        assert parts_of(again.frames[0])[1]["full"]
        assert server.viewers.connections["viewer-of-a-test"].viewer is viewer
        again.close()


def test_only_facts_that_have_changed_are_sent_again():
    job, _ = declared_job()
    with serving(job.run, operate=True) as server:
        peer = Peer(server)
        peer.until("hello")
        (run,) = peer.until("runs")["runs"]
        peer.ask("watch", run=run["key"])
        every = peer.until("facts")["facts"]
        assert {"key", "name", "streams", "config", "knobs"} <= set(every)
        job.agent.stream("late", "step, loss", on="batch")
        while "streams" not in (news := peer.until("facts")["facts"]):
            pass
        assert news["key"] == every["key"]
        assert "late" in [one["name"] for one in news["streams"]]
        assert not {"name", "where", "config"} & set(news)
        peer.close()
    job.agent.close()


def test_a_page_of_a_job_that_declares_nothing_has_its_loss_without_waiting_for_a_second_look():
    job = pair("plain", history=True)
    for step in range(50):
        job.agent.emit("batch", step=step, loss=1 / (1 + step))
    with serving(job.run, operate=True) as server:
        peer = Peer(server)
        peer.until("hello")
        (run,) = peer.until("runs")["runs"]
        first = peer.ask("watch", run=run["key"])["value"]["first"][0]  # what it opens with comes with the first reply
        assert first == {"q": "step, loss", "on": "batch", "name": "loss"}
        peer.draw(first["q"], run["key"], on=first["on"], name=first["name"])
        while not peer.frames:
            peer.read()
        _, message, columns = parts_of(peer.frames[0])  # and the first frame begins with the first event
        assert message["full"]
        assert struct.unpack("<d", columns[:8]) == (0.0,)
        peer.close()
    job.agent.close()


def test_a_page_that_opens_gets_a_short_form_first_and_then_all(stored):
    count = 60_000
    long = Shown([stream_of([(i, i % 7) for i in range(count)], fields=("step", "loss"), name="loss")])
    with serving(long) as server:
        peer = Peer(server)
        peer.draw("loss", "shown")
        while len(peer.frames) < 2:
            peer.read()
        peer.close()
        assert len(peer.frames[0]) < 250_000
        assert len(peer.frames[1]) > 2 * 8 * count


def ended(peer):
    """Read until the connection ends."""
    with contextlib.suppress(OSError):
        while peer.read() is not None:
            pass
    return True


def test_viewers_requests_and_messages_are_bounded(stored, monkeypatch):
    monkeypatch.setattr(page_connection, "VIEWER_KEPT_SECONDS", 0.2)
    with serving(stored) as server:
        peers = [Peer(server, f"viewer-{i:04}") for i in range(MAX_VIEWERS)]
        for peer in peers:
            peer.until("hello")
        late = Peer(server, "viewer-late")
        assert ended(late)
        held = threading.Event()
        monkeypatch.setattr(
            server.viewers.connections["viewer-0000"].viewer, "handle", lambda message: held.wait(300) or {}
        )
        for number in range(MAX_WAITING_REQUESTS_COUNT + 3):
            peers[0].say({"t": "words", "id": number})
        assert ended(peers[0])
        held.set()
        peers[1].socket.sendall(b"\x81\xff" + (1 << 40).to_bytes(8, "big") + bytes(4))
        assert ended(peers[1])
        for strange in ({"t": "canvas", "canvas": 1, "message": {"t": []}}, {"t": {}, "id": []}, {"t": "canvas"}):
            peers[2].say(strange)
        assert peers[2].ask("table")["value"]["rows"] == []
        for peer in (*peers, late):
            peer.close()


@pytest.mark.usefixtures("processes")
def test_the_command_prints_its_address_and_ends_on_a_signal(tmp_path, monkeypatch):
    monkeypatch.setenv("LOOPTAP_DIR", str(tmp_path))
    tmp_path.chmod(0o700)
    with program() as web:
        assert request(web.port, f"/?token={web.url.partition('=')[2]}")[0] == 200
        assert web.url.partition("=")[2] not in " ".join(psutil.Process(web.process.pid).cmdline())
    assert web.process.returncode == 0


HEAVY = [
    "round(1, -999999999)", "round(lr, -999999999)", "lr**9999**9999", "9**9**9**9", "loss**9999**9999",
    "+" * 300 + "lr", "*".join(["9" * 20] * 80), "-" * 1999 + "1", "(" * 1999, "x" * 1999, "1 if lr else " * 90 + "1",
]  # fmt: skip


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("role", [[], ["--operate"]], ids=["viewer", "operate"])
def test_no_expression_keeps_the_server_from_others_or_from_its_end(tmp_path, capfd, role):
    for lr in (0.1, 10**300):
        with looptap.Agent(f"run-{lr:.0e}", store=tmp_path, config={"lr": lr}) as agent:
            agent.stream("loss", "step, loss", on="batch", keep=True)
            for step in range(2_000):
                agent.emit("batch", step=step, loss=2.0 + step)
    files = sorted(map(str, tmp_path.glob("*.looptap")))
    with program("--config", *role, *files) as web:
        one, two = Peer(web, "viewer-one"), Peer(web, "viewer-two")
        runs = [run["key"] for run in one.until("runs")["runs"]]
        count = 0

        def say(kind, **about):
            nonlocal count
            count += 1
            one.say({"t": kind, "id": count, "chart": kind, "runs": runs, **about})
            assert "value" in two.ask("table", runs=runs)  # asked and answered meanwhile
            while one.until("reply")["id"] != count:
                pass

        for text in HEAVY:
            for kind, part in (("table", "sort"), ("table", "where"), ("parallel", "sort")):
                say(kind, **{part: text})
            for window in ("", "sliding 1000"):
                say("chart", q=text, window=window)
        for window in ("sliding 1000000", "9" * 300, "1e999s", "sliding 1000"):
            say("chart", q="median(loss)", window=window)
        for peer in (one, two):
            peer.close()
    assert web.process.returncode == 0
    assert "Traceback" not in capfd.readouterr().err


def test_without_tornado_the_command_says_what_to_install(monkeypatch, capsys):
    from looptap.cli.commands.watching import web

    for name in [name for name in sys.modules if name.startswith("looptap.visualizers.surfaces.web.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tornado", None)
    for name in [name for name in sys.modules if name.startswith("tornado.")]:
        monkeypatch.delitem(sys.modules, name)
    assert web.web_command() != 0
    assert "looptap web needs the package tornado: pip install 'looptap[web]'" in capsys.readouterr().err


def test_a_name_of_the_page_means_what_it_means_elsewhere_and_ended_runs_hide_none(monkeypatch):
    from looptap.cli import page_runs

    entries = [
        ShelfEntry(key, name, "live", "live", lambda: None, problem=problem)
        for key, name, problem in (("a-1", "a", ""), ("a-2", "a", ""), ("ab-3", "ab", ""), ("ab", "c", "it has ended"))
    ]
    monkeypatch.setattr(page_runs.PageRuns, "_every", lambda self: entries)
    for name, keys in (
        ("a", ["a-1", "a-2"]),
        ("a-1", ["a-1"]),
        ("a*", ["a-1", "a-2", "ab-3", "ab"]),
        ("ab-", ["ab-3"]),
        ("ab", ["ab-3"]),
        ("c", ["ab"]),
    ):
        assert [one.key for one in page_runs.PageRuns([name])()] == keys
    with pytest.raises(looptap.NoSuchRun):
        page_runs.PageRuns(["nothing"])


def test_a_shelf_counts_changes_and_names_what_is_not_there():
    listed = [ShelfEntry("a", "a", "live", "live", lambda: Shown([]))]
    shelf = RunShelf(lambda: list(listed))
    shelf.refresh()
    version = shelf.version
    shelf.refresh()
    assert shelf.version == version
    listed.clear()
    shelf.refresh()
    assert shelf.version == version + 1
    with pytest.raises(looptap.LooptapError, match="no run 'a' here"):
        shelf.open("a")


def test_each_curve_that_a_page_opens_with_is_shown_to_the_owner():
    own = pair("own", history=True)
    model = torch.nn.Linear(2, 1)
    own.agent.expose(optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    for step in range(4):
        own.agent.emit("batch", loss=0.5 + step)
        own.beat()
    seen = exported(own.run, config=False, own=True)
    curves = {curve.name: seen.curve(curve.query, curve.on) for curve in first_curves(seen.scalars)}
    assert {"loss", "optimizer.lr"} <= {*curves}
    assert None not in curves.values()
