"""`merge_states` and `split_state`: a checkpoint on another number of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from looptap.training.sampling.permutation_walk import Ints
from looptap.training.selection.selection_arguments import shard_of

_POSITIONS = ("pointer", "drawn_first", "done_first")  # of a method, counted in the examples of a rank
_COUNTERS = ("gradient_work",)  # of a rank


def resharded(states: Sequence[dict[str, Any]], rank: int, world: int) -> dict[str, Any]:
    """Return the state with which a rank continues what ``states`` were saved from.

    ``states`` are those of a `Prioritized` or `Selection` on each rank, the newest first. On the same number of ranks
    it is that rank's own.
    """
    for one in states:
        if (one["rank"], one["world"]) == (rank, world) and len({state["world"] for state in states}) == 1:
            return one
    return split_state(merge_states(states), rank, world)


def merge_states(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the state of one rank that stands for all of ``states``.

    What is known of an example is what was learned last, on whichever rank. Examples that no rank has been offered in
    this permutation stay to be offered; batches that were drawn, and on which no step was observed, are drawn again
    from these. What ranks have in common, such as gbar and the switch, is that of the state with the most steps.
    Raises ValueError for none, and for states of different data.
    """
    if not states:
        raise ValueError("There are no states to merge: pass those of all ranks.")
    if len(sizes := {one["size"] for one in states}) > 1:
        raise ValueError(
            f"The states are those of different data, of {' and '.join(map(str, sorted(sizes)))} examples."
        )
    ordered = sorted(states, key=lambda one: -one["steps"])  # stable: of equal ones the first
    base, size = ordered[0], ordered[0]["size"]
    peers = [one for one in ordered if one["world"] == base["world"]]
    shards = {id(one): len(shard_of(size, one["rank"], one["world"])) for one in peers}
    ratio = Fraction(size, shards[id(base)])  # from the examples of a rank to all
    rest, walked = _merged_walk(peers, size, shards)
    skipped = sum(one["walk"]["walked"] - one["taken"] for one in peers) * base["world"] // len(peers)
    merged = {
        **base, "rank": 0, "world": 1, "drawn": [], "given": 0, "inside": False, "length": None,
        "end": int(base["end"] * ratio), "taken": walked - skipped, "table": _merged(ordered, "table", "last"),
        "walk": {**base["walk"], "rest": _tensor(rest), "walked": walked},
        "methods": {name: _scaled(one, ratio) for name, one in base["methods"].items()},
    }  # fmt: skip
    if "trends" in base:
        merged["trends"] = _merged(ordered, "trends", "at")
    for name in _COUNTERS:
        if name in base:
            merged[name] = sum(one[name] for one in peers) * base["world"] // len(peers)
    merged["sums"] = _sums(merged["table"])
    return merged


def split_state(merged: dict[str, Any], rank: int, world: int) -> dict[str, Any]:
    """Return the part of a merged state that belongs to a rank of ``world``.

    The epoch continues: what was not offered yet comes on the ranks that have it now, and all make as many steps as
    they agree on at its begin.
    """
    size = merged["size"]
    shard = shard_of(size, rank, world)
    ratio = Fraction(len(shard), size)
    rest = np.asarray(merged["walk"]["rest"])
    mine = rest[np.isin(rest, shard)]
    end = int(merged["end"] * ratio)
    walked = int((merged["walk"]["walked"] + len(rest)) * ratio) - len(mine)
    skipped = int((merged["walk"]["walked"] - merged["taken"]) * ratio)
    state = {
        **merged, "rank": rank, "world": world, "end": end, "taken": walked - skipped,
        "table": _rows(merged["table"], shard),
        "walk": {
            **merged["walk"], "rest": _tensor(mine), "walked": walked, "rng": _jumped(merged["walk"]["rng"], rank),
        },
        "methods": {name: _scaled(one, ratio) for name, one in merged["methods"].items()},
    }  # fmt: skip
    if "trends" in merged:
        state["trends"] = _rows(merged["trends"], shard)
    for name in _COUNTERS:
        if name in merged:
            state[name] = int(merged[name] * ratio)
    state["sums"] = _sums(state["table"])
    return state


def _merged_walk(peers: Sequence[dict[str, Any]], size: int, shards: dict[int, int]) -> tuple[Ints, int]:
    """Return what is left of the permutation that is furthest behind.

    And how many examples were offered before.
    """
    rounds, left = [], []
    for one in peers:
        drawn = [np.asarray(batch) for batch in one["drawn"]]
        rest = np.concatenate([*drawn, np.asarray(one["walk"]["rest"])]).astype(np.int64)
        whole = Fraction(one["walk"]["walked"] - sum(map(len, drawn)) + len(rest), shards[id(one)])
        rounds.append(whole)
        left.append(rest)
    behind = min(rounds)
    rest = np.concatenate([rest for rest, whole in zip(left, rounds, strict=True) if whole < behind + 1])
    _, first = np.unique(rest, return_index=True)  # an example may stand on two ranks
    rest = rest[np.sort(first)]
    return rest, int(behind * size) - len(rest)


def _merged(states: Sequence[dict[str, Any]], name: str, newest: str) -> dict[str, Any]:
    """Return the rows of all states, of each id that with the highest ``newest``."""
    parts = [{key: np.asarray(value) for key, value in one[name].items()} for one in states]
    whole = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    order = np.lexsort((-whole[newest], whole["ids"]))  # stable: of equally new ones the first
    ids = whole["ids"][order]
    kept = order[np.concatenate([[True], ids[1:] != ids[:-1]])] if len(ids) else order
    return {key: _tensor(values[kept]) for key, values in whole.items()}


def _rows(table: dict[str, Any], shard: Ints) -> dict[str, Any]:
    """Return the rows of a shard."""
    mine = np.isin(np.asarray(table["ids"]), shard)
    return {key: _tensor(np.asarray(values)[mine]) for key, values in table.items()}


def _scaled(method: Any, ratio: Fraction) -> Any:
    """Return the state of a method with its positions in so many times the examples."""
    if not isinstance(method, dict):
        return method
    return {name: round(value * ratio) if name in _POSITIONS else value for name, value in method.items()}


def _sums(table: dict[str, Any]) -> list[float]:
    """Return the sum and number of the known losses, and of the scores."""
    found: list[float] = []
    for name in ("loss", "score"):
        values = np.asarray(table[name])
        found += [float(np.nansum(values, dtype=np.float64)), int(np.count_nonzero(values == values))]
    return found


def _jumped(state: dict[str, Any], rank: int) -> dict[str, Any]:
    """Return a state of random numbers far from those of the other ranks."""
    generator: Any = np.random.PCG64()
    generator.state = state
    found: dict[str, Any] = dict(generator.jumped(rank).state) if rank else state
    return found


def _tensor(array: Any) -> Any:
    import torch

    return torch.from_numpy(np.ascontiguousarray(array))
