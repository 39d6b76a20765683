"""The arguments and controls of `Echo`, checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from numbers import Real
from typing import Any

from looptap.streams.control import Control
from looptap.streams.errors import ControlError
from looptap.training.host_loader import rebuildable

BEFORE, AFTER, BATCH, SHUFFLED = "example_before_augment", "example_after_augment", "batch", "batch_shuffled"
MODES = (BEFORE, AFTER, BATCH, SHUFFLED)
"""Insertion points of the echo: what is repeated, and where."""
MAX_FACTOR = 64.0
"""The highest factor."""


class Factor(Control):
    """A control from 1 to 64; takes a function of the step or "auto", too."""

    def __set__(self, instance: Any, value: Any) -> None:
        value = self.checked(value, self.name)
        if value != "auto" and not callable(value) and value == self.__get__(instance):
            return  # restored by a resume: the schedule stays in control
        instance.auto = value == "auto"
        instance.__dict__["schedule"] = value if callable(value) else None
        if isinstance(value, float):
            instance.__dict__[self.name] = value

    def range(self) -> str:
        """Describe the allowed values."""
        return f"{super().range()}, a function of the step, or 'auto'"

    def _admitted(self, value: Any) -> Any:
        word = isinstance(value, str) and value == "auto"  # an array has no single answer to ==
        return value if word or callable(value) else super()._admitted(value)


class Automatic(Control):
    """The control that turns on the measured factor, if that is possible."""

    def __set__(self, instance: Any, value: Any) -> None:
        if self.checked(value, self.name) and instance.apart:
            raise ControlError(
                "factor = 'auto': it is measured on each rank by itself, and ranks would take unequal numbers of "
                "steps. Pass broadcast=, so that all take what rank 0 says."
            )
        super().__set__(instance, value)


class Mode(Control):
    """The control of the insertion point; refuses one that cannot work."""

    def __set__(self, instance: Any, value: Any) -> None:
        value = self.checked(value, self.name)
        if problem := instance.impossible(value):
            raise ControlError(f"{self.name} = {value!r}: {problem}")
        super().__set__(instance, value)


def impossible(
    mode: str, loader: Any, augment: Callable[[Any], Any] | None, augment_batch: Callable[[Any], Any] | None
) -> str:
    """Return why this insertion point cannot work with this loader; empty if it can."""
    if mode in (BATCH, SHUFFLED):
        return ""
    if not rebuildable(loader):
        kind = type(loader).__name__
        return f"to echo examples, looptap needs a DataLoader that batches them; a {kind} yields batches: echo batches."
    if loader.batch_size is None and getattr(loader.batch_sampler, "batch_size", None) is None:
        return "the loader has no batch_size, so looptap cannot make batches of examples: echo batches."
    if mode == BEFORE and augment is None and augment_batch is None:
        return "no augmentation comes after it: pass augment= or augment_batch= instead of augmenting in the data set."
    if mode == AFTER and augment_batch is not None:
        return f"augment_batch= works on echoed batches, so echo before it: mode={BEFORE!r}."
    return ""


def possible(mode: str, loader: Any) -> tuple[str, str]:
    """Return the insertion point to use, and why it is another one.

    Before the batches of a DataLoader that makes them by itself there is none.
    """
    from torch.utils.data import DataLoader

    if mode not in (BEFORE, AFTER) or not isinstance(loader, DataLoader) or rebuildable(loader):
        return mode, ""
    return BATCH, (
        f"mode={mode!r}: a {type(loader).__name__} makes its own batches, so whole batches are echoed instead "
        "(mode='batch'). To echo examples, pass a torch DataLoader."
    )


def checked_loader(loader: Any, augment: Callable[[Any], Any] | None) -> Any:
    """Return a loader that can be iterated again. Raises TypeError or ValueError."""
    if not hasattr(loader, "__iter__") or isinstance(loader, str | bytes):
        raise TypeError(f"loader={loader!r:.60} must be a DataLoader, or another iterable of batches.")
    if _exhausts(loader):
        raise ValueError(
            f"loader={loader!r:.60}: an iterator is exhausted after one epoch; pass the DataLoader it was made from."
        )
    if augment is not None and not rebuildable(loader):
        raise ControlError(
            f"augment={augment!r:.60}: it works on examples, and a {type(loader).__name__} yields batches. Give "
            "augment_batch=, or augment in the data set."
        )
    return loader


def _exhausts(loader: Any) -> bool:
    """Return True for an iterator; some loaders begin again at each ``iter``, though."""
    kind = type(loader)
    if not hasattr(kind, "__next__"):
        return False
    of_torch = any(
        base.__module__ == "torch.utils.data.dataloader" and "__next__" in vars(base) for base in kind.__mro__
    )
    compiled = "__module__" not in vars(kind)  # generators too
    return compiled or of_torch or kind.__iter__ is Iterator.__iter__


def positive_number(name: str, value: Any, *, whole: bool = False) -> Any:
    """Return ``value`` if above 0 (from 1, if whole). Raises ValueError."""
    fine = isinstance(value, Real) and not isinstance(value, bool) and float(value) > 0  # NaN is not
    if not fine or (whole and not float(value).is_integer()):
        raise ValueError(f"{name}={value!r:.60} must be a {'whole ' * whole}number above 0.")
    return value


def functions(**given: Any) -> None:
    """Raise TypeError for arguments other than functions and None."""
    for name, value in given.items():
        if value is not None and not callable(value):
            raise TypeError(f"{name}={value!r:.60} must be a function.")


def one_of(name: str, value: Any, choices: tuple[str, ...]) -> str:
    """Return ``value`` if it is among the choices. Raises ValueError."""
    if value not in choices:
        raise ValueError(f"{name}={value!r:.60} must be one of {', '.join(map(repr, choices))}.")
    return str(value)
