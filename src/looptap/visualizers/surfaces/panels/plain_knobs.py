"""Controls and commands of a run as plain data, and values back from a page."""

from __future__ import annotations

import math
from typing import Any

from looptap.client.control.controls import ControlInfo
from looptap.streams.text import cut
from looptap.visualizers.surfaces.panels.run_controls import Knob, in_powers, slides, step_of

_MAX_OUTCOME_CHARACTERS = 500


def plain_knob(knob: Knob) -> dict[str, Any]:
    """Return a control or a command as a page shows it."""
    info = knob.info
    about: dict[str, Any] = {
        "name": knob.name,
        "label": knob.label,
        "meaning": knob.meaning,
        "there": knob.there,
        "busy": knob.busy,
        "outcome": cut(knob.remark, _MAX_OUTCOME_CHARACTERS),
        "failed": knob.failed or knob.warns,
        "kind": widget_kind(info),
        "settled": knob.settled,
    }
    if info is None:
        return about
    about["value"] = _plain(info.value)
    if info.choices:
        about["choices"] = [_plain(one) for one in info.choices]
    if slides(info):
        low, high = float(info.minimum or 0), float(info.maximum or 0)
        about |= {"low": low, "high": high, "step": step_of(info), "log": in_powers(info), "whole": info.type == "int"}
    return about


def widget_kind(info: ControlInfo | None) -> str:
    """Return the kind of widget that a page shows for a control.

    >>> widget_kind(None), widget_kind(ControlInfo(name="factor", type="int", value=2, minimum=1, maximum=16))
    ('command', 'slider')
    """
    if info is None:
        return "command"
    if info.choices:
        return "choice"
    if info.type == "bool":
        return "switch"
    if slides(info):
        return "slider"
    number = isinstance(info.value, int | float) and not isinstance(info.value, bool)
    return "number" if number else "text"


def value_for(info: ControlInfo, value: Any) -> Any:
    """Convert a value from a page to the control's type; the job checks it.

    >>> value_for(ControlInfo(name="factor", type="int"), 3.0), value_for(ControlInfo(name="lr", type="float"), 1)
    (3, 1.0)
    """
    if info.choices:
        return next((one for one in info.choices if _plain(one) == value), value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    if info.type == "int" and float(value).is_integer():
        return int(value)
    return float(value) if info.type == "float" else value


def _plain(value: Any) -> Any:
    """Return a value that JSON can hold."""
    if isinstance(value, bool | str) or value is None:
        return value
    if isinstance(value, int | float) and math.isfinite(value):
        return value
    return repr(value)[:200]
