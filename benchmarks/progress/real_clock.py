"""Three torch jobs on a real clock, with a competitor for the processor from halfway on: the estimates side by side."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import numpy as np
import torch
from record import cnn, pictures
from rich.progress import track
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

from looptap.training.progress import Paper, Progress

_JOBS = {
    "no workers": {"num_workers": 0},
    "two workers": {"num_workers": 2},
    "two persistent workers": {"num_workers": 2, "persistent_workers": True},
}
_METHODS = {
    "linear": {"forecast": "none"}, "paper": {"forecast": "former", "speed": "paper"}, "ours": {},
}  # fmt: skip
_RULE = Paper(9, 0.0082)
_LAST = 100
_BURN = "import os\nos.nice(5)\nwhile True: pass"


class Augmented(Dataset[tuple[Tensor, Tensor]]):
    """Pictures with noise and some work for the processor, as preprocessing is."""

    def __init__(self, images: Tensor, targets: Tensor) -> None:
        self.images, self.targets = images, targets

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = self.images[index]
        for _ in range(12):
            image = (image + 0.1 * torch.randn(image.shape)).clamp(-4, 4)
        return image, self.targets[index]


def jobs(short: bool = False) -> list[str]:
    """Lines of the page."""
    lines = ["\n## Real jobs on a real clock\n"]
    lines.append(
        "A CNN trained to early stopping, its data augmented while it runs; from about halfway on another process "
        "competes for the processors.\n"
    )
    lines += [f"| job | stops after | seconds | {' | '.join(_METHODS)} |", "| --- | ---: | ---: | ---: | ---: | ---: |"]
    for name, workers in track(list(_JOBS.items())[: 1 if short else 3], "real jobs"):
        stop, seconds, errors = _job(dict(workers))
        lines.append(f"| {name} | {stop} | {seconds:.0f} | {' | '.join(f'{e:.2f}' for e in errors)} |")
    lines.append("\nEach row is one run, so that a lucky forecast of where it stops weighs as much as a method.")
    return lines


def _job(workers: dict[str, object]) -> tuple[int, float, list[float]]:
    torch.manual_seed(3)
    torch.set_num_threads(1)
    images, targets = pictures(1)
    fit = DataLoader(Augmented(images[:1600], targets[:1600]), 64, shuffle=True, **workers)  # type: ignore[arg-type]
    check = DataLoader(Augmented(images[1600:], targets[1600:]), 100, **workers)  # type: ignore[arg-type]
    model = cnn()
    steps = torch.optim.Adam(model.parameters(), 1e-3)
    all_of_them = [
        Progress(fit, epochs=_LAST, validation=check, rule=_RULE, **arguments)  # type: ignore[arg-type]
        for arguments in _METHODS.values()
    ]
    begun, looks, competitor, stop = time.monotonic(), [], None, False
    try:
        for epoch in range(_LAST):
            if epoch == 8:
                competitor = subprocess.Popen([sys.executable, "-c", _BURN], env={"PATH": os.environ.get("PATH", "")})
            model.train()
            for image, target in _through(all_of_them, "train", fit):
                steps.zero_grad()
                cross_entropy(model(image), target).backward()
                steps.step()
                now = time.monotonic() - begun
                if not looks or now - looks[-1][0] > 0.5:
                    looks.append((now, [progress.remaining.median for progress in all_of_them]))
            model.eval()
            with torch.no_grad():
                wrong = sum(int((model(a).argmax(1) != b).sum()) for a, b in _through(all_of_them, "validate", check))
            stop = [progress.validated(wrong / 800) for progress in all_of_them][-1]
            if stop:
                break
    finally:
        if competitor is not None:
            competitor.kill()
            competitor.wait()
    total = time.monotonic() - begun
    at = np.array([when for when, _ in looks])
    found = np.nan_to_num(np.array([said for _, said in looks]), nan=0.0)
    wrong_by = np.abs(found - (total - at)[:, None]) * np.diff(at, prepend=0.0)[:, None]
    return epoch + 1, total, [float(area) for area in wrong_by.sum(0) / (total**2 / 2)]


def _through(all_of_them, how, loader):  # type: ignore[no-untyped-def]
    """The loader, counted by each of them."""
    for progress in all_of_them:
        loader = getattr(progress, how)(loader)
    return loader
