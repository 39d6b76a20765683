"""A training script that looptap watches in some blocks of steps only.

The arguments are HOW WIDTH NAME: HOW is "run" for the hooks of `looptap run`, "emit" for an agent that the script has
itself. Each line of the input is "in COUNT" or "out COUNT": so many steps with looptap and without. The answer is the
training thread's seconds of processor time and of wall time, of all but the first ones.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from loops import Mlp
from torch.autograd import Variable
from torch.optim import optimizer
from torch.utils.data import dataloader

import looptap

BUDGET = 0.03 / 2
"""Looptap is in for half of the time."""
UNCOUNTED = 4
"""Steps at the beginning of a block: the first ones after a change of hooks are slower, with looptap and without."""
_ABSENT = object()
_HOOKED: tuple[Any, ...] = (
    Variable, torch.amp.grad_scaler.GradScaler, torch.nn.Module, optimizer.Optimizer, dataloader._BaseDataLoaderIter,
    dataloader._SingleProcessDataLoaderIter, dataloader._MultiProcessingDataLoaderIter,
)  # fmt: skip


class Hooks:
    """What `looptap.auto` changes in torch, to take it out and put it in again."""

    def __init__(self, name: str) -> None:
        before = self._state()
        looptap.auto(name, budget=BUDGET)
        after = self._state()
        self._places = [
            (owner, attribute, was.get(attribute, _ABSENT), now[attribute])
            for owner, was, now in zip(_HOOKED, before, after, strict=True)
            for attribute in now
            if was.get(attribute, _ABSENT) is not now[attribute]
        ]
        self._after_steps = dict(optimizer._global_optimizer_post_hooks)
        assert len(self._places) >= 5
        assert self._after_steps

    def _state(self) -> list[dict[str, Any]]:
        return [dict(vars(owner)) for owner in _HOOKED]

    def turn(self, on: bool) -> None:
        for owner, attribute, before, after in self._places:
            if on or before is not _ABSENT:
                setattr(owner, attribute, after if on else before)
            elif attribute in vars(owner):
                delattr(owner, attribute)
        optimizer._global_optimizer_post_hooks.clear()
        optimizer._global_optimizer_post_hooks.update(self._after_steps if on else {})


def main() -> None:
    how, width, name = sys.argv[1:]
    torch.manual_seed(1)
    turn: Callable[[bool], None] = lambda on: None  # noqa: E731 - replaced below
    agent = None
    if how == "run":
        turn = Hooks(name).turn
    else:
        agent = looptap.Agent(name, budget=BUDGET)
    loop = Mlp(int(width))
    model, criterion, step = loop.model, torch.nn.functional.cross_entropy, 0
    x, y, lr = loop.x, loop.y, 0.01
    for line in sys.stdin:
        word, count = line.split()
        turn(word == "in")
        emits = agent if word == "in" else None
        began = wall = 0.0
        for number in range(UNCOUNTED + int(count)):
            if number == UNCOUNTED:
                began, wall = time.thread_time(), time.perf_counter()
            step += 1
            out = model(x)
            loss = criterion(out, y)
            loop.optimizer.zero_grad()
            loss.backward()
            loop.optimizer.step()
            if emits is not None:
                emits.emit(
                    "step", step=step, loss=loss, out=out, x=x, y=y, lr=lr, model=model, optimizer=loop.optimizer
                )
        print(time.thread_time() - began, time.perf_counter() - wall, flush=True)
        turn(False)


main()
