"""`looptap share`: shows streams of a run to others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from looptap.cli.formats import fields, several
from looptap.cli.options import Config, JsonObject, On, RunName, StreamName, TimeSpan, Unsafe, only_with, time_of
from looptap.cli.output import DONE, say, say_json
from looptap.cli.sources import warn_if_it_fails
from looptap.client.attach import attach
from looptap.client.control.grants import Share
from looptap.client.run import Run
from looptap.client.streams.kept_history import kept_history
from looptap.streams.durations import duration

if TYPE_CHECKING:
    from looptap.client.streams.live import LiveStream


def share_command(
    run: RunName,
    stream: Annotated[
        list[str] | None,
        Option("--stream", metavar="STREAM", help="A stream by name, or a query; may be given several times."),
    ] = None,
    on: On = None,
    unsafe: Unsafe = False,
    config: Config = False,
    history: Annotated[
        bool,
        Option("--history/--no-history", help="Show a number that events carry from the first event on, or from now."),
    ] = True,
    name: StreamName = "",
    expires: Annotated[
        float, Option(metavar="TIME", parser=time_of, help="How long the file opens: 30m, 8h, 2d.")
    ] = TimeSpan(8 * 3600),
    tcp: Annotated[
        str | None,
        Option(
            "--tcp",
            metavar="HOST",
            show_default=False,
            help="Listen at an address of the job's machine: 127.0.0.1 for its users and through ssh, its name for the "
            "network; HOST:PORT fixes the port. Without it: a private socket, for your own processes there.",
        ),
    ] = None,
    output: Annotated[
        str | None, Option("--output", "-o", metavar="PATH", show_default=False, help="The file to write.")
    ] = None,
    hide: Annotated[
        list[str] | None,
        Option("--hide", metavar="STREAM", help="Hide this stream from all shares, or that of --id; do nothing else."),
    ] = None,
    revoke: Annotated[bool, Option("--revoke", help="End all shares of the run at once, or the one of --id.")] = False,
    id: Annotated[
        str,
        Option(
            "--id",
            metavar="ID",
            show_default=False,
            help="Of one share: with --revoke that is ended, with --hide it stops showing the stream, with --stream "
            "it shows one more.",
        ),
    ] = "",
    list_: Annotated[bool, Option("--list", help="List the shares, and what each of them shows.")] = False,
    as_json: JsonObject = False,
) -> int:
    """Show streams of a run to others, read-only.

    Writes a viewer's file for you to send to them. They can change nothing in the job.

    \b
      looptap share digits-cnn --stream loss --stream "mean(e.loss for e in events)" --tcp node7
      looptap watch digits-cnn-….viewer-1a2b3c4d.json loss        # what your colleague does with the file
      looptap share digits-cnn --list
      looptap share digits-cnn --hide loss
      looptap share digits-cnn --revoke

    A query is handed over to the job: it continues when you leave, until no share shows it any more. The holder of the
    file sees the streams that were named with it, until the file expires or is revoked; without --stream, all that
    run.export has let viewers see.
    """
    only_with("--stream", bool(stream), unsafe=unsafe)
    with attach(run) as job:
        if revoke:
            return _revoked(job, id, as_json)
        for hidden in hide or ():
            job.export(hidden, False, share=id)
        if list_ or hide:
            return _listed(job, as_json)
        handed = [
            job.stream(text, on=on, name=name, history=history and kept_history(job, text), unsafe=unsafe)
            for text in stream or ()
        ]
        if id:
            made = _extended(job, id, handed)
        else:
            where = _endpoint(tcp)
            made = job.share(streams=handed or None, config=config, expires=expires, endpoint=where, path=output)
        for each in handed:
            warn_if_it_fails(each)
        return _made(job, run, made, as_json)


def _extended(job: Run, id: str, streams: Sequence[LiveStream]) -> Share:
    """Return the share ``id``, which shows some more streams."""
    for each in streams:
        job.export(each, share=id)
    return next(share for share in job.shares if share.id == id)


def _endpoint(tcp: str | None) -> str | None:
    """Return where a share listens for ``--tcp``."""
    if tcp is None:
        return None
    host, colon, port = tcp.rpartition(":")
    return f"tcp://{tcp}" if colon and port.isdecimal() and not host.endswith(":") else f"tcp://{tcp}:*"


def _exported(job: Run) -> list[str]:
    return [stream.name for stream in job.streams if stream.exported]


def _shown(share: Share, names: Sequence[str], nothing: str) -> str:
    """Return what a share shows, of which ``names`` are the streams."""
    return ", ".join([*map(repr, names), *["the config"] * share.config]) or nothing


def _made(job: Run, run: str, share: Share, as_json: bool) -> int:
    names = _exported(job) if share.streams is None else share.streams
    if as_json:
        return say_json({**_facts(share), "path": share.path and str(share.path), "streams": names})
    shown = _shown(share, names, "nothing yet")
    say(f"{share.path or share.id}\n  shows {shown}{'; all that is exported' * (share.streams is None)}")
    say(f"  opens for {duration(share.left)}; to end it: looptap share {run} --revoke --id {share.id}")
    say(f"  from where: {share.reach_by(f'looptap share {run} --tcp {{host}}')}")
    return DONE


def _revoked(job: Run, id: str, as_json: bool) -> int:
    ended = job.revoke(id)
    if as_json:
        return say_json({"revoked": ended})
    which = f": {' '.join(ended)}" if ended else "; none was open"
    print(f"{several(len(ended), 'share')} ended{which}")
    return DONE


def _listed(job: Run, as_json: bool) -> int:
    shares, exported = job.shares, _exported(job)
    if as_json:
        return say_json({"shares": list(map(_facts, shares)), "streams": exported})
    for share in shares:
        named = _shown(share, exported if share.streams is None else share.streams, "nothing")
        what = f"{named}{' (all that is exported)' * (share.streams is None)}"
        there = f"viewers: {', '.join(share.who)}" if share.who else "no viewer"
        where = ", ".join(share.endpoints)
        say(f"{share.id}  shows {what}; at {where}, ends in {duration(share.left)}; {there}")
    if not shares:
        waiting = f"; exported, for shares to come: {', '.join(map(repr, exported))}" if exported else ""
        say(f"Not shared{waiting}.")
    return DONE


def _facts(share: Share) -> dict[str, Any]:
    own = {"share": share.id, **fields(share, "endpoints", "expires", "left")}
    return {**own, "viewers": share.who, **fields(share, "streams", "config")}
