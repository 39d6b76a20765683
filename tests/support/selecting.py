"""A selection that has skipped instances of a data set of pictures."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch.nn import functional
from torch.utils.data import Dataset

from looptap.training.selection import Selection

COUNT = 300
"""More than 256 instances: a shorter array is a line."""


class Pictures(Dataset):
    """Pictures of 6 × 6 with their class, and noise from three generators."""

    def __init__(self, form):
        self.form, self.reads = form, 0
        self.own = np.random.default_rng(0)
        self.transform = torch.Generator().manual_seed(0)

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        self.reads += 1
        image = torch.rand(6, 6) * random.random() + float(self.own.random())
        image = image + torch.rand(1, generator=self.transform)
        label = index % 3
        if self.form == "dict":
            return {"scan": image.numpy(), "kind": label, "file": f"{index}.png"}
        return (image.numpy()[..., None], label) if self.form == "array" else (image[None], label)


def trained(data, epochs=4, samples=None):
    """Return a selection that has skipped: the losses of the last third are high."""
    selection = Selection(data, 20, switch="on", epochs=10, samples=samples)
    labels = torch.arange(COUNT) % 3
    logits = functional.one_hot(labels, 3) * torch.where(torch.arange(COUNT) < 200, 9.0, 0.5)[:, None]
    for _ in range(epochs):
        for batch in selection:
            selection.observe(batch, logits=logits[batch], targets=labels[batch])
    return selection
