"""Writes docs/wire.md and docs/training.md from the code, for `make docs`.

tests/test_reference_pages.py compares the pages with what this makes.
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

DOCS = Path(__file__).parent

# ---------------------------------------------------------------- the wire

WIRE = f"""\
# The wire protocol

This page is made from `looptap.protocol` by `make docs`. It is for programs that speak with an agent without this
package, and for those who change it. Version {m.VERSION[0]}.{m.VERSION[1]}.

## A connection

1. **Find the run.** Its connection file is JSON, mode 0600, in the directory that `LOOPTAP_DIR` names, else in
   `/tmp/looptap-<uid>`: `endpoints` of ZeroMQ, the public key of the server, and a key pair that opens the role of the
   file ([security](security.md)).
2. **Connect** a ZeroMQ DEALER with CURVE and these keys. A message is one frame of at most 64 KiB to the agent, and of
   64 MiB from it: a msgpack map whose field `t` is its tag.
3. **Say `hello`** with the version, and the run's id. The answer is `welcome` with the role, or `refused` with a
   reason.
4. **Ask.** A request has a number, `request`, which rises by one each time and is not used again. It is answered
   once: by `done` with the reply in `value`, or by `failed` with the class of an error and a sentence.
5. **Read.** `values` and `status` of a stream come unasked. Say `got` with the bytes that came so far: an agent stops
   sending beyond 16 MiB that were not acknowledged, and drops and counts what does not fit.
6. **Stay, or leave.** Both sides send a `beat` each second; 4 seconds of silence end a connection. `leave` ends it at
   once. A client that connects again says `hello` with the same `token`, and its streams continue with their numbers.

## Rules of evolution

- **A version is (major, minor).** Peers of one major version understand each other. Peers of two refuse each other,
  and each says both versions: in `refused`, and when a connection file is read.
- **A minor version adds**: fields with a default, messages, values of a field that only a peer which asked for them
  gets. Both sides ignore fields that they do not know. A field without a default is never added, none is removed, and
  none changes its meaning: that takes a new major version.
- **What an older peer could not read is not sent to it.** An agent knows the version of each client from its `hello`:
  columns of values are for clients of {m.COLUMNS_SINCE[0]}.{m.COLUMNS_SINCE[1]} and later, and an older one gets rows.
- **A message that does not decode is dropped and counted**, so a request that came with a later version is never
  answered: a client looks at the version in `welcome` first. A request that is not allowed to the role fails.
- **A value is data.** Buffers are little-endian; nothing is unpickled on the client's side, and on the agent's only
  functions of an operator, whose role may run code anyway.

## From a client

A field with a question mark may be left out; its default stands behind it, where it is not empty.

"""
AGENT = """
## From the agent

"""
FORMS = """
## Parts of messages

A *window* is a map with a tag: `{"type": "group"}` ends with the job's group, `count` and `sliding` have `size` events,
`seconds` has `size` seconds. `Code` is a map with `text`, or with `pickled` and the `python` that pickled it. In
`values`, `form` says how `values` are packed: 0 a list of scalars, 1 flat rows, 2 anything, with extension types for
tuples, sets, arrays and tensors, 3 typed columns (`looptap.protocol.values`).
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

TRAINING = """\
# Observables and controls of the training systems

This page is made from the classes by `make docs`. Expose an object, and queries read its observables by these names,
for example `progress.remaining.median`; `looptap set RUN NAME.CONTROL VALUE` and `run.set` turn its controls, between
two batches. Each system works without an agent, too.

```python
agent = looptap.Agent("digits-cnn")
agent.expose(progress=progress)                 # echo=echo, selection=selection, prioritized=prioritized
```
"""
SYSTEMS = {
    Progress: ("progress", "when training will be done", "progress.md"),
    Echo: ("echo", "using examples several times while data is slow", "echoing.md"),
    Selection: ("selection", "drawing less often what is learned", "selection.md"),
    Prioritized: ("prioritized", "drawing more often what moves the loss", "prioritized.md"),
}
_ASKED_WITH = {"speed_up": "factor", "kept_samples": "9", "skipped_samples": "9", "important_samples": "9",
               "unimportant_samples": "9"}  # fmt: skip
_NOT_SHOWN = {"drawn_again"}  # what a resume needs, and no client


def training_page() -> str:
    """Return docs/training.md."""
    return TRAINING + "".join(_system(kind, *about) for kind, about in SYSTEMS.items())


def _system(kind: type, name: str, purpose: str, page: str) -> str:
    found = {one: inspect.getattr_static(kind, one) for one in sorted(dir(kind)) if not one.startswith("_")}
    controls = {one: what for one, what in found.items() if isinstance(what, Control)}
    lines = [f"\n## {kind.__name__}: {purpose}\n", f"Exposed as `{name}`; [how it works]({page}).\n"]
    lines += ["| control | values | meaning |", "|---|---|---|"]
    for one, what in controls.items():
        lines.append(_row(f"`{name}.{one}`", _values(what), f"{what.doc[:1].upper()}{what.doc[1:]}."))
    lines += ["", "| observable | meaning |", "|---|---|"]
    for one, what in found.items():
        if isinstance(what, property) and one not in _NOT_SHOWN:
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


PAGES = {DOCS / "wire.md": wire_page, DOCS / "training.md": training_page}


if __name__ == "__main__":
    for path, page in PAGES.items():
        path.write_text(page())
