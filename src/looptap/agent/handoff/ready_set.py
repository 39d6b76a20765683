"""Which streams have new values, and how the I/O thread hears of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Protocol


class Ring(Protocol):
    """What is announced: a `ValueRing`."""

    def gathered(self) -> int:
        """Return the bytes that have come since it was announced."""


class ReadySet:
    """The rings with new values, so that a flush visits only these, and the wakeups.

    ``wake`` lets values gather before they are sent, ``wake_now`` does not. While they gather for long (`patient`), a
    producer calls `hasten` as soon as so much waits that some might be given up later.

    None is lost, in this order: the producer appends its value, *then* looks whether its ring is in the set, and adds
    it if it is not; the I/O thread takes the ring out of the set, *then* looks at the values. So a value that is
    appended too late for that look finds its ring missing. In the same way ``wakeup_pending`` says that a wakeup is
    pending: the producer sets it after it has added its ring, and the I/O thread clears it before it looks at the set.
    An interrupt of the training thread between two of these steps takes back what was done, so that the next value
    announces itself; and each heartbeat visits all streams.
    """

    __slots__ = (
        "changed",
        "deferred",
        "defers",
        "hastened",
        "patient",
        "ready",
        "wake_gathering",
        "wake_now",
        "wakeup_pending",
    )

    def __init__(self, wake: Callable[[], None], wake_now: Callable[[], None]) -> None:
        self.wake_gathering, self.wake_now = wake, wake_now
        self.defers = False
        """True while the training thread evaluates queries: wakeups are sent afterwards."""
        self.deferred: tuple[Callable[[], None], ...] = ()
        """The deferred wakeups."""
        self.ready: set[Ring] = set()
        """The rings with new values; added by producers, removed by the I/O thread."""
        self.changed = False
        """True if a query's state has changed; set by producers, cleared by the I/O thread before it looks."""
        self.wakeup_pending = False
        self.patient = False
        """True while values gather for longer than usual; set by the I/O thread."""
        self.hastened = 0
        """How often a producer has asked it not to; it raises this before the wakeup."""

    def announce(self, ring: Ring) -> None:
        """Add ``ring`` to the set, and wake the I/O thread."""
        try:
            self.ready.add(ring)
            self.wake()
        except BaseException:  # an interrupt: the wakeup may not have been sent
            self.ready.discard(ring)
            raise

    def wake(self) -> None:
        """Wake the I/O thread, unless a wakeup is pending."""
        if not self.wakeup_pending:
            try:
                self.wakeup_pending = True
                self._send(self.wake_gathering)
            except BaseException:  # an interrupt
                self.wakeup_pending = False
                raise

    def hasten(self) -> None:
        """Wake the I/O thread if it lets values gather for long: much has gathered."""
        if self.patient:
            try:
                self.hastened += 1
                self.patient = False
                self._send(self.wake_gathering)
            except BaseException:  # an interrupt: the wakeup may not have been sent
                self.patient = True
                raise

    def wake_at_once(self) -> None:
        """Send the first value of a stream at once: its chart is still empty."""
        self._send(self.wake_now)

    def _send(self, wakeup: Callable[[], None]) -> None:
        if self.defers:  # there is no call up to the end, so no other thread and no interrupt comes between
            self.deferred = (*self.deferred, wakeup)
        else:
            wakeup()

    def settle(self) -> None:
        """Send the wakeups that were deferred."""
        deferred, self.deferred = self.deferred, ()
        try:
            for wakeup in deferred:
                wakeup()
        except BaseException:  # an interrupt
            self.wakeup_pending = False
            raise

    def collect(self) -> list[Ring]:
        """Take the rings with new values out of the set, to read them. I/O thread."""
        taken: list[Ring] = []
        with contextlib.suppress(KeyError):  # an interrupted producer has taken one back
            for _ in range(len(self.ready)):
                taken.append(self.ready.pop())
        return taken

    def gathered(self) -> int:
        """Return the bytes that have come into these rings since they are in the set."""
        return sum([ring.gathered() for ring in list(self.ready)])
