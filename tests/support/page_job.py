"""The training job that the pages of docs/ speak of: `digits-cnn`.

python page_job.py [--epochs N]: trains, and ends when it is asked to. `Job` does so on a thread. Under a launcher's
environment it is one rank of several, over gloo.
"""

from __future__ import annotations

import argparse
import os
import threading
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import looptap
from looptap.training.progress import Patience, Progress

NAME = "digits-cnn"
BATCHES = 20
"""Of an epoch."""
PAUSE_SECONDS = 0.006
NAN_EVERY = 60
"""At every 60th step the event carries a loss that is NaN: a question for a flight recorder."""


class Digits(nn.Sequential):
    """Two convolutions and a linear layer, 8 x 8 pixels to 10 classes."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 8, 3, padding=1), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.1),
        )  # fmt: skip
        self.fc = nn.Linear(32, 10)


class Echo:
    """Stands for an echoed loader: a control that is declared on an attribute."""

    factor = looptap.Control(int, default=2, minimum=1, maximum=16, doc="how often a batch is used", at="batch")


class Job:
    """The parts of the job, and a thread that trains until it is closed or stopped."""

    def __init__(self, name: str = NAME, *, scheduled: bool = False, **how: Any) -> None:
        torch.manual_seed(0)
        self.over = threading.Event()
        self.model = Digits()
        images, labels = torch.rand(32 * BATCHES, 1, 8, 8), torch.randint(0, 10, (32 * BATCHES,))
        self.dataset = TensorDataset(images, labels)
        self.loader = DataLoader(self.dataset, batch_size=32)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1000) if scheduled else None
        self.clip = [1.0]
        settings = {"optimizer": {"lr": 0.1}, "lr": 0.005, "model": {"width": 4}}
        self.agent = looptap.Agent(name, may_pause=300.0, budget=float("inf"), config=settings, **how)
        self.agent.expose(model=self.model, optimizer=self.optimizer, echo=Echo())
        if self.scheduler is not None:
            self.agent.expose(scheduler=self.scheduler)
        self.agent.expose(dataset=self.dataset)
        self.agent.stream("loss", "step, loss", on="batch", keep=True)
        self.agent.stream("lr", "optimizer.param_groups[0]['lr']", on="batch")
        self.agent.control("clip", lambda: self.clip[0], lambda value: self.clip.insert(0, value), minimum=0)
        self.agent.checkpoint(lambda: "now.pt")
        self.agent.trigger("evaluate", lambda: 0.93)
        self.thread = threading.Thread(target=self.train, daemon=True)

    def train(self, epochs: int | None = None) -> None:
        """Train until the job is stopped, or for ``epochs``."""
        progress = Progress(self.loader, epochs=100_000, validation=1, rule=Patience(100_000), metric="accuracy")
        self.agent.expose(progress=progress)
        step = epoch = 0
        while (epochs is None or epoch < epochs) and not self.agent.stop_requested:
            for x, target in progress.train(self.loader):
                if self.over.wait(PAUSE_SECONDS):
                    return
                self.step(step, x, target)
                step += 1
            if torch.distributed.is_initialized():
                torch.distributed.barrier()
            progress.validated(1 - 0.5 / (epoch + 1))
            if self.scheduler is not None:
                self.scheduler.step()
            error = 1 / (epoch + 1)
            self.agent.emit(
                "epoch", epoch=epoch, step=step, error=error, val_loss=2 * error, acc=1 - error / 100, loss=error
            )
            epoch += 1

    def step(self, step: int, x: torch.Tensor, target: torch.Tensor) -> None:
        """Make a step and raise its events."""
        h = x
        for layer in list(self.model)[:7]:
            h = layer(h)
        output = self.model.fc(self.model[7](h))
        losses = cross_entropy(output, target, reduction="none")
        loss = losses.mean()
        self.agent.emit("forward", step=step, loss=loss, h=h)
        self.optimizer.zero_grad()
        loss.backward()
        if torch.distributed.is_initialized():
            for parameter in self.model.parameters():
                torch.distributed.all_reduce(parameter.grad)
        self.optimizer.step()
        seen = loss.detach() if step % NAN_EVERY else torch.tensor(float("nan"))
        wrong = (output.argmax(1) != target).float()
        self.agent.emit(
            "batch", step=step, loss=seen, losses=losses, x=x, y=target, image=x, target=target, output=output, h=h,
            error=wrong.mean(), odd=step % 2,
        )  # fmt: skip
        self.agent.log(reward=float(step % 7))

    def close(self) -> None:
        """End the training and the run."""
        self.over.set()
        if self.thread.ident is not None:
            self.thread.join(300)
        self.agent.close()


def main() -> None:
    """Train, as one rank of several where a launcher says so."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--epochs", type=int)
    arguments.add_argument("--seed", type=int)
    options = arguments.parse_args()
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        torch.distributed.init_process_group("gloo")
    job = Job()
    job.train(options.epochs)
    job.close()


if __name__ == "__main__":
    main()
