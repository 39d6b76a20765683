"""The commands of `looptap` with their options and their help; what they do is in the modules beside this one."""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Argument, Option

from looptap.cli import control_options, screen_options
from looptap.cli.commands import guard, progress, share
from looptap.cli.names import RUN_HELP, Budget, Combine, Name, OnRanks, Ranks, Wait, ranks_of, which_of

STORED = "The file of a stored run, or a directory of TensorBoard's."
File = Annotated[str, Argument(metavar="FILE", help=STORED, show_default=False)]
On = Annotated[str, Option("--on", metavar="EVENT", help="The type of event, as the job calls it in agent.emit.")]

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


@app.callback(invoke_without_command=True)
def looptap(
    context: typer.Context,
    version: Annotated[bool, Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Attach to a training loop that is already running, ask it anything, watch the answers live.

    To see it work:

    \b
      looptap demo

    With a job of your own that has a looptap.Agent:

    \b
      looptap ls
      looptap watch digits-cnn "step, loss"
    """
    if version:
        from importlib.metadata import version as version_of

        typer.echo(f"looptap {version_of('looptap')}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("ls", short_help="List the runs, their events, and what is asked of them at what cost.")
def ls(
    run: Annotated[str | None, Argument(metavar="RUN", help=f"Only this one. {RUN_HELP}", show_default=False)] = None,
    clean: Annotated[bool, Option("--clean", help="First remove what ended runs have left behind.")] = False,
    as_json: Annotated[bool, Option("--json", help="Print one JSON array with an object for each run.")] = False,
) -> int:
    """List the runs: where they are, their events, who asks them what, and what that costs.

    A run whose process is gone, but not its connection file, is shown as ended. The cost of a query is its time on
    the training thread: in nanoseconds per event, and as a share of the time that the job takes.

    \b
      looptap ls
      looptap ls ssh://login/node7/digits-cnn
      looptap ls --json | jq -r '.[] | select(.state == "alive") | .id'

    Runs announce themselves in the directory that LOOPTAP_DIR names, else in a private one of this user on this
    machine.
    """
    from looptap.cli.commands import ls as listing

    return listing.ls(as_json, clean, run)


@app.command("watch", short_help="Ask a run queries and show what they yield as it comes.")
def watch(
    run: Name,
    queries: Annotated[
        list[str], Argument(metavar="QUERY", help="One query or more, each in quotes.", show_default=False)
    ],
    on: Annotated[
        str | None,
        Option(
            metavar="EVENT",
            help="The type of event, as the job calls it in agent.emit; batch if not given. With it a text is a query, "
            "also where the job has a stream of that name.",
            show_default=False,
        ),
    ] = None,
    window: Annotated[
        str | None,
        Option(
            metavar="SIZE",
            help="What a reduction goes over: 100 (events), 30s (seconds), sliding:100 (a value at each event over "
            "the last 100). Without it: a group of the job, such as the batches of an epoch.",
        ),
    ] = None,
    every: Annotated[int, Option(metavar="N", help="Look at each N-th event only.")] = 1,
    throttle: Annotated[float, Option(metavar="S", help="At most one value in S seconds.")] = 0.0,
    when: Annotated[
        str | None,
        Option(metavar="COND", help="Hold values back, and send them only around events where COND comes true."),
    ] = None,
    before: Annotated[int, Option(metavar="N", help="With --when: this many values before that event.")] = 0,
    after: Annotated[int, Option(metavar="N", help="With --when: this many values after that event.")] = 0,
    ranks: Ranks = None,
    combine: Combine = None,
    budget: Budget = None,
    count: Annotated[
        int | None, Option(metavar="N", min=1, help="End after N values of each query.", show_default=False)
    ] = None,
    timeout: Annotated[
        float | None,
        Option(metavar="S", help="End after S seconds; it is an error if not all came by then.", show_default=False),
    ] = None,
    follow: Annotated[
        bool, Option("--follow", help="Wait for a run that has not started, and when it has ended for the next one.")
    ] = False,
    wait: Wait = None,
    as_json: Annotated[bool, Option("--json", help="Print a JSON object on a line for each value.")] = False,
) -> int:
    """Ask a run queries and show what they yield, until it ends or you press Ctrl-C. The job goes on.

    A query is a Python expression. One over what an event carries yields a value at each event; one that reduces
    `events` yields a value when the window closes, and only that value travels.

    \b
      looptap watch digits-cnn "step, loss"
      looptap watch digits-cnn "mean(e.loss for e in events)"
      looptap watch digits-cnn "max(e.loss for e in events)" --window 100
      looptap watch digits-cnn "layer_norms(model, 'grad')" --every 20
      looptap watch digits-cnn "epoch, error" --on epoch --count 1

    The name of a stream that the job declares shows that one, its history first (looptap streams RUN lists them):

    \b
      looptap watch digits-cnn loss

    Which batches led to the NaN? Nothing is sent until the condition comes true:

    \b
      looptap watch diverging "step, loss" --when "isnan(loss)" --before 20

    A job on several ranks, rank by rank, or as one:

    \b
      looptap watch digits-cnn "step, loss" --ranks all
      looptap watch digits-cnn "mean(e.loss for e in events)" --ranks all --combine merge

    On a terminal the newest values are drawn live; elsewhere each value is a line, after the number of its event.
    With --json each line is an object with index (of the query in this command, from 0), query, number, event, time,
    value, error and gap, which is how many values are missing before this one (null: unknown); numbers that are not
    finite are strings such as "NaN".
    With --follow, the first value of a further run has its id as run. The last line of each query says how it ended:

    \b
      looptap watch digits-cnn "step, loss" --json | jq .value.loss

    The exit code is 0 when the run ends or nobody reads on, and 1 if a query fails, the run is lost, or the time is
    over without values.
    """
    from looptap.cli.commands import watch as watching

    how: dict[str, object] = {"on": on, "window": watching.window_of(window), "every": every, "throttle": throttle}
    how |= {"when": when, "before": before, "after": after, "budget": budget}
    if ranks is not None or combine is not None:
        how |= {"ranks": ranks_of(ranks), "combine": combine}
    return watching.watch(run, queries, how, count=count, timeout=timeout, as_json=as_json, go_on=follow, wait=wait)


@app.command("streams", short_help="List the streams that a run declares itself, with their history.")
def streams(
    run: Name,
    as_json: Annotated[bool, Option("--json", help="Print one JSON array with an object for each stream.")] = False,
) -> int:
    """List the standing streams of a run: those that the job declares, with a history that begins before you came.

    \b
      looptap streams digits-cnn
      looptap watch digits-cnn loss

    Told of each: its name, what it asks of which events, how many values there were, how many of them the job still
    holds, how many come in a second, and what the query costs.
    """
    from looptap.cli.commands import streams as standing

    return standing.streams(run, as_json=as_json)


@app.command("call", short_help="Run code once inside a run and print the result.")
def call(
    run: Name,
    code: Annotated[
        str, Argument(metavar="CODE", help="A Python expression over what the event carries.", show_default=False)
    ],
    on: On = "batch",
    timeout: Annotated[float, Option(metavar="S", help="Seconds to wait for the outcome.")] = 30.0,
    id: Annotated[
        str | None,
        Option("--id", metavar="ID", help="Only ask for the outcome of an earlier command; nothing runs."),
    ] = None,
    ranks: OnRanks = "all",
    as_json: Annotated[bool, Option("--json", help="Print an object with result, error and traceback.")] = False,
) -> int:
    """Run code once inside a run, on its training thread at the next event, and print the result.

    \b
      looptap call digits-cnn "step, optimizer.param_groups[0]['lr']"
      looptap call digits-cnn "optimizer.param_groups[0].update(lr=0.01)"
      looptap call digits-cnn "torch.save(model.state_dict(), 'now.pt')" --on epoch

    The code can change the job: that is what it is for. An error in it is printed here, and the job goes on.
    In a job of several ranks the results of all are printed, by rank.
    """
    from looptap.cli.commands import call as calling

    return calling.call(run, code, on=on, timeout=timeout, id=id, ranks=which_of(ranks), as_json=as_json)


screen_options.install(app)
control_options.install(app)
guard.install(app)
progress.install(app)
share.install(app)


@app.command("stacks", short_help="Show where every thread of a run is, also while it hangs.")
def stacks(
    run: Name,
    ranks: Ranks = None,
    timeout: Annotated[float, Option(metavar="S", help="Seconds to wait for the answer.")] = 5.0,
    as_json: Annotated[
        bool, Option("--json", help="Print an object with threads and events, with --ranks one for each rank.")
    ] = False,
) -> int:
    """Show where every thread of a run is, and how long ago its last events were. Works while the loop hangs.

    \b
      looptap stacks digits-cnn
      looptap stacks digits-cnn --ranks all

    The answer comes from a thread of its own inside the job. A call in C that keeps Python's lock, or a stopped
    process, cannot answer.
    """
    from looptap.cli.commands import stacks as hanging

    return hanging.stacks(run, ranks_of(ranks), timeout=timeout, as_json=as_json)


@app.command("open", short_help="Show what a stored run holds.")
def open_(
    file: Annotated[str | None, Argument(metavar="FILE", help=f"{STORED} By default, the runs here.")] = None,
    as_json: Annotated[
        bool, Option("--json", help="Print an object with facts, streams and commands; without FILE a list of runs.")
    ] = False,
) -> int:
    """Show what a stored run holds: what it says of itself, its streams, and the commands that clients gave.

    \b
      looptap open
      looptap open looptap-runs/digits-cnn-20260102-030405-1a2b.looptap
      looptap open tensorboard-logs/

    Without FILE, the runs that are stored in looptap-runs, or where LOOPTAP_STORE says, are listed, the newest first.
    A run may still be writing, and one that was killed opens, too. In Python, looptap.open(FILE) gives its streams.
    """
    from looptap.cli.commands import open_run

    return open_run.show(file, as_json)


@app.command("export", short_help="Write a stored stream as CSV, Parquet or for TensorBoard.")
def export(
    file: File,
    stream: Annotated[str, Argument(metavar="STREAM", help="The stream, as `looptap open` calls it.")],
    to: Annotated[str, Option("--to", metavar="FORMAT", help="csv, parquet or tensorboard.")] = "csv",
    output: Annotated[
        str | None,
        Option(
            "--output", "-o", metavar="PATH", show_default=False,
            help="The file to write (tensorboard: the directory). By default a new one here, called after the stream.",
        ),
    ] = None,
) -> int:  # fmt: skip
    """Write one stream of a stored run as CSV, as Parquet, or as an event file for TensorBoard.

    \b
      looptap export digits.looptap loss
      looptap export digits.looptap loss --to parquet -o loss.parquet
      looptap export digits.looptap loss --to tensorboard -o logs/digits

    CSV has the columns number, event, rank, time, wall, and one for each field. TensorBoard takes numbers only, and the
    number of the event as the step.
    """
    from looptap.cli.commands import open_run

    return open_run.export(file, stream, to, output)


@app.command("bridge", short_help="Join stdin and stdout to a run: the far end of ssh://host/run.")
def bridge(
    run: Annotated[str | None, Argument(metavar="RUN", help=f"By default the newest. {RUN_HELP}")] = None,
    rank: Annotated[
        int | None, Option(metavar="N", help="Which rank of the run; by default 0, or the lowest.", show_default=False)
    ] = None,
) -> int:
    """Join stdin and stdout to a run on this machine; not for people, but for a client elsewhere that starts it.

    \b
      looptap watch ssh://node7/digits-cnn "step, loss"
      looptap watch "command:ssh login srun --jobid=17 --overlap looptap bridge digits-cnn" "step, loss"

    What is said first is the connection file, with the keys; then follow the bytes of one connection, as lines.
    """
    from looptap.client.bridge import bridge as carry

    return carry(run, rank)


@app.command("relay", short_help="Merge what the ranks of this machine say, for a client with relay=True.")
def relay(run: Name, ranks: Ranks = "all") -> int:
    """Merge what ranks of this machine say, over stdin and stdout; not for people: relay=True of run.stream starts it.

    \b
      looptap relay digits-cnn --ranks 0-7
    """
    from looptap.cli.names import relayed

    return relayed(run, ranks_of(ranks))


@app.command("demo", short_help="Start a small training job, attach to it, show what can be asked.")
def demo(
    epochs: Annotated[int, Option(metavar="N", min=2, help="Epochs that the first job trains.")] = 60,
) -> int:
    """Start a small training job in another process, attach to it, and show what can be asked. Takes a minute.

    First a network that learns handwritten digits: the loss of each batch, its mean over each epoch, the gradients of
    each layer, when it will be done, and the digits that it gets most wrong, live; then what these questions cost the
    job. Then a job that diverges, and a flight recorder that shows the batches before the first NaN. The jobs are
    looptap/examples/digits.py and diverging.py; they need torch and scikit-learn:

    \b
      pip install 'looptap[demo]'
      looptap demo
    """
    from looptap.cli.demo.demo import demo as show

    return show(epochs)
