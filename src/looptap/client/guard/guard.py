"""`guard`: watches many runs by rules, from when they appear until they end."""

from __future__ import annotations

import contextlib
import fnmatch
import io
import logging
import math
import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import chain
from types import TracebackType
from typing import NamedTuple

from looptap.client.attach import scan
from looptap.client.directory.listing import RunListing
from looptap.client.directory.select import one_role_each
from looptap.client.guard.actions import act, action_name, end_process, json_line
from looptap.client.guard.rules import Firing, Rule
from looptap.client.guard.watch import Judgement, RunWatch, SiblingComparison
from looptap.client.transport.background import background_thread
from looptap.client.transport.tunnel.process import is_remote
from looptap.protocol.errors import NoSuchRun, RunEnded
from looptap.protocol.files.connection import Known
from looptap.protocol.files.regular_files import open_for_writing
from looptap.streams.errors import LooptapError, QueryError
from looptap.streams.stream.state_and_cost import FAILED
from looptap.streams.waiting import poll_until

SCAN_INTERVAL_SECONDS, JUDGE_INTERVAL_SECONDS = 0.5, 0.05
"""Seconds between searches for new runs, and between checks of known ones."""
ATTACH_TIMEOUT_SECONDS = 5.0
"""Timeout for attaching; the next attempt follows after as long, then less and less often."""
_WORKER_THREADS = 8
_MAX_PENDING_TASKS = 64  # runs that are let in at one time, and actions that are under way

log = logging.getLogger("looptap")


class WatchedRun(NamedTuple):
    """The progress of a rule with a run: values judged and missing, run state."""

    run: str
    rule: str
    state: str
    judged: int
    missing: int


class Guard:
    """A watch over the runs that match ``pattern``; made by `looptap.guard`.

    It ends with `close`. `firings` lists what has happened so far, and `watched` counts judged and missing values, by
    run and rule.
    """

    def __init__(
        self,
        pattern: str,
        rules: Sequence[Rule],
        *,
        dry_run: bool,
        record: str | os.PathLike[str] | None,
        directory: str | os.PathLike[str] | None,
    ) -> None:
        if not rules or not all(isinstance(rule, Rule) for rule in rules):
            raise QueryError(f"A guard needs rules, a list of looptap.Rule, not {rules!r:.80}.")
        if is_remote(pattern) or os.sep in pattern:
            raise NoSuchRun(f"{pattern!r}: a guard takes names, such as 'digits-*', in one directory (directory=…).")
        self.pattern, self.rules, self.dry_run = pattern, tuple(rules), dry_run
        self._directory = directory
        self._known: Known = {}
        self._siblings = {i: SiblingComparison(rule) for i, rule in enumerate(self.rules) if rule.compared is not None}
        self._lock = threading.Lock()
        self._firings: list[Firing] = []
        opened = None if record is None else open_for_writing(record, append=True)
        self._record = None if opened is None else io.TextIOWrapper(opened, encoding="utf-8")
        self._watches: dict[str, RunWatch] = {}
        self._ended: dict[str, list[WatchedRun]] = {}  # by run that has ended
        self._attaching: dict[str, Future[RunWatch]] = {}
        self._retries: dict[str, tuple[float, float]] = {}  # when to try again, and how long to wait after that
        self._fired: dict[tuple[str, int], float] = {}
        self._running_actions: set[Future[None]] = set()
        self._unattended, self._scans, self._next_scan = 0, 0, 0.0
        self._problem = ""
        self._closed = threading.Event()
        self._attach_pool = ThreadPoolExecutor(_WORKER_THREADS, "looptap-guard-attach")
        self._action_pool = ThreadPoolExecutor(_WORKER_THREADS, "looptap-guard-act")
        self._scan()  # a directory that cannot be read raises here
        self._thread = background_thread(self._run, "looptap-guard", self._closed.set)
        self._thread.start()

    # ------------------------------------------------------------ what users see

    @property
    def firings(self) -> list[Firing]:
        """All actions so far, in order, and all gaps and problems that prevented judging."""
        with self._lock:
            return list(self._firings)

    @property
    def watched(self) -> list[WatchedRun]:
        """The progress of each rule with each run, including runs that have ended."""
        with self._lock:
            past, present = [*self._ended.values()], [*self._watches.values()]
        return [*chain(*past, *map(self._progress, present))]

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until all matching runs and actions are over; False after ``timeout`` s.

        Args:
            timeout: Seconds to wait; None: no limit.
        """
        scans = self._scans
        return poll_until(lambda: self._closed.is_set() or self._is_done(scans), JUDGE_INTERVAL_SECONDS / 2, timeout)

    def _is_done(self, scans: int) -> bool:
        """Return True if nothing is watched or under way, by a later scan than so many."""
        with self._lock:
            busy = self._unattended or self._watches or self._attaching or self._running_actions
        return not busy and self._scans > scans

    def close(self, timeout: float = 10.0) -> None:
        """End the guard, not the runs; running actions have ``timeout`` seconds left.

        Args:
            timeout: Seconds to wait.
        """
        self._closed.set()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)
        wait(list(self._running_actions), timeout)
        self._attach_pool.shutdown(wait=False, cancel_futures=True)
        self._action_pool.shutdown(wait=False, cancel_futures=True)
        wait(list(self._attaching.values()), ATTACH_TIMEOUT_SECONDS)
        for future in self._attaching.values():
            if future.done() and not future.cancelled() and not future.exception():
                future.result().run.close()
        for watch in list(self._watches.values()):
            watch.run.close()
        with self._lock:
            if self._record is not None:
                self._record.close()
                self._record = None

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed.is_set() else "dry run" if self.dry_run else "on watch"
        counts = f"{len(self._watches)} runs, {len(self.rules)} rules, {len(self._firings)} firings"
        return f"<Guard {self.pattern!r}: {state}; {counts}{self._problem and f'; {self._problem}'}>"

    # ------------------------------------------------------------ the guard's thread

    def _run(self) -> None:
        while not self._closed.wait(JUDGE_INTERVAL_SECONDS):
            try:
                if time.monotonic() >= self._next_scan:
                    self._scan()
                self._problem = ""
            except (LooptapError, OSError) as error:  # a shared directory that is away for a while
                self._report_problem(str(error))
            try:
                self._check_runs()
            except Exception as error:
                self._report_problem(f"{type(error).__name__}: {error}")
                log.debug("looptap: an internal error in the guard", exc_info=True)

    def _report_problem(self, text: str) -> None:
        if text != self._problem:
            self._problem = text
            self._record_firing(Firing(time.time(), "", "", None, None, "problem", text))

    def _scan(self) -> None:
        """Look for runs that are new, or can be attached to again."""
        now = time.monotonic()
        self._next_scan = now + SCAN_INTERVAL_SECONDS
        left = 0
        for listed in one_role_each(scan(self._directory, self._known)):
            if listed.alive is False or listed.rank != 0 or not self._matches(listed) or listed.id in self._ended:
                continue
            left += 1
            known = listed.id in self._watches or listed.id in self._attaching
            if known or now < self._retries.get(listed.id, (0.0, 0.0))[0]:
                continue
            if len(self._attaching) < _MAX_PENDING_TASKS:
                self._attaching[listed.id] = self._attach_pool.submit(
                    RunWatch, listed, self.rules, self._siblings, ATTACH_TIMEOUT_SECONDS
                )
        self._unattended = left
        self._scans += 1

    def _matches(self, listed: RunListing) -> bool:
        return any(fnmatch.fnmatchcase(text, self.pattern) or text == self.pattern for text in (listed.id, listed.name))

    def _check_runs(self) -> None:
        for id, future in list(self._attaching.items()):
            if future.done():
                with self._lock:
                    del self._attaching[id]
                self._on_attached(id, future)
        for id, watch in list(self._watches.items()):
            for index, judge in watch.judges:
                for judgement in judge.new_judgements():
                    self._on_judgement(watch, index, judgement)
            if watch.over:
                self._stop_watching(id, watch)
        self._running_actions = {future for future in self._running_actions if not future.done()}

    def _on_attached(self, id: str, future: Future[RunWatch]) -> None:
        error = future.exception()
        if error is None:
            watch = future.result()
            with self._lock:
                self._watches[id] = watch
            for index, judgement in watch.problems:
                self._on_judgement(watch, index, judgement)
            return
        _, pause = self._retries.get(id, (0.0, ATTACH_TIMEOUT_SECONDS))
        if id not in self._retries and not isinstance(error, RunEnded):
            self._record_firing(Firing(time.time(), id, "", None, None, "problem", f"not guarded yet: {error}"))
        self._retries[id] = time.monotonic() + pause, min(2 * pause, 60.0)

    def _stop_watching(self, id: str, watch: RunWatch) -> None:
        """Stop watching a run that is over or unreachable; keep its results."""
        progress = self._progress(watch)
        lost = watch.run.state == FAILED and watch.process.alive() is not False
        with self._lock:
            del self._watches[id]
            if not lost:
                self._ended[id] = progress
        if lost:
            self._retries[id] = time.monotonic() + ATTACH_TIMEOUT_SECONDS, 2 * ATTACH_TIMEOUT_SECONDS
            text = f"the connection failed and is tried again: {watch.run.reason}"
            self._record_firing(Firing(time.time(), id, "", None, None, "gap", text))
        watch.run.close()

    def _progress(self, watch: RunWatch) -> list[WatchedRun]:
        id, state = watch.run.id, watch.run.state
        return [WatchedRun(id, judge.rule.name, state, judge.judged, judge.missing) for _, judge in watch.judges]

    # ------------------------------------------------------------ firings

    def _on_judgement(self, watch: RunWatch, index: int, judgement: Judgement) -> None:
        rule, id, now = self.rules[index], watch.run.id, time.monotonic()
        if judgement.kind:
            text = str(judgement.value)
            self._record_firing(Firing(time.time(), id, rule.name, judgement.event, None, judgement.kind, text))
            return
        again = math.inf if rule.again is None else rule.again
        if now - self._fired.get((id, index), -math.inf) < again:
            return
        self._fired[id, index] = now
        firing = Firing(time.time(), id, rule.name, judgement.event, judgement.value, "", "")
        if self.dry_run:
            for action in (*rule.actions, *(("kill",) if rule.kill is not None else ())):
                self._record_firing(firing._replace(action=action_name(action), outcome="dry run: not done"))
        else:
            self._running_actions.add(self._action_pool.submit(self._perform, firing, rule, watch))

    def _perform(self, firing: Firing, rule: Rule, watch: RunWatch) -> None:
        began = time.monotonic()
        for action in rule.actions:
            named = firing._replace(action=action_name(action))
            self._record_firing(named._replace(outcome=act(action, named, rule, watch.run)))
        if rule.kill is not None:
            outcome = end_process(watch.process, began + rule.kill, self._closed)
            self._record_firing(firing._replace(action="kill", outcome=outcome))

    def _record_firing(self, firing: Firing) -> None:
        with self._lock:
            self._firings.append(firing)
            if self._record is None:
                return
            try:
                self._record.write(json_line(firing) + "\n")
                self._record.flush()
            except OSError as error:
                self._problem = f"the record cannot be written: {error}"
                with contextlib.suppress(OSError):
                    self._record.close()
                self._record = None


def guard(
    pattern: str,
    rules: Sequence[Rule],
    *,
    dry_run: bool = False,
    record: str | os.PathLike[str] | None = None,
    directory: str | os.PathLike[str] | None = None,
) -> Guard:
    """Watch the runs that match ``pattern`` with ``rules``, as soon as they appear.

    The guard runs on its own threads until `Guard.close`; it is also a context manager. It looks for runs twice a
    second, and watches rank 0 of each.

    Args:
        pattern: A name, an id, or a pattern such as ``"digits-*"``.
        rules: The rules; each is judged for every run that matches.
        dry_run: True runs no action; `Guard.firings` lists those that would have run.
        record: A file to which each firing is added, as JSON on a line.
        directory: The directory in which runs announce themselves; by default ``LOOPTAP_DIR``, or the standard one.

    Raises QueryError, NoDirectory, UnsafeFile and OSError.
    """
    return Guard(pattern, rules, dry_run=dry_run, record=record, directory=directory)
