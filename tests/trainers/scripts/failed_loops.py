"""Trainings that fail within an epoch, of which a traceback keeps the iterators.

Prints each update's loss, and the end of each epoch or training.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
kept = []


class Fails(torch.autograd.Function):
    raises = None

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        error, Fails.raises = Fails.raises, None
        if error is not None:
            raise error
        return gradient


def ahead(loader):
    batches = iter(loader)
    now = next(batches)
    for following in batches:
        yield now
        now = following
    yield now


def new():
    model = nn.Linear(4, 1)
    data = TensorDataset(torch.randn(24, 4), torch.randn(24, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.01), DataLoader(data, batch_size=4), DataLoader(data, 12)


def train(wrapped, model, optimizer, loader, checks, fails_at=None, validates=True):
    for _ in range(2):
        batches = wrapped(loader)
        for number, (x, y) in enumerate(batches):
            objective = ((Fails.apply(model(x)) - y) ** 2).mean()
            if number == fails_at:
                Fails.raises = RuntimeError("out of memory")
            objective.backward()
            optimizer.step()
            print("step", objective.item(), flush=True)
            optimizer.zero_grad()
            if number == 5 and fails_at == -1:
                print("epoch", flush=True)
                return
        print("epoch", flush=True)
        if validates:
            model.eval()
            with torch.no_grad():
                sum(model(x).sum() for x, _ in checks)


for wrapped in (iter, ahead):
    for fails_at in (2, 5):
        parts = new()
        for fresh in (False, True):
            try:
                train(wrapped, *parts, fails_at)
            except RuntimeError as error:
                kept.append(error)
                print("epoch", flush=True)
            train(wrapped, *(new() if fresh else parts))
train(iter, *new())
train(iter, *new(), fails_at=-1, validates=False)  # a model in evaluation mode that is gone
train(iter, *new())
