"""What selection costs in a step: drawing, weighting and observing."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from looptap.training.selection import Selection

COST_METHODS = ("norm", "autoassist")
_SIZE, _WIDTH, _BATCH, _STEPS, _WARM = 20_000, 800, 64, 900, 400


def costs() -> dict[str, float]:
    """Return the median of milliseconds a step by method.

    What the plain loss takes is not counted.
    """
    return {method: _cost(method) for method in COST_METHODS}


def _cost(method: str) -> float:
    torch.manual_seed(0)
    inputs = torch.randn(_SIZE, _WIDTH)
    targets = (inputs[:, :10] + 0.5 * torch.randn(_SIZE, 10)).argmax(1)
    given: dict[str, Any] = {"features": inputs.numpy()} if method == "autoassist" else {}
    selection = Selection(_SIZE, _BATCH, method, switch="on", **given)
    model = nn.Linear(_WIDTH, 10)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    took: list[float] = []
    batches = iter(selection)
    for _ in range(_STEPS):
        marks = [time.perf_counter()]
        try:
            indices = next(batches)
        except StopIteration:
            batches = iter(selection)
            continue
        marks.append(time.perf_counter())
        where = torch.tensor(indices)
        logits, wanted = model(inputs[where]), targets[where]
        marks.append(time.perf_counter())
        cross_entropy(logits, wanted)
        marks.append(time.perf_counter())
        loss = selection.loss(where, logits, wanted)
        marks.append(time.perf_counter())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        marks.append(time.perf_counter())
        selection.observe(where, logits=logits, targets=wanted)
        marks.append(time.perf_counter())
        draw, _, plain, loss_taken, _, observe = np.diff(marks)
        took.append(draw + max(0.0, loss_taken - plain) + observe)
    return 1e3 * median(took[_WARM:])
