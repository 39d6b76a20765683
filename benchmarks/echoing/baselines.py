"""What else helps a slow reader? `make bench-echo PART=latency`, or another.

Each part takes less than three minutes on two idle cores, puts its figures into docs/echoing-baselines.json, and writes
the last section of docs/echoing-benchmarks.md and its pictures again from the figures of all parts.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import automatic
import baselines_page
import digit_files
import time_to_target
import torch
from data_sets import Cached, Listed
from echoed_training import DIGITS, digits_echo
from file_server import serving
from PIL import Image
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import Dataset

DOCS = Path(__file__).resolve().parents[2] / "docs"
PARTS = ("latency", "processor", "auto")
RATE = 0.05
"""The learning rate of docs/echoing-benchmarks.md."""
WORKERS = (1, 2, 4, 8, 16)
PHOTOGRAPH_SIDE = 384
"""Pixels of a side of the files that take a processor to decode."""


class Way(NamedTuple):
    """One way to feed the loop."""

    name: str
    workers: int
    factor: float | str = 1.0
    cache_share: float = 0.0


def ways(tuned: int) -> list[Way]:
    """Return the rows of a table; ``tuned`` workers made most steps."""
    return [
        *(Way(f"{count} worker{'s' * (count > 1)}", count) for count in WORKERS),
        Way("`auto`, 2 workers", 2, "auto"),
        Way(f"`auto`, {tuned} worker{'s' * (tuned > 1)} (tuned)", tuned, "auto"),
        Way("2 workers, decoded data cached", 2, cache_share=1.0),
        Way("2 workers, a quarter of it cached", 2, cache_share=0.25),
        Way("`auto`, 2 workers, a quarter cached", 2, "auto", 0.25),
    ]


def train(data: Dataset[Any], way: Way, seed: int, seconds: float) -> dict[str, Any]:
    """Train for so long, from the first batch on; judge the weights afterwards."""
    if way.cache_share:
        data = Cached(data, digit_files.SIDE, way.cache_share)
    loader = digits_echo(data, seed, way.factor, workers=way.workers)
    torch.manual_seed(seed)
    model = DIGITS.make()
    optimizer = DIGITS.optimizer(model.parameters(), RATE)
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.95))
    marks: list[tuple[float, list[torch.Tensor]]] = []
    steps, begun, due = 0, 0.0, 0.0
    for batch in loader:
        now = time.perf_counter()
        begun = begun or now
        optimizer.zero_grad()
        DIGITS.loss(model, batch).backward()
        optimizer.step()
        averaged.update_parameters(model)
        steps += 1
        passed = time.perf_counter() - begun
        if passed >= min(due, seconds):  # ten times in a run, and at its end
            marks.append((passed, [value.clone() for value in averaged.state_dict().values()]))
            due += seconds / 10
        if passed >= seconds:
            break
    return {"scores": list(_judged(averaged, marks)), "steps": steps, "fresh": loader.fresh, "factor": loader.factor}


def _judged(averaged: AveragedModel, marks: list[tuple[float, list[torch.Tensor]]]) -> Iterator[tuple[float, float]]:
    for at, weights in marks:
        with torch.no_grad():
            for value, kept in zip(averaged.state_dict().values(), weights, strict=True):
                value.copy_(kept)
        yield round(at, 3), round(DIGITS.score(averaged), 4)


def table(data: Callable[[], Dataset[Any]], seconds: float, seeds: int) -> dict[str, Any]:
    """Run every way in turn, seed by seed; the first seed tunes the workers."""
    found: dict[str, list[dict[str, Any]]] = {}
    tuned = WORKERS[0]
    for seed in range(seeds):
        for at in range(len(ways(tuned))):
            if not seed and at == len(WORKERS):
                tuned = max(WORKERS, key=lambda count: found[ways(1)[WORKERS.index(count)].name][0]["steps"])
            way = ways(tuned)[at]
            run = train(data(), way, seed, seconds)
            found.setdefault(way.name, []).append(run)
            print(f"seed {seed}, {way.name}: {run['scores'][-1][1]:.1%} after {seconds:g} s, {run['steps']} steps, "
                  f"{run['fresh']} fresh, e = {run['factor']:g}", flush=True)  # fmt: skip
    return {"seconds": seconds, "tuned": tuned, "rows": found, "load": os.getloadavg()[0]}


def latency(seconds: float, seeds: int) -> dict[str, Any]:
    """Measure a reader that waits: files from a slow server."""
    with serving(digit_files.files()[0]) as server:
        up, down = time_to_target.calibrate(server, RATE)
        found = table(lambda: time_to_target.files(server.port), seconds, seeds)
        return found | {"up": up, "down": down, "wait": server.latency}


def processor(seconds: float, seeds: int) -> dict[str, Any]:
    """Measure a reader that computes: large photographs of the digits, in memory."""
    files, targets = photographs(), digit_files.files()[1][: digit_files.TRAIN].tolist()
    begun = time.process_time()
    for file in files[:64]:
        shrunk(file)
    up = time.process_time() - begun
    return table(lambda: Listed(files, targets, decode=shrunk), seconds, seeds) | {"up": up}


def photographs() -> list[bytes]:
    """Return each training digit as a large JPEG file."""
    made = []
    for picture in digit_files.pictures()[0][: digit_files.TRAIN]:
        image = Image.fromarray((picture[0] * 255).byte().numpy())
        with io.BytesIO() as file:
            image.resize((PHOTOGRAPH_SIDE, PHOTOGRAPH_SIDE), Image.Resampling.NEAREST).save(file, "JPEG", quality=95)
            made.append(file.getvalue())
    return made


def shrunk(file: bytes) -> torch.Tensor:
    """Return the picture in a photograph, in the size that the model takes."""
    with Image.open(io.BytesIO(file)) as picture:
        small = picture.resize((digit_files.SIDE, digit_files.SIDE), Image.Resampling.BOX)
        pixels = bytearray(small.tobytes())
    return torch.frombuffer(pixels, dtype=torch.uint8).view(1, digit_files.SIDE, digit_files.SIDE).float() / 255


def main() -> None:
    """Measure the parts that were named, or all, and write their section."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--part", choices=PARTS, action="append")
    arguments.add_argument("--seconds", type=float, default=6.0)
    arguments.add_argument("--seeds", type=int, default=2)
    arguments.add_argument("--into", type=Path, default=DOCS)
    options = arguments.parse_args()
    torch.set_num_threads(1)
    path = options.into / "echoing-baselines.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    for part in options.part or PARTS:
        begun = time.monotonic()
        if part == "auto":
            found[part] = automatic.measured(options.seconds)
        else:
            found[part] = (latency if part == "latency" else processor)(options.seconds, options.seeds)
        found[part]["took"] = round(time.monotonic() - begun)
        path.write_text(json.dumps(found) + "\n")
    baselines_page.write(options.into, found)


if __name__ == "__main__":
    main()
