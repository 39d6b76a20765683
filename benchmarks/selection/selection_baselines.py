"""The baselines: methods of other papers, and the last loss without weights.

looptap itself does not have them. All but `Loss` draw all instances alike and need the losses of a batch first:
`BaselineSelection.weights` says how much each of them counts.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from looptap.training.sampling.instance_table import InstanceTable
from looptap.training.sampling.permutation_walk import Acceptance, Floats, Ints
from looptap.training.selection import METHODS, Selection
from looptap.training.selection.methods.catalog import MethodControl
from looptap.training.selection.methods.method import Method, Settings


class Loss(Method):
    """Draws by the newest loss, at most ``cap`` mean losses, without weights."""

    name: ClassVar[str] = "loss"
    draws: ClassVar[bool] = True

    def acceptance(self, indices: Ints) -> Acceptance:
        """Return the probability with which each of ``indices`` is drawn."""
        floor, mean = self.settings.floor, self.table.mean_loss
        if not mean > 0:
            return Acceptance(np.ones(len(indices), np.float32), 1.0)
        probability = np.fmin(self.predicted(indices) / mean, 1.0)  # 1 for NaN
        return Acceptance(np.maximum(probability, floor, out=probability), floor)

    def predicted(self, indices: Ints) -> Floats:
        """Return the newest loss of each of ``indices``, at most ``cap`` mean losses."""
        return np.minimum(self.table.loss[indices], np.float32(self.settings.cap * self.table.mean_loss))


class Weighing(Method):
    """Base class of the baselines that weigh the examples of a batch."""

    oversampling: ClassVar[int] = 1
    """Instances that are drawn for each that is trained on."""

    @property
    def learns(self) -> bool:
        """True: it needs the losses of every step."""
        return True

    def weigh(self, indices: Ints, losses: Floats) -> Floats:
        """Return the weight of each example of a batch, 0 for those not trained on."""
        raise NotImplementedError


class SelfPaced(Weighing):
    """Weighs the losses of a batch by how easy its examples are.

    Skips nothing. An epoch begins with the loss ``L`` that a share of all newest losses is not above: a quarter in the
    first epoch, all after `GENERATIONS`. An example of loss l weighs ``max(0, 1 - l / L) ** (1 / (Q - 1)) + REST``,
    scaled so that the mean weight of a batch is 1. Source: Kumar et al. (2010), with the polynomial weights of Li &
    Gong (2017), as the baseline of AutoAssist has them.
    """

    name: ClassVar[str] = "spl"
    Q = 4.0
    """The order of the polynomial."""
    GENERATIONS = 20
    """Epochs after which no example is too hard (maxgen)."""
    FIRST_SHARE = 0.25
    """The share of the examples that is easy enough in the first epoch."""
    REST = 0.01
    """The weight of what is too hard."""

    def __init__(self, table: InstanceTable, settings: Settings) -> None:
        super().__init__(table, settings)
        self.limit = math.inf
        """L: the loss from which on an example is too hard; infinite in the first epoch."""

    def begin(self, epoch: int) -> None:
        """Raise the limit for another epoch."""
        pace = min(1.0, epoch / (self.GENERATIONS - 1))
        losses = np.sort(self.table.loss[self.settings.shard])  # those unknown come last
        found = float(losses[max(1, int(len(losses) * (self.FIRST_SHARE + (1 - self.FIRST_SHARE) * pace))) - 1])
        self.limit = math.inf if math.isnan(found) else found + 1e-6

    def weigh(self, indices: Ints, losses: Floats) -> Floats:
        """Return the weight of each example of a batch."""
        easy = np.maximum(0, 1 - losses / np.float32(self.limit)) ** np.float32(1 / (self.Q - 1))
        easy += np.float32(self.REST)
        scaled: Floats = easy * np.float32(len(losses) / easy.sum(dtype=np.float64))
        return scaled


class Screener(Weighing):
    """Weighs the loss of each example by what a small net says of its features.

    Skips nothing. The net, with one hidden layer, has the output w from 0 to 1. After each step it descends
    ``sum((1 - w)**2 * l + w**2 * max(0, MARGIN - l)) + DECAY * mean |parameters|`` by Adam, with ``learning_rate``.
    Source: Kim & Choi, ScreenerNet (2018), whose net sees images; this one sees the ``features`` that were given.
    """

    name: ClassVar[str] = "screener"
    MARGIN = 1.0
    """M: a loss above it is worth a weight of 1."""
    DECAY = 0.01
    """Alpha, of the absolute values of the parameters."""
    HIDDEN = 32
    """Units of the hidden layer."""

    def __init__(self, table: InstanceTable, settings: Settings) -> None:
        super().__init__(table, settings)
        assert settings.features is not None
        self._features = settings.features
        rng, width = np.random.default_rng([*settings.seed, 3]), self._features.width
        self.first = (rng.standard_normal((self.HIDDEN, width + 1)) / np.sqrt(width + 1)).astype(np.float32)
        """Rows: the units; the last column is the constant."""
        self.second = (rng.standard_normal(self.HIDDEN + 1) / np.sqrt(self.HIDDEN)).astype(np.float32)
        self._moments = [np.zeros_like(one) for one in (self.first, self.second) for _ in range(2)]
        self._updates = 0

    def weigh(self, indices: Ints, losses: Floats) -> Floats:
        """Return the weight of each example of a batch."""
        return self.predicted(indices)

    def predicted(self, indices: Ints) -> Floats:
        """Return w of each of ``indices``."""
        return self._forward(self._features.rows(indices))[1]

    @property
    def threshold(self) -> float:
        """The margin: above it a loss is worth the whole weight."""
        return self.MARGIN

    @property
    def cut(self) -> float:
        """One half."""
        return 0.5

    def observe(self, indices: Ints, losses: Floats, scores: Floats | None) -> None:
        """Descend the loss of the net on the batch that was trained on."""
        rows = self._features.rows(indices)
        hidden, w = self._forward(rows)
        slope = (2 * w * np.maximum(0, self.MARGIN - losses) - 2 * (1 - w) * losses) * w * (1 - w)
        back = np.outer(self.second[:-1], slope) * (hidden > 0)
        first = np.stack([np.append(rows.gradient(unit), unit.sum()) for unit in back])
        second = np.append(hidden @ slope, slope.sum())
        decay = np.float32(self.DECAY / (self.first.size + self.second.size))
        self._updates += 1
        for place, (values, slopes) in enumerate(((self.first, first), (self.second, second))):
            self._adam(values, slopes + decay * np.sign(values), *self._moments[2 * place : 2 * place + 2])

    def _forward(self, rows: Any) -> tuple[Floats, Floats]:
        """Return the hidden units, of shape (units, n), and the weights."""
        hidden = np.maximum(0, np.stack([rows.dot(unit[:-1]) + unit[-1] for unit in self.first]))
        found = 0.5 + 0.5 * np.tanh(0.5 * (self.second[:-1] @ hidden + self.second[-1]))
        return hidden, found.astype(np.float32)

    def _adam(self, values: Floats, slopes: Floats, mean: Floats, square: Floats) -> None:
        mean += np.float32(0.1) * (slopes - mean)
        square += np.float32(0.001) * (slopes * slopes - square)
        step = self.settings.learning_rate * np.sqrt(1 - 0.999**self._updates) / (1 - 0.9**self._updates)
        values -= np.float32(step) * mean / (np.sqrt(square) + np.float32(1e-8))


class SelectiveBackprop(Weighing):
    """Trains on an example with a probability that rises with the rank of its loss.

    After the forward pass an example is chosen with probability ``CDF(loss) ** BETA``, the distribution that of the
    newest `HISTORY` losses; the mean is that over those chosen. If none is chosen, the one of the highest loss is.
    Source: Jiang et al., Selective-Backprop (2019).
    """

    name: ClassVar[str] = "selective-backprop"
    BETA = 2.0
    """The selectivity: a share of 1 / (1 + BETA) of the examples is chosen, a third."""
    HISTORY = 1024
    """Losses of which the distribution is taken."""

    def __init__(self, table: InstanceTable, settings: Settings) -> None:
        super().__init__(table, settings)
        self.history = np.empty(0, np.float32)
        """The newest losses, the oldest first."""
        self._rng = np.random.default_rng([*settings.seed, 2])

    def weigh(self, indices: Ints, losses: Floats) -> Floats:
        """Return the weight of each example of a batch, 0 for those not chosen."""
        self.history = np.concatenate([self.history, losses])[-self.HISTORY :]
        below = np.searchsorted(np.sort(self.history), losses, side="right")
        chosen = self._rng.random(len(losses)) < (below / len(self.history)) ** self.BETA
        if not chosen.any():
            chosen[np.argmax(losses)] = True
        return mean_over(chosen)


class Rho(Weighing):
    """Trains on the tenth of a larger batch whose reducible loss is highest.

    The reducible loss is that of the model minus the ``reference``, the loss of a model that was trained on other data:
    high where something can be learned, low where a label is wrong. Source: Mindermann et al., RHO-LOSS (2022).
    """

    name: ClassVar[str] = "rho"
    oversampling: ClassVar[int] = 10

    def __init__(self, table: InstanceTable, settings: Any) -> None:
        super().__init__(table, settings)
        self._reference: Floats = settings.reference

    def weigh(self, indices: Ints, losses: Floats) -> Floats:
        """Return the weight of each example of a batch, 0 for those not chosen."""
        count = max(1, round(len(losses) / self.oversampling))
        chosen = np.zeros(len(losses), np.bool_)
        chosen[np.argpartition(losses - self._reference[indices], len(losses) - count)[len(losses) - count :]] = True
        return mean_over(chosen)

    def predicted(self, indices: Ints) -> Floats:
        """Return the newest reducible loss of each of ``indices``; NaN: none."""
        found: Floats = self.table.loss[indices] - self._reference[indices]
        return found

    @property
    def cut(self) -> float:
        """The mean of the newest reducible losses."""
        return self.table.mean_loss - float(self._reference[self.settings.shard].mean())


BASELINES: dict[str, type[Method]] = {
    one.name: one for one in (Loss, SelfPaced, Screener, SelectiveBackprop, Rho)
}  # fmt: skip
"""The baselines, by name."""


class BaselineSelection(Selection):
    """A `Selection` that knows the baselines besides its own methods.

    ``reference`` are the losses of a model that was trained on other data, for "rho".
    """

    catalog: ClassVar[dict[str, type[Method]]] = METHODS | BASELINES
    method = MethodControl(choices=tuple(METHODS | BASELINES), default="norm", doc="how instances are drawn")

    def __init__(self, data: Any, batch_size: int, method: str, *, reference: Any = None, **more: Any) -> None:
        self.reference = reference
        super().__init__(data, batch_size * getattr(self.catalog[method], "oversampling", 1), method, **more)

    @property
    def weighs(self) -> bool:
        """Whether the losses of a batch are needed before it is known what counts."""
        return isinstance(self._sampler.method, Weighing)

    def weights(self, indices: list[int], losses: Tensor) -> Tensor:
        """Return the weights of the ``losses`` of a batch; trained on is their mean."""
        assert isinstance(self._sampler.method, Weighing)
        found = self._sampler.method.weigh(np.array(indices), losses.detach().numpy())
        self._sampler.taken -= int(np.count_nonzero(found == 0))
        return torch.from_numpy(found)


def mean_over(chosen: np.ndarray[Any, np.dtype[np.bool_]]) -> Floats:
    """Return weights with which the mean over all is the mean over the ``chosen``.

    >>> mean_over(np.array([True, False, True, False])).tolist()
    [2.0, 0.0, 2.0, 0.0]
    """
    return chosen.astype(np.float32) * np.float32(len(chosen) / max(1, int(np.count_nonzero(chosen))))
