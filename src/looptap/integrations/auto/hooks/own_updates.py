"""After which backward passes a script updates its weights itself.

A backward pass is an update of its own unless an optimizer of torch steps on its gradients. That is known of the place
in the script that calls ``backward``, once a step has followed it. At another place it is looked at which gradients the
pass reaches: if they are those of no optimizer, or if the script drops them again and again before any step, the script
has an optimizer of its own.

Only the thread that trains with an optimizer may look at its gradients: while another one's backward pass replaces a
gradient, reading it there would end the process.
"""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

from looptap.agent.loop.sight.frames import LIBRARY, USER, kind_of_file
from looptap.integrations.auto.hooks.gradients import Key, Marks, has_gradients, has_sharded, key_of, marks_of
from looptap.integrations.auto.sight.models import modules_in_sight

MAX_OPTIMIZERS_COUNT = 64
"""Optimizers whose gradients are looked at; with more of them, steps alone are updates."""
MAX_PLACES_COUNT = 1000
"""Places that call ``backward`` of which it is known what follows."""
MAX_FRAMES_COUNT = 40
"""Frames that are looked through for such a place."""
TRUSTED_BACKWARDS_COUNT = 8
"""Backward passes without a step from which on a look tells whether there will be one."""
NO_MODULE_BACKWARDS_COUNT = 50
"""Such passes after which gradients of no module in sight count, too: an attack on inputs has them between steps."""
SAME_REACH_COUNT = 8
"""Passes of one place that reach the same gradients, after which it is looked at more and more rarely."""
MAX_BACKWARDS_COUNT = 2000
"""Backward passes without a step after which each counts as one."""
OWN, STEPS = "own", "steps"
_STEP = "Optimizer.profile_hook_step.<locals>.wrapper"
"""What torch puts around the ``step`` of each class of optimizers."""

Place = tuple[str, int]


class _Thread:
    """A thread, as long as it lives."""


class _Current(threading.local):
    def __init__(self) -> None:
        self.thread = _Thread()
        self.used: Callable[[], Any] = _nothing
        """The optimizer that the thread has used last: a weak reference."""


def _nothing() -> None:
    return None


_SHARED = _Thread()
"""Stands for several threads that train with one optimizer."""
_UNKNOWN = _Thread()
"""Stands for the thread of an optimizer that was found."""


@dataclass(slots=True)
class _Known:
    reference: weakref.ref[Any]
    thread: weakref.ref[_Thread]
    used: bool
    """True if that thread has used it; it has only made it otherwise."""

    def use(self, thread: _Thread) -> None:
        """Note that ``thread`` trains with it."""
        others = self.used and self.thread() not in (None, thread)
        self.thread, self.used = weakref.ref(_SHARED if others else thread), True


class OwnUpdates:
    """The optimizers of this process, and what follows its backward passes.

    Any thread.
    """

    def __init__(self) -> None:
        self._torch_optimizers: dict[int, _Known] = {}
        self._current = _Current()
        self._follows: dict[Place, str] = {}
        self._reach: dict[Place, tuple[frozenset[Key], int]] = {}

    def note_optimizer(self, optimizer: Any) -> None:
        """Note an optimizer of torch's kind, which this thread has made."""
        self._note(optimizer, self._current.thread)

    def note_use(self, optimizer: Any) -> None:
        """Note that this thread trains with ``optimizer``."""
        current = self._current
        if current.used() is not optimizer:  # else that is noted
            known = self._note(optimizer, current.thread)
            known.use(current.thread)
            current.used = known.reference

    def find_optimizers(self) -> None:
        """Note all optimizers that were made before this was watched."""
        kind = sys.modules["torch"].optim.Optimizer
        for one in gc.get_objects():
            if issubclass(type(one), kind):
                self._note(one, _UNKNOWN)

    def _note(self, optimizer: Any, thread: _Thread) -> _Known:
        known = self._torch_optimizers.get(id(optimizer))
        if known is None or known.reference() is not optimizer:
            for key in [key for key, old in [*self._torch_optimizers.items()] if old.reference() is None]:
                self._torch_optimizers.pop(key, None)
            known = self._torch_optimizers[id(optimizer)] = _Known(weakref.ref(optimizer), weakref.ref(thread), False)
            self._reach.clear()
        return known

    def note_step(self, places: set[Place], optimizer: Any) -> bool:
        """Note that a step of ``optimizer`` follows the passes of ``places``.

        Return True if one of them was taken for an update of its own, so that its event has been raised.
        """
        raised = OWN in map(self._follows.get, places)
        self._follows |= dict.fromkeys(places, STEPS)
        known = [self._reach[place][0] for place in places if place in self._reach]
        if len(known) == len(places) and key_of(optimizer) not in frozenset[Key]().union(*known):
            self._reach.clear()  # one line of a script may call ``backward`` for one optimizer after the other
        return raised

    def expects(self, place: Place, backwards: int, optimizers: list[Any]) -> str | None:
        """Return what follows a pass, `OWN` or `STEPS`; None if its gradients can tell.

        ``backwards`` is the number of passes since the last update, with this one; ``optimizers`` are all.
        """
        if not optimizers:
            return OWN
        if backwards >= MAX_BACKWARDS_COUNT:
            self._note_own(place)
        known = self._follows.get(place)
        if known == OWN or len(optimizers) > MAX_OPTIMIZERS_COUNT:
            return known or STEPS
        trusted = backwards < TRUSTED_BACKWARDS_COUNT or backwards & (backwards - 1)  # looks get rarer, by powers of 2
        return STEPS if known == STEPS and trusted else None

    def reach(self, place: Place, optimizers: list[Any]) -> frozenset[Key] | None:
        """Return whose gradients a pass of ``place`` reaches; None: look.

        ``optimizers`` are all.
        """
        keys, count = self._reach.get(place, (frozenset(), 0))
        if count < SAME_REACH_COUNT or not count & (count - 1):  # powers of 2
            return None
        if not keys <= {key_of(one) for one in optimizers}:
            return None
        self._reach[place] = keys, count + 1
        return keys

    def note_reach(self, place: Place, before: Look) -> frozenset[Key]:
        """Return whose gradients a pass has reached since ``before``."""
        keys = frozenset(key_of(one) for one, marks, _ in before if has_sharded(one) or marks != marks_of(one))
        old, count = self._reach.get(place, (keys, 0))
        if len(self._reach) < MAX_PLACES_COUNT or place in self._reach:
            self._reach[place] = keys, count + 1 if keys == old else 1
        return keys

    def look(self, backwards: int) -> Look | None:
        """Return the state of the gradients before a pass; None if unknown."""
        dropped = backwards >= TRUSTED_BACKWARDS_COUNT
        readable = self.readable(backwards)
        if readable is None:
            return None
        few = readable[:MAX_OPTIMIZERS_COUNT]
        return [(one, marks_of(one), dropped and not has_gradients(one)) for one in few]

    def readable(self, backwards: int = TRUSTED_BACKWARDS_COUNT) -> list[Any] | None:
        """Return the optimizers whose gradients this thread may look at.

        None while the first ``backwards`` passes may be for an optimizer that no thread has used yet.
        """
        mine = self._current.thread
        readable = []
        for optimizer, known in self._living():
            owner = known.thread()
            if owner is mine or owner is None:
                readable.append(optimizer)
            elif not known.used and backwards < TRUSTED_BACKWARDS_COUNT:
                return None
        return readable

    def decide(self, place: Place, before: Look, backwards: int, frame: FrameType | None, beside: bool) -> bool:
        """Return True if the pass since ``before`` is an update of its own.

        ``beside`` says that gradients of an earlier one await a step: what reaches none is for something else then.
        """
        reached = [had_none for one, marks, had_none in before if has_sharded(one) or marks != marks_of(one)]
        if reached:
            own = all(reached) and not _is_in_step(frame)  # LBFGS evaluates its closure again and again
        elif beside:
            own = False
        else:
            all_read = len(before) == len(self.living())
            seen = all_read and _others_have_gradients(before, frame)
            own = seen or backwards >= NO_MODULE_BACKWARDS_COUNT
        if own:
            self._note_own(place)
        return own

    def _note_own(self, place: Place) -> None:
        if len(self._follows) < MAX_PLACES_COUNT:
            self._follows[place] = OWN

    def living(self) -> list[Any]:
        """Return the optimizers that are still there, of all threads."""
        return [optimizer for optimizer, _ in self._living()]

    def _living(self) -> list[tuple[Any, _Known]]:
        noted = [*self._torch_optimizers.values()]
        return [(one, known) for known in noted if (one := known.reference()) is not None]


Look = list[tuple[Any, Marks, bool]]


def _others_have_gradients(before: Look, frame: FrameType | None) -> bool:
    """Return True if a module in sight has gradients that are no optimizer's."""
    held = {id(one) for optimizer, *_ in before for group in optimizer.param_groups for one in group["params"]}
    parameters = (one for _, module in modules_in_sight(frame) for one in module.parameters())
    return any(one.is_leaf and one.grad is not None and not one.is_meta for one in parameters if id(one) not in held)


def _is_in_step(frame: FrameType | None) -> bool:
    """Return True if a torch optimizer is stepping, outward from ``frame``."""
    while frame is not None and frame.f_code.co_qualname != _STEP:
        frame = frame.f_back
    return frame is not None


def calling_place(frame: FrameType | None) -> Place:
    """Return where the user's code is, or else a library's, outward from ``frame``."""
    library: Place | None = None
    for _ in range(MAX_FRAMES_COUNT):
        if frame is None:
            break
        file = frame.f_code.co_filename
        kind = kind_of_file(file)
        if kind == USER:
            return file, frame.f_lineno
        if kind == LIBRARY and library is None:
            library = file, frame.f_lineno
        frame = frame.f_back
    return library or ("", 0)
