"""Trainings that fail within an epoch, each followed by one elsewhere.

In another thread, or in a loop of its own while a traceback keeps the iterator of the failed one. Prints each update's
loss, and the end of each epoch or training.
"""

import threading

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
kept = []


def update(parts, x, fails):
    model, optimizer = parts
    objective = (model(x) ** 2).mean()
    objective.backward()
    if fails:
        print("epoch", flush=True)
        raise RuntimeError("out of memory")
    optimizer.step()
    optimizer.zero_grad()
    print("step", objective.item(), flush=True)


def new():
    model = nn.Linear(4, 1)
    parts = model, torch.optim.SGD(model.parameters(), lr=0.01)
    return parts, DataLoader(TensorDataset(torch.randn(24, 4)), batch_size=4)


def train(fails_at=None, first=True, keeps=True):
    parts, loader = new()
    if first:
        batches = iter(loader) if keeps else loader
        for number, (x,) in enumerate(batches):
            update(parts, x, number == fails_at)
        print("epoch", flush=True)
    more = iter(loader)
    for number, (x,) in enumerate(more):
        update(parts, x, number + 10 == fails_at)
    print("epoch", flush=True)


def train_again(fails_at=None):
    parts, loader = new()
    batches = iter(loader)
    for number, (x,) in enumerate(batches):
        update(parts, x, number == fails_at)
    print("epoch", flush=True)


def attempt(function, *arguments):
    try:
        function(*arguments)
    except RuntimeError as error:
        kept.append(error)


def in_thread(function, *arguments):
    job = threading.Thread(target=attempt, args=(function, *arguments))
    job.start()
    job.join()


CELL = """
parts, loader = new()
batches = iter(loader)
for number, (x,) in enumerate(batches):
    update(parts, x, number == fails_at)
print("epoch", flush=True)
"""

for keeps in (False, True):
    in_thread(train, 3, True, keeps)
    train()
    attempt(train, 2, True, keeps)
    in_thread(train)
    in_thread(train, 3, True, keeps)
    in_thread(train, 2, True, keeps)
    train()
attempt(train, 3)
train_again()
attempt(train_again, 3)
train()
attempt(train, 3)
train(first=False)
attempt(train, 12)
train_again()
for fails_at in (3, None):  # as cells of a notebook
    attempt(exec, compile(CELL, __file__, "exec"), globals())
