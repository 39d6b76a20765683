"""`looptap call`: runs code once inside a job, at one of its events."""

from __future__ import annotations

from typing import Annotated, Any

from typer import Argument, Option

from looptap.cli.commands.control.give_command import announced, for_run, interrupted, outcome_of, report_failure
from looptap.cli.formats import printable, value_text
from looptap.cli.options import CommandId, OnRanks, RunName, Timeout, TimeSpan, which_of
from looptap.cli.output import DONE, say_json
from looptap.cli.shell_names import in_shell
from looptap.client.attach import attach
from looptap.client.control.controls import Outcome
from looptap.client.control.pending import CommandPending
from looptap.protocol.errors import RemoteError


def call_command(
    run: RunName,
    code: Annotated[
        str, Argument(metavar="CODE", help="A Python expression over what the event carries.", show_default=False)
    ],
    on: Annotated[str, Option("--on", metavar="EVENT", help="The type of event at which it runs.")] = "batch",
    timeout: Timeout = TimeSpan(30),
    id: CommandId = None,
    ranks: OnRanks = "all",
    as_json: Annotated[bool, Option("--json", help="Print one JSON object with result, error and traceback.")] = False,
) -> int:
    """Run code once inside a run and print the result.

    It runs on the training thread, at the next event.

    \b
      looptap call digits-cnn "step, optimizer.param_groups[0]['lr']"
      looptap call digits-cnn "optimizer.param_groups[0].update(lr=0.01)"
      looptap call digits-cnn "torch.save(model.state_dict(), 'now.pt')" --on epoch

    The code may change the job on purpose. An error in it is printed here, and the job continues.
    In a job on several ranks, the results of all ranks are printed.
    """
    which = which_of(ranks)
    try:
        with attach(run) as job, announced(job, run):
            if id is None:
                result = job.call(code, on=on, timeout=timeout, ranks=which)
            else:
                result = _result(outcome_of(job, id, timeout, "call", value=code))
    except KeyboardInterrupt as pressed:
        raise interrupted(pressed, run) from None
    except CommandPending as error:
        text = for_run(in_shell(error), run)
        return report_failure(text, "", {"result": None, "error": text, "traceback": "", "id": error.id}, as_json)
    except RemoteError as error:
        plain = {"result": None, "error": str(error), "traceback": error.traceback}
        return report_failure(f"The command failed in the job: {error}", error.traceback, plain, as_json)
    if as_json:
        return say_json({"result": result, "error": None, "traceback": ""})
    if result is not None:
        print(printable(result, keep="\n\t") if isinstance(result, str) else value_text(result))
    return DONE


def _result(outcome: Outcome) -> Any:
    """Return what the code returned; in a job of several ranks by rank."""
    return {rank: one.result for rank, one in outcome.ranks.items()} if outcome.ranks else outcome.result
