"""How an agent ends: groups end, what waits is sent, clients are told, and nothing is left behind."""

from __future__ import annotations

import atexit
import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from looptap.agent.loop.event_sources import EventSource, EventSources, NullEventSources
from looptap.agent.opening import give_up_place
from looptap.agent.run.advertisement import note_end
from looptap.agent.run.signal_free_thread import aside
from looptap.agent.run.termination import OnSigterm
from looptap.agent.server.recording import RunRecorder
from looptap.agent.server.request_dispatcher import RequestDispatcher
from looptap.protocol.files.connection import remove
from looptap.protocol.messages import RunInfo

EXIT_SECONDS = 2.0
"""For what is still to be sent at the end of the run."""


class Closing:
    """The part of an `Agent` that ends it."""

    run: RunInfo
    _service: RequestDispatcher
    _taps: EventSources
    _keeper: RunRecorder | None
    _sigterm: OnSigterm | None
    _at_exit: Callable[..., None]
    _complain: Callable[[Exception], None]
    _listen_to: Callable[[EventSources], None]
    _hurry: Callable[[], None]
    _link: Any
    _leaving: Any
    _pid: int
    _files: list[Path]

    def close(self, reason: str = "the run ended") -> None:
        """End the run: open windows close, what waits is sent, clients are told. At most 2 s. Never raises.

        Ctrl-C comes out of it, and what is left is done nevertheless.
        """
        if os.getpid() != self._pid:
            return
        taps = self._taps
        try:
            self._listen_to(NullEventSources())
            self._service.commands.job.pause.resume()
            self._end_groups(deque(taps.by_name.values()))
        except Exception as error:
            self._complain(error)
        finally:
            self._leave(taps, reason)
        atexit.unregister(self._at_exit)

    def _end_groups(self, taps: deque[EventSource]) -> None:
        """End all open groups; after Ctrl-C those that are left, and once more the one that it came into."""
        now, pressed = time.monotonic(), None
        while taps:
            try:
                while taps:
                    taps[0].end_group(now)
                    del taps[0]
            except KeyboardInterrupt as interrupt:
                pressed = interrupt
            except Exception as error:
                self._complain(error)
                del taps[0]
        if pressed is not None:
            raise pressed

    def _leave(self, taps: EventSources, reason: str) -> None:
        """Take leave of clients and let go of what is the host's; Ctrl-C ends the waiting for it alone."""
        if self._link is not None:
            self._leaving, self._link = self._link, None
        try:
            self._aside(lambda: self._depart(taps, reason))
        except Exception as error:
            self._complain(error)
        if self._sigterm is not None:
            self._sigterm.remove()

    def _depart(self, taps: EventSources, reason: str) -> None:
        self._service.farewell = reason
        if self._leaving is not None:
            self._leaving.stop(timeout=EXIT_SECONDS)
        give_up_place(self)
        files, self._files = self._files, []
        for path in files:
            remove(path)
        if self._keeper is not None:
            self._keeper.close(reason)
        note_end(self.run, files, reason, None if self._keeper is None else self._keeper.writer.path)
        taps.exposed.clear()
        self._service.commands.close()

    def _aside(self, do: Callable[[], None]) -> None:
        aside(do, "looptap-close")

    def _terminated(self) -> None:
        self.close("the run was terminated (SIGTERM)")
        if self._leaving is not None:  # it may have been leaving already
            self._leaving.stop(timeout=EXIT_SECONDS)

    def _drain(self) -> None:
        """Send what is pending, within half of the exit limit: libzmq drops what it still holds at exit."""
        deadline, service, link = time.monotonic() + EXIT_SECONDS / 2, self._service, self._link
        while service.queues.pending_bytes() and time.monotonic() < deadline:
            self._hurry()
            time.sleep(0.005)
        if link is not None and not service.confirmed():
            link.post(service.ask_for_confirmation)
            while not service.confirmed() and time.monotonic() < deadline:
                time.sleep(0.005)
