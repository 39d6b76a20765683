"""The entry point, where an error becomes a sentence and an exit code."""

from __future__ import annotations

import io
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Any

from looptap.cli.output import DONE, INTERRUPTED, MISTYPED, complain, drop_output, version_line
from looptap.streams.native.surroundings import fill_standard_descriptors


def main(arguments: Sequence[str] | None = None) -> None:
    """Run ``looptap`` with ``arguments``, by default those of the process, and exit.

    Exit codes: 0 success, 1 failure, 2 a usage error, 130 interrupted.
    """
    _open_closed_streams()
    try:
        code = exit_code(list(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt:
        code = INTERRUPTED
    if arguments is None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a Ctrl-C from here on ends the process, without a traceback
    sys.exit(code)


def _open_closed_streams() -> None:
    """Open the null device in place of closed standard streams."""
    fill_standard_descriptors()  # a script that `looptap run` starts finds them closed again, as with python
    for name, mode in ("stdin", "r"), ("stdout", "w"), ("stderr", "w"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - open until the process ends


def exit_code(arguments: list[str]) -> int:
    """Run ``looptap`` with ``arguments``; return its exit code."""
    if arguments == ["--version"]:  # without typer, which takes ten times as long
        try:
            print(version_line(), flush=True)
        except BrokenPipeError:
            drop_output()
        return DONE
    # Not at the top: importing looptap.cli must not load what only a command needs.
    import typer

    from looptap.cli.app import command_line
    from looptap.cli.completion import typed_words
    from looptap.cli.shell_names import in_shell
    from looptap.streams.errors import LooptapError

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without block characters must not raise
    logging.getLogger("looptap").addHandler(logging.NullHandler())  # its warnings are shown beside their query
    usage_error: Any = typer.BadParameter.__bases__[0]  # of click, or of typer's own copy of it in newer versions
    try:
        program = command_line(arguments or typed_words())
        return int(program(arguments, prog_name="looptap", standalone_mode=False) or DONE)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except LooptapError as error:
        return complain(in_shell(error))
    except usage_error as error:
        complain(_usage(error, arguments))
        return MISTYPED
    except OSError as error:
        return complain(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")
    except Exception as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # Python 3.11 wraps one that comes while a class is made
            return INTERRUPTED
        if os.environ.get("LOOPTAP_TRACEBACK"):
            raise
        return complain(
            f"This is a fault of looptap itself: {type(error).__name__}: {error}. "
            "To see where, give the command again after: export LOOPTAP_TRACEBACK=1"
        )


def _usage(error: Any, arguments: list[str]) -> str:
    """Return what is wrong with the words that were typed, and where to read on."""
    given = [one for one in arguments[:1] if not one.startswith("-")]  # an option without its value has no context
    command = error.ctx.command_path if error.ctx else " ".join(["looptap", *given])
    said = error.format_message().removeprefix("Invalid value: ")  # of what no single option is to blame for
    said = said if said.endswith((".", "?", "!")) else f"{said}."
    if re.fullmatch(r"-\.?\d", getattr(error, "option_name", "")):  # -0.5 is read as an option -0
        said += " Write -- before a value that begins with a minus: -- -0.5."
    return f"{said} See: {command} --help"
