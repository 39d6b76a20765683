"""Two networks of one agent: a loss each, and both optimizers step after them."""

import torch
from torch import nn

torch.manual_seed(0)
actor, critic = nn.Linear(4, 2), nn.Linear(4, 1)
actor_optimizer = torch.optim.Adam(actor.parameters(), lr=1e-2)
critic_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-2)
for step in range(8):
    states, returns = torch.randn(8, 4), torch.randn(8)
    values = critic(states).squeeze(1)
    actor_loss = -(actor(states).log_softmax(1)[:, 0] * (returns - values.detach())).mean()
    critic_loss = (values - returns).pow(2).mean()
    actor_optimizer.zero_grad()
    critic_optimizer.zero_grad()
    actor_loss.backward()
    critic_loss.backward()
    nn.utils.clip_grad_norm_(actor.parameters(), 0.5)
    actor_optimizer.step()
    critic_optimizer.step()
    print("step", (actor_loss + critic_loss).item(), actor_loss.item(), critic_loss.item(), flush=True)
print("parameters", [p.tolist() for m in (actor, critic) for p in m.parameters()])
