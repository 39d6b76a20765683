"""Writes docs/wire.md and tables of training.md and charts.md, for `make docs`.

tests/docs/test_reference_pages.py compares the pages with what this makes.
"""

from __future__ import annotations

import inspect
import re
import types
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

from looptap.protocol import messages as m
from looptap.protocol.roles import ALLOWED
from looptap.streams.control import Control
from looptap.training.echoing import Echo
from looptap.training.prioritized import Prioritized
from looptap.training.progress import Progress
from looptap.training.selection import Selection
from looptap.visualizers.charts.choice import READINGS
from looptap.visualizers.charts.reading.table import TABLE
from looptap.visualizers.charts.registry import KINDS

DOCS = Path(__file__).parent

# ---------------------------------------------------------------- the wire

WIRE = f"""\
# The wire protocol

This page is for programs that talk to an agent without looptap's client, and for changes to the protocol. You do not
need it to use looptap. `make docs` makes it from `looptap.protocol`, version {m.VERSION[0]}.{m.VERSION[1]}.

## A connection

1. **Find the run.** Its connection file is JSON, mode 0600, in `LOOPTAP_DIR` or, if that is not set, in
   `/tmp/looptap-<uid>`. It has the ZeroMQ `endpoints`, the public key of the server, and the client's key pair, which
   determines the role ([security](security.md)).
2. **Connect** a ZeroMQ DEALER with CURVE and these keys. A message is one frame, of at most 64 KiB to the agent and at
   most 64 MiB from it: a msgpack map whose field `t` is its tag.
3. **Send `hello`** with the version and the run's id. The answer is `welcome` with the role, or `refused` with a
   reason.
4. **Send requests.** Each has a number, `request`, one higher than the last. It is answered once: by `done` with the
   reply in `value`, or by `failed` with the class of an error and a sentence.
5. **Read.** `values` and `status` of a stream come without a request. Acknowledge them with `got` and the number of
   bytes received so far: the agent sends at most 16 MiB ahead, and drops and counts what does not fit.
6. **Stay, or leave.** Both sides send a `beat` each second; 4 seconds of silence end a connection. `leave` ends it at
   once. A client that reconnects sends `hello` with the same `token`, and its streams continue with their numbers.

## Rules of evolution

- **A version is (major, minor).** Peers of the same major version understand each other. Peers of different major
  versions refuse each other, and name both versions: in `refused`, and when a connection file is read.
- **A minor version may add** fields with a default, messages, and values of a field that are sent only to peers that
  ask for them. Both sides ignore unknown fields. A new field without a default, a removed field and a changed meaning
  need a new major version.
- **An older peer is sent only what it can read.** An agent knows the version of each client from its `hello`: clients
  of {m.COLUMNS_SINCE[0]}.{m.COLUMNS_SINCE[1]} and later get columns of values, older ones get rows.
  An agent below {m.UNSAFE_SINCE[0]}.{m.UNSAFE_SINCE[1]} ignores `unsafe` and treats the query like any
  other, so a client does not send it there.
- **A message that cannot be decoded is dropped and counted**, so an agent never answers a request of a later version.
  A client must check the version in `welcome` first. A request that the role does not allow fails.
- **Values are data.** Buffers are little-endian. The client unpickles nothing; the agent unpickles only functions of
  operators, whose role may run code anyway.

## From a client

A field with a question mark may be left out; its default follows, unless it is empty.

"""
AGENT = """
## From the agent

"""
FORMS = """
## Parts of messages

A *window* is a map with a tag: `{"type": "group"}` ends with the job's group, `count` and `sliding` have `size` events,
`seconds` has `size` seconds. `Code` is a map with `text`, or with `pickled` and the version of Python that pickled it
(`python`). In `values`, `form` says how `values` are packed: 0 is a list of scalars, 1 flat rows, 2 anything, with
extension types for tuples, sets, arrays and tensors, and 3 typed columns (`looptap.protocol.values`).
"""


def wire_page() -> str:
    """Return docs/wire.md."""
    return WIRE + _messages(m.FromClient, True) + AGENT + _messages(m.FromAgent, False) + FORMS


def _messages(union: Any, client: bool) -> str:
    head = ["| tag | may send | fields | |", "|---|---|---|---|"] if client else ["| tag | fields | |", "|---|---|---|"]
    return "\n".join([*head, *(_message(kind, client) for kind in get_args(union)), ""])


def _message(kind: Any, client: bool) -> str:
    hints = get_type_hints(kind)
    fields = ", ".join(_field(one, _type(hints[one.name])) for one in msgspec.structs.fields(kind))
    who = ["all" if len(ALLOWED[kind]) > 1 else "operator"] if client else []
    return _row(f"`{kind.__struct_config__.tag}`", *who, fields or "–", _summary(kind))


def _field(field: Any, kind: str) -> str:
    """Return a field; one with a default has a question mark."""
    if field.required:
        return f"`{field.name}`: {kind}"
    plain = isinstance(field.default, bool | int | float | str) and field.default != ""
    return f"`{field.name}?`: {kind}" + (f" = `{str(field.default).lower()}`" if plain else "")


def _type(hint: Any) -> str:
    """Return the type of a field in a few words."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if m.Group in arguments:
            return "window"
        return " or ".join("null" if one is type(None) else _type(one) for one in arguments)
    if origin is tuple:
        return f"list of {_type(arguments[0])}" if Ellipsis in arguments else f"[{', '.join(map(_type, arguments))}]"
    if origin is dict:
        return f"map to {_type(arguments[1])}"
    if hint is msgspec.Raw:
        return "anything"
    return {m.RunInfo: "the run's identity", m.Code: "Code"}.get(hint, getattr(hint, "__name__", str(hint)))


# ---------------------------------------------------------------- the training systems

INSTANCES = "\n## Instances\n"
"""The heading below the tables of docs/training.md."""
SYSTEMS = {
    Progress: ("progress", "when training will be done", "progress.md"),
    Echo: ("echo", "using examples several times if data is slow", "echoing.md"),
    Selection: ("selection", "drawing learned examples less often", "selection.md"),
    Prioritized: ("prioritized", "drawing examples that move the loss more often", "prioritized.md"),
}
_ASKED_WITH = {"speed_up": "factor", "kept_samples": "9", "skipped_samples": "9", "important_samples": "9",
               "unimportant_samples": "9"}  # fmt: skip


def training_page() -> str:
    """Return docs/training.md with new tables; its other text stays."""
    above, _, below = (DOCS / "training.md").read_text().partition(INSTANCES)
    above = above.partition(f"\n## {next(iter(SYSTEMS)).__name__}")[0]
    return above + "".join(_system(kind, *about) for kind, about in SYSTEMS.items()) + INSTANCES + below


def _system(kind: type, name: str, purpose: str, page: str) -> str:
    found = {one: inspect.getattr_static(kind, one) for one in sorted(dir(kind)) if not one.startswith("_")}
    controls = {one: what for one, what in found.items() if isinstance(what, Control)}
    lines = [f"\n## {kind.__name__}: {purpose}\n", f"Exposed as `{name}`; [how it works]({page}).\n"]
    lines += ["| control | values | meaning |", "|---|---|---|"]
    for one, what in controls.items():
        lines.append(_row(f"`{name}.{one}`", _values(what), f"{what.doc[:1].upper()}{what.doc[1:]}."))
    lines += ["", "| observable | meaning |", "|---|---|"]
    for one, what in found.items():
        if isinstance(what, property):
            lines.append(_row(f"`{name}.{one}`", _summary(what)))
        elif one in _ASKED_WITH:
            lines.append(_row(f"`{name}.{one}({_ASKED_WITH[one]})`", _summary(what)))
    return "\n".join([*lines, ""])


def _values(control: Any) -> str:
    if control.choices:
        return ", ".join(f"`{one!r}`" for one in control.choices)
    if control.type is bool:
        return "`True`, `False`"
    kind = "integer" if control.type is int else "number"
    bounds = {(True, True): "{} from {:g} to {:g}", (True, False): "{} from {:g} on"}
    form = bounds.get((control.minimum is not None, control.maximum is not None), "{}")
    return form.format(kind, control.minimum, control.maximum) + (f", in {control.unit}" if control.unit else "")


def _summary(what: Any) -> str:
    """Return the first line of a docstring, as Markdown."""
    text = (inspect.getdoc(what) or "").split("\n")[0].replace("|", "\\|")
    return re.sub(r"`+([^`]+)`+", r"`\1`", text)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


# ---------------------------------------------------------------- charts

CHARTS = DOCS / "charts.md"
EACH_VALUE = {
    ("text", "append"): "a line", ("table", "append"): "a row", "append": "a point", "frame": "a picture",
}  # fmt: skip
"""What a value is, by the kind of its chart and the mode."""


def charts_page() -> str:
    """Return docs/charts.md with the tables of the code."""
    readings = [_row(one.what, one.drawn) for one in READINGS]
    charts = []
    for one in TABLE:
        mode = one.mode or KINDS[one.kind].modes[0]
        is_value = EACH_VALUE.get((one.kind, mode), EACH_VALUE[mode])
        charts.append(_row(one.what, f"`{one.kind}`" + (f": {one.how}" if one.how else ""), is_value))
    text = _with_table(CHARTS.read_text(), _row("value", "what is drawn of it"), readings)
    return _with_table(text, _row("first value", "chart", "each value is"), charts)


def _with_table(text: str, titles: str, rows: list[str]) -> str:
    """Return a page with other rows in the table with these titles."""
    before, old = text.split(f"{titles}\n")
    rule, *_ = old.split("\n", 1)
    return "\n".join([f"{before}{titles}", rule, *rows, ""]) + old[old.index("\n\n") + 1 :]


PAGES = {DOCS / "wire.md": wire_page, DOCS / "training.md": training_page, CHARTS: charts_page}


if __name__ == "__main__":
    for path, page in PAGES.items():
        path.write_text(page())
