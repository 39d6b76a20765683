"""Actions of a guard when a rule comes true: bounded in time, never raising."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

from looptap.client.guard.rules import Action, Firing, Rule
from looptap.client.run import Run
from looptap.protocol.process.identity import Process
from looptap.protocol.values.number_checks import unboxed

WEBHOOK_TIMEOUT_SECONDS = 10.0
"""Seconds without an answer after which a webhook has failed."""
SHELL_TIMEOUT_SECONDS = 60.0
"""Seconds after which a shell command is ended."""
COMMAND_TIMEOUT_SECONDS = 30.0
"""Seconds in which the job has to stop, or to run code; a checkpoint may take ten times as long."""
_MAX_PARTS = 100  # of a row or a dict that are reported one by one
_MAX_TEXT_CHARACTERS = 1000  # characters of a value or an output that are reported

log = logging.getLogger("looptap")


def action_name(action: Action) -> str:
    """Return the name of an action for a firing."""
    return action if isinstance(action, str) else str(getattr(action, "__name__", action))


def act(action: Action, firing: Firing, rule: Rule, run: Run) -> str:
    """Run the action; return its outcome."""
    try:
        return _act(action, firing, rule, run)
    except Exception as error:
        return f"failed: {type(error).__name__}: {str(error)[:_MAX_TEXT_CHARACTERS]}"


def _act(action: Action, firing: Firing, rule: Rule, run: Run) -> str:
    if not isinstance(action, str):
        result = action(firing)
        return "done" if result is None else f"done: {result!r:.200}"
    kind, _, code = action.partition(":")
    return _ACTIONS.get(kind, _post)(code.strip(), firing, rule, run)


def end_process(process: Process, until: float, over: threading.Event) -> str:
    """End a process at ``until`` unless it ends or ``over`` is set; say which."""
    if process.alive() is None:
        return f"failed: the process is on {process.host}, and can only be ended there"
    while process.alive():
        if over.wait(min(0.1, max(0.0, until - time.monotonic()))):
            return "not done: the guard was closed before"
        if time.monotonic() >= until and process.alive():
            try:
                os.kill(process.pid, signal.SIGTERM)
            except OSError as error:
                return f"failed: {error}"
            return f"SIGTERM to process {process.pid}"
    return "not needed: the run has ended"


def sentence(firing: Firing) -> str:
    """Format a firing for people."""
    where = f" at event {firing.event:,}" if firing.event is not None else ""
    return f"{firing.run}: {firing.rule}{where}, value {plain(firing.value)!r:.200}"


def json_line(firing: Firing) -> str:
    """Format a firing as one line of JSON; NaN and infinities become strings."""
    return json.dumps({**firing._asdict(), "value": plain(firing.value)}, ensure_ascii=False, allow_nan=False)


def plain(value: Any) -> Any:
    """Convert a value for JSON: rows become lists, other objects text."""
    match unboxed(value):
        case float(number) if not math.isfinite(number):
            return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(float(number))]
        case None | bool() | int() | float() as number:
            return number
        case str(text):
            return text[:_MAX_TEXT_CHARACTERS]
        case list() | tuple() as parts if len(parts) <= _MAX_PARTS:
            return [plain(part) for part in parts]
        case Mapping() as parts if len(parts) <= _MAX_PARTS:
            return {str(key): plain(part) for key, part in parts.items()}
        case other:
            return repr(other)[:_MAX_TEXT_CHARACTERS]


def _log(code: str, firing: Firing, rule: Rule, run: Run) -> str:
    log.warning("looptap: %s", sentence(firing))
    return "logged"


def _desktop(code: str, firing: Firing, rule: Rule, run: Run) -> str:
    program = shutil.which("notify-send")
    if program is None:
        return "failed: there is no notify-send here"
    words = [program, "--", f"looptap: {firing.run}", sentence(firing)]
    done = subprocess.run(words, timeout=10, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    said = done.stderr.decode(errors="replace").strip()[:_MAX_TEXT_CHARACTERS]
    return f"failed: {said}" if done.returncode else "shown"


def _stop(code: str, firing: Firing, rule: Rule, run: Run) -> str:
    longest = math.inf if rule.kill is None else rule.kill
    return str(run.stop(timeout=min(COMMAND_TIMEOUT_SECONDS, longest)))


def _checkpoint(code: str, firing: Firing, rule: Rule, run: Run) -> str:
    return str(run.checkpoint(timeout=10 * COMMAND_TIMEOUT_SECONDS))


def _call(code: str, firing: Firing, rule: Rule, run: Run) -> str:
    return f"done: {run.call(code, on=rule.on, timeout=COMMAND_TIMEOUT_SECONDS)!r:.200}"


def _post(code: str, firing: Firing, rule: Rule, run: Run) -> str:
    body = json_line(firing).encode()
    request = urllib.request.Request(firing.action, body, {"Content-Type": "application/json"}, method="POST")
    with urllib.request.urlopen(request, timeout=WEBHOOK_TIMEOUT_SECONDS) as answer:
        return f"answered {answer.status}"


def _shell(code: str, firing: Firing, rule: Rule, run: Run) -> str:
    value = plain(firing.value)
    facts = {
        "LOOPTAP_RUN": firing.run,
        "LOOPTAP_RULE": firing.rule,
        "LOOPTAP_PID": str(run.info.pid),
        "LOOPTAP_VALUE": value if isinstance(value, str) else json.dumps(value),
        "LOOPTAP_HOST": run.info.host,
    }
    environment = {**os.environ, **{name: text.replace("\0", "") for name, text in facts.items()}}
    with tempfile.TemporaryFile() as output:  # no pipe: what the command leaves running may hold it open
        child = subprocess.Popen(
            code,
            shell=True,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = child.wait(SHELL_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(OSError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            return f"failed: ended after {SHELL_TIMEOUT_SECONDS:g} s"
        output.seek(0)
        said = output.read(_MAX_TEXT_CHARACTERS).decode(errors="replace").strip()
    return f"{'failed: ' if status else ''}exit code {status}{f': {said}' if said else ''}"


_ACTIONS: dict[str, Callable[[str, Firing, Rule, Run], str]] = {
    "log": _log,
    "desktop": _desktop,
    "stop": _stop,
    "checkpoint": _checkpoint,
    "shell": _shell,
    "call": _call,
}
"""What is done for an action, by what stands before its colon; anything else is a URL."""
