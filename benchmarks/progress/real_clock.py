"""Torch jobs on a real clock, with a competitor from halfway on."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from published_methods import PaperProgress
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
_RULE = Paper(9, 0.0082)
_METHODS = {
    "linear": partial(Progress, rule=None), "paper": partial(PaperProgress, rule=_RULE),
    "ours": partial(Progress, rule=_RULE),
}  # fmt: skip
_LAST = 100
_SEEDS = (3, 4, 5)
_BURN = "import os\nos.nice(5)\nwhile True: pass"


class Augmented(Dataset[tuple[Tensor, Tensor]]):
    """Pictures with noise and some work for the processor, as preprocessing is."""

    def __init__(self, images: Tensor, targets: Tensor) -> None:
        self.images, self.targets = images, targets

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = self.images[index]
        for _ in range(24):
            image = (image + 0.1 * torch.randn(image.shape)).clamp(-4, 4)
        return image, self.targets[index]


def jobs(short: bool = False) -> list[str]:
    """Return lines of the page."""
    names, seeds = list(_JOBS)[: 1 if short else 3], _SEEDS[: 1 if short else 3]
    columns = [*_METHODS, "ours, stop known"]
    found: dict[str, list[tuple[int, float, list[float]]]] = {name: [] for name in names}
    for seed, name in track([(seed, name) for seed in seeds for name in names], "real jobs"):
        found[name].append(_job(dict(_JOBS[name]), seed))
    lines = [
        "\n## Real jobs on a real clock\n",
        "A CNN is trained until early stopping, with data augmentation; from about halfway on, another process "
        f"competes for the processors. The jobs take turns, and each ran {len(seeds)} times, with different seeds: "
        "medians, with the range in parentheses.\n",
        f"| job | stops after | seconds | {' | '.join(columns)} |",
        f"| --- {'| ---: ' * (2 + len(columns))}|",
    ]
    for name, runs in found.items():
        stops, seconds = [float(stop) for stop, _, _ in runs], [taken for _, taken, _ in runs]
        errors = zip(*(errors for _, _, errors in runs), strict=True)
        cells = [_spread(stops, 0), _spread(seconds, 0), *(_spread(each, 2) for each in errors)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines.append(
        "\n*ours, stop known* is our estimate if it knew where the run stops. The rest of the error of *ours* comes "
        "from predicting the stop."
    )
    return lines


def _spread(values: Sequence[float], digits: int) -> str:
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def _job(workers: dict[str, object], seed: int) -> tuple[int, float, list[float]]:
    """Return where a run stops, in how many seconds, and the errors of all estimates."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    images, targets = pictures(1)
    fit = DataLoader(Augmented(images[:1600], targets[:1600]), 64, shuffle=True, **workers)  # type: ignore[arg-type]
    check = DataLoader(Augmented(images[1600:], targets[1600:]), 100, **workers)  # type: ignore[arg-type]
    model = cnn()
    steps = torch.optim.Adam(model.parameters(), 1e-3)
    all_of_them = [method(fit, epochs=_LAST, validation=check) for method in _METHODS.values()]
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
                    said = [progress.remaining.median for progress in all_of_them]
                    looks.append((now, said, _ahead(all_of_them[-1])))
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
    at = np.array([when for when, _, _ in looks])
    known = [said[-1] * (epoch + 1 - x) / max(last - x, 0.05) for _, said, (x, last) in looks]
    found = np.nan_to_num(np.column_stack([[said for _, said, _ in looks], known]), nan=0.0)
    wrong_by = np.abs(found - (total - at)[:, None]) * np.diff(at, prepend=0.0)[:, None]
    return epoch + 1, total, [float(area) for area in wrong_by.sum(0) / (total**2 / 2)]


def _ahead(progress: Progress) -> tuple[float, float]:
    """Return where a run is, and where it is expected to stop, in validations."""
    plan, found = progress.estimator.plan, progress.estimate()
    return plan.done + plan.since / plan.point, found.stop if found else float(_LAST)


def _through(all_of_them, how, loader):  # type: ignore[no-untyped-def]
    """Return the loader, counted by each of them."""
    for progress in all_of_them:
        loader = getattr(progress, how)(loader)
    return loader
