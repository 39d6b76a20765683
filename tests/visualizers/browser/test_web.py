"""The page of `looptap web` in a real browser, as its users see it."""

import contextlib
import math
import re
import socket
import subprocess
import sys

import pytest
import warm
from lab import INK, LAST, SHOTS, beside_a_job
from programs import UNTESTED
from relays import Proxy
from ssh_server import over_ssh
from waiting import soon
from web_pages import program, stripping_proxy, until

import looptap
from looptap.visualizers.data.colors import DARK, LIGHT

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]
PATIENCE = 120_000
HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"
TOO_WIDE = """() => document.documentElement.scrollWidth <= innerWidth ? [] :
  [...document.querySelectorAll('body *')].filter((el) => el.getBoundingClientRect().right > innerWidth + 1)
  .map((el) => `${el.tagName} ${el.id} ${el.className} ${Math.round(el.getBoundingClientRect().right)}`).slice(0, 8)"""
CUT = """() => [...document.querySelectorAll('#panel label, #commands :is(div, td), #cost :is(div, td)')]
  .filter((el) => el.scrollWidth > el.clientWidth + 1).map((el) => `${el.tagName} ${el.textContent.slice(0, 60)}`)"""
ORDER = "[...document.querySelectorAll('#table td:first-child')].map((el) => el.textContent)"
HAS_POINTS = """(title) => [...document.querySelectorAll('#charts article')].some((el) =>
  el.querySelector('.asked').textContent === title
  && [...(el.querySelector('.looptap')?.looptap.columns.values() ?? [])][0]?.view.length > 1)"""
TRAINING = """
import looptap, time, torch
model = torch.nn.Linear(4, 1)
agent = looptap.Agent("trained", config={"lr": 0.05})
optimizer = torch.optim.SGD(model.parameters(), 0.05)
agent.expose(model=model, optimizer=optimizer)
agent.stream("shown", "step, train_loss"), agent.stream("hidden", "step, 2 * train_loss")
for step in range(100_000):
    model.zero_grad()
    loss = model(torch.ones(8, 4)).square().mean()
    loss.backward()
    agent.emit("batch", step=step, train_loss=loss)
    time.sleep(0.01)
"""
DRAWN = "(count) => [...document.querySelectorAll('.looptap')].filter((el) => el.looptap.draws).length === count"


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    with beside_a_job(tmp_path_factory.mktemp("runs")):
        with looptap.attach("job") as run:
            soon(lambda: exported(run, "loss"))
        yield


def exported(run, name):
    """Export what events carry; None before the first of them."""
    with contextlib.suppress(looptap.QueryError):
        return run.export(name)


@pytest.fixture(scope="module")
def operating(job):
    with program("--operate") as web:
        yield web


@pytest.fixture(scope="module")
def reading(job):
    with program("--shared") as web:
        yield web


@pytest.fixture
def opened(browser, request):
    """Return a function that opens the page; no script and no policy may fail."""
    problems, contexts = [], []

    def open(url, *, width=1280, height=800, scheme="light", hash=""):
        contexts.append(browser.new_context(color_scheme=scheme, viewport={"width": width, "height": height}))
        page = contexts[-1].new_page()
        page.set_default_timeout(PATIENCE)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: (problems.append(dialog.message), dialog.dismiss()))
        page.on(
            "console", lambda message: problems.append(message.text) if "Content Security" in message.text else None
        )
        page.goto(url + hash)
        until(page, "document.body.dataset.link === 'there'")
        return page

    yield open
    if getattr(request.node, "failed", False) or problems:
        SHOTS.mkdir(exist_ok=True)
        for number, context in enumerate(contexts):
            context.pages[0].screenshot(path=SHOTS / f"{request.node.name}-{number}.png")
    for context in contexts:
        context.close()
    assert problems == []


def charts(page, count):
    """Wait until ``count`` charts have been drawn."""
    until(page, DRAWN, arg=count)


def grows(page, chart=0):
    """Wait until a chart has a newer last x."""
    until(page, f"(i) => ({LAST})(i) !== null", arg=chart)
    before = page.evaluate(LAST, chart)
    until(page, f"([i, x]) => ({LAST})(i) > x", arg=[chart, before])


def ask(page, query):
    """Type a query and draw it."""
    page.locator("#query").fill(query)
    page.get_by_role("button", name="Draw", exact=True).click()


def test_the_page_opens_with_the_run_and_its_declared_streams_and_they_grow(opened, reading):
    page = opened(reading.url)
    charts(page, 1)
    grows(page)
    assert page.url.startswith(reading.origin + "/")
    assert "token" not in page.url
    assert page.locator("#name").inner_text() == "job"
    assert page.locator("#mode").inner_text() == "read-only"
    assert "--operate" in page.locator("#note").inner_text()
    assert page.locator("#panel, #commands, #cost").locator("visible=true").count() == 0
    ask(page, "step, loss")
    until(page, "!document.getElementById('error').hidden")
    assert "--operate" in page.locator("#error").inner_text()
    ask(page, "log10(abs(loss))")
    charts(page, 2)
    grows(page, 1)


DEAD = "import looptap, time; agent = looptap.Agent('dead'); print('up', flush=True); time.sleep(600)"


def test_the_page_opens_on_the_newest_run_that_is_alive_and_says_what_a_viewer_sees(opened, tmp_path_factory):
    with beside_a_job(tmp_path_factory.mktemp("runs")):
        with warm.Popen([sys.executable, "-c", DEAD], stdout=subprocess.PIPE, text=True) as dead:
            assert dead.stdout.readline() == "up\n"
            dead.kill()
        with program("--shared") as web:
            page = opened(web.url)
            until(page, "[...document.querySelectorAll('#runs li')].some((one) => one.textContent.includes('dead'))")
            until(page, "document.getElementById('name').textContent === 'job'")
            page.locator("#empty").get_by_text("Nothing of this run is shared so far.").wait_for()
            with looptap.attach("job") as run:
                soon(lambda: "loss" in [one.name for one in run.scalars], 300)
                run.export("loss")
            charts(page, 1)


def test_a_query_is_typed_with_completion_and_an_error_stands_under_the_field(opened, operating):
    page = opened(operating.url)
    charts(page, 1)
    until(page, "+document.body.dataset.words > 10")
    field, words = page.locator("#query"), page.locator("#words")
    field.press_sequentially("step, lo")
    words.get_by_text("loss").first.wait_for()
    field.press("Tab")
    assert field.input_value() == "step, loss"
    assert words.is_hidden()
    field.press_sequentially(", layer_n")
    words.get_by_text("layer_norms").wait_for()
    field.press("ArrowDown")
    assert field.get_attribute("aria-activedescendant") == "word-0"
    field.press("Escape")
    field.fill("step, 2 * loss")
    field.press("Enter")
    charts(page, 2)
    grows(page, 1)
    assert field.input_value() == ""
    for query, part in (("step, +", "step, +"), ("lss", "loss"), ("1 / (step - step)", "ZeroDivisionError")):
        ask(page, query)
        until(page, "(part) => document.getElementById('error').textContent.includes(part)", arg=part)
        assert field.input_value() == query
    charts(page, 2)
    page.get_by_role("button", name="Remove step, 2 * loss").click()
    charts(page, 1)


def test_a_query_is_unsafe_by_a_switch_and_an_address_never_draws_it_without_a_click(opened, operating, reading):
    page = opened(operating.url)
    charts(page, 1)
    switch = page.get_by_label("unsafe")
    assert not switch.is_checked()
    switch.check()
    ask(page, "step, 3 * loss")
    charts(page, 2)
    assert not switch.is_checked()
    page.locator("#commands").get_by_text("unsafe step, 3 * loss").wait_for()
    page.reload()  # this browser has drawn it, and asks all the same
    page.locator("article.waiting .hint").get_by_text("unsafe: runs as it is, even if it may change the job").wait_for()
    assert "may change the job" in page.locator("#waiting").inner_text()
    charts(page, 1)
    page.locator("article.waiting").get_by_role("button", name="Draw", exact=True).click()
    charts(page, 2)
    page.get_by_role("button", name="Remove step, 3 * loss").click()
    charts(page, 1)
    assert opened(reading.url).locator("#for-unsafe").is_hidden()


def test_the_address_has_the_state_and_brings_it_back(opened, operating):
    page = opened(operating.url)
    charts(page, 1)
    page.locator("#window").fill("20")
    ask(page, "mean(e.loss for e in events)")
    charts(page, 2)
    page.locator("#x").select_option("time")
    charts(page, 2)
    address = page.url
    page.reload()  # this browser has drawn them
    charts(page, 2)
    again = opened(operating.url, hash=address[address.index("#") :])
    again.locator("article.waiting code").nth(1).wait_for()
    assert again.locator("article.waiting code").all_inner_texts() == ["loss", "mean(e.loss for e in events)"]
    again.get_by_role("button", name="Draw all").click()
    charts(again, 2)
    assert again.locator("article.waiting, #waiting:not([hidden])").count() == 0
    until(again, "document.querySelectorAll('.looptap')[1].looptap.layout.x.title.includes('s')")
    assert again.locator(".asked").all_inner_texts() == ["loss", "mean(e.loss for e in events) · window 20"]
    assert again.locator("#x").input_value() == "time"


def test_controls_are_turned_with_their_outcome_and_a_stop_is_asked_about(opened, operating):
    page = opened(operating.url)
    factor = page.locator("#panel .row").filter(has_text="echo.factor")
    factor.wait_for()
    slider = factor.locator("input")
    slider.focus()
    with looptap.attach("job") as run:
        before = run.controls["echo.factor"].value
        slider.press("ArrowRight" if before < 16 else "ArrowLeft")
        page.locator("#commands").get_by_text("echo.factor").first.wait_for()
        assert run.controls["echo.factor"].value != before
        run.set("echo.factor", 15)
        until(page, "document.querySelector('#knob-echo\\\\.factor').value === '15'")
        slider.fill("1")
        slider.dispatch_event("change")
        factor.get_by_role("button", name="No").click()
        assert run.controls["echo.factor"].value == 15
        stop = page.locator("#panel .command").filter(has=page.get_by_role("button", name="stop"))
        stop.get_by_role("button", name="stop").click()
        stop.get_by_role("button", name="No").click()
        assert not any(one.what == "stop" for one in run.command_records())
        page.locator("#panel").get_by_role("button", name="trigger evaluate").click()
        page.locator("#commands").get_by_text("trigger evaluate").first.wait_for()


def test_a_learning_rate_of_ten_thousand_times_is_asked_about_and_taken_back(opened, tmp_path, monkeypatch):
    tmp_path.chmod(0o700)
    monkeypatch.setenv("LOOPTAP_DIR", str(tmp_path))
    job = warm.Popen([sys.executable, "-c", TRAINING])
    try:
        soon(looptap.runs)
        with program("--operate") as web, looptap.attach("trained") as run:
            page = opened(web.url)
            row = page.locator("#panel .row").filter(has_text="optimizer.lr")
            row.locator("input").fill("500")
            row.locator("input").press("Enter")
            row.get_by_text("a factor of 10,000").wait_for()
            assert run.controls["optimizer.lr"].value == 0.05
            row.get_by_role("button", name="Yes").click()
            soon(lambda: run.controls["optimizer.lr"].value == 500)
            page.locator("#panel .command").get_by_role("button", name="undo").click()
            soon(lambda: run.controls["optimizer.lr"].value == 0.05)
            page.locator("#commands").get_by_text("undo optimizer.lr").wait_for()
            page.locator("#panel").get_by_text("optimizer.weight_decay").wait_for()
            assert page.evaluate(CUT) == []
    finally:
        job.kill()
        job.wait()


def test_a_lost_connection_is_restored_with_its_charts(opened, operating):
    page = opened(operating.url)
    charts(page, 1)
    ask(page, "step, 3 * loss")
    charts(page, 2)
    page.evaluate("window.before = [...document.querySelectorAll('.looptap')]")
    with looptap.attach("job") as run:
        page.evaluate("(window.old = looptap.link.socket).close()")
        until(page, "looptap.link.socket !== old && document.body.dataset.link === 'there'")
        grows(page, 0)
        grows(page, 1)
        assert page.evaluate("before.every((el, i) => document.querySelectorAll('.looptap')[i] === el)")
        assert [one.name for one in run.agent_stats().queries].count("step, 3 * loss") == 1


def test_a_server_that_was_started_again_says_that_its_address_is_another(opened, job):
    with program() as first:
        page = opened(first.url)
        charts(page, 1)
        port = first.port
    with program(port=port):
        page.get_by_text("open the address that it has printed").wait_for()


def test_two_viewers_have_their_own_and_a_slow_one_hinders_no_other(opened, operating):
    one, two = opened(operating.url), opened(operating.url, scheme="dark")
    charts(one, 1)
    charts(two, 1)
    ask(one, "step, 4 * loss")
    charts(one, 2)
    charts(two, 1)
    two.evaluate("setTimeout(() => { const end = performance.now() + 3000; while (performance.now() < end); }, 0)")
    grows(one, 0)
    grows(one, 1)
    grows(one, 1)
    grows(two)


def test_without_its_token_the_page_asks_for_it_and_a_tab_keeps_it(browser, operating):
    page = browser.new_context().new_page()
    reply = page.goto(operating.origin + "/?token=wrong")
    assert (reply.status, "not the token" in page.locator("body").inner_text()) == (403, True)
    page.goto(operating.origin + "/#x=time")
    field, says = page.locator("#token"), page.locator("#door p")
    says.get_by_text("open the whole address").wait_for()
    assert page.locator("nav, #ask, #facts").locator("visible=true").count() == 0
    field.fill("wrong")
    field.press("Enter")
    says.get_by_text("not the token of the server").wait_for()
    field.fill(operating.url)
    field.press("Enter")
    charts(page, 1)
    assert page.locator("#door").is_hidden()
    assert page.locator("#x").input_value() == "time"  # what the address said is kept
    page.reload()
    charts(page, 1)
    other = page.context.new_page()
    other.goto(operating.origin + "/")
    other.locator("#token").wait_for()
    assert other.evaluate("Object.values(sessionStorage).join('')") == ""
    other.goto(operating.url)
    charts(other, 1)
    assert page.context.cookies() == []
    page.context.close()


def test_the_file_that_opens_the_page_leads_to_it(browser, job, tmp_path, monkeypatch):
    script = tmp_path / "browser"
    script.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/opened.part\nmv {tmp_path}/opened.part {tmp_path}/opened\n')
    script.chmod(0o700)
    monkeypatch.setenv("BROWSER", str(script))
    with program("--open") as web:
        soon((tmp_path / "opened").exists)
        page = browser.new_context().new_page()
        page.goto((tmp_path / "opened").read_text().strip())
        page.wait_for_url(f"{web.origin}/#**")
        until(page, "document.body.dataset.link === 'there'")
        charts(page, 1)
        page.context.close()


def test_a_filter_from_an_address_waits_for_apply(opened, tmp_path):
    for lr in (0.001, 0.1):
        with looptap.Agent(f"run-{lr}", store=tmp_path, config={"lr": lr}) as agent:
            agent.stream("acc", "step, acc", on="batch", keep=True)
            for step in range(20):
                agent.emit("batch", step=step, acc=1 - math.exp(-lr * step))
    with program("--operate", *map(str, sorted(tmp_path.glob("*.looptap")))) as web:
        page = opened(web.url)
        page.get_by_role("button", name="Tick all").click()
        page.locator("#table td").first.wait_for()
        address = page.url + "&where=lr+%3C+0.05&sort=lr"
        page.goto("about:blank")
        page.goto(address)
        page.locator("#table").get_by_text("come from the address").wait_for()
        assert (page.locator("#filter").input_value(), page.locator("#order").input_value()) == ("lr < 0.05", "lr")
        assert page.locator("#table tr:has(td)").count() == 2
        page.get_by_role("button", name="Apply").click()
        page.locator("#table").get_by_text("1 of 2 runs").wait_for()
        page.reload()
        page.locator("#table").get_by_text("1 of 2 runs").wait_for()
        page.goto("about:blank")
        page.goto(address)  # applied before
        page.locator("#table").get_by_text("1 of 2 runs").wait_for()
        page.goto(address.replace("0.05", "0.06"))
        page.locator("#table").get_by_text("come from the address").wait_for()
        page.locator("#table th button").get_by_text("best(acc)").click()  # a click on a title does not filter
        until(page, "document.getElementById('filter').value === ''")
        page.locator("#table").get_by_text("2 of 2 runs").wait_for()


def test_the_page_works_below_a_prefix_and_behind_a_proxy_that_strips_it(opened, job):
    with program("--base-url", "/user/me/tap") as web:
        charts(opened(web.url), 1)
    with program() as web, stripping_proxy(web.port, "/proxy/9") as port:
        token = web.url.partition("?")[2]
        page = opened(f"http://localhost:{port}/proxy/9/?{token}")
        charts(page, 1)
        grows(page)


def test_the_page_works_through_a_forwarded_port_and_over_ssh(opened, job, tmp_path):
    with program() as web:
        token = web.url.partition("?")[2]
        with Proxy(f"tcp://127.0.0.1:{web.port}") as relay:
            page = opened(f"http://localhost:{relay.endpoint.rpartition(':')[2]}/?{token}")
            charts(page, 1)
            grows(page)
        with over_ssh(web.port, tmp_path) as port:
            page = opened(f"http://localhost:{port}/?{token}")
            charts(page, 1)
            grows(page)


def test_the_page_works_on_the_loopback_of_ipv6(opened, job):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"IPV6 IS {UNTESTED}: {error}")
    with program("--host", "::1") as web:
        assert web.url.startswith("http://[::1]:")
        page = opened(web.url)
        charts(page, 1)
        grows(page)


@pytest.mark.promise("web", "S9")
def test_names_of_a_job_are_text_and_never_html(opened, tmp_path):
    with looptap.Agent(HOSTILE[:28], store=tmp_path) as agent:
        agent.stream(HOSTILE, "step, loss", on="batch", keep=True)
        for step in range(30):
            agent.emit("batch", step=step, loss=math.exp(-step))
    (file,) = tmp_path.glob("*.looptap")
    with program(str(file)) as web:
        page = opened(web.url)
        charts(page, 1)
        assert page.locator("img, main script").count() == 0
        assert page.locator("#name").inner_text() == HOSTILE[:28]
        assert HOSTILE[:20] in page.locator(".asked").inner_text()


def test_stored_runs_are_compared_on_shared_axes_with_final_and_best_values(opened, tmp_path):
    for name, rate in (("slow", 0.1), ("fast", 0.3)):
        with looptap.Agent(name, store=tmp_path) as agent:
            agent.stream("loss", "step, loss", on="batch", keep=True)
            for step in range(40):
                agent.emit("batch", step=step, loss=math.exp(-rate * step))
    with program(*map(str, sorted(tmp_path.glob("*.looptap")))) as web:
        page = opened(web.url)
        charts(page, 1)
        for box in page.locator("nav input").all():
            box.check()
        until(page, "document.querySelector('.looptap')?.looptap.layout?.panels[0].marks.length === 2")
        page.locator("#table td").get_by_text("fast").wait_for()
        assert page.locator("#name").inner_text() == "2 runs compared"
        assert len(re.findall("run=", page.url)) == 2
        page.go_back()
        until(page, "document.getElementById('name').textContent !== '2 runs compared'")


def test_runs_of_a_sweep_are_sorted_filtered_drawn_across_axes_and_kept(opened, tmp_path):
    for lr in (0.001, 0.01, 0.1):
        with looptap.Agent(f"run-{lr}", store=tmp_path, config={"lr": lr}) as agent:
            agent.stream("acc", "step, acc", on="batch", keep=True)
            for step in range(40):
                agent.emit("batch", step=step, acc=1 - math.exp(-lr * step))
    with program("--operate", *map(str, sorted(tmp_path.glob("*.looptap")))) as web:
        page = opened(web.url)
        page.get_by_role("button", name="Tick all").click()
        rows, cells = page.locator("#table tr:has(td)"), page.locator("#table td:first-child")
        rows.nth(2).wait_for()
        page.locator("#filter").fill("lr < 0.05 and rate > 1")
        page.get_by_role("button", name="Apply").click()
        page.locator("#table").get_by_text("no run has 'rate'").wait_for()
        page.locator("#filter").fill("lr < 0.05 and best(acc) > 0.01")
        page.get_by_role("button", name="Apply").click()
        page.locator("#table").get_by_text("2 of 3 runs").wait_for()
        assert page.locator("#table [role=alert]").is_hidden()
        for order in (["run-0.01", "run-0.001"], ["run-0.001", "run-0.01"]):
            page.locator("#table th button").get_by_text("best(acc)").click()
            until(page, f"{ORDER}.join() === '{','.join(order)}'")
        assert page.locator("#table th[aria-sort=descending]").inner_text().startswith("best(acc)")
        page.get_by_role("button", name="Parallel coordinates", exact=True).click()
        across = "document.querySelector('#table .looptap')?.looptap.layout"
        until(page, f"{across}?.x.ticks.map(([, name]) => name).join() === 'lr,best(acc)'")
        address = page.url
        again = opened(web.url, hash=address[address.index("#") :])
        again.get_by_role("button", name="Apply").click()
        again.locator("#table").get_by_text("2 of 3 runs").wait_for()
        until(again, f"{across}?.x.ticks.length === 2")
        assert again.locator("#filter").input_value() == "lr < 0.05 and best(acc) > 0.01"
        assert again.locator("#table td:first-child").all_inner_texts() == cells.all_inner_texts()
        page.get_by_role("button", name="Keep only these").click()
        page.get_by_text("2 runs compared").wait_for()
        rows.first.get_by_role("button").click()
        until(page, "document.getElementById('name').textContent === 'run-0.001'")
        assert page.locator("#table").is_hidden()


def test_a_page_without_charts_says_why_to_the_owner_of_the_run_and_to_a_viewer(opened, tmp_path, monkeypatch):
    tmp_path.chmod(0o700)
    monkeypatch.setenv("LOOPTAP_DIR", str(tmp_path))
    with looptap.Agent("quiet") as agent, program() as web, program("--shared") as shown:
        agent.emit("batch")
        page, other = opened(web.url), opened(shown.url)
        page.locator("#empty").get_by_text("This run has emitted no numbers so far. They appear here").wait_for()
        other.locator("#empty").get_by_text("Nothing of this run is shared so far.").wait_for()
        agent.emit("batch", loss=0.5)
        charts(page, 1)
        page.get_by_role("button", name="Remove loss").click()
        page.locator("#empty").get_by_text("Type the name of a stream above, such as: loss").wait_for()
        assert other.locator("#empty").inner_text().startswith("Nothing of this run is shared so far.")


def test_a_second_browser_sees_what_the_page_exports_and_one_click_asks_for_a_gradient_norm(
    opened, tmp_path, monkeypatch
):
    tmp_path.chmod(0o700)
    monkeypatch.setenv("LOOPTAP_DIR", str(tmp_path))
    job = warm.Popen([sys.executable, "-c", TRAINING])
    try:
        soon(looptap.runs)
        with program("--operate") as web, program("--shared") as shown:
            page, other = opened(web.url), opened(shown.url)
            page.locator("#config").get_by_text("0.05").wait_for()
            page.locator("#started").get_by_text("command").wait_for()
            page.get_by_role("button", name="Gradient norm").click()
            until(page, HAS_POINTS, arg="gradient norm")
            assert page.locator("#offers").is_hidden()
            other.locator("#empty").get_by_text("Nothing of this run is shared so far.").wait_for()
            page.get_by_label("Show shown to viewers").check()
            charts(other, 1)
            assert other.locator(".asked").all_inner_texts() == ["shown"]
            text = other.locator("body").inner_text()
            assert not [word for word in ("hidden", "0.05", "train_loss", "Config", "Gradient") if word in text]
    finally:
        job.kill()
        job.wait()


def test_a_job_that_declares_nothing_opens_with_its_curves_from_the_first_event_on(opened, tmp_path, monkeypatch):
    tmp_path.chmod(0o700)
    monkeypatch.setenv("LOOPTAP_DIR", str(tmp_path))
    code = (
        "import looptap, time\nagent = looptap.Agent('plain')\n"
        "for step in range(100000):\n    agent.emit('batch', step=step, loss=1 / (1 + step)); time.sleep(0.005)"
    )
    job = warm.Popen([sys.executable, "-c", code])
    try:
        soon(looptap.runs)
        with looptap.attach("plain") as run:
            soon(lambda: run.events().get("batch", 0) > 300)
        with program("--operate") as web:
            page = opened(web.url)
            until(page, HAS_POINTS, arg="loss")
            first = "[...document.querySelector('.looptap').looptap.columns.values()][0]?.view[0]"
            until(page, f"{first} === 0")
            grows(page)
            page.get_by_role("button", name="Gradient norm").click()  # the job exposes no model
            until(page, "document.getElementById('error').textContent.includes(\"no observable 'model'\")")
        with program() as web:
            page = opened(web.url)
            until(page, HAS_POINTS, arg="loss")  # its owner sees it without --operate, too
        with program("--shared") as web:
            page = opened(web.url)
            page.locator("#empty").get_by_text("Nothing of this run is shared so far.").wait_for()
            assert page.locator(".looptap").count() == 0
    finally:
        job.kill()
        job.wait()


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_the_page_fits_a_phone_and_follows_the_theme(opened, operating, theme):
    page = opened(operating.url, width=390, height=800, scheme="dark" if theme.dark else "light")
    charts(page, 1)
    page.locator("#panel .row").first.wait_for()
    assert page.evaluate(TOO_WIDE) == []
    assert page.evaluate("document.querySelector('.looptap').view.theme.ground") == theme.ground
    until(page, f"(arg) => ({INK})(arg) > 50", arg=[0, [int(theme.colors[0][i : i + 2], 16) for i in (1, 3, 5)]])
