"""The hooks of one query: put in at its first event, read at each, and taken out."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from looptap.agent.loop.hooks.module_hook import Counter, ModuleHook
from looptap.streams.errors import QueryError
from looptap.streams.events import Event, Lazy, held
from looptap.streams.harmless.plain import is_module
from looptap.streams.values.modules.module_read import ModuleRead
from looptap.streams.values.modules.named_modules import find_modules

MAX_EVENTS_BEFORE_CALL = 20
"""Events without a first call of the modules after which the query ends."""
EVENTS_BEFORE_MOVING = 3
"""Events without a call after which another model of these events may have taken the place of the first one."""


class QueryHooks:
    """The hooks of a query that reads modules, on each module that it names.

    Training thread, except for `check` and `close`.
    """

    def __init__(
        self, reads: Sequence[ModuleRead], exposed: Mapping[str, Any], events: Counter, on: str, every: int
    ) -> None:
        self._reads, self._exposed, self._events, self._on, self._every = reads, exposed, events, on, every
        self._hooks: dict[ModuleRead, dict[str, ModuleHook]] = {}
        self._models: dict[str, weakref.ref[Any]] = {}
        self._event: Event | None = None
        self._called = False
        self._uncalled = 0
        self._closed = False
        for read in reads:
            read.values = self._values

    def check(self) -> None:
        """Raise QueryError for what can be known to fail before the first event."""
        if models := models_among(self._exposed):
            for read in self._reads:
                try:
                    find_modules(models, read.patterns)
                except RuntimeError:  # the loop is changing a module just now: the first event will tell
                    return

    def ready(self, event: Event) -> bool:
        """Return True once the hooks are in; put them in if they are not.

        Raises QueryError if that is not possible.
        """
        if self._hooks:
            return True
        models, awaited = self._models_at(event)
        try:
            if not self._closed:
                self._put_in({**models_among(event.__looptap_exposed__()), **models})
        except QueryError:
            if not awaited:  # a variable of the job of that name, which has no value yet
                raise
        return False

    def begin(self, event: Event) -> None:
        """Note the event at which the query is evaluated next."""
        self._event = event

    def _models_at(self, event: Event) -> tuple[dict[str, Any], bool]:
        """Return the models that the event itself has, and True if some may still come."""
        observables: Any = vars(event)
        awaited = False
        if (load := getattr(observables, "load", None)) is not None:  # in a script as it is they are searched for
            load(names := {"model", *(p.partition(".")[0] for read in self._reads for p in read.patterns if p)})
            awaited = not names.isdisjoint(observables.coming)
        return models_among(observables), awaited

    def _put_in(self, models: dict[str, Any]) -> None:
        hooks: dict[ModuleRead, dict[str, ModuleHook]] = {}
        found = {read: find_modules(models, read.patterns) for read in self._reads}
        try:
            for read, modules in found.items():
                hooks[read] = {}
                for name, module in modules.items():
                    hooks[read][name] = ModuleHook(name, module, read.kind, self._events, self._every)
        except BaseException:
            _each(hooks, ModuleHook.remove)
            raise
        self._hooks, self._models = hooks, {name: weakref.ref(model) for name, model in models.items()}
        if self._closed:  # meanwhile, by the I/O thread
            self.remove()

    def _values(self, read: ModuleRead) -> dict[str, Any]:
        """Return the values of this event by name. Raises QueryError without any."""
        hooks = self._hooks[read]
        called = {name: hook for name, hook in hooks.items() if hook.calls and not hook.is_on(None)}
        self._called = self._called or bool(called)
        self._uncalled = 0 if called else self._uncalled + 1
        found, problem = {}, None
        for name, hook in called.items():
            try:
                found[name] = hook.value()
            except QueryError as error:
                problem = problem or error
        if found:
            return found
        if problem is not None:
            raise problem
        if self._moved():
            raise QueryError("the model was replaced: its modules are watched from the next event on.")
        these = repr(next(iter(hooks))) if len(hooks) == 1 else f"none of the {len(hooks)} modules of {read}"
        verb = "was not" if len(hooks) == 1 else "was"
        hopeless = not self._called and self._uncalled >= MAX_EVENTS_BEFORE_CALL
        since = f"during {self._uncalled} {self._on!r} events" if hopeless else f"since the last {self._on!r} event"
        cause = (
            "Hooks are not called inside a function that torch.compile has compiled, or if forward() is called instead "
            "of the module."
        )
        here = "The loop may not use it here. " if self._called else ""
        uncalled = QueryError(f"{these} {verb} called {since}. {here}{self._container(hooks)}{cause}")
        uncalled.hopeless, uncalled.passing = hopeless, self._called
        raise uncalled

    def _container(self, hooks: Mapping[str, ModuleHook]) -> str:
        """Return a sentence on a module whose children may be called in its place."""
        known = [model for weak in self._models.values() if (model := weak()) is not None]
        for name, hook in hooks.items():
            module = next((one for model in known for one in model.modules() if hook.is_on(one)), None)
            child = next(iter(getattr(module, "_modules", ())), None)
            if child is not None:
                inside = f"{name}.{child}" if name else child
                kind = type(module).__name__
                return f"{name or 'The model'!r} is a {kind}: if its children are called instead, ask for {inside!r}. "
        return ""

    def _moved(self) -> bool:
        """Put the hooks on other modules if the model now consists of these."""
        if self._event is not None and self._uncalled >= EVENTS_BEFORE_MOVING:
            models, _ = self._models_at(self._event)
            if self._move(models):
                return True
        known = {name: model for name, weak in self._models.items() if (model := weak()) is not None}
        return self._move({**known, **models_among(self._exposed)})

    def _move(self, models: dict[str, Any]) -> bool:
        """Put the hooks on the modules of ``models``; return False if they are there."""
        try:
            found = {read: find_modules(models, read.patterns) for read in self._reads}
        except QueryError:
            return False
        same = all(
            name in self._hooks[read] and self._hooks[read][name].is_on(module)
            for read, modules in found.items()
            for name, module in modules.items()
        )
        if same:
            return False
        _each(self._hooks, ModuleHook.remove)
        self._put_in(models)
        return True

    def release(self) -> None:
        """Drop the values of this event."""
        self._event = None
        _each(self._hooks, ModuleHook.release)

    def close(self) -> bool:
        """Drop all values, and let each hook take itself out when it is called.

        Any thread. False if no hook is in, so that none is to be taken out at an event.
        """
        self._closed = True
        for hooks in list(self._hooks.values()):
            for hook in list(hooks.values()):
                hook.active = False
                hook.release()
        return bool(self._hooks)

    def remove(self, event: Event | None = None) -> None:
        """Take the hooks out."""
        self._closed = True
        _each(self._hooks, ModuleHook.remove)


def _each(hooks: Mapping[ModuleRead, Mapping[str, ModuleHook]], do: Callable[[ModuleHook], None]) -> None:
    for named in hooks.values():
        for hook in named.values():
            do(hook)


def models_among(observables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the models among observables, by name."""
    found = {}
    for name, value in [(name, held(value)) for name, value in list(observables.items())]:
        if type(value) is not Lazy and is_module(value):
            found[name] = value
    return found
