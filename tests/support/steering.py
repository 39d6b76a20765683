"""Commands in a loop of one event, and learning rates under a schedule."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as schedulers

from looptap import CommandPending
from looptap.testing import pair


def done(agent, run, ask, *arguments, event="batch", **how):
    """Return the outcome of a command in a loop that raises one event."""
    with pytest.raises(CommandPending) as pending:
        ask(*arguments, timeout=0, **how)
    agent.emit(event, step=1)
    return run.outcome(pending.value.id)


def optimizer_of(groups=1, kind=torch.optim.SGD, **how):
    parameters = [{"params": [nn.Parameter(torch.ones(1))], "lr": 0.1 * (n + 1)} for n in range(groups)]
    return kind(parameters, **({"lr": 0.1, "momentum": 0.9} | how))


SCHEDULES = {
    "StepLR": lambda o: schedulers.StepLR(o, 4, 0.5),
    "CosineAnnealingLR": lambda o: schedulers.CosineAnnealingLR(o, 15, eta_min=0.01),
    "OneCycleLR": lambda o: schedulers.OneCycleLR(o, max_lr=1.0, total_steps=40),
    "LambdaLR": lambda o: schedulers.LambdaLR(o, lambda epoch: 0.9**epoch),
    "CyclicLR": lambda o: schedulers.CyclicLR(o, 0.1, 0.5, step_size_up=5),
    "SequentialLR": lambda o: schedulers.SequentialLR(
        o, [schedulers.ConstantLR(o, 0.5, 30), schedulers.ExponentialLR(o, 0.9)], milestones=[9]
    ),
}


def rates(make, groups=1, change=None, steps=30):
    """Return a schedule's learning rates; ``change`` is (step, how(agent, run))."""
    optimizer = optimizer_of(groups)
    scheduler = make(optimizer) if make else None
    agent, run = pair("schedule")
    agent.expose(optimizer=optimizer, **({"scheduler": scheduler} if scheduler else {}))
    seen = []
    for step in range(steps):
        for at, how in change or ():
            if step == at:
                how(agent, run)
        seen.append([group["lr"] for group in optimizer.param_groups])
        optimizer.step()
        if scheduler:
            scheduler.step()
            assert scheduler.get_last_lr() == pytest.approx([group["lr"] for group in optimizer.param_groups])
            assert "optimizer" not in scheduler.state_dict()
            assert not [key for key in scheduler.state_dict() if "looptap" in key]
    agent.close()
    return np.array(seen)


def to(value, name="optimizer.lr", **how):
    def change(agent, run):
        outcome = done(agent, run, run.set, name, value, **how)
        assert outcome.new == value

    return change
