"""`looptap guard`: watches many runs by the rules of a file."""

from __future__ import annotations

import math
import time
from typing import Annotated, Any

import typer
from typer import Argument, Option

from looptap.cli.options import AllowCalls, Unsafe, parsed_window
from looptap.cli.output import DONE, FAILED, complain
from looptap.cli.questions import refused
from looptap.client.guard.actions import json_line, sentence
from looptap.client.guard.guard import Guard
from looptap.client.guard.guard import guard as watch
from looptap.client.guard.rules import Firing, Rule
from looptap.streams.errors import QueryError

POLL_INTERVAL_SECONDS = 0.1
"""Seconds between two checks for new firings."""
NO_RUN_NOTICE_SECONDS = 2.0
"""Seconds after which a guard reports that no run matches."""
_NOTES = ("gap", "problem")  # actions of lines that say what a rule could not judge


def guard_command(
    rules: Annotated[str, Argument(metavar="RULES", help="A file of rules, in YAML.", show_default=False)],
    pattern: Annotated[
        str | None,
        Argument(metavar="RUNS", help="A name, an id, or 'digits-*'; by default runs of the file, else all."),
    ] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Only say what would be done.")] = False,
    unsafe: Unsafe = False,
    allow_calls: AllowCalls = False,
    once: Annotated[bool, Option("--once", help="End as soon as no run that matches is left.")] = False,
    record: Annotated[
        str | None, Option(metavar="FILE", help="Add each firing to FILE, as JSON on a line.", show_default=False)
    ] = None,
    as_json: Annotated[bool, Option("--json", help="Print a JSON object on a line for each firing.")] = False,
) -> int:
    """Watch runs by rules, and log, checkpoint or stop them.

    A run is watched from when it appears until it ends; its actions run when a rule comes true. Ctrl-C ends the guard.

    A file of rules, here rules.yaml:

    \b
      runs: digits-*
      rules:
        - query: isnan(loss)               # true at an event: once is enough
          actions: [log, checkpoint, stop]
        - query: loss > 5
          on: epoch
          lasting: 3                       # three events in a row
          actions: ["https://example.org/hook"]
        - query: mean(e.loss for e in events)
          window: 100                      # events, or 30s, or sliding:100
          above: 2.0
        - stalled: 10                      # minutes without an event
          actions: [stop]
          kill: 30                         # seconds after which SIGTERM ends what does not stop
        - worse_than_siblings: loss        # than 1.5 times the median of the other runs
          step: epoch
          on: epoch
          by: 1.5
          lasting: 3
          actions: [stop]

    JSON is YAML too. Try it first:

    \b
      looptap guard rules.yaml --dry-run
      looptap guard rules.yaml "digits-*" --record firings.jsonl
      looptap guard rules.yaml --once --json | jq -r '.run + " " + .outcome'

    A rule with unsafe: true runs its query as it is, on record, even if it may change the job. Such a file needs
    --unsafe, too.

    An action shell: or call: is code. If the file has one, the command asks, and needs --allow-calls where there is no
    terminal.

    Actions are log, desktop, a URL (a POST of JSON), shell: COMMAND (with LOOPTAP_RUN, LOOPTAP_RULE, LOOPTAP_VALUE,
    LOOPTAP_PID and LOOPTAP_HOST), checkpoint, stop (a request: see looptap stop --help) and call: CODE. Each rule fires
    once for a run, with again = SECONDS once more after that. Lines with gap or problem say what a rule could not
    judge.

    The runs it watches are listed on stderr. An object of --json has time, run, rule, event, value, action and outcome.
    The exit code is 0; with --once it is 1 if a rule fired.
    """
    runs, read, places = rules_of(rules)
    if risky := [rule for rule in read if rule.unsafe and not unsafe]:
        where = places[risky[0].name]
        raise QueryError(f"{where}: unsafe: true runs a query that may change the job; add --unsafe.")
    actions = [one for rule in read for one in rule.actions if isinstance(one, str)]
    codes = [one for one in actions if one.startswith(("shell:", "call:"))]
    if codes and not dry_run:
        question = f"Do what {len(codes)} actions of {rules} say, the first is {codes[0]!r:.200}?"
        if (code := refused(question, allow_calls, "--allow-calls")) is not None:
            return code
    which = pattern or runs
    with watch(which, read, dry_run=dry_run, record=record) as guard:
        shown = _Shown(guard, which, places, as_json, once)
        try:
            while not (once and guard.wait(POLL_INTERVAL_SECONDS)):
                shown.look()
                time.sleep(0.0 if once else POLL_INTERVAL_SECONDS)
        finally:
            shown.look_at_firings()
    if not once:
        return DONE
    if not shown.listed:
        complain(f"no run matches {which!r}, and nothing was judged.")
    return FAILED if any(each.action not in _NOTES for each in guard.firings) else DONE


class _Shown:
    """What was printed of a guard: the runs that it watches, and its firings."""

    def __init__(self, guard: Guard, pattern: str, places: dict[str, str], as_json: bool, once: bool) -> None:
        self._guard, self._pattern, self._places, self._as_json = guard, pattern, places, as_json
        self.listed = set[str]()
        self._count = 0
        self._quiet_until = math.inf if once else time.monotonic() + NO_RUN_NOTICE_SECONDS

    def look(self) -> None:
        """Print what is new."""
        if new := {each.run for each in self._guard.watched} - self.listed:
            complain(f"watching {', '.join(sorted(new))}")
            self.listed |= new
        elif not self.listed and time.monotonic() > self._quiet_until:
            complain(f"no run matches {self._pattern!r} so far; the first that does will be watched.")
            self._quiet_until = math.inf
        self.look_at_firings()

    def look_at_firings(self) -> None:
        """Print the new firings."""
        firings = self._guard.firings
        for firing in firings[self._count :]:
            where = self._places.get(firing.rule, "") if firing.action == "problem" else ""
            text = f"{firing_line(firing)}{f' ({where})' * bool(where)}"
            print(json_line(firing) if self._as_json else text, flush=True)
        self._count = len(firings)


def rules_of(path: str) -> tuple[str, list[Rule], dict[str, str]]:
    """Return runs, rules and their lines by name from a file. Raises QueryError."""
    from looptap.protocol.files.documents import Document  # not at the top: every command would load the YAML parser

    document = Document(path, QueryError)
    keys: tuple[str, ...] = ("rules",) if isinstance(document.value, dict) else ()
    content: Any = document.value if keys else {"rules": document.value}
    if unknown := [name for name in content if name not in ("rules", "runs")]:
        raise QueryError(f"{document.where(unknown[0])}: there is no {unknown[0]!r:.80}; there are rules and runs.")
    found = content.get("rules")
    if not isinstance(found, list) or not found:
        raise QueryError(
            f"{document.where('rules')}: rules is a list of one rule or more, not {found!r:.80}. Such as:\n"
            "rules:\n  - query: isnan(loss)\n    actions: [stop]"
        )
    where = [document.where(*keys, number) for number in range(len(found))]
    made = [_rule(one, place) for one, place in zip(found, where, strict=True)]
    places = {rule.name: place for rule, place in zip(made, where, strict=True)}
    return str(content.get("runs", "*")), made, places


def _rule(entry: Any, place: str) -> Rule:
    """Return the rule of an entry of the file. Raises QueryError."""
    try:
        if isinstance(entry, dict) and isinstance(entry.get("window"), str):
            entry = {**entry, "window": parsed_window(entry["window"])}
        return Rule.of(entry)
    except (QueryError, TypeError, typer.BadParameter) as error:
        raise QueryError(f"{place}: {error}") from None


def firing_line(firing: Firing) -> str:
    """Return a firing as one line."""
    when = time.strftime("%H:%M:%S", time.localtime(firing.time))
    what = sentence(firing) if firing.action not in _NOTES else f"{firing.run}: {firing.rule}".strip(": ")
    return " ".join(f"{when}  {what}  → {firing.action}: {firing.outcome}".split("\n"))
