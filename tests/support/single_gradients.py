"""Gradients of single examples, one backward pass each, to compare with."""

from __future__ import annotations

import torch


def gradients_of(losses, parameters):
    """Return the gradients (n, ...) of single losses, by parameter."""
    found = [torch.autograd.grad(one, parameters, retain_graph=True, allow_unused=True) for one in losses]
    return [torch.stack([torch.zeros_like(p) if g is None else g for g in single])
            for p, single in zip(parameters, zip(*found, strict=True), strict=True)]  # fmt: skip


def products(gradients, direction):
    """Return gbar · g_i (n,)."""
    return sum((g * along).flatten(1).sum(1) for g, along in zip(gradients, direction, strict=True))



def error(found, true):
    return float(((found - true).norm() / true.norm()).detach())


def rank_correlation(a, b):
    return float(torch.corrcoef(torch.stack([one.argsort().argsort().double() for one in (a, b)]))[0, 1])
