"""`looptap share` and `looptap keep`: what others see of a run, and what is kept of it."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from typer import Argument, Option

from looptap.cli.names import Name
from looptap.streams.errors import QueryError

if TYPE_CHECKING:
    from looptap.client.control.grants import Share
    from looptap.client.run import Run
    from looptap.streams.stream.stream import Stream

On = Annotated[
    str | None,
    Option(
        "--on", metavar="EVENT", show_default=False,
        help="The type of event of a query; batch if not given. With it a text is a query, not the name of a stream.",
    ),
]  # fmt: skip
Window = Annotated[
    str | None, Option(metavar="SIZE", help="What a reduction goes over: 100 (events), 30s, sliding:100.")
]
_FIRST_VALUE_TIMEOUT_SECONDS = 1.0  # seconds that the first value of a query is waited for
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}


def install(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.command("share", short_help="Show streams of a run to others, who can do nothing else.")(share)
    app.command("keep", short_help="Keep a stream of a run in its file, also when you have left.")(keep)


def share(
    run: Name,
    stream: Annotated[
        list[str] | None,
        Option("--stream", metavar="STREAM", help="A stream by name, or a query; may be given several times."),
    ] = None,
    on: On = None,
    name: Annotated[str, Option(metavar="NAME", help="What the one query is to be called.", show_default=False)] = "",
    expires: Annotated[str, Option(metavar="TIME", help="How long the file opens: 30m, 8h, 2d.")] = "8h",
    tcp: Annotated[
        str | None,
        Option(
            "--tcp", metavar="HOST", show_default=False,
            help="Listen at an address of the job's machine: 127.0.0.1 for its users and through ssh, its name for the "
            "network; HOST:PORT fixes the port. Without it: a private socket, for your own processes there.",
        ),
    ] = None,
    output: Annotated[
        str | None, Option("--output", "-o", metavar="PATH", show_default=False, help="The file to write.")
    ] = None,
    hide: Annotated[
        list[str] | None,
        Option("--hide", metavar="STREAM", help="Show this stream to nobody any more; nothing else is done."),
    ] = None,
    revoke: Annotated[bool, Option("--revoke", help="End all shares of the run at once, or the one of --id.")] = False,
    id: Annotated[
        str,
        Option(
            "--id", metavar="ID", show_default=False,
            help="Of one share: with --revoke that is ended, with --hide it shows the stream no more, with --stream it "
            "shows one more.",
        ),
    ] = "",
    list_: Annotated[bool, Option("--list", help="List the shares, and what each of them shows.")] = False,
    as_json: Annotated[bool, Option("--json", help="Print one JSON object.")] = False,
) -> int:  # fmt: skip
    """Show streams of a run to others: writes a viewer's file to send to them. They can change nothing in the job.

    \b
      looptap share digits-cnn --stream loss --stream "mean(e.loss for e in events)" --tcp node7
      looptap watch digits-cnn-….viewer-1a2b3c4d.json loss        # what your colleague does with the file
      looptap share digits-cnn --list
      looptap share digits-cnn --hide loss
      looptap share digits-cnn --revoke

    A query is handed over to the job: it goes on when you leave, until no share shows it any more. Whoever has the file
    sees the streams that were named with it, until the file expires or is revoked; without --stream, all that
    run.export has let viewers see.
    """
    from looptap.client.attach import attach

    lasting = seconds_of(expires)
    with attach(run) as job:
        if revoke:
            return _revoked(job, id, as_json)
        for hidden in hide or ():
            job.export(hidden, False, share=id)
        if list_ or hide:
            return _listed(job, as_json)
        handed = [job.stream(text, on=on, name=name) for text in stream or ()]
        if id:
            for each in handed:
                job.export(each, share=id)
            made = next(share for share in job.shares if share.id == id)
        else:
            made = job.share(streams=handed or None, expires=lasting, endpoint=_endpoint(tcp), path=output)
        for each in handed:
            _warn_if_it_fails(each)
        names = made.streams if made.streams is not None else [each.name for each in job.streams if each.exported]
        return _made(run, made, names, as_json)


def keep(
    run: Name,
    query: Annotated[str, Argument(metavar="QUERY", help="A query in quotes, or the name of a stream.")],
    on: On = None,
    window: Window = None,
    every: Annotated[int, Option(metavar="N", help="Look at each N-th event only.")] = 1,
    name: Annotated[str, Option(metavar="NAME", help="What it is to be called.", show_default=False)] = "",
    end: Annotated[bool, Option("--end", help="Keep the stream of this name no more.")] = False,
    as_json: Annotated[bool, Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Keep what a query yields in the file of the run, from now on, also when you have left.

    \b
      looptap keep digits-cnn "step, loss" --name loss
      looptap keep digits-cnn "layer_norms(model, 'grad')" --every 100 --name gradients
      looptap keep digits-cnn loss --end
      looptap open looptap-runs/digits-cnn-….looptap

    Of a stream that the job declares, what its history holds is kept, too. looptap streams RUN shows what is kept.
    """
    from looptap.cli.commands.watch import window_of
    from looptap.cli.formats import json_of
    from looptap.cli.output import DONE
    from looptap.client.attach import attach

    with attach(run) as job:
        if end:
            found = job.keep(query, False)
        else:
            handed = job.stream(query, on=on, window=window_of(window), every=every)
            found = job.keep(handed, name=name)
            _warn_if_it_fails(handed)
        recording = job.agent_stats().store
        file = "" if recording is None else recording.file
    if as_json:
        print(json_of({**msgspec.to_builtins(found), "file": file}))
    else:
        print(f"{found.name!r} {'is kept in' if found.kept else 'is kept no more; what there is of it is in'} {file}")
    return DONE


def _warn_if_it_fails(stream: Stream) -> None:
    """Say so if a query that was handed over fails at its first event: a misspelt name is a query, too."""
    from looptap.cli.output import complain

    until = time.monotonic() + _FIRST_VALUE_TIMEOUT_SECONDS
    while not (stream.arrived or stream.traceback) and time.monotonic() < until:
        time.sleep(0.02)
    if stream.traceback and not stream.arrived:
        complain(f"{stream.name!r} fails so far: {stream.traceback.strip().splitlines()[-1]}")


def seconds_of(text: str) -> float:
    """The seconds in ``8h``, ``30m``, ``2d`` or ``90``. Raises QueryError.

    >>> seconds_of("8h"), seconds_of("1.5d"), seconds_of("90")
    (28800.0, 129600.0, 90.0)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d|)", text.strip())
    if match is None:
        raise QueryError(f"{text!r} is no time. Write 30m, 8h or 2d.")
    return float(match[1]) * _UNITS[match[2]]


def _endpoint(tcp: str | None) -> str | None:
    """Where a share listens for ``--tcp``."""
    if tcp is None:
        return None
    host, colon, port = tcp.rpartition(":")
    return f"tcp://{tcp}" if colon and port.isdecimal() and not host.endswith(":") else f"tcp://{tcp}:*"


def _made(run: str, share: Share, names: Sequence[str], as_json: bool) -> int:
    from looptap.cli.formats import json_of
    from looptap.cli.output import DONE
    from looptap.streams.durations import duration

    if as_json:
        print(json_of({**_facts(share), "path": share.path and str(share.path), "streams": names}))
        return DONE
    shown = ", ".join(map(repr, names)) or "nothing yet"
    print(f"{share.path or share.id}\n  shows {shown}{'; all that is exported' * (share.streams is None)}")
    print(f"  opens for {duration(share.left)}; to end it: looptap share {run} --revoke --id {share.id}")
    print(f"  from where: {share.reach_by(f'looptap share {run} --tcp {{host}}')}")
    return DONE


def _revoked(job: Run, id: str, as_json: bool) -> int:
    from looptap.cli.formats import json_of, several
    from looptap.cli.output import DONE

    ended = job.revoke(id)
    which = f": {' '.join(ended)}" if ended else "; none was open"
    print(json_of({"revoked": ended}) if as_json else f"{several(len(ended), 'share')} ended{which}")
    return DONE


def _listed(job: Run, as_json: bool) -> int:
    from looptap.cli.formats import json_of
    from looptap.cli.output import DONE
    from looptap.streams.durations import duration

    shares, exported = job.shares, [stream.name for stream in job.streams if stream.exported]
    if as_json:
        print(json_of({"shares": [_facts(share) for share in shares], "streams": exported}))
        return DONE
    for share in shares:
        shown = share.streams if share.streams is not None else tuple(exported)
        what = f"{', '.join(map(repr, shown)) or 'nothing'}{' (all that is exported)' * (share.streams is None)}"
        there = f"there: {', '.join(share.who)}" if share.who else "nobody is there"
        where = ", ".join(share.endpoints)
        print(f"{share.id}  shows {what}; at {where}, ends in {duration(share.left)}; {there}")
    if not shares:
        waiting = f"; exported, for shares to come: {', '.join(map(repr, exported))}" if exported else ""
        print(f"Not shared{waiting}.")
    return DONE


def _facts(share: Share) -> dict[str, Any]:
    return {
        "share": share.id, "endpoints": share.endpoints, "expires": share.expires, "left": share.left,
        "viewers": share.who, "streams": share.streams,
    }  # fmt: skip
