"""Kinds of commands: set, trigger, checkpoint, stop, pause, and running code."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from looptap.agent.control.command import DONE, CommandResult, FollowUp, LoopCommand
from looptap.agent.control.job_hooks import JobHooks, Trigger, short_result
from looptap.agent.control.knobs.controls import BoundControl, ControlChange
from looptap.agent.control.knobs.optimizer_controls import FREEZE, SCALE, THAW
from looptap.agent.control.process_group import group
from looptap.agent.control.profiling.memory_recorder import MemoryRecorder
from looptap.agent.control.profiling.step_profiler import StepProfiler
from looptap.agent.control.profiling.step_recorder import MAX_STEPS, StepRecorder
from looptap.agent.loop.event_sources import EventCommand
from looptap.agent.queries.code_loading import loaded_code
from looptap.agent.queries.query_registry import QueryRegistry
from looptap.protocol import messages as m
from looptap.protocol.replies import CommandRecord
from looptap.streams.control import leap
from looptap.streams.errors import ControlConflict, ControlError, QueryError
from looptap.streams.events import Event
from looptap.streams.expressions import nearest
from looptap.streams.loop.loop_observer import LoopObserver
from looptap.streams.operators.pipeline import Mapped
from looptap.streams.values.snapshots import snapshot


class SetControl(LoopCommand):
    """A command that sets a control, if its version is still ``expected``."""

    expected: int | None = None

    def check(self) -> tuple[str, ...]:
        """Check the value against the declaration, and the version. Raises ControlError."""
        control = self.job.controls.find(self.record.name)
        self.note(value=control.control.checked(self.record.value, self.record.name))
        _check_schedule(control, self.record.schedule)
        self._check_version()
        return control.control.at

    def apply(self, event: Event) -> CommandResult:
        """Set the control, after repeating both checks: the object may have changed."""
        self._check_version()
        control = self.job.controls.find(self.record.name)
        return self._set(control, control.control.checked(self.record.value, self.record.name))

    def _check_version(self) -> None:
        if conflict := self.job.controls.changes.conflict(self.record.name, self.expected):
            raise ControlConflict(conflict)

    def _set(self, control: BoundControl, value: Any) -> CommandResult:
        old, was_frozen, schedule = control.value(), control.frozen(), self.record.schedule
        self.note(old=old)
        try:
            control.set(value, schedule)
            new = reached = control.value()
            if isinstance(value, str) and not isinstance(new, str):
                new = value  # a word such as "auto" says more than the number that it stands for
        except BaseException as error:
            error.add_note(_put_back(control, old))
            raise
        version = self.job.controls.changes.note(
            control.name,
            id=self.record.id,
            client=self.record.client,
            old=old,
            new=new,
            reached=reached,
            schedule=schedule,
            was_frozen=was_frozen,
        )
        far = leap(old, new)
        self.note(new=new, version=version, warning=far and f"a change {far}; undo reverts it")
        # What a schedule drives on changes at its steps, and a word such as "auto" leaves the number to the job.
        if new is reached and (schedule == FREEZE or not control.schedules):
            self.job.watches.begin(self, self.record.event, reached, self.job.controls)
        return CommandResult()


class RestoreControl(SetControl):
    """A command that sets a control back to its value in a checkpoint."""

    def check(self) -> tuple[str, ...]:
        """Check only the value: the host chooses the event. Raises ControlError."""
        control = self.job.controls.find(self.record.name)
        self.note(value=control.control.checked(self.record.value, self.record.name))
        return ()

    def apply(self, event: Event) -> CommandResult:
        """Set the control."""
        return self._set(self.job.controls.find(self.record.name), self.record.value)


class UndoControl(SetControl):
    """A command that takes back the newest change of a control by a command.

    It is a change of its own, which another undo takes back.
    """

    def check(self) -> tuple[str, ...]:
        """Check that the change is the newest, and stands. Raises ControlError."""
        control = self.job.controls.find(self.record.name)
        if control.refusal:
            raise ControlError(f"{control.name}: {control.refusal}")
        self._former(control)
        return control.control.at

    def apply(self, event: Event) -> CommandResult:
        """Set the control to its former value, after the same checks."""
        control = self.job.controls.find(self.record.name)
        change, value, schedule = self._former(control)
        self.note(schedule=schedule, note=f"reverts {change.old!r:.60} → {change.new!r:.60} of {_client(change)}")
        result = self._set(control, value)
        self.note(warning="")  # it leads to where the control was before
        return result

    def _former(self, control: BoundControl) -> tuple[ControlChange, Any, str]:
        """Return the change, and how to take it back: a value and a schedule."""
        name, change = control.name, self.job.controls.changes.last(control.name)
        if change is None:
            raise ControlError(f"no command has changed {name!r} in this run: there is nothing to undo.")
        if self.record.value not in (None, change.id):
            raise ControlConflict(
                f"{name!r} was changed to {change.new!r:.80} by {_client(change)} {change.age:.0f} s ago, after the "
                "change that you mean: nothing is undone. Look at run.commands, and call run.undo() again."
            )
        now = control.value()
        if change.schedule in (SCALE, THAW):
            return change, *_former_under_schedule(change, now)
        if now != change.reached:
            raise ControlError(
                f"{name!r} was set to {change.new!r:.80} by {_client(change)}, and the job has changed it since: it is "
                f"{now!r:.80} now, and nothing is undone. Before it was {change.old!r:.80}."
            )
        if change.schedule == FREEZE and not change.was_frozen:
            return change, now, THAW
        return change, change.old, change.schedule


class CallTrigger(LoopCommand):
    """A command that calls a named function of the host."""

    _trigger: Trigger | None = None

    def check(self) -> tuple[str, ...]:
        """Find the function. Raises ControlError."""
        name, triggers = self.record.name, self.job.triggers
        self._trigger = triggers.get(name)
        if self._trigger is None:
            near = nearest(name, triggers)
            there = (
                f"there are: {', '.join(triggers)}."
                if triggers
                else (f"it has none at all. It offers one by agent.trigger({name!r:.80}, function).")
            )
            raise ControlError(f"this job has no trigger {name!r:.80}; {there}{' ' * bool(near)}{near}")
        self.check_ranks(self._trigger, repr(name))
        return self._trigger.at

    def apply(self, event: Event) -> CommandResult:
        """Call the function."""
        assert self._trigger is not None
        return CommandResult(short_result(self._trigger.function()))

    def release(self) -> None:
        """Release the function."""
        self._trigger = None


class SaveCheckpoint(CallTrigger):
    """A command that saves a checkpoint."""

    def check(self) -> tuple[str, ...]:
        """Find the host's checkpoint function. Raises ControlError."""
        self._trigger = self.job.saving()
        self.check_ranks(self._trigger, "a checkpoint")
        self.note(checkpoint=False)  # it is one itself
        return self._trigger.at


class StopLoop(LoopCommand):
    """A command that asks the loop to end, by `stop_requested` and ``on_stop``."""

    def check(self) -> tuple[str, ...]:
        """Add a note if the loop may not notice."""
        if self.job.on_stop is None and not self.job.stop_was_read:
            self.note(
                note="asked; the job ends only if its loop reads agent.stop_requested, which it has not done so far "
                "(it has given no on_stop=)"
            )
        return ()

    def apply(self, event: Event) -> CommandResult:
        """Set `stop_requested`; raise ``on_stop`` when the event is over."""
        self.job.stop_requested = True
        return CommandResult(None, None if self.job.on_stop is None else self._raise_on_stop)

    def _raise_on_stop(self) -> None:
        assert self.job.on_stop is not None
        raise self.job.on_stop() from None  # the host's traceback shows no error of looptap's


class PauseLoop(LoopCommand):
    """A command that pauses the loop in `emit`, for ``value`` s or until resumed."""

    _observer = LoopObserver()

    def check(self) -> tuple[str, ...]:
        """Settle the duration. Raises ControlError if the host allows no pause."""
        self.note(value=self.job.pause.allowed(self.record.value, group(), self.record.agreed))
        self._resumes = self.job.pause.resumes
        return ()

    def apply(self, event: Event) -> CommandResult:
        """Pause the loop once the event is over."""
        self._observer = self.job.observers.current()  # closing the agent meanwhile releases what is exposed
        return CommandResult(self.record.value, self._wait)

    def _wait(self) -> None:
        pause, before = self.job.pause, self.job.pause.total
        try:
            pause.wait(self.record.value, self._resumes)
        finally:  # after Ctrl-C, too
            self.job.exclude_pause(pause.total - before)
            self._observer.on_pause(pause.total - before)
            self._observer = LoopObserver()


class RunCode(LoopCommand):
    """A command that runs a client's code at one event."""

    randomness = False

    def __init__(
        self,
        job: JobHooks,
        record: CommandRecord,
        finished: Callable[[LoopCommand], None],
        code: m.Code,
        queries: QueryRegistry,
    ) -> None:
        super().__init__(job, record, finished)
        self._queries = queries
        self._code: m.Code | None = code
        self._pipeline: Mapped | None = None

    def check(self) -> tuple[str, ...]:
        """Compile the code. Raises QueryError."""
        assert self._code is not None
        pipeline = self._queries.compiled(loaded_code(self._code), unsafe=True)
        if not isinstance(pipeline, Mapped):
            raise QueryError("a command runs at one event; this reduces many.", pipeline.text)
        self._pipeline, self.source = pipeline, pipeline.text
        self.note(name=pipeline.text[:200], value=self._code.text or None)
        self._code = None
        return ()

    def apply(self, event: Event) -> CommandResult:
        """Evaluate the code."""
        assert self._pipeline is not None
        outputs = self._pipeline.push(event, event.event_number, event.event_time)
        return CommandResult(outputs[-1][1] if outputs else None)

    def release(self) -> None:
        """Release the code."""
        self._code = self._pipeline = None


class RecordSteps(LoopCommand):
    """A command that records steps of the loop; its result is the recording."""

    at_next: Callable[[str, EventCommand], None]

    def make(self, steps: int) -> StepRecorder:
        """Return the recorder. Raises ControlError for a wrong file."""
        raise NotImplementedError

    def check(self) -> tuple[str, ...]:
        """Check the number of steps, and the path. Raises ControlError."""
        steps = self.record.value
        if type(steps) is not int or not 1 <= steps <= MAX_STEPS:
            raise ControlError(f"{self.record.what} takes 1 to {MAX_STEPS} steps, not {steps!r:.80}.")
        self._recorder, self._started = self.make(steps), False
        return ()

    def run(self, event: Event) -> FollowUp | None:
        """Start the recorder at the first event, and count the others as steps."""
        if self.over:
            return None
        try:
            if not self._started:
                if not self.claim(self):
                    return None
                self.note(event=event._source.name, number=event._number, time=time.time())
                if self.job.recorder is not None:
                    raise ControlError("another profile or record of memory is being made: ask again after it.")
                self._recorder.start(self._recorded)
                self.job.recorder, self._started = self._recorder, True
            elif self._recorder.here() and self._recorder.step(event):
                self._release()
                return None
            self.at_next(self.record.on, self.run)
        except ControlError as error:
            self._release()
            self.error, self.kind = str(error), type(error).__name__
            self._finish()
        return None

    def _release(self) -> None:
        if self.job.recorder is self._recorder:
            self.job.recorder = None

    def _recorded(self, found: Any, problem: str) -> None:
        """Report the recording. Thread of the recorder."""
        self._release()
        if problem:
            self.error, self.kind = problem, ControlError.__name__
        else:
            self.value, self.size = snapshot(found)
            self.note(outcome=DONE, result=found if isinstance(found, str) else None)
        self._finish()


class ProfileSteps(RecordSteps):
    """A command that has torch's profiler trace steps."""

    def make(self, steps: int) -> StepRecorder:
        """Return the profiler. Raises ControlError for a wrong path."""
        if not self.record.name.endswith(".json.gz"):
            raise ControlError(f"the file of a profile ends in .json.gz, unlike {self.record.name!r:.120}.")
        return StepProfiler(self.record.name, steps)


class RecordMemory(RecordSteps):
    """A command that reports which lines and tensors hold memory."""

    def make(self, steps: int) -> StepRecorder:
        """Return the recorder. Raises ControlError for a wrong path."""
        if self.record.name and not self.record.name.endswith(".pickle"):
            raise ControlError(f"the file of a memory snapshot ends in .pickle, unlike {self.record.name!r:.120}.")
        return MemoryRecorder(self.record.name, steps)


class UnknownCommand(LoopCommand):
    """A command with a name that this version does not know."""

    def check(self) -> tuple[str, ...]:
        """Raise ControlError."""
        raise ControlError(f"there is no command {self.record.what!r:.80}; there are: {', '.join(BY_NAME)}.")


BY_NAME: dict[str, type[LoopCommand]] = {
    "set": SetControl,
    "undo": UndoControl,
    "trigger": CallTrigger,
    "checkpoint": SaveCheckpoint,
    "stop": StopLoop,
    "pause": PauseLoop,
    "profile": ProfileSteps,
    "memory": RecordMemory,
}
"""The kinds of commands by name; code has a message type of its own."""


def _check_schedule(control: BoundControl, schedule: str) -> None:
    if control.refusal:
        raise ControlError(f"{control.name}: {control.refusal}")
    if schedule and (control.schedules is None or schedule not in (SCALE, FREEZE)):
        drives = "no schedule drives it" if control.schedules is None else f"it is {SCALE!r} or {FREEZE!r}"
        raise ControlError(f"{control.name}: schedule={schedule!r:.80}, but {drives}.")
    if control.schedules and not schedule:
        raise ControlError(
            f"{control.name} is driven by {control.schedules}. Say what becomes of the schedule: schedule={SCALE!r} "
            f"continues it from the new value; schedule={FREEZE!r} keeps the new value."
        )


def _client(change: ControlChange) -> str:
    return change.client or "a client"


def _former_under_schedule(change: ControlChange, now: Any) -> tuple[Any, str]:
    """Return how to take back a change that the schedule has continued from."""
    if change.schedule == THAW:
        return change.old, FREEZE
    if change.was_frozen:
        raise ControlError(
            f"the schedule was frozen at {change.old!r:.80} before this change, which scaled it: set it to the value "
            f"that you want, with schedule={FREEZE!r}."
        )
    values = change.old, change.new, now
    groups = max(len(value) if isinstance(value, list) else 1 for value in values)
    each = [value if isinstance(value, list) else [value] * groups for value in values]
    if 0 in each[1]:
        raise ControlError("the schedule was scaled to 0, and no factor leads from there to what it was.")
    found = [value * old / new for old, new, value in zip(*each, strict=True)]
    return found if groups > 1 else found[0], SCALE


def _put_back(control: BoundControl, old: Any) -> str:
    """Undo a change that failed halfway, if possible; return the present value."""
    try:
        if control.value() != old:
            control.set(old, FREEZE if control.schedules else "")
        if control.value() == old:
            return f"The value is as it was: {old!r:.80}."
        return f"The value was {old!r:.80} and is {control.value()!r:.80} now."
    except Exception as error:
        return f"The value was {old!r:.80}; whether it still is, is unknown ({type(error).__name__}: {error})."
