"""Controls: declared by the host, of exposed objects, and attributes by path.

Values are read on the I/O thread when a client asks, and set on the training thread.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from looptap.agent.control.knobs.optimizer_controls import controls_of_optimizer
from looptap.protocol.replies import ControlInfo
from looptap.streams.control import KINDS, Control, no_control
from looptap.streams.errors import ControlError
from looptap.streams.events import Lazy
from looptap.streams.expressions import nearest
from looptap.streams.values.device_transfer import Pending
from looptap.streams.values.snapshots import snapshot

_STEP = re.compile(r"\.?([^\W\d]\w*)|\.(\d+)|\[(-?\d+)\]|\[(?:'([^']*)'|\"([^\"]*)\")\]")
_FREE = Control(float)


class BoundControl:
    """A control with its getter and its setter (value, treatment of a schedule)."""

    def __init__(
        self,
        name: str,
        control: Control,
        get: Callable[[], Any],
        set: Callable[[Any, str], object],
        schedules: str | None = None,
        refusal: str = "",
    ) -> None:
        self.name, self.control, self.get, self.set = name, control, get, set
        self.schedules = schedules
        """The schedules that drive it, for which a caller must choose SCALE or FREEZE; None: none ever does."""
        self.refusal = refusal
        """The reason why it cannot be set now, if so."""
        self.of_optimizer = False
        """True if an optimizer's state contains its value."""
        self.frozen: Callable[[], bool] = lambda: False
        """Returns whether the schedules that drive it are frozen."""

    def value(self) -> Any:
        """Return the value as plain data; a number if it has one element."""
        value = self.get()
        value = value.item() if getattr(value, "ndim", None) == 0 else value
        copy = snapshot(value)[0]
        return copy.resolve() if type(copy) is Pending else copy


class ControlChange(NamedTuple):
    """The newest change of a control by a command."""

    version: int
    id: str
    """Of the command."""
    client: str
    old: Any
    new: Any
    reached: Any
    """What the control read as after it: a number, where ``new`` may be a word for one."""
    schedule: str
    was_frozen: bool
    """True if the schedules that drive it were frozen before."""
    time: float
    """By the monotonic clock."""

    @property
    def age(self) -> float:
        """Seconds since the change."""
        return time.monotonic() - self.time


class ControlChanges:
    """Versions of the controls: how often commands changed each, and the last one."""

    def __init__(self) -> None:
        self._last: dict[str, ControlChange] = {}
        self._lock = threading.Lock()

    def names(self) -> list[str]:
        """Return the names of the changed controls."""
        return list(self._last)

    def version(self, name: str) -> int:
        """Return how often a control was changed."""
        return self._last[name].version if name in self._last else 0

    def last(self, name: str) -> ControlChange | None:
        """Return the newest change of a control; None if no command has changed it."""
        return self._last.get(name)

    def note(
        self, name: str, *, id: str, client: str, old: Any, new: Any, reached: Any, schedule: str, was_frozen: bool
    ) -> int:
        """Record a change; return the new version."""
        with self._lock:
            version = self.version(name) + 1
            self._last[name] = ControlChange(
                version, id, client, old, new, reached, schedule, was_frozen, time.monotonic()
            )
        return version

    def conflict(self, name: str, expected: int | None) -> str:
        """Describe the change that the caller has not seen; empty if none."""
        if expected is None or expected == self.version(name):
            return ""
        last = self.last(name)
        if last is None:
            return f"{name!r} has not been changed in this run, and you have seen its version {expected}."
        return (
            f"{name!r} was set to {last.new!r:.80} by {last.client or 'a client'} {last.age:.0f} s ago, since "
            f"you looked. Look again, at run.controls[{name!r}], or change it regardless with expected=None."
        )


class BoundControls:
    """All controls of a job, by name; ``exposed`` are the exposed objects."""

    def __init__(self, exposed: Callable[[], dict[str, Any]]) -> None:
        self._exposed = exposed
        self._declared: dict[str, BoundControl] = {}
        self.changes = ControlChanges()

    def declare(self, name: str, get: Callable[[], Any], set: Callable[[Any], object], control: Control) -> None:
        """Add a control of the host. Raises ControlError."""
        if not isinstance(name, str) or not 0 < len(name) <= 100 or not name.isprintable():
            raise ControlError(f"a control's name is 1 to 100 printable characters, not {name!r:.120}.")
        if not callable(get) or not callable(set):
            raise ControlError(
                f"the control {name!r} needs two functions: one without arguments that "
                "returns the value, and one that sets it."
            )
        self._declared[name] = BoundControl(name, control, get, lambda value, schedule: set(value))

    def named(self) -> dict[str, BoundControl]:
        """Return the named controls; a declared one hides a found one."""
        exposed = self._exposed()
        found = {bound.name: bound for name, thing in list(exposed.items()) for bound in _of(name, thing, exposed)}
        return found | self._declared

    def saved(self) -> dict[str, Any]:
        """Return the values that no checkpoint of the job has, by name or path.

        These are all named controls but those of optimizers, and the attributes that were set by path.
        """
        found = {name: bound for name, bound in self.named().items() if not bound.of_optimizer}
        for name in self.changes.names():
            if name not in found and name not in self.named():
                with contextlib.suppress(ControlError):
                    found[name] = self.find(name)
        values = {}
        for name, bound in found.items():
            with contextlib.suppress(Exception):  # what cannot be read is not there
                values[name] = bound.value()
        return {name: value for name, value in values.items() if type(value) in KINDS}

    def find(self, name: str) -> BoundControl:
        """Return the control of this name, or an attribute by path. Raises ControlError."""
        named = self.named()
        if name in named:
            return named[name]
        try:
            bound = self._at_path(name)
        except ControlError as error:
            near = "" if "Did you mean" in str(error) else nearest(name, named)
            raise ControlError(f"{error}{' ' * bool(near)}{near}") from None
        if bound is None:
            raise ControlError(no_control(name, named))
        return bound

    def describe(self, path: str = "") -> tuple[ControlInfo, ...]:
        """Describe every named control, and the attribute at ``path`` if there is one."""
        found = self.named()
        if path and path not in found:
            with contextlib.suppress(ControlError):
                found[path] = self.find(path)
        return tuple(self._info(bound) for bound in found.values())

    def _info(self, bound: BoundControl) -> ControlInfo:
        value, problem, control = None, "", bound.control
        try:
            value = bound.value()
        except Exception as error:
            problem = f"it cannot be read: {type(error).__name__}: {error}"
        return ControlInfo(
            name=bound.name,
            value=value,
            type=control.type.__name__,
            minimum=control.minimum,
            maximum=control.maximum,
            choices=control.choices,
            unit=control.unit,
            doc=control.doc,
            at=control.at,
            driven=bound.schedules or "",
            version=self.changes.version(bound.name),
            problem=problem,
        )

    def _at_path(self, path: str) -> BoundControl | None:
        """Return an exposed object's attribute or item; None if there is none."""
        steps = list(_steps(path))
        if len(steps) < 2 or steps[0] not in (exposed := self._exposed()):
            return None
        holder = exposed[steps[0]]
        for step in steps[1:-1]:
            holder = _reach(holder, step, path)
        last = steps[-1]
        now = _reach(holder, last, path)
        kind = type(now)
        scalar = getattr(now, "ndim", None) == 0 and hasattr(now, "fill_")
        if not (kind in KINDS or now is None or scalar):
            raise ControlError(
                f"{path} is of type {kind.__name__}: by its path a number, text, True or False can be set. "
                "For anything else, use run.call."
            )
        number = kind is float or scalar
        control = Control(kind) if kind in (bool, str, int) else _FREE if number else _Anything()
        return BoundControl(
            path, control, lambda: _reach(holder, last, path), lambda value, _: _put(holder, last, value, path)
        )


class _Anything(Control):
    """The control of a value of unknown type: it is None now."""

    def _admitted(self, value: Any) -> Any:
        return value if type(value) in KINDS and value == value else None

    def range(self) -> str:
        return "a number, text, True or False"


def _of(name: str, thing: Any, exposed: dict[str, Any]) -> Iterator[BoundControl]:
    """Yield the controls of one exposed object."""
    if isinstance(thing, Lazy):
        return
    seen = set()
    for owner in type(thing).__mro__:
        for attribute, control in vars(owner).items():
            if attribute not in seen and isinstance(control, Control):
                yield BoundControl(f"{name}.{attribute}", control, *_accessors(thing, attribute))
            seen.add(attribute)
    for found in controls_of_optimizer(name, thing, exposed):
        bound = BoundControl(*found[:6])
        bound.of_optimizer, bound.frozen = True, found[6]
        yield bound


def _accessors(thing: Any, attribute: str) -> tuple[Callable[[], Any], Callable[[Any, str], object]]:
    return lambda: getattr(thing, attribute), lambda value, schedule: setattr(thing, attribute, value)


def _steps(path: str) -> Iterator[str | int]:
    """Split a path into names, indices and keys.

    >>> list(_steps("model.layers[0].p"))
    ['model', 'layers', 0, 'p']
    """
    at = 0
    while at < len(path):
        match = _STEP.match(path, at)
        if match is None:
            raise ControlError(f"{path!r:.120} is neither the name of a control nor a path such as model.dropout.p.")
        name, number, index, single, double = match.groups()
        if name is not None:
            yield name
        elif number is not None or index is not None:
            yield int(number or index)
        else:
            yield single if single is not None else double
        at = match.end()


def _reach(holder: Any, step: str | int, path: str) -> Any:
    if isinstance(holder, dict | list | tuple):
        with contextlib.suppress(KeyError, IndexError, TypeError):
            return holder[step]  # type: ignore[index]  # that is what suppress is for
    elif (named := str(step)) and not named.startswith("__"):  # the modules of a Sequential are named by numbers
        with contextlib.suppress(AttributeError):
            return getattr(holder, named)
    names = list(holder) if isinstance(holder, dict) else [n for n in dir(holder) if not n.startswith("_")]
    near = nearest(str(step), list(map(str, names)))
    raise ControlError(f"{path}: {type(holder).__name__} has no {step!r}.{' ' * bool(near)}{near}")


def _put(holder: Any, step: str | int, value: Any, path: str) -> None:
    now = _reach(holder, step, path)
    if hasattr(now, "fill_"):
        now.detach().fill_(value)
    elif isinstance(holder, dict | list):
        holder[step] = value  # type: ignore[index]  # _reach has just read it
    else:
        setattr(holder, str(step), value)
