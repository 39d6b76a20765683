"""`PermutationWalk`: offers a shard in random order, accepted by probability."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from looptap.training.saved_state import require_state

Floats: TypeAlias = npt.NDArray[np.float32]
Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]


class Acceptance(NamedTuple):
    """The probability with which each of some instances is accepted."""

    probability: Floats
    floor: float
    """The part of the probability common to all of them."""


class Accepted(NamedTuple):
    """Instances that were accepted together."""

    indices: Ints
    probability: Floats
    uniform: Bools
    """Those that would have been accepted with the floor alone: a uniform sample."""


def everything(indices: Ints) -> Acceptance:
    """Accept all of ``indices``."""
    return Acceptance(np.ones(len(indices), np.float32), 1.0)


_MAX_VAIN_PERMUTATIONS = 2  # after which all is accepted: a loop must not hang if a method rejects everything


class PermutationWalk:
    """A walk over permutations of ``shard``, one after the other, each complete.

    The order and the acceptance come from its own generator, seeded with ``seed``.

    >>> walk = PermutationWalk(np.arange(4), seed=0)
    >>> sorted(walk.take(4, everything).indices.tolist()), walk.walked
    ([0, 1, 2, 3], 4)
    """

    def __init__(self, shard: Ints, seed: Any) -> None:
        self.shard, self.rng = shard, np.random.default_rng(seed)
        self._order, self._place = shard[:0], 0
        self._rate = 1.0  # the share that was accepted last: how many are offered at once for a batch
        self.walked = 0
        """Number of instances offered so far."""

    @property
    def rest(self) -> Ints:
        """The instances of this permutation not offered yet, in their order."""
        return self._order[self._place :]

    def following(self, count: int) -> Ints:
        """Walk ``count`` instances, all of which are accepted; return them."""
        if self._place + count > len(self._order):
            return self.take(count, everything).indices
        self._place, self.walked = self._place + count, self.walked + count
        return self._order[self._place - count : self._place]

    def take(self, count: int, acceptance: Callable[[Ints], Acceptance]) -> Accepted:
        """Walk until ``count`` instances are accepted; return them in order.

        If ``acceptance`` raises, none of them was offered.
        """
        before = self._order, self._place, self.walked
        try:
            return self._take(count, acceptance)
        except BaseException:
            self._order, self._place, self.walked = before  # what was accepted already is offered again
            raise

    def _take(self, count: int, acceptance: Callable[[Ints], Acceptance]) -> Accepted:
        found: list[Accepted] = []
        missing, vain = count, 0
        while missing:
            if self._place == len(self._order):
                self._permute(found)
            offered = self._order[self._place : self._place + int(missing / self._rate * 1.1) + 4]
            stuck = vain >= _MAX_VAIN_PERMUTATIONS * len(self.shard)
            probability, floor = everything(offered) if stuck else acceptance(offered)
            if floor >= 1.0:
                offered = offered[:missing]
                whole = np.ones(len(offered), np.float32)
                found.append(Accepted(offered, whole, whole.astype(np.bool_)))
                walked = len(offered)
            else:
                chance = self.rng.random(len(offered), np.float32)
                (hits,) = np.nonzero(~(chance >= probability))  # NaN: unknown, so it is accepted
                walked = int(hits[missing - 1]) + 1 if len(hits) >= missing else len(offered)
                hits = hits[:missing]
                found.append(Accepted(offered[hits], probability[hits], chance[hits] < floor))
                self._rate = max(len(hits) / walked, 0.05)
                vain = 0 if len(hits) else vain + walked
            self._place += walked
            self.walked += walked
            missing -= len(found[-1].indices)
        if len(found) == 1:
            return found[0]
        return Accepted(*(np.concatenate(parts) for parts in zip(*found, strict=True)))

    def _permute(self, found: list[Accepted]) -> None:
        """Begin the next permutation; those ``found`` for this batch come last in it."""
        order = self.rng.permutation(self.shard)
        if found:
            again = np.isin(order, np.concatenate([part.indices for part in found]))
            order = np.concatenate([order[~again], order[again]])
        self._order, self._place = order, 0

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the walk as plain data and arrays."""
        return {
            "rng": self.rng.bit_generator.state,
            "rest": self.rest.copy(),
            "walked": self.walked,
            "rate": self._rate,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the result of `state_dict`. Raises ValueError."""
        require_state(state, self.state_dict(), "a PermutationWalk")
        self.rng.bit_generator.state = state["rng"]
        self._order, self._place = np.asarray(state["rest"]), 0
        self.walked, self._rate = state["walked"], state["rate"]
