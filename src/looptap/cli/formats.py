"""Values as text for people and as JSON for programs; sizes with units."""

from __future__ import annotations

import base64
import functools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from looptap.protocol.replies import ScalarInfo
from looptap.protocol.run_config import RunConfig
from looptap.store.kept_scalars import SPEED
from looptap.streams.durations import short_time
from looptap.streams.stream.state_and_cost import LIVE
from looptap.streams.values.described import Image
from looptap.streams.values.rows import Row

_CONTROL = re.compile("[\x7f-\x9f]")  # which JSON does not escape, and terminals obey
_MAX_WRITTEN_ELEMENTS = 8  # elements up to which an array is written out
_MAX_WRITTEN_DEPTH = 3  # levels of a nested value that are written out
_MAX_SCALARS = 20  # names of a type of events that people are shown
_MAX_TITLE_CHARACTERS = 9  # of a fact, in its column
_BRACKETS: dict[type, str] = {list: "[]", tuple: "()", set: "{}"}
_ODD = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def value_text(value: Any, width: int = 0) -> str:
    """Return a value on one line, abridged, and cut to ``width`` unless that is 0.

    >>> value_text({"loss": 0.123456789, "step": 3})
    'loss=0.123457  step=3'
    """
    value = _as_mapping(value)
    if isinstance(value, Mapping):
        text = "  ".join(f"{_name(name)}={_text(part, _MAX_WRITTEN_DEPTH - 1)}" for name, part in value.items())
    elif isinstance(value, str):
        text = printable(" ".join(value.split()))
    else:
        text = _text(value, _MAX_WRITTEN_DEPTH)
    return text if not width or len(text) <= width else text[: width - 1] + "…"


def printable(text: str, keep: str = "") -> str:
    """Return text with control characters escaped: a job cannot steer the terminal.

    >>> printable("loss\\x1b[2J")
    'loss\\\\x1b[2J'
    """
    return "".join(c if c.isprintable() or c in keep else repr(c)[1:-1] for c in text)


def _as_mapping(value: Any) -> Any:
    return value._asdict() if isinstance(value, Row) else value


def _text(value: Any, depth: int) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, int | str | bytes | Image) or value is None:
        return repr(value)
    if _is_array(value):
        return _array(value)
    if not depth:
        return "…"
    value = _as_mapping(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_name(k)}: {_text(v, depth - 1)}" for k, v in value.items()) + "}"
    brackets = next((both for kind, both in _BRACKETS.items() if isinstance(value, kind)), "")
    if not brackets or value == set():
        return repr(value)
    return f"{brackets[0]}{', '.join(_text(part, depth - 1) for part in value)}{brackets[1]}"


def _name(key: Any) -> str:
    return printable(key) if isinstance(key, str) else repr(key)


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "tolist")


def _array(value: Any) -> str:
    numbers = list(_leaves(_listed(value)))
    if len(numbers) <= _MAX_WRITTEN_ELEMENTS:
        return _text(_listed(value), _MAX_WRITTEN_DEPTH)
    shape = " × ".join(map(str, value.shape))
    kind = f"{str(value.dtype).removeprefix('torch.')} {shape}"
    real = [float(n) for n in numbers if isinstance(n, int | float) and math.isfinite(n)]
    if not real:
        return kind
    odd = len(numbers) - len(real)
    about = f"{min(real):.4g} to {max(real):.4g}, mean {math.fsum(real) / len(real):.4g}"
    return f"{kind}: {about}{f', {odd} not finite' if odd else ''}"


def _listed(value: Any) -> Any:
    try:
        return value.tolist()
    except (TypeError, RuntimeError):  # a tensor of a type that has no numbers in Python, as the 8-bit floats
        return value.float().tolist()


def _leaves(value: Any) -> Iterable[Any]:
    if not isinstance(value, list):
        yield value
        return
    for part in value:
        yield from _leaves(part)


# ---------------------------------------------------------------- JSON


def json_of(value: Any) -> str:
    """Return a value as JSON on one line.

    Rows become objects, tuples, sets and arrays lists, complex numbers and numbers that are not finite strings
    ("NaN", "Infinity", "-Infinity"), bytes and images base64.

    >>> json_of({"loss": float("nan"), "shape": (2, 3)})
    '{"loss": "NaN", "shape": [2, 3]}'
    """
    text = json.dumps(_plain(value), ensure_ascii=False, allow_nan=False)
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


@functools.singledispatch
def _plain(value: Any) -> Any:
    return _plain(_listed(value)) if _is_array(value) else str(value)


@_plain.register(type(None))
@_plain.register(str)
@_plain.register(int)
def _plain_atom(value: str | int | None) -> Any:
    return value


@_plain.register
def _plain_float(value: float) -> Any:
    return value if math.isfinite(value) else _ODD[str(float(value))]


@_plain.register
def _plain_row(value: Row) -> Any:
    return _plain(value._asdict())


@_plain.register(Mapping)
def _plain_mapping(value: Mapping[Any, Any]) -> Any:
    return {key if isinstance(key, str) else repr(key): _plain(part) for key, part in value.items()}


@_plain.register(list)
@_plain.register(tuple)
@_plain.register(set)
@_plain.register(frozenset)
def _plain_list(value: Iterable[Any]) -> Any:
    return list(map(_plain, value))


@_plain.register
def _plain_bytes(value: bytes) -> Any:
    return base64.b64encode(value).decode()


@_plain.register
def _plain_image(value: Image) -> Any:
    return {"png": _plain(value.png), "width": value.width, "height": value.height}


def fields(thing: object, *names: str) -> dict[str, Any]:
    """Return these attributes of an object, for JSON.

    >>> fields(3 + 4j, "real", "imag")
    {'real': 3.0, 'imag': 4.0}
    """
    return {name: getattr(thing, name) for name in names}


# ---------------------------------------------------------------- sizes


def sized(count: float) -> str:
    """Return a number of bytes in the largest unit that fits.

    >>> sized(1500), sized(12)
    ('1.5 kB', '12 B')
    """
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count:.0f} B"


def cost(nanoseconds: float, share: float) -> str:
    """Describe what a query costs the training thread.

    >>> cost(812.3, 0.00034)
    '812 ns an event, 0.034% of the step time'
    >>> cost(1_738_616.0, 0.25)
    '1.74 ms an event, 25% of the step time'
    """
    return f"{short_time(nanoseconds / 1e9)} an event, {100 * share:.2g}% of the step time"


def several(count: int, what: str) -> str:
    """Return a count with its noun.

    >>> several(1, "value"), several(1200, "value")
    ('1 value', '1,200 values')
    """
    return f"{count:,} {what}{'s' * (count != 1)}"


def problems(withheld: int = 0, errors: int = 0, state: str = LIVE) -> list[str]:
    """Return what is wrong with a query, if anything.

    >>> problems(withheld=3), problems(errors=1, state="ended"), problems()
    (['3 events withheld by the budget'], ['1 error', 'ended'], [])
    """
    held, failed = f"{several(withheld, 'event')} withheld by the budget", several(errors, "error")
    return stated((held, withheld), (failed, errors), (state, state != LIVE))


def stated(*facts: tuple[str, object]) -> list[str]:
    """Return the texts of those facts that hold.

    >>> stated(("exported", True), ("kept", False))
    ['exported']
    """
    return [text for text, holds in facts if holds]


def config_lines(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Yield the settings of a run, and the facts around them, each after its title."""
    if config:
        yield "config", value_text(config)
    for name, text in config.facts().items():
        if name != "settings left out":
            yield (name if len(name) <= _MAX_TITLE_CHARACTERS else "variables"), text


def scalar_lines(scalars: Sequence[ScalarInfo]) -> Iterator[str]:
    """Yield for each type of events its newest scalars, speed and number of values.

    >>> number = {"on": "batch", "query": "loss", "points": 3, "pace": 0.1, "first": 1, "last": 9, "exposed": False}
    >>> [*scalar_lines([ScalarInfo(name="loss", value=0.5, **number), ScalarInfo(name=SPEED, value=80.0, **number)])]
    ['batch: loss 0.5; 80 events per second; up to 3 values of each']
    """
    by_event: dict[str, list[ScalarInfo]] = {}
    for one in scalars:
        by_event.setdefault(one.on, []).append(one)
    for on, found in by_event.items():
        named = [one for one in found if one.name != SPEED]
        facts = [", ".join(f"{one.name} {value_text(one.value, 20)}" for one in named[:_MAX_SCALARS])]
        facts += [f"and {len(named) - _MAX_SCALARS:,} names more"] * (len(named) > _MAX_SCALARS)
        facts += [f"{one.value:.3g} events per second" for one in found if one.name == SPEED]
        facts.append(f"up to {several(max(one.points for one in found), 'value')} of each")
        yield f"{on}: {'; '.join(filter(None, facts))}"
