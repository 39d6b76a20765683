"""Optimizers that the networks of an algorithm hold; their methods are called."""

import torch
from torch import nn


class Network(nn.Module):
    """A network with its optimizer; nothing calls ``forward``."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.optimizer = torch.optim.Adam(self.parameters(), lr=0.01)

    def predict(self, seen):
        return self.layer(seen)


class Algorithm:
    """An actor and a critic, and a temperature in no module."""

    def __init__(self):
        self.actor, self.critic = Network(), Network()
        self.log_temperature = torch.zeros(1, requires_grad=True)
        self.temperature_optimizer = torch.optim.Adam([self.log_temperature], lr=0.01)

    def update(self, network, optimizer, loss):
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    def learn(self, steps):
        for step in range(steps):
            seen = torch.randn(8, 4)
            losses = [
                self.update(one, one.optimizer, one.predict(seen).square().mean()) for one in (self.critic, self.actor)
            ]
            loss = (self.log_temperature - 1).square().sum()
            losses.append(self.update(None, self.temperature_optimizer, loss))
            print("step", *losses, flush=True)
        print("parameters", [float(p.sum()) for p in (*self.actor.parameters(), *self.critic.parameters())])


torch.manual_seed(0)
Algorithm().learn(8)
