"""Loops that fetch with `next` and are left, while their iterators are held.

Prints each update's loss, and the end of each epoch with what it is an end of.
"""

import itertools

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
LIMIT = 3
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(24, 4), torch.randn(24, 1))
loader = DataLoader(data, batch_size=4)
other = DataLoader(data, batch_size=4)
held = []


def step(batch):
    x, y = batch
    optimizer.zero_grad()
    objective = ((model(x) - y) ** 2).mean()
    objective.backward()
    optimizer.step()
    print("step", objective.item(), flush=True)


def whole(name):
    for batch in loader:
        step(batch)
    print("epoch", name, flush=True)


print("# a loop that is left by break, then others at other places")
it = iter(loader)
count = 0
while True:
    batch = next(it)
    if count == LIMIT:
        break
    step(batch)
    count += 1
print("epoch break", flush=True)
for batch in loader:
    step(batch)
print("epoch for", flush=True)

print("# an exception is caught")
try:
    failing = iter(loader)
    count = 0
    while True:
        batch = next(failing)
        if count == LIMIT:
            raise RuntimeError("out of memory")
        step(batch)
        count += 1
except RuntimeError as error:
    held.append(error)
    print("epoch error", flush=True)
second = iter(loader)
for _ in range(LIMIT):
    step(next(second))
print("epoch range", flush=True)

print("# a default")
third = iter(loader)
count = 0
while (batch := next(third, None)) is not None and count < LIMIT:
    step(batch)
    count += 1
print("epoch default", flush=True)
whole("whole")

print("# itertools.islice")
fourth = iter(loader)
for batch in itertools.islice(fourth, LIMIT):
    step(batch)
print("epoch islice", flush=True)
whole("whole")


class Trainer:
    """Keeps its iterator, and fetches with a method."""

    def __init__(self):
        self.batches = iter(loader)

    def fetch(self):
        return next(self.batches)

    def train(self):
        for _ in range(LIMIT):
            step(self.fetch())


print("# an attribute")
trainer = Trainer()
trainer.train()
print("epoch attribute", flush=True)
whole("whole")
trainer = Trainer()
kept = [trainer]
count = 0
while count < LIMIT:
    step(trainer.fetch())
    count += 1
print("epoch fetched", flush=True)
whole("whole")


def handed_on():
    mine = iter(loader)
    while True:
        yield next(mine)


print("# a generator")
fifth = handed_on()
count = 0
while count < LIMIT:
    step(next(fifth))
    count += 1
print("epoch generator", flush=True)
whole("whole")

print("# two loaders side by side")
pairs = zip(loader, other, strict=True)
count = 0
while count < LIMIT:
    batch, _ = next(pairs)
    step(batch)
    count += 1
print("epoch zipped", flush=True)
whole("whole")

print("# in each of several epochs")
for _ in range(2):
    sixth = iter(loader)
    held.append(sixth)
    count = 0
    while count < LIMIT:
        step(next(sixth))
        count += 1
    print("epoch first of two", flush=True)
    seventh = iter(loader)
    held.append(seventh)
    for _ in range(LIMIT):
        step(next(seventh))
    print("epoch second of two", flush=True)


def short():
    mine = iter(loader)
    held.append(mine)
    for _ in range(LIMIT):
        step(next(mine))
    print("epoch function", flush=True)


print("# in a function")
short()
short()
whole("whole")
whole("last")
