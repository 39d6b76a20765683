"""Programs on a terminal: what they ask, and what a person answers."""

from __future__ import annotations

import os
import select
import sys

import warm

ANSWER_TIMEOUT_SECONDS = 60.0


def answered(arguments, answers, environment, columns=200):
    """Run `looptap` on a terminal; return its exit code and what it has shown.

    ``answers`` are typed in order, each once its question is asked: [("Stop", "n")]. One may be a function that is
    called for the text.
    """
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "looptap.cli", *arguments]
    environment = {**environment, "TERM": "xterm", "COLUMNS": str(columns)}
    program = warm.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    shown, waiting = "", list(answers)
    while select.select([ours], [], [], ANSWER_TIMEOUT_SECONDS)[0]:
        try:
            shown += os.read(ours, 65536).decode()
        except OSError:  # the other end is closed
            break
        if waiting and waiting[0][0] in shown and shown.endswith("[y/N] "):
            _, answer = waiting.pop(0)
            os.write(ours, f"{answer() if callable(answer) else answer}\n".encode())
    os.close(ours)
    assert not waiting, f"it has not asked {waiting[0][0]!r}: {shown}"
    return program.wait(ANSWER_TIMEOUT_SECONDS), shown
