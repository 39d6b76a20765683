"""Fake clocks, and loops that advance them."""

from __future__ import annotations

import torch


class Clock:
    """A clock that a test advances."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def trained(progress, clock, epochs, *, batches=10, seconds=1.0, check=2.0, error=lambda epoch: 0.5, first=0):
    """Run ``epochs`` with fixed seconds a batch, and ``check`` seconds a validation."""
    for epoch in range(first, first + epochs):
        for _ in progress.train([torch.zeros(4)] * batches):
            clock.now += seconds
        for _ in progress.validate([torch.zeros(10)] * 2):
            clock.now += check / 2
        progress.validated(error(epoch))
