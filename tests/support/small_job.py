"""A small loop that computes while a client asks something of it."""

from __future__ import annotations

import threading

import torch
from torch import nn

import looptap
from looptap.streams.errors import LooptapError


class Job:
    """A small loop that runs while a client asks."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(), nn.Linear(8, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.losses = []

    def step(self):
        self.optimizer.zero_grad()
        loss = self.model(torch.randn(4, 8)).square().mean()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())

    def while_asked(self, agent, ask):
        """Step while ``ask`` runs in a thread with a run; return its result or error."""
        found = []

        def work():
            with looptap.attach(agent.name) as run:
                try:
                    found.append(ask(run))
                except LooptapError as error:
                    found.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        while thread.is_alive():
            self.step()
            agent.emit("batch")
        return found[0]
