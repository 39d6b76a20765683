"""`looptap web`: runs and their charts on a page in the browser."""

from __future__ import annotations

import asyncio
import contextlib
import html
import signal
import tempfile
import webbrowser
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from looptap.cli.formats import several, stated
from looptap.cli.options import RUN_HELP, Config, integer
from looptap.cli.output import DONE, complain, remark, say

DEFAULT_PORT_NUMBER = 8765
"""The port of the page; if it is taken, one of the next."""
_MAX_PORTS_TRIED = 20


def web_command(
    names: Annotated[
        list[str] | None,
        Argument(
            metavar="RUN",
            show_default=False,
            help=f"Only these. {RUN_HELP} Or the file of a stored run. By default all runs here, live and stored.",
        ),
    ] = None,
    operate: Annotated[
        bool, Option("--operate", help="Let the page ask queries of jobs, turn controls and give commands.")
    ] = False,
    shared: Annotated[
        bool, Option("--shared", help="Show only what is exported, as viewers of a share see it: to hand the page on.")
    ] = False,
    config: Config = False,
    port: Annotated[
        int | None,
        Option(metavar="N", parser=integer(0, 65_535), show_default=str(DEFAULT_PORT_NUMBER), help="The port; 0: any."),
    ] = None,
    host: Annotated[
        str,
        Option(
            metavar="ADDRESS", help="The address to listen on. Beyond loopback nothing is encrypted: prefer ssh -L."
        ),
    ] = "127.0.0.1",
    base_url: Annotated[
        str, Option(metavar="PATH", help="The path of the page, for a proxy that does not strip its prefix.")
    ] = "/",
    allow_host: Annotated[
        list[str] | None,
        Option(
            metavar="NAME",
            help="A further name of the page, as that of a proxy: hub.example, or http://hub.example:8000.",
            show_default=False,
        ),
    ] = None,
    browser: Annotated[
        bool | None, Option("--open/--no-open", help="Open the page.", show_default="where there is a display")
    ] = None,
) -> int:
    """Show runs in a browser: charts, controls, a comparison.

    \b
      looptap web
      looptap web digits-cnn --operate
      looptap web looptap-runs/*.looptap
      ssh -L 8765:localhost:8765 node7 looptap web --no-open

    The page is for this machine only, and for those who have the token in its address. It is read-only: streams, the
    numbers in events, settings, stored runs, and arithmetic over them; with --shared, --host beyond this machine or
    --allow-host only what is exported. With --operate, anyone who has the address can do all that you can: a query is
    code in the job. It needs the package tornado: pip install 'looptap[web]'.
    """
    try:
        from looptap.cli.page_runs import PageRuns
        from looptap.visualizers.surfaces.capabilities import no_display
        from looptap.visualizers.surfaces.web.page_access import names_this_machine
        from looptap.visualizers.surfaces.web.run_shelf import RunShelf
        from looptap.visualizers.surfaces.web.web_server import WebServer
    except ImportError as error:
        missing = (error.name or "tornado").partition(".")[0]
        return complain(f"looptap web needs the package {missing}: pip install 'looptap[web]'")
    own = names_this_machine(host) and not (shared or allow_host)
    shelf = RunShelf(PageRuns(names or ()), operate=operate, config=config, own=own)
    shelf.refresh()
    try:
        server = WebServer(shelf, base=base_url, names=allow_host or ())
    except ValueError as error:
        return complain(str(error))
    server.listen(host, DEFAULT_PORT_NUMBER if port is None else port, _MAX_PORTS_TRIED if port is None else 1)

    def started() -> None:
        with contextlib.suppress(NotImplementedError):
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, server.stop)
        say(f"looptap: {several(len(shelf.entries()), 'run')} at {server.url}")
        shown = "streams" if own else "exported streams"
        notes = stated(
            (f"read-only: {shown} and stored runs; with --operate also queries and controls.", not operate),
            (f"{host} can be reached from elsewhere, and nothing on the way is encrypted.", not server.private),
            ("Ctrl-C ends it; the jobs continue.", True),
        )
        for text in notes:
            remark(text)
        if browser or (browser is None and not no_display()):
            _open(server.opening_url)

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(server.run(started))
    return DONE


def _open(url: str) -> None:
    """Open the page by a private file: processes list their arguments."""
    path = Path(tempfile.mkdtemp(prefix="looptap-")) / "page.html"
    path.write_text(f'<!doctype html><meta http-equiv="refresh" content="0; url={html.escape(url)}">', encoding="utf-8")
    with contextlib.suppress(webbrowser.Error):
        webbrowser.open(path.as_uri())
