"""What a client may have done in the job: changes of controls, triggers, checkpoints, pauses, a polite stop.

All is accepted, and refused, on the I/O thread, and done on the training thread at an event.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from looptap.agent.control.command_log import CommandLog, CommandResult, CommandState, Requester, Work, record_of
from looptap.agent.control.controls import BoundControl, BoundControls
from looptap.agent.control.exposed_observers import ExposedObservers
from looptap.agent.control.optimizer_controls import FREEZE, SCALE
from looptap.agent.control.pause import Pause
from looptap.agent.control.process_group import group
from looptap.agent.control.rank_consensus import RankConsensus
from looptap.agent.loop.event_sources import EventSources
from looptap.agent.loop.guard.torch_state import TorchStateGuard
from looptap.agent.queries.code_loading import code_of
from looptap.agent.queries.query_registry import QueryRegistry
from looptap.protocol import messages as m
from looptap.protocol.codec import unpack
from looptap.protocol.limits import Limits
from looptap.streams.control import Control
from looptap.streams.errors import CommandCancelled, ControlConflict, ControlError, LooptapError, QueryError
from looptap.streams.events import Event
from looptap.streams.expressions import nearest
from looptap.streams.values.snapshots import snapshot

_MAX_RESULT_BYTES = 10_000  # bytes of what a host's function returns that are kept on record
_MAX_NAME_CHARACTERS = 200  # characters of a name, an id, an event
_PLAIN = (type(None), bool, int, float, str)


class Trigger(NamedTuple):
    """A function of the host that can be asked for."""

    function: Callable[[], Any]
    at: tuple[str, ...]
    doc: str


class CommandService:
    """Makes work of each command, and keeps what the host allows."""

    def __init__(
        self, queries: QueryRegistry, taps: EventSources, groups: tuple[str, ...], limits: Limits,
        finished: Callable[[CommandState], None],
    ) -> None:  # fmt: skip
        self._queries, self._taps = queries, taps
        self.usual = groups[0] if groups else "batch"
        self._observers = ExposedObservers(taps.exposed)
        self.commands = CommandLog(limits.commands_per_second, finished, self._observers)
        self.agreement = RankConsensus(self.commands, queries, taps, limits.agreement, finished)
        self.controls = BoundControls(lambda: taps.exposed)
        self.triggers: dict[str, Trigger] = {}
        self.checkpoint: Trigger | None = None
        self.pause = Pause()
        self.on_stop: Callable[[], BaseException] | None = None
        self.stop_requested = False
        self.stop_looked_at = False
        """Whether the host has ever read `Agent.stop_requested`."""
        self._works = {
            "set": self._set, "trigger": self._trigger, "checkpoint": self._save, "stop": self._stop,
            "pause": self._pause,
        }  # fmt: skip

    # ------------------------------------------------------------ what a client asks

    def handle(self, client: str, message: m.Call | m.Command | m.Agree, peer: bytes) -> None:
        """Have done what a client asks for. Raises LooptapError."""
        match message:
            case m.Call():
                self.call(client, message, Requester(peer, message.request, bool(message.ranks)))
            case m.Command():
                self.command(client, message, Requester(peer, message.request))
            case m.Agree():
                self.agreement.agree(message, Requester(peer, message.request))

    def call(self, client: str, call: m.Call, asker: Requester) -> None:
        """Have code run at the next event. Raises LooptapError."""
        if self.commands.known(call.id, asker, again=bool(call.ranks)):
            return
        record = record_of(
            call.id, client[:_MAX_NAME_CHARACTERS], "call", call.on, checkpoint=call.checkpoint, agreed=call.ranks
        )
        work, text = self.calling(call.code, record)
        self.commands.count()
        if call.ranks:
            self.agreement.prepare(record, asker, work, call.on, text)
            return
        self._queries.at_next(call.on, self.commands.accept(record, asker, work, text))

    def command(self, client: str, command: m.Command, asker: Requester) -> None:
        """Have a command done at the next event that suits it. Raises LooptapError where it may not be."""
        if command.what == "cancel":
            self.cancel(client[:_MAX_NAME_CHARACTERS], command.id)
            asker = asker._replace(anyhow=True)
        if self.commands.known(command.id, asker, again=bool(command.ranks)):
            return
        if command.what in ("outcome", "cancel"):
            raise ControlError(f"no command with the id {command.id!r:.80} is remembered.")
        for text in (command.id, command.what, command.name, command.on, command.schedule):
            if len(text) > _MAX_NAME_CHARACTERS:
                raise ControlError(
                    f"{text[:40]!r}… has {len(text):,} characters; names and ids have up to {_MAX_NAME_CHARACTERS}."
                )
        value = unpack(command.value)
        if type(value) not in _PLAIN or (isinstance(value, str) and len(value) > _MAX_RESULT_BYTES):
            fine = f"a number, True, False or a text of up to {_MAX_RESULT_BYTES:,} characters"
            raise ControlError(f"{command.name} = {value!r:.80}: it is {fine}.")
        self.commands.count()
        record = record_of(command.id, client[:_MAX_NAME_CHARACTERS], command.what, command.on, name=command.name)
        record.update(value=value, schedule=command.schedule, checkpoint=command.checkpoint, agreed=command.ranks)
        try:
            if command.what == "resume":
                self.commands.settle(record, asker, self.pause.resume())
                return
            work, on = self.prepared(record, command.expected)
            if command.what == "stop":
                self.pause.resume()  # whoever wants an end does not want to wait for it
            if command.ranks:
                self.agreement.prepare(record, asker, work, on)
                return
            self._queries.at_next(on, self.commands.accept(record, asker, work))
        except LooptapError as error:
            self.commands.refuse(record, error)
            raise

    def cancel(self, client: str, id: str) -> None:
        """Call a command off, unless it has begun."""
        error = CommandCancelled(f"this command was called off by {client or 'a client'}: nothing is done.")
        if self.agreement.call_off(id, error):
            return
        if (waiting := self.commands.waiting(id)) is not None:
            self._queries.not_at_next(*waiting)
            self.commands.give_up(id, error)

    def prepared(self, record: dict[str, Any], expected: int | None = None) -> tuple[Work, str]:
        """What is to be done for a command on record, and at which event. Raises LooptapError."""
        prepare = self._works.get(record["what"])
        if prepare is None:
            raise ControlError(f"there is no command {record['what']!r:.80}; there are: {', '.join(self._works)}.")
        work, safe = prepare(record, expected)
        on = record["on"] = self._event(safe, record["on"], record["name"] or record["what"])
        return self._after_saving(work, record), on

    def calling(self, code: m.Code, record: dict[str, Any]) -> tuple[Work, str]:
        """The work of a call on record, and its text. Raises LooptapError."""
        pipeline = self._queries.compiled(code_of(code))
        if not pipeline.mapped:
            raise QueryError("a command runs at one event; this reduces many.", pipeline.text)

        def work(event: Event) -> CommandResult:
            outputs = pipeline.push(event, event.event_number, event.event_time)
            return CommandResult(outputs[-1][1] if outputs else None)

        record.update(name=pipeline.text[:200], value=code.text or None)
        return self._after_saving(work, record), pipeline.text

    def describe(self) -> dict[str, Any]:
        """What can be done in this job, as plain data."""
        return {
            "controls": self.controls.describe(),
            "triggers": {name: trigger.doc for name, trigger in self.triggers.items()},
            "checkpoint": self.checkpoint is not None,
            "may_pause": self.pause.most(group()),
        }

    def close(self) -> None:
        """Let go of what is the host's."""
        self.pause.resume()
        self.agreement.close()
        self.triggers.clear()
        self.controls = BoundControls(dict)
        self.checkpoint = None

    # ------------------------------------------------------------ the work of each

    def _set(self, record: dict[str, Any], expected: int | None) -> tuple[Work, tuple[str, ...]]:
        name, schedule = record["name"], record["schedule"]
        knob = self.controls.find(name)
        value = record["value"] = knob.control.checked(record["value"], name)
        _check_schedule(knob, schedule)
        changes = self.controls.changes
        if conflict := changes.conflict(name, expected):
            raise ControlConflict(conflict)

        def work(event: Event) -> CommandResult:
            if conflict := changes.conflict(name, expected):
                raise ControlConflict(conflict)
            knob = self.controls.find(name)  # what is exposed may be another object by now
            return self._turn(knob, knob.control.checked(value, name), record)

        return work, knob.control.at

    def restoring(self, knob: BoundControl, value: Any, record: dict[str, Any]) -> Work:
        """The work of setting a control back to a value that it had. Raises ControlError."""
        value = knob.control.checked(value, knob.name)
        return lambda event: self._turn(knob, value, record)

    def _turn(self, knob: BoundControl, value: Any, record: dict[str, Any]) -> CommandResult:
        record["old"] = old = knob.value()
        try:
            knob.set(value, record["schedule"])
            new = knob.value()
            if isinstance(value, str) and not isinstance(new, str):
                new = value  # a word such as "auto" says more than the number that it stands for
        except BaseException as error:
            error.add_note(_put_back(knob, old))
            raise
        record.update(new=new, version=self.controls.changes.note(knob.name, record["client"], new))
        return CommandResult()

    def _trigger(self, record: dict[str, Any], _: int | None) -> tuple[Work, tuple[str, ...]]:
        name = record["name"]
        trigger = self.triggers.get(name)
        if trigger is None:
            near = nearest(name, self.triggers)
            raise ControlError(
                f"this job has no trigger {name!r:.80}; there are: {', '.join(self.triggers) or 'none'}."
                f"{' ' * bool(near)}{near}"
            )
        return lambda event: CommandResult(_short(trigger.function())), trigger.at

    def _save(self, record: dict[str, Any], _: int | None) -> tuple[Work, tuple[str, ...]]:
        save = self._saving()
        record["checkpoint"] = False  # it is one itself
        return lambda event: CommandResult(_short(save.function())), save.at

    def _saving(self) -> Trigger:
        if self.checkpoint is None:
            raise ControlError("this job has not said how to make a checkpoint: agent.checkpoint(function).")
        return self.checkpoint

    def _stop(self, record: dict[str, Any], _: int | None) -> tuple[Work, tuple[str, ...]]:
        if self.on_stop is None and not self.stop_looked_at:
            record["note"] = (
                "asked; the job ends only if its loop reads agent.stop_requested, which it has not done so far (it has "
                "given no on_stop=)"
            )

        def work(event: Event) -> CommandResult:
            self.stop_requested = True
            return CommandResult(None, None if self.on_stop is None else self._leave)

        return work, ()

    def _leave(self) -> None:
        assert self.on_stop is not None
        raise self.on_stop()

    def _pause(self, record: dict[str, Any], _: int | None) -> tuple[Work, tuple[str, ...]]:
        seconds = record["value"] = self.pause.allowed(record["value"], group(), record["agreed"])
        resumes = self.pause.resumes

        def work(event: Event) -> CommandResult:
            observers = self._observers.current()  # of now: who closes the agent meanwhile lets go of what is exposed

            def wait() -> None:
                try:
                    self._taps.exclude_pause(self.pause.wait(seconds, resumes))
                finally:
                    observers.on_pause(self.pause.last)

            return CommandResult(seconds, wait)

        return work, ()

    # ------------------------------------------------------------ common to all

    def _after_saving(self, work: Work, record: dict[str, Any]) -> Work:
        """``work``, after a checkpoint if that was asked for; without one it is not done."""
        if not record["checkpoint"]:
            return work
        save = self._saving()

        def both(event: Event) -> CommandResult:
            state = TorchStateGuard()
            try:
                with state:
                    record["saved"] = _short(save.function())
            except BaseException as error:
                state.restore()  # Ctrl-C may have come before that was done
                error.add_note("This was the checkpoint before the change, which was not made.")
                raise
            return work(event)

        return both

    def _event(self, safe: tuple[str, ...], wanted: str, name: str) -> str:
        """The event at which it is done. Raises ControlError for one at which it is not safe."""
        if wanted and safe and wanted not in safe:
            allowed = " or ".join(map(repr, safe))
            raise ControlError(f"{name} may be done at {allowed} events only, not at {wanted!r:.80}.")
        return wanted or (safe[0] if safe else self.usual)


def _check_schedule(knob: BoundControl, schedule: str) -> None:
    if knob.refusal:
        raise ControlError(f"{knob.name}: {knob.refusal}")
    if schedule and (knob.schedules is None or schedule not in (SCALE, FREEZE)):
        drives = "no schedule drives it" if knob.schedules is None else f"it is {SCALE!r} or {FREEZE!r}"
        raise ControlError(f"{knob.name}: schedule={schedule!r:.80}, but {drives}.")
    if knob.schedules and not schedule:
        raise ControlError(
            f"{knob.name} is driven by {knob.schedules}. Say what is to become of the schedule: {SCALE!r}, it goes on "
            f"from the new value, scaled by the same factor to its end; {FREEZE!r}, the new value stays."
        )


def _put_back(knob: BoundControl, old: Any) -> str:
    """Undo a change that failed halfway, where that can be told; a sentence on how it is now."""
    try:
        if knob.value() != old:
            knob.set(old, FREEZE if knob.schedules else "")
        if knob.value() == old:
            return f"The value is as it was: {old!r:.80}."
        return f"The value was {old!r:.80} and is {knob.value()!r:.80} now."
    except Exception as error:
        return f"The value was {old!r:.80}; whether it still is cannot be told ({type(error).__name__}: {error})."


def _short(value: Any) -> Any:
    """What a function of the host returned, if it can leave the job and is small; else how it calls itself."""
    try:
        return snapshot(value, _MAX_RESULT_BYTES)[0]
    except LooptapError:
        return f"{value!r:.200}"


def checked_trigger(function: Callable[[], Any], at: Any, doc: str, what: str) -> Trigger:
    """A function of the host as a trigger. Raises ControlError."""
    if not callable(function):
        raise ControlError(f"{what} is a function without arguments, not {function!r:.80}.")
    doc = doc or (getattr(function, "__doc__", None) or "").strip().split("\n")[0]
    return Trigger(function, Control(at=at).at, doc)
