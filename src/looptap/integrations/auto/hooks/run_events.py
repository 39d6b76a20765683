"""`RunEvents`: turns what torch's hooks report into the events of an agent.

Training thread, any of them. Events: ``step`` after each update of a model, ``skipped`` where a `GradScaler` left one
out, and, as guesses, ``epoch`` and ``evaluation``: see `LoaderPasses`; an evaluation without a DataLoader ends with the
first backward pass after ``model.eval()``.
"""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter, thread_time
from types import FrameType
from typing import Any, TypeVar

from looptap.agent.agent import Agent
from looptap.integrations.auto.hooks.evaluations import Evaluation
from looptap.integrations.auto.hooks.gradients import LeftGradients, has_gradients, key_of
from looptap.integrations.auto.hooks.own_frames import hide_own_frames
from looptap.integrations.auto.hooks.own_updates import OWN, STEPS, Look, OwnUpdates, Place, calling_place
from looptap.integrations.auto.hooks.passes import EPOCH, EVALUATION, RENEWAL
from looptap.integrations.auto.hooks.script_agent import SKIPPED, STEP, ScriptAgent
from looptap.integrations.auto.hooks.updates import Rest, ThreadUpdate, ThreadUpdates
from looptap.integrations.auto.sight.known_optimizers import KnownOptimizer
from looptap.integrations.harmless import harmlessly

_STEPPED_NUMBER = 2

T = TypeVar("T")
Runner = Callable[..., Any]
Looked = tuple[KnownOptimizer, Any]


class RunEvents:
    """The events of this process; ``start`` makes the agent."""

    def __init__(self, start: Callable[[], Agent]) -> None:
        self._script = ScriptAgent(start, self.at_end)
        self._updates = ThreadUpdates([], {})
        self.own_updates = OwnUpdates()
        self._steps_in_backward = False
        self._inside_backward: Callable[[], int] = sys.modules["torch"]._C._current_graph_task_id

    def before_backward(
        self, outputs: Sequence[Any], gradients: Sequence[Any], run: Runner, frame: FrameType
    ) -> Runner | None:
        """Note losses and their gradients; return what runs in place of ``run``, if any.

        ``frame`` is that of torch's function for backward passes.
        """
        if True in [getattr(output, "is_meta", False) for output in outputs]:
            return None  # a count of operations, on a model without numbers
        update = self._updates.mine
        if update.rest is not None and update.rest.numbers is None:
            return self._note_backward(update, outputs, gradients, run, frame)
        began = thread_time()
        runs = self._note_backward(update, outputs, gradients, run, frame)
        update.spent += thread_time() - began
        return runs

    def _note_backward(
        self, update: ThreadUpdate, outputs: Sequence[Any], gradients: Sequence[Any], run: Runner, frame: FrameType
    ) -> Runner | None:
        place = calling_place(frame)
        if not update.backwards:
            update.settle(*self._script.next_rests())
        if (rest := update.count_pass(place)) is not None:
            if rest.numbers is None:
                return None
            update.note_losses(outputs, gradients)
            return WholePass(run, update, 0)
        if not update.backwards:
            update.places.clear()
        update.backwards += 1
        if update.stepped:
            self._end_update(update)
        elif update.late:
            update.late = False
            self._script.raise_event(STEP, update)
        update.passes.note_backward()
        self._end_evaluation(update, late=True)
        update.in_evaluation_mode = self._script.optimizers.evaluate()
        if update.made:
            harmlessly(self._drop_failed, update)
        looks, unsure = (harmlessly(self._looks, update) if self._script.started else None) or (False, [])
        count = len(update.losses)
        update.note_losses(outputs, gradients)
        if update.at_backward:
            update.at_backward.read(frame)
        if self._steps_in_backward:
            runs = self._then_raise(update, run)
        else:
            runs = self._runner(update, count, place, looks, unsure, run)
        return WholePass(runs, update, count)

    def _runner(
        self,
        update: ThreadUpdate,
        count: int,
        place: Place,
        looks: bool,
        unsure: list[Looked],
        run: Runner,
    ) -> Runner:
        """Return what runs a pass in place of ``run``.

        ``count`` losses are those of passes before it; ``looks`` says that its gradients are to be looked at.
        """
        optimizers = self.own_updates.living()
        update.places.add(place)
        follows = self.own_updates.expects(place, update.backwards, optimizers)
        if follows == OWN and update.awaits_step(count):  # beside an open update: none of its own
            follows = STEPS
        if follows == OWN:
            update.backwards = 0
            update.forget_first(count)
            return self._then_raise(update, run, own=True)
        runs = run if follows == STEPS else self._then_decide(update, count, place, run)
        update.reach = reach = self.own_updates.reach(place, optimizers)
        if looks or reach is None:
            return self._then_look(update, count, place, unsure, runs)
        update.reached |= dict.fromkeys(range(count, len(update.losses)), reach)
        return runs

    def after_step(self, optimizer: Any) -> None:
        """Raise the event of an update once the last of its optimizers has stepped."""
        update = self._updates.mine
        rest = update.rest
        if rest is not None and rest.numbers is None and self._note_rested(update, rest, optimizer):
            return
        purse = self._script.purse()
        update.began, update.spent = thread_time() - update.spent, 0.0
        paid = 0.0 if purse is None else purse.paid
        try:
            self._note_step(update, optimizer)
        finally:
            began, update.began = update.began, math.inf
        if purse is not None:  # what no query has paid
            purse.pay(max(0.0, thread_time() - began - (purse.paid - paid)))

    def _note_rested(self, update: ThreadUpdate, rest: Rest, optimizer: Any) -> bool:
        """Note the step of an update at rest; return False if it is another step."""
        rests = rest.only() is optimizer and self._inside_backward() == -1
        return rests and self._script.counts(update, rest, optimizer)

    def _note_step(self, update: ThreadUpdate, optimizer: Any) -> None:
        key, inside = id(optimizer), self._inside_backward() != -1
        if (rest := update.rest) is not None and self._note_rested(update, rest, optimizer):
            return
        update.wake()
        update.rested = 0
        self.own_updates.note_use(optimizer)
        raised = self.own_updates.note_step(update.places, optimizer)
        update.backwards_before, update.backwards = update.backwards, 0
        if inside:
            if not self._steps_in_backward:  # that this pass is an update was not known when it began
                self._steps_in_backward = update.late = True
            return
        if update.scaled_steps is not None:
            update.scaled_steps.add(key)
        if key in update.stepped:
            self._end_update(update)
        self._script.meet(optimizer)
        update.raised = update.raised or raised
        if update.note_step(optimizer) and not update.raised:
            update.raised = True
            self._script.raise_event(STEP, update, optimizer)

    def before_group(self, optimizer: Any) -> None:
        """Note an optimizer that is being made."""
        self.own_updates.note_optimizer(optimizer)
        update = self._updates.mine
        update.wake()
        if update.losses:  # of a training that may have failed
            update.made.append(weakref.ref(optimizer))

    def before_zero_grad(self, optimizer: Any) -> None:
        """Note that the losses so far are not those of the next step of ``optimizer``."""
        update = self._updates.mine
        if update.losses or update.rest is None:
            self.own_updates.note_use(optimizer)
            update.drop_losses(optimizer)

    def before_scale(self, scaler: Any) -> None:
        """Note that the next loss is multiplied by the scale of ``scaler``."""
        update = self._updates.mine
        update.wake()
        update.scaler = weakref.ref(scaler)
        if update.scaled_steps is None:
            update.scaled_steps = set()

    def before_scaler_update(self, scaler: Any) -> None:
        """Raise an event for each optimizer whose step ``scaler`` has left out."""
        update = self._updates.mine
        stepped, update.scaled_steps = update.scaled_steps or set(), set()
        states = getattr(scaler, "_per_optimizer_states", {})  # a disabled scaler has none
        done = [key for key, state in states.items() if getattr(state.get("stage"), "value", 0) == _STEPPED_NUMBER]
        skipped = [key for key in done if key not in stepped]
        if skipped and update.stepped and not update.raised:  # the optimizer that usually steps last is left out
            self._script.raise_event(STEP, update, update.last_stepped(), last=False)
            update.begin()
        for key in skipped:
            known = self._script.optimizers.by_id.get(key)
            optimizer = None if known is None else known.reference()
            self._script.raise_event(SKIPPED, update, optimizer, last=key == skipped[-1])

    def before_batch(self, iterator: Any) -> None:
        """Raise the event of a pass over the data that has ended."""
        update = self._updates.mine
        in_mode = self._script.optimizers.evaluate_as(update.in_evaluation_mode)
        gradients = sys.modules["torch"].is_grad_enabled()
        overdue, event = update.passes.before_batch(iterator, update.done, gradients, in_mode)
        if self._script.started:
            if overdue:
                self._script.raise_event(EPOCH, update)
            if event == EVALUATION:
                self._raise_evaluation(update)
            elif event == EPOCH:
                self._script.raise_event(event, update)
            elif not (gradients and in_mode):
                self._begin_evaluation(update, iterator, sure=not gradients, renews=event == RENEWAL)
        update.fetch_began = perf_counter()

    def after_batch(self, iterator: Any) -> None:
        """Add the loading time of this batch to the open update."""
        update = self._updates.mine
        if not iterator._num_yielded:  # it has been made
            update.passes.note_made(iterator, sys._getframe(1))
        if update.fetch_began and sys.modules["torch"].is_grad_enabled():
            update.data_seconds = (update.data_seconds or 0.0) + perf_counter() - update.fetch_began
        update.fetch_began = 0.0

    def before_eval(self, module: Any) -> None:
        """Note that an evaluation begins, if ``module`` is a model that is trained."""
        update = self._updates.mine
        if self._script.started and self._script.optimizers.trains(module):
            self._begin_evaluation(update)

    def follow_framework(self, announces: Callable[[str], bool]) -> int:
        """Note what a framework announces itself; return the updates so far."""
        update = self._updates.mine
        update.wake()
        update.announces = announces
        return update.done

    def opened_agent(self) -> Agent | None:
        """Return the agent, opened now if need be; None if there cannot be one."""
        return self._script.open()

    def note_epoch(self) -> None:
        """Note an epoch of a framework, whose passes make no other one."""
        update = self._updates.mine
        update.passes.note_epoch(update.done)

    def raise_own(self, event: str, values: dict[str, Any]) -> None:
        """Raise an event that a framework has announced."""
        if event == EPOCH:
            self.note_epoch()
        if self._script.started:
            loss = partial(Evaluation(None).loss, late=False) if event == EVALUATION else None
            self._script.raise_event(event, self._updates.mine, loss=loss, values=values)

    def at_end(self) -> None:
        """Raise the event of an evaluation that nothing has followed, in any thread."""
        for update in [*self._updates.left, self._updates.mine]:
            if update.stepped:
                self._end_update(update)
            update.ended = True
            if update.passes.take_due():
                self._script.raise_event(EPOCH, update)
            self._end_evaluation(update)

    def _begin_evaluation(
        self, update: ThreadUpdate, iterator: Any = None, *, sure: bool = True, renews: bool = False
    ) -> None:
        """Note that an evaluation begins, or continues with the next batch.

        ``renews``: the iterator, which it shares with others, has no batch left, and it continues with a new one.
        """
        update.wake()
        begun = update.evaluation
        if begun is not None and (iterator is None or begun.fetches_from(iterator, renews)):
            begun.sure = begun.sure or sure
            return
        if update.announces(EVALUATION):
            return
        self._end_evaluation(update)  # its loop has broken off, and another one begins
        update.evaluation = Evaluation(self._script.frame_for(EVALUATION))
        update.evaluation.sure = sure
        if iterator is not None:
            update.evaluation.fetches_from(iterator, renews)

    def _end_evaluation(self, update: ThreadUpdate, *, late: bool = False) -> None:
        """Raise the event of an evaluation of which the end has not been seen, if any."""
        if update.evaluation is not None and update.evaluation.sure:
            self._raise_evaluation(update, late=late)
        update.evaluation = None

    def _raise_evaluation(self, update: ThreadUpdate, *, late: bool = False) -> None:
        ended, update.evaluation = update.evaluation or Evaluation(None), None
        self._script.raise_event(EVALUATION, update, loss=partial(ended.loss, late=late))

    def _looks(self, update: ThreadUpdate) -> tuple[bool, list[Looked]]:
        """Drop losses whose gradients are gone; return whether to look after the pass.

        And the optimizers whose gradients are absent without having been seen before.
        """
        asked = bool(update.followers) and update.at_backward.wants(self._script.optimizers.loss_names())
        unsure: list[Looked] = []
        few = self._script.optimizers.few() if update.losses else []
        readable = {*map(id, self.own_updates.readable() or ())} if few else ()
        for known, optimizer in few:
            if id(optimizer) not in readable:
                continue
            if has_gradients(optimizer):
                known.keeps_gradients = True
            elif known.keeps_gradients:
                update.drop_losses(optimizer)
            elif known.looks_left:
                known.looks_left -= 1
                unsure.append((known, optimizer))
        return asked or bool(update.counted_from or unsure), unsure

    def _drop_failed(self, update: ThreadUpdate) -> None:
        """Drop the losses of a failed training, which a new optimizer lacks."""
        made, update.made = [one for reference in update.made if (one := reference()) is not None], []
        readable = self.own_updates.readable() or []
        bare = {id(one) for one in readable if not has_gradients(one)}
        fresh = [one for one in made if id(one) in bare]
        if fresh and len(bare) == len(readable):
            update.forget()
        for optimizer in fresh:
            update.drop_losses(optimizer)

    def _end_update(self, update: ThreadUpdate) -> None:
        """Raise the event of an update that has had its last step, if it has had none."""
        if not update.raised:
            last = update.last_stepped()
            update.end_of_steps()
            self._script.raise_event(STEP, update, last)
        elif len(update.stepped) == 1:
            update.end_of_steps()
        update.begin()

    def _then_raise(self, update: ThreadUpdate, run: Runner, *, own: bool = False) -> Runner:
        """Return a function that runs a backward pass, and then raises its event.

        ``own`` says that the script updates its weights itself.
        """

        def announce(_: bool) -> None:
            update.own = own
            self._script.raise_event(STEP, update)

        return _around(run, lambda: True, announce)

    def _then_decide(self, update: ThreadUpdate, count: int, place: Place, run: Runner) -> Runner:
        """Return a function that runs a pass, and raises its event if it is an update.

        ``count`` losses are those of passes before it.
        """

        def decide(before: Look) -> None:
            beside, frame = update.awaits_step(count), sys._getframe()
            if not update.stepped and self.own_updates.decide(place, before, update.backwards, frame, beside):
                update.forget_first(count)  # those of updates whose events were not raised
                update.backwards = 0
                update.own = True
                self._script.raise_event(STEP, update)

        return _around(run, partial(self.own_updates.look, update.backwards), decide)

    def _then_look(
        self,
        update: ThreadUpdate,
        count: int,
        place: Place,
        unsure: list[Looked],
        run: Runner,
    ) -> Runner:
        """Return a function that runs a pass and notes whose gradients it reached.

        ``unsure`` are those whose gradients were absent before it, which was not known to mean anything.
        """

        def note(before: Look) -> None:
            keys = self.own_updates.note_reach(place, before)
            update.reached |= dict.fromkeys(range(count, len(update.losses)), keys)
            left = before if update.counted_from else []
            update.left = {key_of(optimizer): LeftGradients.of(optimizer) for optimizer, *_ in left}
            for known, optimizer in unsure:
                known.keeps_gradients = key_of(optimizer) in keys
                if known.keeps_gradients:
                    update.drop_losses(optimizer, count)
                else:  # what is not there after a pass may be kept elsewhere
                    known.looks_left = 0

        return _around(run, partial(self.own_updates.look, update.backwards), note)


class WholePass:
    """Runs a backward pass; releases its losses if it raises.

    They are those after ``count`` others.
    """

    __slots__ = ("_count", "_run", "_update")

    def __init__(self, run: Runner, update: ThreadUpdate, count: int) -> None:
        self._run, self._update, self._count = run, update, count

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Run the pass."""
        try:
            return self._run(*arguments, **keywords)
        except BaseException:
            hide_own_frames()
            harmlessly(self._update.forget_failed, self._count)
            raise


def _around(run: Runner, before: Callable[[], T | None], after: Callable[[T], None]) -> Runner:
    """Return a function that runs a pass between ``before`` and ``after``.

    ``after`` gets the result of ``before``, if there is one.
    """

    def run_backward(*arguments: Any, **keywords: Any) -> Any:
        seen = harmlessly(before)
        result = run(*arguments, **keywords)
        if seen is not None:
            harmlessly(after, seen)
        return result

    return run_backward
