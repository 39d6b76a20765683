"""An MLP on handwritten digits that shows which of them move the loss.

python -m looptap.examples.prioritized [--method published] [--epochs 6] and, beside it,
looptap plot prioritized-digits prioritized. LOOPTAP_DISABLED=1 takes the agent away.
"""

import argparse

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import looptap
from looptap.examples.digits import digits
from looptap.training.instances import WithIndex
from looptap.training.prioritized import Prioritized


def main() -> None:
    """Train, and print what a client would see after each epoch."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--method", choices=list(Prioritized.catalog), default="norm")
    arguments.add_argument("--epochs", type=int, default=6)
    options = arguments.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)  # more threads make a model this small several times slower
    data = TensorDataset(*digits())
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    prioritized = Prioritized(data, model, 32, options.method, k=0.01, r=0.01, epochs=options.epochs)
    loader = DataLoader(WithIndex(data), batch_sampler=prioritized)

    agent = looptap.Agent("prioritized-digits")
    agent.expose(model=model, prioritized=prioritized)
    for epoch in range(options.epochs):
        for indices, (images, labels) in loader:
            logits = model(images)
            losses = cross_entropy(logits, labels, reduction="none")
            optimizer.zero_grad()
            prioritized.backward(indices, losses)
            optimizer.step()
            prioritized.observe(indices, logits=logits, targets=labels)
            agent.emit("batch", loss=losses.mean())
        top = prioritized.concentration["top 10%"]
        share = "" if top is None else f"; the top 10% have {top:.0%} of the priority"
        print(f"epoch {epoch}: {prioritized.gradient_work:,} gradients, {prioritized.why}{share}", flush=True)
    agent.close()
    for row in prioritized.important_samples(3):
        print(f"most important: digit {row['label']}, index {row['index']}, priority {row['priority']}")


if __name__ == "__main__":
    main()
