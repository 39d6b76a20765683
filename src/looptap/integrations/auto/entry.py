"""`looptap.auto`, and the variable LOOPTAP_AUTO: start looptap in this process."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

from looptap.integrations.arrivals import once_imported
from looptap.streams.native.surroundings import one_in_process

_asked: dict[str, Any] = one_in_process("asked", dict)
_placed: list[bool] = one_in_process("placed", list)


def auto(name: str | None = None, **options: Any) -> None:
    """Emit events and find observables automatically, in a script without an agent.

    Call it once anywhere in a script, or run ``looptap run train.py``. An agent starts with the first model update. It
    emits ``step`` after each, ``skipped`` if a GradScaler skips one, and guesses ``epoch`` and ``evaluation``.
    Queries read ``loss``, ``losses``, ``model``, ``optimizer``, ``x``, ``y``, and the names of the script's own
    variables (docs/integrations.md). A job that has an `Agent` by then gets no second one.

    Raises TypeError and ValueError for wrong arguments; later nothing raises into the job, except for `looptap stop`.

    Args:
        name: The name for clients; by default the script's name.
        options: The options of `Agent`. By default ``on_stop=KeyboardInterrupt``, so `looptap stop` ends the job as
            Ctrl-C does.

    >>> import looptap
    >>> looptap.auto("digits-cnn", budget=0.05)
    """
    import inspect

    from looptap.agent.agent import Agent
    from looptap.agent.run.identity import checked_name

    inspect.signature(Agent.__init__).bind(None, checked_name(name_of_script() if name is None else name), **options)
    _asked.update({"name": name or _asked.get("name")}, **options)
    _begin()


def begin_from_environment() -> None:
    """Do what `auto` does if LOOPTAP_AUTO says so: 1, or the name of the run.

    LOOPTAP_MAY_PAUSE is for how many seconds at most clients may pause it.
    """
    chosen = os.environ.get("LOOPTAP_AUTO", "")
    if chosen in ("", "0") or os.environ.get("LOOPTAP_DISABLED", "") not in ("", "0"):
        return
    _asked.setdefault("name", None if chosen.lower() in ("1", "true", "yes", "on") else chosen)
    with contextlib.suppress(KeyError, ValueError):
        _asked.setdefault("may_pause", float(os.environ["LOOPTAP_MAY_PAUSE"]))
    _begin()


def name_of_script() -> str:
    """Return the name of the script, without its ending and its folder."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name != "__main__":
        return str(spec.name).removesuffix(".__main__").rpartition(".")[2][:100]
    file = getattr(main, "__file__", None) or (sys.argv[0] if sys.argv else "")
    stem = os.path.splitext(os.path.basename(file))[0]
    return "".join(letter for letter in stem if letter.isprintable())[:100] or "python"


def _begin() -> None:
    if not _placed:
        _placed.append(True)
        once_imported("torch", lambda torch: _place())


def _place() -> None:
    """Place the hooks; torch is there."""
    from looptap.integrations.harmless import harmlessly

    harmlessly(_place_hooks)


def _place_hooks() -> None:
    from looptap.integrations.auto.frameworks import watch_frameworks
    from looptap.integrations.auto.hooks.run_events import RunEvents
    from looptap.integrations.auto.hooks.torch_hooks import place_hooks

    events = RunEvents(_start)
    place_hooks(events)
    watch_frameworks(events)


def _start() -> Any:
    """Return the agent of a job that has none; it sees what the job says to trackers."""
    from looptap.agent.agent import Agent, is_open
    from looptap.agent.connection import agents_by_place
    from looptap.integrations import tee
    from looptap.integrations.harmless import harmlessly

    options = {"groups": ("step", "epoch"), "on_stop": KeyboardInterrupt, **_asked}
    name = options.pop("name", None) or name_of_script()
    agent = Agent(name, enabled=not agents_by_place and options.pop("enabled", True), **options)
    if is_open(agent):
        harmlessly(tee.start, agent)
    return agent
