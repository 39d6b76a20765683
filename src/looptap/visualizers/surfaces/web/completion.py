"""The words for texts typed into a page: observables, streams, helpers."""

from __future__ import annotations

import contextlib
from typing import Any

from looptap.streams.aggregations.registry import REDUCERS as QUERY_REDUCERS
from looptap.streams.errors import LooptapError
from looptap.streams.events import BUILT_IN
from looptap.streams.values.checks import HELPERS
from looptap.visualizers.surfaces.web.expressions import FUNCTIONS, REDUCERS, ReadableStream
from looptap.visualizers.surfaces.web.run_shelf import is_live
from looptap.visualizers.surfaces.web.stream_requests import OPERATOR, readable

_NAMES_TIMEOUT_SECONDS = 1.5
_MAX_WORDS_COUNT = 2_000


def words_of(run: Any, on: str) -> list[dict[str, str]]:
    """Return the words for ``run``, each with its kind and its meaning."""
    streams = list(readable(run).items())
    found = [_word(name, "stream", ", ".join(fields)) for name, fields in streams]
    if is_live(run) and run.role == OPERATOR:
        found += [_word(name, "observable", meaning) for name, meaning in observable_words(run, on or "batch").items()]
        found += [_word(name, "observable", "of every event") for name in BUILT_IN]
        found += [_word(name, "reducer", "over the events of a window") for name in QUERY_REDUCERS]
        found += [_word(name, "helper", _meaning(helper)) for name, helper in HELPERS.items()]
    else:
        fields = dict.fromkeys(name for stream in streams for name in ReadableStream(*stream).names())
        found += [_word(name, "field", "") for name in fields if all(name != stream for stream, _ in streams)]
        found += [_word(name, "function", "of a number") for name in FUNCTIONS]
        found += [_word(name, "reducer", "with a window") for name in REDUCERS if name not in FUNCTIONS]
    return list({word["word"]: word for word in reversed(found)}.values())[::-1][:_MAX_WORDS_COUNT]


def observable_words(run: Any, on: str) -> dict[str, str]:
    """Return the names that events of a type have, with descriptions.

    Those of the next event if one comes soon; else those that have a history.
    """
    found: dict[str, str] = {}
    with contextlib.suppress(LooptapError, TimeoutError):
        found = {one.name: f"of {on}" for one in run.scalars if one.on == on}
        found |= {name: str(one) for name, one in run.names(on, _NAMES_TIMEOUT_SECONDS).items()}
    return found


def _meaning(helper: Any) -> str:
    return str(helper.__doc__ or "").strip().partition("\n")[0][:160]


def _word(word: str, kind: str, meaning: str) -> dict[str, str]:
    return {"word": word, "kind": kind, "meaning": meaning}
