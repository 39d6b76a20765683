"""Handwritten digits, copied several times with fixed distortions."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from looptap.examples.digits import digits

SIDE = 12
"""Pixels of a side."""
WRITTEN = 1200
"""Of scikit-learn's 1,797 scans, those that training images are made of; the other 597 make the test images."""
COPIES = 8
"""Of each, that are learned or judged."""
_HARD_SHARE = 0.2  # of the easy-heavy data


class Split(NamedTuple):
    """Inputs and targets, learned and judged."""

    inputs: Tensor
    targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor


def balanced() -> Split:
    """Return 9,600 distorted images, all classes alike."""
    return Split(*_copies(True, COPIES, 1.0, 1), *_copies(False, COPIES, 1.0, 2))


def noisy(seed: int) -> Split:
    """Return the balanced images, of which 8% have a wrong label in training."""
    found = balanced()
    generator = torch.Generator().manual_seed(1000 + seed)
    wrong = torch.rand(len(found.targets), generator=generator) < 0.08
    moved = torch.randint(1, 10, found.targets.shape, generator=generator)
    return found._replace(targets=torch.where(wrong, (found.targets + moved) % 10, found.targets))


def imbalanced() -> Split:
    """Return 7,600 images, the most frequent class 60 times the rarest.

    The test has all classes alike.
    """
    images, targets = _copies(True, 24, 1.0, 1)
    counts = [round(2800 * 60 ** (-label / 9)) for label in range(10)]
    kept = torch.cat([(targets == label).nonzero()[:count, 0] for label, count in enumerate(counts)])
    return Split(images[kept], targets[kept], *_copies(False, COPIES, 1.0, 2))


def easy_heavy(copies: int = COPIES) -> Split:
    """Return ``copies`` of 1,200 images, one fifth of them much distorted."""
    found = []
    for train in (True, False):
        easy, hard = _copies(train, copies, 0.1, 3), _copies(train, copies, 1.3, 4)
        chosen = torch.rand(len(easy[0]), generator=torch.Generator().manual_seed(5)) < _HARD_SHARE
        found += [torch.where(chosen.view(-1, 1, 1, 1), hard[0], easy[0]), easy[1]]
    return Split(*found)


@cache
def _copies(train: bool, times: int, strength: float, seed: int) -> tuple[Tensor, Tensor]:
    """Return copies of each digit: turned, scaled, sheared, moved, with noise."""
    images, targets = digits()
    images, targets = (part[:WRITTEN] if train else part[WRITTEN:] for part in (images, targets))
    images, targets = images.repeat(times, 1, 1, 1), targets.repeat(times)
    generator = torch.Generator().manual_seed(10 * seed + train)

    def around(middle: float, most: float) -> Tensor:
        return middle + strength * most * (2 * torch.rand(len(images), generator=generator) - 1)

    turn, scale, shear = around(0, 0.6), around(1.1, 0.3), around(0, 0.3)
    cos, sin = torch.cos(turn) * scale, torch.sin(turn) * scale
    rows = [cos, shear - sin, around(0, 0.2), sin, cos, around(0, 0.2)]
    grid = affine_grid(torch.stack(rows, 1).view(-1, 2, 3), [len(images), 1, SIDE, SIDE], align_corners=False)
    found = grid_sample(images, grid, align_corners=False)
    return found + 0.1 * strength * torch.randn(found.shape, generator=generator), targets
