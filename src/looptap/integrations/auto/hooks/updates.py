"""What one thread has done since its last model update.

A model update is what follows backward passes: one step of an optimizer, or of several that take turns on the same
gradients. Which one comes last is learned from the update before.
"""

from __future__ import annotations

import math
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from looptap.integrations.auto.hooks.evaluations import Evaluation
from looptap.integrations.auto.hooks.gradients import Key, LeftGradients, key_of
from looptap.integrations.auto.hooks.own_updates import Place
from looptap.integrations.auto.hooks.passes import LoaderPass, LoaderPasses
from looptap.integrations.auto.sight.found_names import NamesAtBackward, UnknownValue
from looptap.integrations.auto.sight.models import ModelInSight

MAX_RESTED_COUNT = 64
"""Updates that rest, one after the other; the next one shows whether all is as before."""
MAX_RESTED_SECONDS = 0.1
"""Seconds of an update from which on none rests: a question or a command would wait for one more of them."""
MAX_LOSSES_COUNT = 10_000
"""Micro-losses of one update that are kept."""


class Rest(NamedTuple):
    """How alike the updates of a thread are while they rest: nothing else is noted."""

    only: Callable[[], Any]
    """A weak reference to the optimizer that makes all of them."""
    passes: int
    """The backward passes of each."""
    numbers: tuple[str, ...] | None
    """Names of the numbers that are kept of each; None if they are only counted."""


class ThreadUpdate:
    """The open update of one thread."""

    def __init__(self, by_iterator: dict[int, LoaderPass]) -> None:
        self.losses: deque[tuple[Any, Any, Any, int]] = deque(maxlen=MAX_LOSSES_COUNT)
        """What backward was called on, detached, the gradient that it got, or None, the gradient scale that it was
        multiplied by, or None, and its version."""
        self.copies = False
        """True once the script has changed a loss in place after its backward pass: from then on they are copied."""
        self.made: list[Any] = []
        """Weak references to optimizers that were made since those losses."""
        self.counted_from: dict[Key, int] = {}
        """For each optimizer: the number of leading losses to skip, because their gradients are gone."""
        self.reached: dict[int, frozenset[Key]] = {}
        """By loss the parameters of the optimizers whose gradients it has reached, where that is known."""
        self.own = False
        """True if the script has made an update of its own since the last one by an optimizer."""
        self.left: dict[Key, LeftGradients] = {}
        """By the parameters of an optimizer the gradients that the last pass has left, where some were dropped."""
        self.replaced = False
        """True if an optimizer has stepped on others than those."""
        self.steps = self.backwards = 0
        """Updates so far, and backward passes since the last one."""
        self.backwards_before = 0
        """Backward passes of the last update."""
        self.took = self.done_at = 0.0
        """Seconds of the last update, and when it was done."""
        self.rest: Rest | None = None
        """How it rests; None if passes and steps are noted."""
        self.rested = 0
        """Updates that have rested, one after the other."""
        self.counted = 0
        """Passes of this update that were only counted: if there are some, it only counts itself."""
        self.reach: frozenset[Key] | None = None
        """The parameters of the optimizers whose gradients the last pass has reached, if that was known before it."""
        self.places: set[Place] = set()
        """Where the script has called ``backward`` since the last update."""
        self.passes = LoaderPasses(by_iterator)
        self.in_evaluation_mode = frozenset[int]()
        """Optimizers with a model in evaluation mode at the last backward pass: that says nothing of a batch then."""
        self.raised = False
        """True if the event of this update has been raised."""
        self.late = False
        """True if its event is due at the next backward pass: optimizers stepped inside the last one."""
        self.stepped: dict[int, Any] = {}
        """Optimizers that stepped in this update, by id, in order; the value is a weak reference."""
        self.followers: dict[int, int] = {}
        """By optimizer the one that steps after it, on the same gradients."""
        self.scaler: Any = None
        """The `GradScaler` that has scaled the next loss: a weak reference, or None."""
        self.scaled_steps: set[int] | None = None
        """Optimizers that stepped since the last update of a `GradScaler`; None without one."""
        self.evaluation: Evaluation | None = None
        """The evaluation that has begun, by ``model.eval()`` or a batch, until the next backward pass."""
        self.announces: Callable[[str], bool] = _nothing
        """Returns True for an event that the framework which is training announces itself."""
        self.ended = False
        """True once the script has ended."""
        self.at_backward = NamesAtBackward()
        self.model_in_sight = ModelInSight()
        self.spent, self.began = 0.0, math.inf
        """CPU seconds that looptap has taken at the passes of the open update; those of the thread at which its step
        would have begun if it had taken them there, during the step."""
        self.data_seconds: float | None = None
        """How long it has waited for DataLoaders; None if the thread has used none."""
        self.fetch_began = 0.0
        """When the wait that is under way began, or 0."""

    def note_losses(self, outputs: Sequence[Any], gradients: Sequence[Any]) -> None:
        """Note what backward is called on, and the gradient of each."""
        for output, gradient in zip(outputs, gradients, strict=False):
            self._note_loss(output, gradient)

    def _note_loss(self, output: Any, gradient: Any) -> None:
        """Note a scalar that backward is called on, without graph, and its gradient."""
        scaler, self.scaler = self.scaler, None
        torch: Any = sys.modules["torch"]
        functions = torch._C
        if not isinstance(output, torch.Tensor) or output.numel() != 1 or functions._len_torch_dispatch_stack():
            return
        with functions.DisableTorchFunction():
            value = output.detach().clone() if self.copies else output.detach()
            scale = None if scaler is None else getattr(scaler(), "_scale", None)
            factor = gradient.detach() if gradient is not None and gradient.requires_grad else gradient
            if type(factor) is torch.Tensor and factor.is_cpu and factor.item() == 1.0:  # as torch has it by default
                factor = None
            self.losses.append((value, factor, scale, value._version))

    @property
    def done(self) -> int:
        """The number of updates, with one whose event is due."""
        return self.steps + bool(self.late or (self.stepped and not self.raised))

    def may_rest(self, numbers: tuple[str, ...] | None) -> bool:
        """Return True after an update that was one step, if nothing is open.

        If ``numbers`` are to be kept, that step was after one pass, which had reached its optimizer.
        """
        left = [self.late, self.made, self.followers, self.losses, self.evaluation]
        wanted = self.at_backward.wants(numbers or ())
        others = [wanted, not self.raised, self.scaled_steps is not None, self.announces("step"), self.is_tired]
        if len(self.stepped) != 1 or any([*left, *others]):
            return False
        optimizer = next(iter(self.stepped.values()))()
        if optimizer is None or numbers is None:
            return optimizer is not None
        return self.backwards_before == 1 and key_of(optimizer) in (self.reach or ())

    @property
    def is_tired(self) -> bool:
        """True if the next update may not rest: the last one was slow, or many have."""
        return self.took > MAX_RESTED_SECONDS or self.rested >= MAX_RESTED_COUNT

    def begin_rest(self, numbers: tuple[str, ...] | None) -> None:
        """Only count the passes and steps of updates such as the last one.

        If ``numbers`` are to be kept, note their losses, too.
        """
        (only,) = self.stepped.values()
        self.rest = Rest(only, self.backwards_before, numbers)
        self.begin()

    def wake(self) -> None:
        """Note passes and steps again, as if there had been no rest."""
        rest, self.rest = self.rest, None
        if rest is not None and not self.backwards and (optimizer := rest.only()) is not None:  # which has just stepped
            self.stepped[id(optimizer)], self.raised = rest.only, True

    def settle(self, rests: bool, numbers: tuple[str, ...] | None) -> None:
        """Rest or wake before the first pass of an update, as far as it ``rests``."""
        if self.rest is not None:
            if not rests or self.rest.numbers != numbers:
                self.wake()
        elif rests and self.may_rest(numbers):
            self.begin_rest(numbers)

    def count_pass(self, place: Place) -> Rest | None:
        """Count a backward pass, of which nothing is noted but a loss; else wake.

        An update at rest is one step of the optimizer that has made the last one, after passes at the same places.
        """
        rest = self.rest
        if rest is None or place not in self.places or self.backwards >= rest.passes:
            self.wake()
            return None
        self.backwards += 1
        self.counted += rest.numbers is None
        self.passes.note_backward()
        return rest

    def end_rested(self) -> None:
        """Note that an update has rested."""
        self.rested += 1
        if self.is_tired:
            self.wake()

    def begin(self) -> None:
        """Begin an update, since the last one has had its steps."""
        self.own = False
        self.stepped.clear()
        self.raised = False

    def note_step(self, optimizer: Any) -> bool:
        """Note that an optimizer has stepped; return True if the last of the update.

        Call `begin` before the step that repeats one: an update has no optimizer twice.
        """
        key = id(optimizer)
        if self.stepped:
            self.followers[next(reversed(self.stepped))] = key
        self.stepped[key] = weakref.ref(optimizer)
        if self.left and (parameters := key_of(optimizer)) in self.counted_from and parameters in self.left:
            self.replaced = self.replaced or self.left[parameters].are_replaced(optimizer)
        return self.followers.get(key) is None

    def last_stepped(self) -> Any:
        """Return the optimizer that stepped last in this update; None if it is gone."""
        return self.stepped[next(reversed(self.stepped))]()

    def end_of_steps(self) -> None:
        """Note that no further optimizer has stepped in this update."""
        if self.stepped:
            self.followers.pop(next(reversed(self.stepped)), None)

    def forget(self) -> None:
        """Release what was noted for the event, which has been raised."""
        self.forget_first(len(self.losses))
        self.replaced, self.counted, before = False, 0, self.done_at
        self.done_at = time.monotonic()
        self.took = self.done_at - before
        if self.data_seconds:
            self.data_seconds = 0.0
        if self.at_backward:
            self.at_backward.forget()

    def forget_first(self, count: int) -> None:
        """Release the first ``count`` losses, and which of them count."""
        for _ in range(count):
            self.losses.popleft()
        self.counted_from.clear()
        self.reached.clear()
        self.left.clear()

    def forget_failed(self, count: int) -> None:
        """Release the losses of a backward pass that has raised, after ``count`` others."""
        self.backwards = max(self.backwards - 1, 0)
        while len(self.losses) > count:
            self.losses.pop()
            self.reached.pop(len(self.losses), None)

    def unscaled_losses(self) -> list[Any]:
        """Return all losses since the last update, unscaled.

        Each counts as often as the gradient says that backward got with it: ``D_real.backward(minus_one)`` ascends.
        There are none if the script has changed one in place.
        """
        found = []
        with sys.modules["torch"]._C.DisableTorchFunction():  # and none of them needs a gradient
            for value, factor, scale, version in self.losses:
                if value._version != version:
                    self.copies = True
                    return []
                value = value if factor is None else value * factor
                found.append(value if scale is None else value / scale.to(value.device))
        return found

    def rested_loss(self) -> Any:
        """Return the loss of an update at rest; None if that is not just its one pass."""
        if len(self.losses) != 1 or self.counted_from:
            return None
        value, factor, scale, version = self.losses[0]
        with sys.modules["torch"]._C.DisableTorchFunction():
            return value if factor is scale is None and value._version == version else None

    def loss(self, losses: list[Any], optimizer: Any) -> Any:
        """Return what the update descends on, of all ``losses``, or None.

        LBFGS evaluates its closure several times, and returns the first loss. Raises UnknownValue if the script has
        dropped gradients, and put others in their place.
        """
        if isinstance(optimizer, sys.modules["torch"].optim.LBFGS):
            return losses[0] if losses else None
        keys = (self._stepped_keys() or ({key_of(optimizer)} if optimizer is not None else set())) - {()}
        return self._descended_on(losses, keys)

    def _descended_on(self, losses: list[Any], keys: set[Key]) -> Any:
        """Return the sum of the losses that count for ``keys``. Raises UnknownValue."""
        first = min((self.counted_from.get(key, 0) for key in keys), default=0)
        if losses and (self.replaced or (first == len(losses))):
            raise UnknownValue(
                "the script has put other gradients in the place of those of its backward passes, so the loss that "
                "this update descends on is unknown; losses has that of each pass."
            )
        reached = {place: self.reached.get(place) for place in range(first, len(losses))}
        if losses and self._are_elsewhere([*reached.values()], keys):
            raise UnknownValue(
                "no backward pass has reached the gradients that this update is made with: the script has computed "
                "them otherwise, as on copies of the model, so its loss is unknown; losses has that of each pass."
            )
        counted = [place for place, one in reached.items() if one or one is None]  # the others are of no optimizer
        return total([losses[place] for place in counted or reached])

    def _are_elsewhere(self, reached: list[frozenset[Key] | None], keys: set[Key]) -> bool:
        """Return True if what was stepped on has its gradients from no pass.

        Passes that have reached no optimizer at all may be for a model of which the optimizer holds copies.
        """
        known = [one for one in reached if one is not None and keys.isdisjoint(one)]
        return bool(keys) and len(known) == len(reached) and (self.own or any(known))

    def awaits_step(self, count: int) -> bool:
        """Return True if one of the first ``count`` losses has reached an optimizer."""
        return any(map(self.reached.get, range(count)))

    def loss_of(self, losses: list[Any], optimizer: Any) -> Any:
        """Return what one of the optimizers that have stepped descends on, if known."""
        key = key_of(optimizer)
        counted = [*range(self.counted_from.get(key, 0), len(losses))]
        if len(losses) > 1:
            if not self.reached.keys() >= {*counted}:
                return None
            counted = [place for place in counted if key in self.reached[place]]
        return total([losses[place] for place in counted])

    def drop_losses(self, optimizer: Any, count: int | None = None) -> None:
        """Note that gradients are gone: of the first ``count`` losses, or of all.

        Those of an optimizer that has stepped in this update have done their part.
        """
        if self.losses and (key := key_of(optimizer)) not in self._stepped_keys():
            self.counted_from[key] = len(self.losses) if count is None else count

    def _stepped_keys(self) -> set[Key]:
        return {key_of(one) for reference in self.stepped.values() if (one := reference()) is not None}


class ThreadUpdates(threading.local):
    """The open update of each thread.

    A new thread continues that of one that has ended, such as a training that failed. Those wait in ``left``, which all
    threads share, as they do the passes over DataLoaders.
    """

    def __init__(self, left: list[ThreadUpdate], by_iterator: dict[int, LoaderPass]) -> None:
        self.left = left
        try:
            self.mine = left.pop()
        except IndexError:
            self.mine = ThreadUpdate(by_iterator)
        self._until_end = _UntilEnd(self.mine, left)


class _UntilEnd:
    """What a thread has until it ends; then its update waits for another one."""

    def __init__(self, update: ThreadUpdate, left: list[ThreadUpdate]) -> None:
        self._update, self._left = update, left

    def __del__(self) -> None:
        self._update.at_backward.values.clear()
        self._left.append(self._update)


def _nothing(event: str) -> bool:
    return False


def total(losses: list[Any]) -> Any:
    """Return the sum of the losses, on which an update descends, or None."""
    if len(losses) < 2:
        return losses[0] if losses else None
    torch: Any = sys.modules["torch"]
    with torch._C.DisableTorchFunction():
        return sum(one.float() if one.dtype in (torch.float16, torch.bfloat16) else one for one in losses)
