"""The names that a page's programs take for granted, as programs before them."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Mapping
from pathlib import Path

from documented import Block

RANKS = {"docs/ranks.md"}
"""Pages about a job on several ranks; here it has four."""

SCHEDULED = {"docs/controls.md", "docs/cli.md"}
"""Pages about a job whose learning rate has a schedule."""

COMMON = """
import numpy as np
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
dataset = TensorDataset(torch.rand(320, 1, 8, 8), torch.randint(0, 10, (320,)))
loader = DataLoader(dataset, batch_size=32)
x, y = next(iter(loader))
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1000)
step, loss, reward, clip = 3, torch.tensor(0.5), 1.0, [1.0]
evaluate, save = (lambda *given: 0.9), (lambda *given: None)
"""

_RANKS = """
import os
import torch.distributed as dist
from looptap.training.instances import WithIndex
from looptap.training.prioritized import Prioritized
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
rank, world, network = 0, 1, model
prioritized = Prioritized(dataset, model, batch_size=64, epochs=3)
loader = DataLoader(WithIndex(dataset), batch_sampler=prioritized)
loss = cross_entropy(model(x), y)
"""
_SELECTION = """
from looptap.training.instances import WithIndex
from looptap.training.selection import Selection
data = TensorDataset(torch.randn(2000, 8), torch.randint(0, 2, (2000,)))
selection = Selection(data, batch_size=64, epochs=3)
indices = torch.arange(32)
images, labels = torch.rand(2000, 1, 8, 8), torch.randint(0, 10, (2000,))
"""
OWN: dict[str, str] = {
    "docs/keep.md": "arguments = {'optimizer': {'lr': 0.1}, 'seed': 3}",
    "docs/charts.md": _SELECTION,
    "docs/echoing.md": "augment = lambda sample: sample\ntrain_step = lambda batch: None",
    "docs/prioritized.md": _RANKS,
    "docs/progress.md": "val_loader = loader\nevaluate = lambda model, batches: sum(1 for _ in batches) and 0.9",
    "docs/selection.md": _SELECTION,
    "docs/training.md": "from looptap.training.progress import Progress\nprogress = Progress(24, epochs=2)",
}
"""What a page needs besides."""


_TRAINER = """
import os, time
os.environ["KERAS_BACKEND"] = "torch"
import torch
from small_trainers import Examples, Net, keras_model, lightning_module
from torch.utils.data import ConcatDataset, DataLoader, default_collate
torch.set_num_threads(1)

def slowly(batch):
    time.sleep(0.01)
    return default_collate(batch)
"""
SCRIPTS: dict[str, tuple[str, str]] = {
    "looptap.integrations.hugging_face": (
        "transformers",
        """
import transformers
model, data = Net(), Examples()
arguments = transformers.TrainingArguments(
    output_dir="saved", use_cpu=True, per_device_train_batch_size=4, num_train_epochs=10_000, logging_steps=1,
    report_to=[], disable_tqdm=True, save_strategy="no", dataloader_pin_memory=False)
""",
    ),
    "looptap.integrations.lightning": (
        "pytorch_lightning",
        """
module = lightning_module()
optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
module.configure_optimizers = lambda: ([optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1000)])
loader = DataLoader(ConcatDataset([Examples(pairs=True)] * 1000), 4, collate_fn=slowly)
""",
    ),
    "looptap.integrations.accelerate": (
        "accelerate",
        COMMON.replace("lr=0.1", "lr=0.01") + "loader, epochs = DataLoader(dataset, 32, collate_fn=slowly), 10_000",
    ),
    "looptap.integrations.keras": (
        "keras",
        "model = keras_model()\nx = torch.randn(400_000, 4).numpy()\ny = x.sum(1, keepdims=True) ** 2",
    ),
}
"""Adapters whose example is a training of its own: the package that it needs, and what comes before it."""


def adapter(block: Block) -> str | None:
    """Return the adapter that a program shows, if any."""
    return next((name for name in SCRIPTS if f"from {name} import" in block.text), None)


def script(block: Block, shown: str) -> str:
    """Return the example of an adapter as a script whose training outlasts the page."""
    return f"{_TRAINER}{SCRIPTS[shown][1]}\n{block.text}"


def adapted(block: Block, here: Mapping[str, str]) -> str:
    """Return the program, with addresses of this machine."""
    text = block.text
    for there, local in here.items():
        text = text.replace(there, local)
    return text


def sql(block: Block) -> None:
    """Run each statement against the file of a run."""
    with contextlib.closing(sqlite3.connect("digits.looptap")) as file:
        for statement in filter(str.strip, block.text.split(";")):
            assert file.execute(statement).fetchall(), f"{block.place}: nothing is found"


def rules(block: Block) -> None:
    """Read the rules of a guard."""
    from looptap.cli.commands.watching.guard import rules_of

    Path("rules.yaml").write_text(block.text)
    assert rules_of("rules.yaml")[1]
