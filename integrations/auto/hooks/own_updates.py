"""After which backward passes a script updates its weights itself.

A backward pass is an update of its own unless an optimizer of torch steps on its gradients. That is known of the place
in the script that calls ``backward``, once a step has followed it. At another place it is looked at which gradients the
pass reaches: if they are those of no optimizer, or if the script drops them again and again before any step, the script
has an optimizer of its own.
"""

from __future__ import annotations

import gc
import sys
import weakref
from types import FrameType
from typing import Any

from looptap.agent.loop.sight.frames import LIBRARY, USER, kind_of_file
from looptap.integrations.auto.hooks.gradients import Key, Marks, has_gradients, is_sharded, key_of, marks_of
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

Place = tuple[str, int]


class OwnUpdates:
    """The optimizers of this process, and what follows its backward passes.

    Any thread.
    """

    def __init__(self) -> None:
        self._torch_optimizers: dict[int, weakref.ref[Any]] = {}
        self._follows: dict[Place, str] = {}
        self._reach: dict[Place, tuple[frozenset[Key], int]] = {}

    def note_optimizer(self, optimizer: Any) -> None:
        """Note an optimizer of torch's kind."""
        key = id(optimizer)
        if (known := self._torch_optimizers.get(key)) is None or known() is not optimizer:
            self._torch_optimizers[key] = weakref.ref(optimizer)
            self._reach.clear()

    def find_optimizers(self) -> None:
        """Note all optimizers that were made before this was watched."""
        kind = sys.modules["torch"].optim.Optimizer
        for one in gc.get_objects():
            if issubclass(type(one), kind):
                self.note_optimizer(one)

    def note_step(self, places: set[Place]) -> bool:
        """Note that a step follows the passes of ``places``.

        Return True if one of them was taken for an update of its own, so that its event has been raised.
        """
        raised = False
        for place in places:
            raised = raised or self._follows.get(place) == OWN
            self._follows[place] = STEPS
        return raised

    def expects(self, place: Place, backwards: int) -> str | None:
        """Return what follows a pass, `OWN` or `STEPS`; None if its gradients can tell.

        ``backwards`` is the number of passes since the last update, with this one.
        """
        optimizers = self.living()
        if not optimizers:
            return OWN
        if backwards >= MAX_BACKWARDS_COUNT:
            self._note_own(place)
        known = self._follows.get(place)
        if known == OWN or len(optimizers) > MAX_OPTIMIZERS_COUNT:
            return known or STEPS
        trusted = backwards < TRUSTED_BACKWARDS_COUNT or backwards & (backwards - 1)  # looks get rarer, by powers of 2
        return STEPS if known == STEPS and trusted else None

    def reach(self, place: Place) -> frozenset[Key] | None:
        """Return whose gradients a pass of ``place`` reaches; None: look."""
        keys, count = self._reach.get(place, (frozenset(), 0))
        if count < SAME_REACH_COUNT or not count & (count - 1):  # powers of 2
            return None
        if not keys <= {key_of(one) for one in self.living()}:
            return None
        self._reach[place] = keys, count + 1
        return keys

    def note_reach(self, place: Place, before: list[tuple[Any, Marks]]) -> frozenset[Key]:
        """Return whose gradients a pass has reached since ``before``."""
        keys = frozenset(key_of(one) for one, marks in before if is_sharded(one) or marks != marks_of(one))
        old, count = self._reach.get(place, (keys, 0))
        if len(self._reach) < MAX_PLACES_COUNT or place in self._reach:
            self._reach[place] = keys, count + 1 if keys == old else 1
        return keys

    def look(self, backwards: int) -> Look:
        """Return the state of all gradients before a pass."""
        dropped = backwards >= TRUSTED_BACKWARDS_COUNT
        return [(one, marks_of(one), dropped and not has_gradients(one)) for one in self.living()]

    def decide(self, place: Place, before: Look, backwards: int, frame: FrameType | None, beside: bool) -> bool:
        """Return True if the pass since ``before`` is an update of its own.

        ``beside`` says that gradients of an earlier one await a step: what reaches none is for something else then.
        """
        reached = [had_none for one, marks, had_none in before if is_sharded(one) or marks != marks_of(one)]
        if reached:
            own = all(reached)
        else:
            own = not beside and (backwards >= NO_MODULE_BACKWARDS_COUNT or _others_have_gradients(before, frame))
        if own:
            self._note_own(place)
        return own

    def _note_own(self, place: Place) -> None:
        if len(self._follows) < MAX_PLACES_COUNT:
            self._follows[place] = OWN

    def living(self) -> list[Any]:
        """Return the optimizers that are still there."""
        for key, reference in [*self._torch_optimizers.items()]:
            if reference() is None:
                self._torch_optimizers.pop(key, None)
        return [one for reference in [*self._torch_optimizers.values()] if (one := reference()) is not None]


Look = list[tuple[Any, list[tuple[int, int]], bool]]


def _others_have_gradients(before: Look, frame: FrameType | None) -> bool:
    """Return True if a module in sight has gradients that are no optimizer's."""
    held = {id(one) for optimizer, *_ in before for group in optimizer.param_groups for one in group["params"]}
    parameters = (one for _, module in modules_in_sight(frame) for one in module.parameters())
    return any(one.is_leaf and one.grad is not None and not one.is_meta for one in parameters if id(one) not in held)


def place_of(frame: FrameType | None) -> Place:
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
