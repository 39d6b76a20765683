"""`Control`: declares an attribute that clients may set, with bounds.

It has no dependencies: a class that declares one is useful without looptap, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from numbers import Integral, Real
from typing import Any, TypeVar

from looptap.streams.errors import ControlError
from looptap.streams.text import did_you_mean

F = TypeVar("F", bound=Callable[..., Any])
FOR_QUERIES: dict[int, Callable[..., Any]] = {}
"""The functions that `for_queries` has declared, by identity."""


def for_queries(function: F) -> F:
    """Declare a function of looptap's own that queries may call, and run as it is."""
    FOR_QUERIES[id(function)] = function
    return function


Reader = Callable[..., tuple[Any, str]]
"""Returns what a function gives for its arguments, as a copy, and ""; or None, and why it was not called."""
_readers: list[Callable[[], Reader | None]] = []


def bind_reader(find: Callable[[], Reader | None]) -> None:
    """Set what `checked_reader` does: the check needs the modules of queries."""
    _readers[:] = [find]


def checked_reader() -> Reader | None:
    """Return how a query reads objects of the job; None outside of one."""
    return _readers[0]() if _readers else None


KINDS: dict[type, str] = {int: "a whole number", float: "a number", bool: "True or False", str: "text"}
"""The types of controls, and their names in messages."""


class Control:
    """An attribute that clients may set: its type, default, bounds and meaning.

    A wrong value raises `ControlError`, even in the job.

    Args:
        type: int, float, bool or str; by default that of the first choice or of the default, else float.
        default: The value until it is set.
        minimum: The smallest allowed value, if any.
        maximum: The largest allowed value, if any.
        choices: The allowed values, if there are only a few.
        unit: The unit of the value, for people.
        doc: A sentence on what it does.
        at: The event types at which it is safe to change: one, several, or "" for any; usually the innermost group
            of the job (its batches).

    >>> class Loader:
    ...     factor = Control(int, default=2, minimum=1, maximum=16, doc="how often each batch is used")
    >>> loader = Loader()
    >>> loader.factor = 3
    >>> loader.factor
    3
    >>> loader.factor = 20
    Traceback (most recent call last):
        ...
    looptap.streams.errors.ControlError: factor = 20 must be a whole number from 1 to 16.
    """

    def __init__(
        self,
        type: type | None = None,
        *,
        default: Any = None,
        minimum: float | None = None,
        maximum: float | None = None,
        choices: Collection[Any] = (),
        unit: str = "",
        doc: str = "",
        at: str | Collection[str] = "",
    ) -> None:
        self.choices = tuple(choices)
        self.type = type or _type_of(self.choices[0] if self.choices else default)
        self.minimum, self.maximum, self.unit, self.doc = minimum, maximum, unit, doc
        self.at: tuple[str, ...] = ((at,) if at else ()) if isinstance(at, str) else tuple(at)
        self.name = ""
        if self.type not in KINDS:
            raise ControlError(f"a control of type {self.type!r}: it is one of int, float, bool and str.")
        self._check_bounds(minimum, maximum)
        self.choices = tuple(self.checked(choice, "choices", self._typed) for choice in self.choices)
        self.default = default if default is None else self.checked(default, "default")

    def _check_bounds(self, minimum: float | None, maximum: float | None) -> None:
        for bound in (minimum, maximum):
            if bound is not None and (self.type not in (int, float) or bound != bound):
                raise ControlError(f"a bound of {bound!r} for a control that is {KINDS[self.type]}.")
        if minimum is not None and maximum is not None and minimum > maximum:
            raise ControlError(f"a control from {minimum!r} to {maximum!r} has no value.")

    # ------------------------------------------------------------ descriptor

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        return instance.__dict__.get(self.name, self.default)

    def __set__(self, instance: Any, value: Any) -> None:
        instance.__dict__[self.name] = self.checked(value, self.name)

    # ------------------------------------------------------------ validation

    def checked(self, value: Any, name: str = "", check: Any = None) -> Any:
        """Return ``value`` converted to the type. Raises ControlError with the range.

        Args:
            value: The value to check.
            name: What the error calls it; by default the name of the attribute.
            check: A check to use instead of type and bounds; returns None for a wrong value.
        """
        found = (check or self._admitted)(value)
        if found is None:
            raise ControlError(f"{name or self.name or 'value'} = {value!r:.80} must be {self.range()}.")
        return found

    def range(self) -> str:
        """Describe the values that are allowed.

        >>> Control(float, minimum=0, unit="s").range()
        'a number, 0 s or more'
        """
        unit = f" {self.unit}" if self.unit else ""
        if self.choices:
            return f"one of {', '.join(map(repr, self.choices))}"
        kind, low, high = KINDS[self.type], self.minimum, self.maximum
        if low is not None and high is not None:
            return f"{kind} from {low!r} to {high!r}{unit}"
        if low is not None:
            return f"{kind}, {low!r}{unit} or more"
        return kind if high is None else f"{kind}, {high!r}{unit} or less"

    def _admitted(self, value: Any) -> Any:
        value = self._typed(value)
        if value is None or (self.choices and value not in self.choices):
            return None
        low, high = self.minimum, self.maximum
        return None if (low is not None and value < low) or (high is not None and value > high) else value

    def _typed(self, value: Any) -> Any:
        kind = self.type
        if kind in (bool, str):
            return value if type(value) is kind else None
        if isinstance(value, bool) or not isinstance(value, Real) or value != value:
            return None
        if kind is int:
            return int(value) if isinstance(value, Integral) else None
        try:
            return float(value)
        except OverflowError:
            return None


def _type_of(value: Any) -> type:
    return type(value) if type(value) in KINDS else float


MAX_UNASKED_FACTOR = 10.0
"""Factor between two values of a control beyond which a change is a leap: people are asked about it."""
_ROUNDING_FACTOR = 1 + 1e-9  # of a quotient such as 0.003 / 0.0003


def leap(old: Any, new: Any) -> str:
    """Describe a change by more than `MAX_UNASKED_FACTOR`; "" if it is smaller.

    No factor leads from 0, to 0 or to infinity: these are leaps, too. Signs do not count. Of lists, such as the
    learning rates of several groups, the largest factor does; what is no number never leaps.

    >>> leap(0.1, 1000.0), leap(0.1, 0.005), leap(0, 0.1), leap([0.1, 0.1], 0.0)
    ('by a factor of 10,000', 'by a factor of 20', 'from 0', 'to 0')
    >>> leap(0.1, 1.0), leap(3e-4, 3e-3), leap("cosine", "linear"), leap(False, True), leap(None, 5)
    ('', '', '', '', '')
    """
    olds, news = (list(value) if isinstance(value, list | tuple) else [value] for value in (old, new))
    length = max(len(olds), len(news))
    pairs = zip(olds * (length if len(olds) == 1 else 1), news * (length if len(news) == 1 else 1), strict=False)
    numbers = [(_number(a), _number(b)) for a, b in pairs]
    factor, a, b = max(((_factor(a, b), a, b) for a, b in numbers if a != b), default=(0.0, 0.0, 0.0))
    if factor <= MAX_UNASKED_FACTOR * _ROUNDING_FACTOR:
        return ""
    if factor < math.inf:
        return f"by a factor of {factor:,.0f}" if 100 <= factor < 1e6 else f"by a factor of {factor:.3g}"
    return "from 0" if a == 0 else "to 0" if b == 0 else "to or from infinity"


def _number(value: Any) -> float:
    """Return a finite or infinite number; NaN for what is none."""
    try:
        return float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:
        return math.inf


def _factor(a: float, b: float) -> float:
    """Return the factor between two numbers: inf if there is none, 0 for a NaN."""
    if math.isnan(a) or math.isnan(b):
        return 0.0
    if 0 in (a, b) or math.isinf(a) or math.isinf(b):
        return math.inf
    return max(abs(a) / abs(b), abs(b) / abs(a))


def no_control(name: str, names: Collection[str]) -> str:
    """Return what to say of a name that none of the controls has.

    >>> no_control("lr", ["optimizer.lr", "clip"])
    "there is no control 'lr'; there are: optimizer.lr, clip. Did you mean 'optimizer.lr'?"
    """
    if not names:
        return f"there is no control {name!r:.120}; the job has none: expose an optimizer or Control."
    ending = next((one for one in names if one.rpartition(".")[2] == name), "")
    near = f" Did you mean {ending!r}?" if ending else did_you_mean(name, names)
    return f"there is no control {name!r:.120}; there are: {', '.join(names)}.{near}"
