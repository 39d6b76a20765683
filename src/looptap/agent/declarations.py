"""Declarations of the host: streams, controls, triggers, checkpoint, replay."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from looptap.agent.control.job_hooks import checked_trigger
from looptap.agent.life_cycle import LifeCycle
from looptap.agent.server.declared_streams import DEFAULT_HISTORY_VALUES, DEFAULT_MAX_VALUE_BYTES
from looptap.agent.wiring import Components
from looptap.streams.control import Control
from looptap.streams.errors import QueryError

log = logging.getLogger("looptap")


class StreamDeclarations:
    """The streams that the host declares, unless the agent is inert; see `Agent`."""

    def __init__(self, parts: Components, life: LifeCycle) -> None:
        self._parts, self._life = parts, life

    def stream(
        self,
        name: str,
        query: str | Callable[..., Any],
        *,
        on: str | None = None,
        of: str = "",
        window: Any = None,
        every: int = 1,
        throttle: float = 0.0,
        history: int = DEFAULT_HISTORY_VALUES,
        unit: str = "",
        max_bytes: int = DEFAULT_MAX_VALUE_BYTES,
        keep: bool = False,
        unsafe: bool = False,
    ) -> None:
        """Declare a stream: its query runs from now on, with a ``history`` of values.

        Clients read it by its name, beginning with the history. No budget limits it, since it is part of the job's
        code.

        Args:
            name: The name for clients.
            query: A query as in `Run.stream`.
            on: The event type at which it is evaluated; "batch" by default.
            of: The name of a stream that has been declared or logged before. The query is then over its ``values``,
                beginning with the next one.
            window: The window that a reduction aggregates over, as in `Run.stream`.
            every: Evaluate at every n-th event only.
            throttle: The minimum time between two values, in seconds.
            history: The number of newest values that are held for clients that connect later.
            unit: The unit of the values, for charts and tables.
            max_bytes: The maximum size of a value in bytes.
            keep: True also writes all its values to the file of the run (docs/keep.md).
            unsafe: True runs the query as it is, even if it may change the job.

        Raises QueryError for a bad query, ValueError for another bad argument or a name that is taken, LimitReached
        beyond ``Limits.declared_streams``. Evaluating it never raises.

        >>> from looptap.testing import pair
        >>> agent, run = pair("doctest")
        >>> agent.stream("loss", "step, loss", on="batch")
        >>> agent.emit("batch", step=0, loss=0.5)
        >>> run.stream("loss").latest
        (step=0, loss=0.5)
        >>> agent.stream("smooth", "mean(v.loss for v in values)", of="loss", window=2)
        """
        if of and on is not None:
            raise QueryError(f"of={of!r} has the events of that stream: leave out on={on!r}.")
        if not self._life.inert:
            dispatcher = self._parts.dispatcher
            dispatcher.declared_streams.declare(
                name,
                query,
                "" if of else "batch" if on is None else on,
                of=of,
                window=window,
                every=every,
                throttle=throttle,
                history=history,
                unit=unit,
                max_bytes=max_bytes,
                unsafe=unsafe,
            )
            if keep and self._parts.recorder is not None:
                self._parts.connection.post(partial(dispatcher.start_keeping, name))


class ControlDeclarations:
    """The host's declarations, stored unless the agent is inert; see `Agent`."""

    def __init__(self, parts: Components, life: LifeCycle) -> None:
        self._commands, self._queries = parts.dispatcher.commands, parts.dispatcher.queries
        self._job, self._life = self._commands.job, life

    def control(
        self,
        name: str,
        get: Callable[[], Any],
        set: Callable[[Any], object],
        *,
        type: type | None = None,
        minimum: float | None = None,
        maximum: float | None = None,
        choices: Collection[Any] = (),
        unit: str = "",
        doc: str = "",
        at: str | Collection[str] = "",
    ) -> None:
        """Declare a control: a setting that clients can read and change.

        Controls that are declared as attributes (`looptap.Control`) are found on exposed objects.

        Args:
            name: The name for clients.
            get: A function that returns the value, on any thread and without side effects.
            set: A function that changes the value, in the loop.
            type: int, float, bool or str; by default that of the first choice, else float.
            minimum: The smallest allowed value, if any.
            maximum: The largest allowed value, if any.
            choices: The allowed values, if there are only a few.
            unit: The unit of the value, for people.
            doc: A sentence on what it does.
            at: The event types at which ``set`` may be called; by default any, and the first of ``groups`` unless
                the client names one.

        Raises ControlError.

        >>> import looptap
        >>> settings = {"lr": 0.1}
        >>> agent = looptap.Agent("doctest", enabled=False)
        >>> agent.control("lr", lambda: settings["lr"], lambda lr: settings.update(lr=lr), minimum=0, maximum=1)
        """
        declaration = Control(type, minimum=minimum, maximum=maximum, choices=choices, unit=unit, doc=doc, at=at)
        if not self._life.inert:
            self._job.controls.declare(name, get, set, declaration)

    def trigger(
        self,
        name: str,
        function: Callable[[], Any],
        *,
        at: str | Collection[str] = "",
        doc: str = "",
        together: bool = False,
    ) -> None:
        """Let clients call ``function`` in the loop, by name. Raises ControlError.

        Args:
            name: The name for clients.
            function: Called without arguments; clients get its result.
            at: The event types at which it may be called; by default any.
            doc: A sentence on what it does.
            together: True if it starts collectives. On a job of several ranks, a request for a single rank is then
                refused, since that rank would wait for the others forever.

        >>> import looptap
        >>> looptap.Agent("doctest", enabled=False).trigger("evaluate", lambda: 0.98)
        """
        declared = checked_trigger(function, at, doc, f"the trigger {name!r}", together)
        if not self._life.inert:
            self._job.triggers[name] = declared

    def checkpoint(
        self, function: Callable[[], Any], *, at: str | Collection[str] = "", together: bool = False
    ) -> None:
        """Let clients save a checkpoint, alone or before a change.

        Args:
            function: Called without arguments; saves the checkpoint, and may return its path.
            at: The event types at which it may be called, by default any. A change with a checkpoint waits for one of
                them.
            together: As in `trigger`.

        >>> import looptap
        >>> looptap.Agent("doctest", enabled=False).checkpoint(lambda: "step3.pt")
        """
        declared = checked_trigger(function, at, "", "what makes a checkpoint", together)
        if not self._life.inert:
            self._job.checkpoint = declared

    def stop_requested(self) -> bool:
        """Return True if a client has asked the job to stop; note that the job checks."""
        self._job.stop_was_read = True
        return self._job.stop_requested

    def allow(self, on_stop: type[BaseException] | None, may_pause: float | None) -> None:
        """Set whether clients may stop and pause the loop. Raises ValueError."""
        if on_stop is not None:
            if not isinstance(on_stop, type) or not issubclass(on_stop, BaseException):
                raise ValueError(f"on_stop={on_stop!r} must be a class of exceptions.")
            on_stop()  # it must do without arguments
        if may_pause is not None and not 0 < may_pause < float("inf"):
            raise ValueError(f"may_pause={may_pause!r} must be a number of seconds above 0.")
        self._job.on_stop, self._job.pause.bound = on_stop, may_pause

    def replay(self, path: str | os.PathLike[str] | None, strict: bool) -> None:
        """Replay ``path``, or the file named by LOOPTAP_REPLAY. Raises ControlError.

        If the file comes from the environment, an error is a warning unless ``strict``.
        """
        named = path or os.environ.get("LOOPTAP_REPLAY")
        if not named or self._life.inert:
            return
        from looptap.agent.control.replay import replay  # loads the reading of stored runs, and few jobs need it
        from looptap.store.replay_commands import commands_to_replay

        try:
            source = f"replay of {os.path.basename(named)}"
            replay(commands_to_replay(named), source, self._commands, self._queries)
        except Exception as error:
            if path or strict:
                raise
            log.warning("looptap: LOOPTAP_REPLAY is ignored: %s", error)
