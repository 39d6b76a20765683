"""The commands of `looptap` that change a job, with their options and their help."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer import Argument, Option

from looptap.cli.names import Name, OnRanks, Shown, which_of

Json = Annotated[bool, Option("--json", help="Print one JSON object in place of text.")]
Timeout = Annotated[float, Option(metavar="S", help="Seconds to wait for the outcome.")]
At = Annotated[
    str, Option("--on", metavar="EVENT", help="The type of event at which it is done.", show_default="where it is safe")
]
Id = Annotated[
    str | None,
    Option("--id", metavar="ID", help="Only ask for the outcome of an earlier command; nothing is done."),
]
Before = Annotated[bool, Option("--checkpoint", help="Have the job make a checkpoint before, if it can.")]


def install(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    for name, function, short in (
        ("controls", controls, "List what can be set in a run: values, bounds, meaning."),
        ("set", set_, "Set a control of a run, at a safe event."),
        ("trigger", trigger, "Have a function that the job offers run once."),
        ("checkpoint", checkpoint, "Have a run make a checkpoint now."),
        ("pause", pause, "Have a run wait, if its host allows it."),
        ("resume", resume, "End the pause of a run."),
        ("stop", stop, "Ask a run to stop at its next event."),
        ("cancel", cancel, "Call off a command that still waits for its event."),
        ("commands", commands, "List what was done to a run, by whom and when."),
        ("replay", replay, "Start a job in which recorded commands are done again."),
    ):
        settings = {"ignore_unknown_options": True, "allow_interspersed_args": False} if name == "replay" else None
        app.command(name, short_help=short, context_settings=settings)(function)


def controls(
    run: Name, as_json: Annotated[bool, Option("--json", help="Print one JSON array with an object for each.")] = False
) -> int:
    """List what can be set in a run: its values, their bounds and what they mean.

    \b
      looptap controls digits-cnn
      looptap controls digits-cnn --json | jq -r '.[] | .name'

    Beside these, any number, text or flag of an object that the job exposes can be set by its path.
    """
    from looptap.cli.commands import control

    return control.controls(run, as_json)


def set_(
    run: Name,
    name: Annotated[str, Argument(metavar="NAME", help="A control, or a path such as model.dropout.p.")],
    value: Annotated[str, Argument(metavar="VALUE", help="A number, True, False, or text.")],
    on: At = "",
    schedule: Annotated[
        str,
        Option(
            metavar="scale|freeze",
            help="For a learning rate that a schedule drives: scale, the schedule goes on from the new value; freeze, "
            "the new value stays.",
            show_default=False,
        ),
    ] = "",
    checkpoint: Before = False,
    timeout: Timeout = 30.0,
    id: Id = None,
    ranks: OnRanks = "all",
    as_json: Json = False,
) -> int:
    """Set a control of a run. It is checked at once, and changed between two steps, at the next event that is safe.

    \b
      looptap set digits-cnn optimizer.lr 0.01 --schedule scale
      looptap set digits-cnn echo.factor 3 --checkpoint
      looptap set digits-cnn "model[7].p" 0.2

    `looptap controls` lists the controls. A value that begins with a minus goes after two more: -- -0.5. The exit code
    is 0 if it was changed, and 1 if it was refused, failed, or was not answered in time; it may still be done then,
    and --id asks what came of it.
    """
    from looptap.cli.commands import control

    to, which = control.value_of(value), which_of(ranks)
    if id is not None:
        return control.earlier(run, as_json, id, timeout, "set", name=name, value=to)
    return control.command(
        run,
        lambda job: job.set(name, to, on=on, schedule=schedule, checkpoint=checkpoint, timeout=timeout, ranks=which),
        as_json,
    )


def trigger(
    run: Name,
    name: Annotated[str, Argument(metavar="NAME", help="What the job has called it in agent.trigger.")],
    on: At = "",
    checkpoint: Before = False,
    timeout: Timeout = 30.0,
    id: Id = None,
    ranks: OnRanks = "all",
    as_json: Json = False,
) -> int:
    """Have a function that the job offers run once, in its loop at the next event, and print what it returned.

    \b
      looptap trigger digits-cnn evaluate

    A job offers one by agent.trigger("evaluate", function).
    """
    from looptap.cli.commands import control

    if id is not None:
        return control.earlier(run, as_json, id, timeout, "trigger", name=name)
    how: dict[str, Any] = {"on": on, "checkpoint": checkpoint, "timeout": timeout, "ranks": which_of(ranks)}
    return control.command(run, lambda job: job.trigger(name, **how), as_json)


def checkpoint(
    run: Name, on: At = "", timeout: Timeout = 300.0, id: Id = None, ranks: OnRanks = "all", as_json: Json = False
) -> int:
    """Have a run make a checkpoint at its next event, and print what that returned.

    \b
      looptap checkpoint digits-cnn

    The job has to say how: agent.checkpoint(function).
    """
    from looptap.cli.commands import control

    if id is not None:
        return control.earlier(run, as_json, id, timeout, "checkpoint")
    which = which_of(ranks)
    return control.command(run, lambda job: job.checkpoint(on=on, timeout=timeout, ranks=which), as_json)


def pause(
    run: Name,
    seconds: Annotated[
        float | None, Argument(metavar="SECONDS", help="For how long at most; by default as long as the job allows.")
    ] = None,
    on: At = "",
    timeout: Timeout = 30.0,
    as_json: Json = False,
) -> int:
    """Have a run wait at its next event, until `looptap resume` or until the time is over.

    \b
      looptap pause digits-cnn 60
      looptap resume digits-cnn

    The job has to allow it: looptap.Agent(..., may_pause=300.0).
    """
    from looptap.cli.commands import control

    return control.command(run, lambda job: job.pause(seconds, on=on, timeout=timeout), as_json)


def resume(run: Name, timeout: Timeout = 5.0, as_json: Json = False) -> int:
    """End the pause of a run, or call off one that has not begun; prints for how many seconds it has paused.

    \b
      looptap resume digits-cnn
    """
    from looptap.cli.commands import control

    return control.command(run, lambda job: job.resume(timeout=timeout), as_json)


def stop(
    run: Name, on: At = "", checkpoint: Before = False, timeout: Timeout = 30.0, id: Id = None, as_json: Json = False
) -> int:
    """Ask a run to stop at its next event.

    \b
      looptap stop digits-cnn
      looptap stop digits-cnn --checkpoint --on epoch

    It is a request: the job ends if it looks at agent.stop_requested, or was started with
    looptap.Agent(..., on_stop=…), an exception that is then raised out of its agent.emit.
    """
    from looptap.cli.commands import control

    if id is not None:
        return control.earlier(run, as_json, id, timeout, "stop")
    return control.command(run, lambda job: job.stop(on=on, checkpoint=checkpoint, timeout=timeout), as_json)


def cancel(
    run: Name,
    id: Annotated[str, Argument(metavar="ID", help="Of the command; looptap commands RUN shows those that wait.")],
    timeout: Annotated[float, Option(metavar="S", help="Seconds to wait for the answer.")] = 5.0,
    as_json: Json = False,
) -> int:
    """Call off a command that was given to a run and still waits for its event: it will never be done.

    \b
      looptap commands digits-cnn
      looptap cancel digits-cnn 5f0c…

    In a job of several ranks it is called off on all. The exit code is 1 if it is too late; then what came of the
    command is printed. With --json, outcome is "cancelled", or what came of it.
    """
    from looptap.cli.commands import control

    return control.cancel(run, id, timeout, as_json)


def commands(
    run: Shown,
    as_json: Annotated[bool, Option("--json", help="Print one JSON array with an object for each.")] = False,
    as_yaml: Annotated[bool, Option("--yaml", help="Print what `looptap replay` takes.")] = False,
) -> int:
    """List what was done to a run: at which event, what, from which value to which, what came of it, and by whom.

    \b
      looptap commands digits-cnn
      looptap commands digits-cnn --yaml > commands.yaml
      looptap commands looptap-runs/digits-cnn-….looptap
    """
    from looptap.cli.commands import control

    return control.commands(run, as_json, as_yaml)


def replay(
    file: Annotated[str, Argument(metavar="FILE", help="What `looptap commands --yaml` has printed, or a stored run.")],
    job: Annotated[list[str], Argument(metavar="COMMAND...", help="How to start the job, with its arguments.")],
) -> int:
    """Start a job in which the commands of an earlier run are done again, at the same events.

    \b
      looptap replay commands.yaml python train.py --seed 0
      looptap replay looptap-runs/digits-cnn-….looptap python train.py --seed 0

    The same as LOOPTAP_REPLAY=commands.yaml python train.py, or looptap.Agent(..., replay="commands.yaml").
    """
    from looptap.cli.commands import control

    return control.replay(file, job)
