"""Loops that fetch ahead, leave out batches, or learn from several at once.

Prints the last update of each epoch.
"""

import itertools

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(24, 4), torch.randn(24, 1))
models = [nn.Linear(4, 1) for _ in range(2)]
optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
updates = 0


def update(batches, count=1):
    global updates
    for model, optimizer in [*zip(models, optimizers, strict=True)][:count]:
        optimizer.zero_grad()
        sum(((model(x) - y) ** 2).mean() for x, y in batches).backward()
        optimizer.step()
        updates += 1


def elsewhere(loader):
    """As Accelerate does."""
    batches = iter(loader)
    now = next(batches)
    for following in batches:
        yield now
        now = following
    yield now


def in_one_place(loader):
    """As timm does."""
    now = None
    for following in loader:
        if now is not None:
            yield now
        now = following
    yield now


def two_ahead(loader, count=2):
    held = []
    for following in loader:
        held.append(following)
        if len(held) > count:
            yield held.pop(0)
    yield from held


class Prefetcher:
    """As the examples of Apex do."""

    def __init__(self, loader):
        self.batches = iter(loader)
        self.fetch()

    def fetch(self):
        self.following = next(self.batches, None)

    def __iter__(self):
        while (now := self.following) is not None:
            self.fetch()
            yield now


def passed_on(loader):
    yield from loader


def left_out(count, wrapped):
    def loop(loader):
        for number, batch in enumerate(wrapped(loader)):
            if number >= count:
                update([batch])

    return loop


def of_both(wrapped):
    def loop(loader):
        for batch in wrapped(loader):
            update([batch], 2)

    return loop


def in_groups(size, wrapped=iter):
    def loop(loader):
        batches, held = wrapped(loader), []
        for batch in batches:
            held.append(batch)
            if len(held) == size:
                update(held)
                held = []

    return loop


def in_pairs(loader):
    batches = iter(loader)
    while (first := next(batches, None)) is not None:
        if (second := next(batches, None)) is not None:
            update([first, second])


def without_backward(loader):
    global updates
    for x, y in loader:
        loss = ((models[0](x) - y) ** 2).mean()
        for p, gradient in zip(
            models[0].parameters(), torch.autograd.grad(loss, [*models[0].parameters()]), strict=True
        ):
            p.grad = gradient
        optimizers[0].step()
        updates += 1


WAYS = {
    "left_out_0": left_out(0, iter), "left_out_1": left_out(1, iter), "left_out_3": left_out(3, iter),
    "passed_on_1": left_out(1, passed_on), "passed_on_3": left_out(3, passed_on), "elsewhere": left_out(0, elsewhere),
    "elsewhere_3": left_out(3, elsewhere),
    "in_one_place": left_out(0, in_one_place), "two_ahead": left_out(0, two_ahead),
    "two_ahead_2": left_out(2, two_ahead), "two_ahead_both": of_both(two_ahead),
    "all_ahead": left_out(0, lambda loader: two_ahead(loader, 9)),
    "left_before_1": left_out(0, lambda loader: two_ahead(itertools.islice(loader, 1, None))),
    "prefetcher": left_out(0, Prefetcher), "both": of_both(iter),
    "both_elsewhere": of_both(elsewhere), "groups_2": in_groups(2), "groups_3": in_groups(3), "groups_4": in_groups(4),
    "groups_2_elsewhere": in_groups(2, elsewhere), "pairs": in_pairs, "without_backward": without_backward,
}  # fmt: skip
for way, loop in WAYS.items():
    for batch_size in (4, 8):
        for _ in range(2):
            before = updates
            loop(DataLoader(data, batch_size=batch_size))
            if updates > before:
                print("epoch", way, batch_size, updates, flush=True)
