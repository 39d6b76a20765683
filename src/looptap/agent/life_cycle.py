"""Life cycle of an agent: opening, failure, fork, replacement and the end."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from looptap.agent.connection import give_up_place, take_place
from looptap.agent.loop.derived_query import cut_off
from looptap.agent.loop.event_sources import EventSource, EventSources
from looptap.agent.loop.null_sources import NullEventSources
from looptap.agent.run.advertisement import note_end
from looptap.agent.run.signal_free_thread import run_uninterrupted
from looptap.agent.run.termination import OnSigterm
from looptap.agent.wiring import Components, warn_inert
from looptap.protocol.errors import RUN_ENDED
from looptap.protocol.files.connection import remove
from looptap.streams.preserving.interrupts import complete

EXIT_SECONDS = 2.0
"""Timeout for sending pending values at the end of the run."""
MAX_COMPLAINTS = 10
"""Kinds of errors that are logged, one line each."""

log = logging.getLogger("looptap")


class LifeCycle:
    """The life cycle of one agent.

    ``sources`` are where its events go; once it ends they are a `NullEventSources`, which ``on_inert`` receives.
    """

    def __init__(self, parts: Components, on_inert: Callable[[EventSources], None]) -> None:
        self.sources = parts.sources
        self._parts, self._on_inert = parts, on_inert
        self._pid = os.getpid()
        self._complaints: set[str] = set()
        self._at_exit = _weakly(self, LifeCycle._end_with_process)
        self._sigterm: OnSigterm | None = None
        self._on_end: list[Callable[[], None]] = []
        self.before_end: Callable[[], None] | None = None
        """What raises the last events."""

    @property
    def inert(self) -> bool:
        """True if events are ignored: never opened, closed, failed, or a forked child."""
        return isinstance(self.sources, NullEventSources)

    # ------------------------------------------------------------ the beginning

    def open(self, *, sigterm: bool = False, strict: bool = False) -> None:
        """Open the agent to clients; if the machine does not allow it, become inert.

        Logs a warning, or raises with ``strict``. Raises KeyboardInterrupt, and then leaves nothing behind.
        """
        if self.inert:
            return
        try:
            self._open()
        except Exception as error:
            self._become_inert()
            warn_inert(error, strict)
        else:
            if sigterm:
                self._sigterm = OnSigterm(_weakly(self, LifeCycle._terminated), _weakly(self, LifeCycle._drain))
            recorder = self._parts.recorder
            self._parts.configuration.start((lambda facts: None) if recorder is None else recorder.store_config)

    def _open(self) -> None:
        connection = self._parts.connection
        try:
            if (place := connection.locate()) is not None:
                older = take_place(self, place)
                if older is not None and older.replaced():
                    log.warning("looptap: this agent replaces an older one of the same name, %r.", self._parts.name)
            connection.open(self._parts.dispatcher, _weakly(self, LifeCycle._failed))
            atexit.register(self._at_exit)
            os.register_at_fork(after_in_child=_weakly(self, LifeCycle._forked))
        except BaseException as error:
            if not isinstance(error, Exception):  # Ctrl-C: it may be open, or be about to
                connection.undo()
            give_up_place(self)
            raise

    # ------------------------------------------------------------ the end

    def close(self, reason: str = RUN_ENDED) -> None:
        """End the run: close windows, send pending values, notify clients.

        Blocks up to 2 s. Raises nothing but KeyboardInterrupt, and that only once everything is done.

        Args:
            reason: The reason for clients.
        """
        if os.getpid() != self._pid:
            return
        sources = self.sources
        # In this order: the last events still reach their queries; from then on `emit` finds nothing, so no event comes
        # between the ends of two groups; a pause or a recording would keep the loop; windows close before clients hear
        # goodbye, since their last values travel with it.
        try:
            try:
                self._raise_last_events()
            finally:
                self._become_inert()
            self._parts.dispatcher.commands.job.pause.resume()
            self._parts.dispatcher.commands.job.end_recording()
            self._end_groups(deque(source for _, source in sources.types()), sources.clock())
        except Exception as error:
            self.log_error(error)
        finally:
            self._disconnect(sources, reason)
            self._report_end()
        atexit.unregister(self._at_exit)

    def on_end(self, call: Callable[[], None]) -> None:
        """Call this once the agent closes or fails, not in a fork; at once if it has."""
        if self.inert:
            call()
        else:
            self._on_end.append(call)

    def replaced(self) -> bool:
        """Close for a newer agent of the same name; True if this one was open."""
        if os.getpid() != self._pid or not self._parts.connection.is_open:
            return False
        self.close("replaced by a newer agent of the same name")
        return True

    def log_error(self, error: Exception) -> None:
        """Log the error, once per kind; the loop continues."""
        kind = f"{type(error).__name__}: {error}"
        if kind not in self._complaints and len(self._complaints) < MAX_COMPLAINTS:
            self._complaints.add(kind)
            log.warning("looptap: %s (said once; the loop continues)", kind)

    def _raise_last_events(self) -> None:
        call, self.before_end = self.before_end, None
        try:
            if call is not None:
                call()
        except Exception as error:
            self.log_error(error)

    def _become_inert(self) -> None:
        for source in list(self.sources.by_name.values()):
            for query in source.queries:
                if query.hooks is not None:
                    query.hooks.remove()
        self._parts.dispatcher.queries.calls.end()
        self.sources = NullEventSources()
        self._on_inert(self.sources)

    def _report_end(self) -> None:
        calls, self._on_end = self._on_end, []
        for call in calls:
            try:
                call()
            except Exception as error:
                self.log_error(error)

    def _end_groups(self, sources: deque[EventSource], now: float) -> None:
        """End all open groups; a second call, after Ctrl-C, ends the rest."""

        def end_them() -> None:
            _cut_groups(self._parts.sources)
            while sources:
                try:
                    sources[0].end_group(now)
                except Exception as error:
                    self.log_error(error)
                del sources[0]
            self._parts.dispatcher.queries.close_windows(now)

        complete(end_them)

    def _disconnect(self, sources: EventSources, reason: str) -> None:
        """Say goodbye to clients and release the host's objects.

        Ctrl-C ends only the wait.
        """
        self._parts.connection.detach()
        try:
            run_uninterrupted(lambda: self._shut_down(sources, reason), "looptap-close")
        except Exception as error:
            self.log_error(error)
        if self._sigterm is not None:
            self._sigterm.remove()

    def _shut_down(self, sources: EventSources, reason: str) -> None:
        # The I/O thread says goodbye, and is over, before the files of the run go: until then a client that finds them
        # can still attach, and learns why the run ends. The run's own file closes after its last values have come from
        # there; only then is the end noted, with the path of a file that is complete.
        parts, connection = self._parts, self._parts.connection
        parts.dispatcher.end_reason = reason
        connection.stop(EXIT_SECONDS)
        give_up_place(self)
        files, connection.files = connection.files, []
        for path in files:
            remove(path)
        if parts.recorder is not None:
            parts.recorder.close(reason)
        note_end(parts.run, files, reason, None if parts.recorder is None else parts.recorder.writer.path)
        sources.exposed.clear()
        parts.dispatcher.commands.close()

    # ------------------------------------------------------------ what happens to a process

    def _failed(self, reason: str) -> None:
        """Continue without clients: the I/O thread has given up."""
        self._become_inert()
        self._report_end()
        for path in self._parts.connection.files:  # so that clients know that there will be no link again
            remove(path)
        log.warning("looptap: the agent has failed for good, the loop continues without it. %s", reason)

    def _forked(self) -> None:
        """Become inert in a forked child; leave the parent's resources alone."""
        self._become_inert()
        self._parts.dispatcher.commands.job.after_fork()
        give_up_place(self)
        self._parts.connection.abandon()

    def _end_with_process(self) -> None:
        self.close()
        if getattr(sys, "last_type", None) is KeyboardInterrupt and not hasattr(sys, "ps1"):
            # Python ends such a process by SIGINT (130 for shells), unless code from text runs after the error: any
            # namedtuple of a module that is imported meanwhile. This makes it note the interrupt again.
            with contextlib.suppress(KeyboardInterrupt):
                exec("raise KeyboardInterrupt")

    def _terminated(self) -> None:
        self.close("the run was terminated (SIGTERM)")
        self._parts.connection.stop(EXIT_SECONDS)  # another thread may have been closing it already

    def _drain(self) -> None:
        """Send pending values, within half of the exit limit."""
        self._parts.connection.drain(EXIT_SECONDS / 2)


def _cut_groups(sources: EventSources) -> None:
    """Flag the windows of open groups, which the end of the run cuts off."""
    with sources.lock:
        sources.drain()
        types = [source for _, source in sources.types()]
        inner = [source for outer in types for source in outer.inner_groups]
        for source in types:
            if source.groups_ended or source in inner:  # any other run is itself the group
                for query in source.queries:
                    cut_off(query)


def _weakly(life: LifeCycle, method: Callable[..., None]) -> Callable[..., None]:
    """Return ``method`` as a hook that does not keep its agent alive."""
    weak = weakref.ref(life)

    def call(*args: Any) -> None:
        living = weak()
        if living is not None:
            method(living, *args)

    return call
