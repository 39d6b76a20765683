"""The screen of `looptap top`; requests run in threads, and it never waits."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.message import Message
from textual.widgets import Footer, OptionList, Static

from looptap.cli.formats import fields, printable
from looptap.cli.options import value_of
from looptap.cli.top.default_streams import MAX_BUFFERED_VALUES, DefaultStreams
from looptap.cli.top.model import Facts, Watcher
from looptap.cli.top.prompts import ON, AskText, AskWhether, ShowText
from looptap.cli.top.views import StreamSummary, config_text, heading, newest_commands, rooms_of, vitals
from looptap.client.control.controls import ControlInfo, Outcome, question_before
from looptap.client.control.undoing import NewestChange
from looptap.client.estimates import commonest
from looptap.client.run import Run
from looptap.client.streams.kept_history import kept_history
from looptap.client.streams.live import LiveStream
from looptap.protocol.keys import VIEWER
from looptap.protocol.run_config import RunConfig
from looptap.streams.errors import LooptapError
from looptap.visualizers.first_curves import GRADIENT_NORM

REQUEST_INTERVAL_SECONDS = 1.0
"""Seconds between two rounds of requests to the agent."""
DRAW_INTERVAL_SECONDS = 0.5
"""Seconds between two drawings of the streams."""
_LOW_TERMINAL_LINES, _HIGH_TERMINAL_LINES = 16, 28  # lower terminals are flat, or low


class FactsUpdated(Message):
    """A round of requests is answered."""

    def __init__(self, seen: Facts) -> None:
        super().__init__()
        self.seen = seen


class RequestDone(Message):
    """A request ended with the text ``what``; ``then`` takes its value on success."""

    def __init__(self, what: str, failed: bool, value: Any, then: Callable[[Any], None] | None) -> None:
        super().__init__()
        self.what, self.failed, self.value, self.then = what, failed, value, then


class StreamView(Static, can_focus=True):
    """A stream in the list, to be selected, dropped or enlarged."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "enlarge", "Larger")]

    def __init__(self, shown: StreamSummary) -> None:
        super().__init__()
        self.shown = shown
        self.large = False

    def refresh_stream(self, room: int = 1) -> None:
        """Read new values, and draw on ``room`` lines."""
        self.shown.look()
        self.update(self.shown.draw(max(1, self.content_size.width), room))

    def action_enlarge(self) -> None:
        """Give this stream all the room, or take it back."""
        self.large = not self.large
        for other in self.app.query(StreamView):
            other.large = other.large and other is self
        self.scroll_visible()


class Top(App[None]):
    """A run on one screen: events, cost, streams, controls, commands."""

    TITLE = "looptap top"
    ENABLE_COMMAND_PALETTE = False
    # not ClassVar, as ruff wants: textual declares them as instance variables
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide")]  # noqa: RUF012 - as textual has them
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (_LOW_TERMINAL_LINES, "-low"), (_HIGH_TERMINAL_LINES, "-high")]  # noqa: RUF012 - as textual has them
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", "Quit", show=False, priority=True),
        Binding("a", "add", "Add a query"),
        Binding("d", "drop", "Drop the stream"),
        Binding("g", "gradient", "Gradient norm"),
        Binding("e", "edit", "Set a control"),
        Binding("c", "config", "Config"),
        Binding("u", "undo", "Undo a change"),
        Binding("p", "pause", "Pause or resume"),
        Binding("s", "stop", "Stop the job"),
    ]
    CSS = """
    #head, #vitals, #outcome { height: auto; max-height: 6; padding: 0 1; }
    #head, #vitals, #outcome, #commands, StreamView { text-wrap: nowrap; text-overflow: ellipsis; }
    #head, #outcome { height: 1; }
    #body { height: 1fr; }
    #streams { width: 2fr; height: 1fr; border: round $primary; }
    #side { width: 1fr; min-width: 36; height: 1fr; }
    #controls { height: 1fr; border: round $primary; }
    #commands { height: auto; max-height: 50%; border: round $primary; padding: 0 1; }
    .-narrow #body { layout: vertical; }
    .-narrow #streams, .-narrow #side { width: 1fr; min-width: 0; }
    .-narrow #side { height: 8; }
    .-narrow #commands, .-flat #commands, .-flat #side { display: none; }
    .-low.-narrow #side { height: 5; }
    .-narrow #side.empty { display: none; }
    .-flat #vitals { display: none; }
    .-flat #streams { border: none; }
    StreamView { height: auto; padding: 0 1; margin: 0 0 1 0; }
    .-flat StreamView, .-low StreamView { margin: 0; }
    StreamView:focus { background: $boost; }
    """

    def __init__(self, run: Run, streams: Sequence[LiveStream] = ()) -> None:
        super().__init__()
        self.job = run
        own = fields(run, "id", "role", "state", "reason")
        self.seen = Facts(**own, host="", pid=0, rank=0, size=1, idle=0.0, silence=0.0)
        self._first = list(streams)
        self._over = threading.Event()
        self._defaults = DefaultStreams(run, bool(streams))
        self._opening = False
        self._controls: list[ControlInfo] = []
        self._listed = False
        self._said = ""

    def compose(self) -> ComposeResult:
        """Yield the parts from top to bottom."""
        yield Static(id="head")
        yield Static(id="vitals")
        with Horizontal(id="body"):
            yield VerticalScroll(id="streams", can_focus=False)
            with Vertical(id="side"):
                yield OptionList(id="controls", markup=False)
                yield Static(id="commands")
        yield Static(id="outcome")
        yield Footer()

    def on_mount(self) -> None:
        """Start the requests and the drawing."""
        for name, title in (("streams", "streams"), ("controls", "controls"), ("commands", "last commands")):
            self.query_one(f"#{name}").border_title = title
        for stream in self._first:
            self._show(stream)
        viewer = "a viewer sees what is exported; a adds such a stream, Tab moves to the streams, Enter enlarges one"
        operator = "a adds a query; Tab moves to streams and controls, Enter enlarges a stream and changes a control"
        self._say(viewer if self.job.role == VIEWER else operator, "dim")
        threading.Thread(target=self._ask, name="looptap-top", daemon=True).start()
        self.set_interval(DRAW_INTERVAL_SECONDS, self._draw)
        loop = asyncio.get_running_loop()
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # so that the terminal is given back as it was
            with contextlib.suppress(AttributeError, ValueError, RuntimeError, NotImplementedError):
                loop.add_signal_handler(getattr(signal, name), self.exit)

    def on_unmount(self) -> None:
        """Stop the requests."""
        self._over.set()

    # ------------------------------------------------------------ what is shown

    def _ask(self) -> None:
        """Poll the run until the screen closes. On a thread of its own."""
        watcher = Watcher(self.job)
        while not self._over.is_set():
            seen = watcher.look()
            if not self._over.is_set():
                self.post_message(FactsUpdated(seen))
            self._over.wait(REQUEST_INTERVAL_SECONDS)

    def _leaving(self) -> bool:
        """Return whether the screen closes: timers and replies still arrive meanwhile."""
        there = all(self.query(f"#{name}") for name in ("head", "vitals", "streams", "controls", "commands", "outcome"))
        return self._over.is_set() or not there

    def on_facts_updated(self, message: FactsUpdated) -> None:
        """Show the state of the run."""
        if self._leaving():
            return
        before, self.seen, seen = self.seen, message.seen, message.seen
        for name, warning in seen.new_warnings(before) if self._listed else ():
            if printable(warning) not in self._said:
                self._say(f"{name}: {warning}", "bold yellow")
        self.query_one("#vitals", Static).update(Text("\n").join(vitals(seen)))
        last = self.query_one("#commands", Static)
        most = 8 if self.size.height >= _HIGH_TERMINAL_LINES else 4
        last.update(newest_commands(seen, most, last.content_size.width))
        self._show_controls(seen)
        if not self._opening and (new := self._defaults.new(seen)):
            self._opening = True
            self._do("", lambda: self._defaults.open(new), self._opened)
        left = self._defaults.left(seen)
        more = f", {left} more by name with a" if left > 0 and not self._opening else ""
        self.query_one("#streams").border_title = f"streams{more}"
        self._draw_head()

    def _opened(self, streams: Sequence[LiveStream]) -> None:
        for stream in streams:
            self._show(stream)

    def _show_controls(self, seen: Facts) -> None:
        options = self.query_one("#controls", OptionList)
        found = list(seen.controls.values())
        same = [info.name for info in found] == [info.name for info in self._controls]
        before, self._controls = self._controls, found
        if not same or not self._listed:
            self._listed = True
            options.clear_options()
            options.add_options([Text(printable(str(info)), no_wrap=True) for info in found])
            none = "not for viewers" if seen.role == VIEWER else "this job has none"
            options.border_title = "controls" if found else f"controls: {none}"
            self.query_one("#side").set_class(not found, "empty")
            return
        for index, (old, new) in enumerate(zip(before, found, strict=True)):
            if str(old) != str(new):
                options.replace_option_prompt_at_index(index, Text(printable(str(new)), no_wrap=True))

    def _show(self, stream: LiveStream) -> None:
        view = StreamView(StreamSummary(stream))
        self.query_one("#streams").mount(view)
        view.call_after_refresh(self._draw)

    def _draw(self) -> None:
        if self._leaving():
            return
        self._draw_head()
        views = list(self.screen_stack[0].query(StreamView))
        height = self.query_one("#streams").content_size.height if views else 0
        gap, small = self.size.height >= _HIGH_TERMINAL_LINES, 3 if self.size.height >= _LOW_TERMINAL_LINES else 1
        rooms = rooms_of(len(views), height, small, gap)
        if any(view.large for view in views):
            rooms = [max(small, height - gap) if view.large else small for view in views]
        for view, room in zip(views, rooms, strict=True):
            view.refresh_stream(room)

    def _draw_head(self) -> None:
        run, seen = self.job, self.seen  # the state is current, the rest as of the last request
        if (run.state, run.reason) != (seen.state, seen.reason):
            self.seen = seen = replace(seen, state=run.state, reason=run.reason)
        self.query_one("#head", Static).update(heading(seen))

    def _say(self, text: str, style: str = "") -> None:
        self._said = printable(" ".join(text.split()))
        self.query_one("#outcome", Static).update(Text(self._said, style))

    # ------------------------------------------------------------ what is done

    def _do(self, what: str, action: Callable[[], Any], then: Callable[[Any], None] | None = None) -> None:
        """Run a request in a thread and show its outcome."""

        def work() -> None:
            try:
                value = action()
                done = RequestDone(what and f"{value}", False, value, then)  # the text of an outcome names its command
            except LooptapError as error:
                text = f"{error}".replace("unsafe=True", "the switch unsafe")
                done = RequestDone(f"{what}: {text}" if what else text, True, None, then)
            if not self._over.is_set():
                self.post_message(done)

        if what:
            self._say(f"{what} …", "dim")
        threading.Thread(target=work, name="looptap-top-command", daemon=True).start()

    def on_request_done(self, message: RequestDone) -> None:
        """Show the outcome."""
        if self._leaving():
            return
        self._opening = False
        if message.failed or message.what:
            self._say(message.what, "bold red" if message.failed else "bold green")
        if message.then is not None and not message.failed:
            message.then(message.value)

    def action_add(self) -> None:
        """Prompt for a query, and show its values."""

        def add(answers: list[str] | None) -> None:
            if not answers or not answers[0]:
                return
            query, on, *switches = answers
            how: dict[str, Any] = {"on": on or None, "buffer": MAX_BUFFERED_VALUES, "unsafe": ON in switches}

            def attach() -> LiveStream:
                return self.job.stream(query, history=kept_history(self.job, query), **how)

            def show(stream: LiveStream) -> None:
                self._say(f"Added: {stream.name}", "bold green")
                self._show(stream)

            self._do("", attach, show)

        fields = ("query", ""), ("type of event (batch if empty)", "")
        switch = "" if self.job.role == VIEWER else "unsafe: run it as it is, on record, even if it may change the job"
        self.push_screen(AskText("A query, or the name of a declared stream.", *fields, switch=switch), add)

    def action_gradient(self) -> None:
        """Ask for the norm of all gradients of the exposed model."""
        how: dict[str, Any] = {"on": commonest(self.job), "every": 20, "name": "gradient norm"}
        self._do("", lambda: [self.job.stream(GRADIENT_NORM, buffer=MAX_BUFFERED_VALUES, **how)], self._opened)

    def action_drop(self) -> None:
        """Close the selected stream and remove it from the screen."""
        views = list(self.query(StreamView))
        chosen = next((view for view in views if view.has_focus), None)
        if chosen is None:
            self._say("Choose a stream with Tab first; d then drops it.", "yellow")
            return
        stream = chosen.shown.stream
        chosen.remove()
        self._do("", lambda: stream.close(0.5), lambda _: self._say(f"Dropped: {stream.name}", "bold green"))

    def action_edit(self) -> None:
        """Focus the controls."""
        if not self._controls:
            self._say("This job has no controls, or has not reported them yet.", "yellow")
            return
        options = self.query_one("#controls", OptionList)
        options.focus()
        if options.highlighted is None:
            options.highlighted = 0

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Prompt for the new value of a control, and set it."""
        info = self._controls[event.option_index]

        def change(answers: list[str] | None) -> None:
            if answers is None or not answers[0]:
                return
            value, schedule = value_of(answers[0]), answers[1] if info.driven else ""
            what = f"set {info.name} {answers[0]}"

            def set_it() -> Outcome:
                return self.job.set(info.name, value, expected=info, schedule=schedule)

            if question := question_before(info, value):
                self._confirmed(printable(question), what, set_it)
            else:
                self._do(what, set_it)

        fields = [("new value", f"{info.value}")]
        if info.driven:
            fields.append(("its schedule: scale (continues from the new value) or freeze (keeps it)", "scale"))
        self.push_screen(AskText(printable(str(info)), *fields), change)

    def action_pause(self) -> None:
        """Pause the loop or end its pause, after confirmation."""
        if self.job.paused:
            self._confirmed("Resume the job?", "resume", self.job.resume)
        else:
            question = "Pause the job until it is resumed, or for as long as it allows?"
            self._confirmed(question, "pause", self.job.pause)

    def action_config(self) -> None:
        """Show what the run was started with."""

        def show(config: RunConfig) -> None:
            self.push_screen(ShowText(config_text(config)))

        self._do("", lambda: self.job.config, show)

    def action_undo(self) -> None:
        """Undo the last change of a control, after confirmation."""

        def confirm(change: NewestChange) -> None:
            record = change.record
            self._confirmed(
                f"Undo the last change?\n{printable(str(change))}",
                f"undo {record.name}",
                lambda: self.job.undo(record.name, expected=record.id),
            )

        self._do("", self.job.newest_change, confirm)

    def action_stop(self) -> None:
        """Ask the job to stop, after confirmation."""
        self._confirmed(f"Ask {printable(self.job.name)} to stop at its next event?", "stop", self.job.stop)

    def _confirmed(self, question: str, what: str, action: Callable[[], Any]) -> None:
        def act(meant: bool | None) -> None:
            if meant:
                self._do(what, action)
            else:
                self._say(f"Nothing was done: no {what}.", "dim")

        self.push_screen(AskWhether(question), act)
