"""Kinds of training without labels: policy gradients, a game of two networks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
import torch
from kinds import Checked, Kind, Trained, rate_of
from torch import Tensor, nn
from torch.optim import Adam
from torch.optim.lr_scheduler import LinearLR

Run = Iterator[Trained | Checked]
_PLAYED = 12  # games at once
_LONGEST = 120  # steps of a game


def _poles(
    act: Callable[[np.ndarray], np.ndarray], rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Balance poles on carts until they fall; return states, actions and who was up.

    The physics are those of Barto, Sutton and Anderson 1983.
    """
    state = rng.uniform(-0.05, 0.05, (_PLAYED, 4))
    up = np.ones(_PLAYED, bool)
    states, actions, ups = [], [], []
    for _ in range(_LONGEST):
        action = act(state)
        states.append(state.copy())
        actions.append(action)
        ups.append(up.copy())
        place, speed, angle, turn = state.T
        force = np.where(action == 1, 10.0, -10.0)
        sine, cosine = np.sin(angle), np.cos(angle)
        part = (force + 0.05 * turn**2 * sine) / 1.1
        spin = (9.8 * sine - cosine * part) / (0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1))
        push = part - 0.05 * spin * cosine / 1.1
        state = np.stack([place + 0.02 * speed, speed + 0.02 * push, angle + 0.02 * turn, turn + 0.02 * spin], 1)
        up = up & (np.abs(state[:, 0]) < 2.4) & (np.abs(state[:, 2]) < 0.21)
        if not up.any():
            break
    return np.array(states), np.array(actions), np.array(ups)


def _net(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for wide, narrow in pairwise(sizes):
        layers += [nn.Linear(wide, narrow), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def pole(seed: int) -> Run:
    """Learn to balance a pole by policy gradients; the mean reward of some games."""
    rng, policy = np.random.default_rng(seed), _net(4, 24, 2)
    optimizer = Adam(policy.parameters(), 6e-3)

    def act(state: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            found = policy(torch.from_numpy(state).float()).softmax(1)[:, 1].numpy()
        return np.asarray(rng.random(len(found)) < found, int)

    for _ in range(60):
        for _ in range(3):
            states, actions, ups = _poles(act, rng)
            gains = np.cumsum(ups[::-1], 0)[::-1].astype(float)
            advantage = (gains - gains[ups].mean()) / (gains[ups].std() + 1e-6)
            optimizer.zero_grad()
            logs = policy(torch.from_numpy(states[ups]).float()).log_softmax(1)
            chosen = logs[torch.arange(len(logs)), torch.from_numpy(actions[ups])]
            (-(chosen * torch.from_numpy(advantage[ups]).float()).mean()).backward()
            optimizer.step()
            yield Trained(_PLAYED, rate_of(optimizer))
        yield Checked(float(_poles(act, rng)[2].sum(0).mean()), _PLAYED)


def walk(seed: int) -> Run:
    """Learn to walk to a goal on a board, actor and critic, with a falling rate."""
    actor, critic = _net(50, 32, 4), _net(50, 32, 1)
    optimizer = Adam([*actor.parameters(), *critic.parameters()], 4e-3)
    schedule = LinearLR(optimizer, 1.0, 0.05, 60)
    moves = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])

    def seen(at: Tensor, goal: Tensor) -> Tensor:
        places = (
            nn.functional.one_hot(at[:, 0] * 5 + at[:, 1], 25),
            nn.functional.one_hot(goal[:, 0] * 5 + goal[:, 1], 25),
        )
        return torch.cat(places, 1).float()

    def play() -> tuple[Tensor, Tensor, Tensor, Tensor]:
        at, goal, going = torch.randint(5, (24, 2)), torch.randint(5, (24, 2)), torch.ones(24, dtype=torch.bool)
        states, actions, rewards, alive = [], [], [], []
        for _ in range(14):
            state = seen(at, goal)
            with torch.no_grad():
                action = torch.multinomial(actor(state).softmax(1), 1).squeeze(1)
            at = (at + moves[action]).clamp(0, 4)
            reached = (at == goal).all(1)
            states.append(state)
            actions.append(action)
            rewards.append(torch.where(reached & going, 1.0, -0.05) * going)
            alive.append(going)
            going = going & ~reached
        return torch.stack(states), torch.stack(actions), torch.stack(rewards), torch.stack(alive)

    for _ in range(60):
        for _ in range(5):
            states, actions, rewards, alive = play()
            gains = rewards.flip(0).cumsum(0).flip(0)[alive]
            values = critic(states[alive]).squeeze(1)
            logs = actor(states[alive]).log_softmax(1)[torch.arange(len(values)), actions[alive]]
            optimizer.zero_grad()
            (-(logs * (gains - values).detach()).mean() + 0.5 * ((gains - values) ** 2).mean()).backward()
            optimizer.step()
            yield Trained(24, rate_of(optimizer))
        schedule.step()
        yield Checked(play()[2].sum(0).mean().item(), 24)


def ring(seed: int) -> Run:
    """Train two networks against each other, on a ring of spots; energy distance."""

    def real(count: int) -> Tensor:
        angle = torch.randint(8, (count,)) * (torch.pi / 4)
        return torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(count, 2)

    makes, tells = _net(4, 48, 48, 2), _net(2, 48, 48, 1)
    first, second = Adam(makes.parameters(), 1e-3, (0.5, 0.9)), Adam(tells.parameters(), 1e-3, (0.5, 0.9))
    loss = nn.functional.binary_cross_entropy_with_logits
    checked = real(300)
    for _ in range(80):
        for _ in range(12):
            second.zero_grad()
            made, true = makes(torch.randn(64, 4)), real(64)
            (loss(tells(true), torch.ones(64, 1)) + loss(tells(made.detach()), torch.zeros(64, 1))).backward()
            second.step()
            first.zero_grad()
            loss(tells(made), torch.ones(64, 1)).backward()
            first.step()
            yield Trained(64, rate_of(first))
        with torch.no_grad():
            made = makes(torch.randn(300, 4))
            apart = 2 * torch.cdist(made, checked).mean() - torch.cdist(made, made).mean()
            yield Checked((apart - torch.cdist(checked, checked).mean()).clamp(min=0).item(), 300)


KINDS = (
    Kind("policy gradient, pole", "reward", "max", "constant", 1.0, pole),
    Kind("policy gradient, walk", "reward", "max", "linear", 0.01, walk),
    Kind("two networks", "energy distance", "loss", "constant", 0.001, ring),
)
