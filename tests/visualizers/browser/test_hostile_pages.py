"""`looptap web` beside hostile pages in the same browser, and hostile servers."""

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote

import pytest
from lab import beside_a_job
from waiting import soon
from web_pages import Peer, program, until

import looptap
from looptap.visualizers.surfaces.web.page_handlers import WRONG_TOKEN_NUMBER

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]
EVIL = "http://evil.test"
QUERY = "41 * loss"
DRAWN = "document.querySelectorAll('.looptap').length"
ADD = "((name, how) => document.body.appendChild(Object.assign(document.createElement(name), how)))"
NAVIGATIONS = {
    "script": "location = {target}",
    "replace": "location.replace({target})",
    "popup": "window.open({target})",
    "link": f"{ADD}('a', {{href: {{target}}}}).click()",
    "form": f"{ADD}('form', {{action: {{target}}}}).submit()",
    "post": f"{ADD}('form', {{action: {{target}}, method: 'post'}}).submit()",
    "refresh": f"{ADD}('meta', {{httpEquiv: 'refresh', content: '0; url=' + {{target}}}})",
    "frame": f"{ADD}('iframe', {{src: {{target}}}})",
    "named": "window.open('about:blank', 'w'); window.open({target}, 'w')",
    "redirected": "location = '/redirect'",
}
REQUESTS = """async (root) => {
  const tried = (act) => new Promise((done) => act(done)).then(String), socket = (protocols) => tried((done) => {
    const found = new WebSocket(root.replace('http', 'ws') + 'socket', protocols);
    found.onopen = () => done('open');
    found.onerror = () => done('refused');
  });
  const read = (path, how) => fetch(root + path, how).then((reply) => `${reply.type} ${reply.status}`, () => 'refused');
  const script = tried((done) => document.head.append(Object.assign(document.createElement('script'),
    { src: root + 'page.js', onload: () => done('ran'), onerror: () => done('refused') })));
  return [await socket(), await socket(['looptap']), await read('', { credentials: 'include' }),
    await read('page.js', { method: 'POST', body: 'x' }), await read('open?ticket=x'), await script];
}"""


@pytest.fixture(scope="module", params=["viewer", "--operate"])
def web(request, tmp_path_factory):
    """Yield a served page, in both roles."""
    with beside_a_job(tmp_path_factory.mktemp("runs")), looptap.attach("job") as run:
        soon(lambda: any(one.name == "loss" for one in run.streams))
        run.export("loss")
        with program(*([request.param] if request.param == "--operate" else [])) as web:
            yield web


class Victim:
    """A browser whose user has the page open, and what its tabs have sent to looptap."""

    def __init__(self, browser, web, target):
        self.context = browser.new_context()
        self.sent, self.problems = [], []
        self.context.on("page", self.watch)
        self.context.route(f"{EVIL}/**", lambda route: self.evil(route, target))
        self.page = self.context.new_page()
        self.page.goto(web.url)
        until(self.page, "document.body.dataset.link === 'there'")
        until(self.page, DRAWN)

    def watch(self, page):
        page.on("websocket", lambda found: found.on("framesent", lambda text: self.sent.append(str(text))))
        page.on("dialog", lambda dialog: (self.problems.append(dialog.message), dialog.dismiss()))

    def evil(self, route, target):
        if route.request.url.endswith("/redirect"):
            route.fulfill(status=302, headers={"Location": target})
        else:
            route.fulfill(content_type="text/html", body="<title>evil</title>")

    @property
    def asked(self):
        """What was sent that contains the hostile query."""
        return [text for text in self.sent if QUERY in text]


@pytest.fixture
def victim(browser, web):
    found = Victim(browser, web, hostile(web))
    yield found
    found.context.close()
    assert found.problems == []


def hostile(web):
    return f"{web.origin}/#c={quote(QUERY)}"


@contextlib.contextmanager
def other_server(target):
    """Serve another port of localhost; yield its address and the headers it gets."""
    got = []

    class Other(BaseHTTPRequestHandler):
        def do_GET(self):
            got.append(dict(self.headers))
            self.send_response(302 if self.path == "/redirect" else 200)
            self.send_header("Location" if self.path == "/redirect" else "Content-Type", target)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>other</title><body></body>")

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Other)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://localhost:{server.server_port}", got
    finally:
        server.shutdown()
        server.server_close()


def at_rest(victim):
    """Wait until no tab loads, and pages of looptap have an answer to a request."""
    for page in victim.context.pages:
        page.wait_for_load_state("load")
        if page.evaluate("Boolean(globalThis.looptap)"):
            until(page, "document.body.dataset.link === 'there' && looptap.chosen")
            page.evaluate("looptap.link.ask('words', { run: looptap.state.runs[0] })")  # requests have one order


@pytest.mark.parametrize("way", NAVIGATIONS)
@pytest.mark.parametrize("site", ["another site", "another port"])
def test_a_hostile_page_cannot_lead_a_browser_to_a_query(victim, web, way, site):
    with other_server(hostile(web)) as (port, _):
        page = victim.page  # the very tab that has the token
        page.goto(f"{EVIL if site == 'another site' else port}/")
        at_rest(victim)
        outcomes = []
        victim.context.on("response", lambda reply: outcomes.append((reply.url, reply.status)))
        victim.context.on("requestfailed", lambda request: outcomes.append((request.url, "blocked")))
        page.evaluate(NAVIGATIONS[way].replace("{target}", json.dumps(hostile(web))))
        soon(lambda: page.wait_for_timeout(20) or [url for url, _ in outcomes if web.origin in url], 60)
        if way != "frame":
            soon(lambda: page.wait_for_timeout(20) or any(web.origin in one.url for one in victim.context.pages), 60)
        at_rest(victim)
        pages = {outcome for url, outcome in outcomes if url.partition("#")[0].rstrip("?") == f"{web.origin}/"}
        assert pages
        assert pages <= {403, "blocked"}
        assert victim.asked == []
        for one in victim.context.pages:
            assert one.evaluate("globalThis.looptap === undefined")
            assert all(frame.url != hostile(web) for frame in one.frames[1:])


@pytest.mark.promise("web", "S36")
def test_a_hostile_page_cannot_send_requests(victim, web):
    with other_server("text/html") as (port, _):
        for site in (EVIL, port):
            other = victim.context.new_page()
            other.goto(f"{site}/")
            assert set(other.evaluate(REQUESTS, f"{web.origin}/")) == {"refused"}
            other.close()
    assert victim.page.evaluate(DRAWN)  # the page itself is as it was


def test_a_server_on_another_port_gets_nothing_that_opens_the_page(victim, web):
    with other_server("text/html") as (port, got):
        other = victim.context.new_page()
        other.goto(f"{port}/")
        other.evaluate("fetch('/again', { credentials: 'include' })")
        soon(lambda: other.wait_for_timeout(20) or len(got) > 1)
    assert not [headers["Cookie"] for headers in got if "Cookie" in headers]
    assert victim.context.cookies() == []
    replayed = {name: value for headers in got for name, value in headers.items() if name not in ("Host", "Connection")}
    peer = Peer(web, token="", **{**replayed, "Origin": web.origin, "Sec-Fetch-Site": "same-origin"})
    peer.say({"t": "chart", "id": 1, "chart": "c", "q": QUERY, "runs": ["job"]})
    assert (peer.read(), peer.code) == (None, WRONG_TOKEN_NUMBER)
    peer.close()


def test_a_typed_address_that_redirects_to_a_query_shows_it_and_waits(victim, web):
    page = victim.page
    with other_server(hostile(web)) as (port, _):
        for address in (f"{port}/redirect", hostile(web)):
            page.goto("about:blank")
            page.goto(address)  # as if typed: no site led to it
            until(page, "document.body.dataset.link === 'there'")
            page.locator("article.waiting code").get_by_text(QUERY).wait_for()
            at_rest(victim)
            assert victim.asked == []
    page.evaluate("location.hash = '#c=' + encodeURIComponent('42 * loss')")
    page.locator("article.waiting code").get_by_text("42 * loss").wait_for()
    page.reload()
    page.locator("article.waiting code").get_by_text("42 * loss").wait_for()
    assert not [text for text in victim.sent if "42 * loss" in text]
    page.get_by_role("button", name="Draw", exact=True).last.click()
    until(page, f"{DRAWN} === 1")
    assert [text for text in victim.sent if "42 * loss" in text]
    page.reload()  # drawn at a click before
    until(page, f"{DRAWN} === 1")
    assert page.locator("article.waiting").count() == 0


def test_a_query_that_waits_is_shown_whole_whatever_it_calls_itself(victim, web):
    page = victim.page
    charts = [
        {"q": "loss \n + 0 \u202e * x", "name": "step, loss", "on": "ba\u200btch", "window": "20", "every": 3},
        {"q": QUERY},
    ]
    page.goto("about:blank")
    page.goto(f"{web.origin}/#" + "&".join(f"c={quote(json.dumps(one))}" for one in charts))
    page.locator("#waiting").get_by_text("2 charts").wait_for()
    first = page.locator("article.waiting").first
    assert first.locator("code").inner_text() == "loss + 0 \\u{202e} * x"
    assert first.locator(".hint").inner_text() == "on ba\\u{200b}tch · window 20 · every 3"
    assert "step, loss" not in page.locator("#charts").inner_text()
    operates = page.locator("#mode").inner_text() == "operate"
    assert ("code in the job" in page.locator("#waiting").inner_text()) == operates
    assert victim.asked == []
    page.get_by_role("button", name="Remove", exact=True).click()
    page.locator("#empty").wait_for()
    assert (page.locator("article").count(), page.locator("#waiting").is_hidden()) == (0, True)
    page.go_back()
    page.goto(hostile(web))
    page.get_by_role("button", name="Draw all").is_hidden()
    page.locator("#query").fill("loss")
    page.get_by_role("button", name="Draw", exact=True).first.click()
    until(page, DRAWN)
    page.locator("#x").select_option("time")
    assert victim.asked == []  # what else is drawn does not draw it
    assert QUERY in page.locator("article.waiting code").inner_text()
