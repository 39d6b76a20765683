"""`require_state`: refuses a state that lacks something its reader needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def require_state(state: object, like: Mapping[str, Any], owner: str) -> None:
    """Raise ValueError unless ``state`` has the keys of ``like``, at each level.

    ``like`` is what ``owner`` would save now; a part of it that is no mapping may be anything in ``state``.

    >>> require_state({"step": 3, "walk": {}}, {"step": 0, "walk": {"rest": []}}, "a Sampler")
    Traceback (most recent call last):
    ValueError: {'step': 3, 'walk': {}} is not what the state_dict() of a Sampler returned: walk.rest is missing.
    """
    missing = [*_missing(state if isinstance(state, Mapping) else {}, like, "")]
    if missing:
        raise ValueError(
            f"{state!r:.60} is not what the state_dict() of {owner} returned: {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing."
        )


def _missing(state: Mapping[str, Any], like: Mapping[str, Any], path: str) -> Iterator[str]:
    for name, part in like.items():
        found = state.get(name)
        if isinstance(part, Mapping) and isinstance(found, Mapping):
            yield from _missing(found, part, f"{path}{name}.")
        elif name not in state or isinstance(part, Mapping):
            yield path + name
