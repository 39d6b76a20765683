"""Handwritten digits as PNG files, their distortions, and a small CNN."""

from __future__ import annotations

import io
from functools import cache

import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import affine_grid, grid_sample

from looptap.examples.digits import digits

SIDE = 24
"""Pixels of a side, in files and as input of the model."""
TRAIN = 1500
"""The number of training digits; the other 297 are the test."""


@cache
def files() -> tuple[tuple[bytes, ...], Tensor]:
    """Return a PNG file of each digit, as bytes, and the classes, shape (1797,)."""
    images, targets = digits()
    made = []
    for image in images:
        picture = Image.fromarray((image[0] * 255).byte().numpy()).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
        with io.BytesIO() as file:
            picture.save(file, "PNG")
            made.append(file.getvalue())
    return tuple(made), targets


def decoded(file: bytes) -> Tensor:
    """Return the picture in a PNG file, 0..1, shape (1, 24, 24)."""
    with Image.open(io.BytesIO(file)) as picture:
        pixels = bytearray(picture.tobytes())
    return torch.frombuffer(pixels, dtype=torch.uint8).view(1, SIDE, SIDE).float() / 255


@cache
def pictures() -> tuple[Tensor, Tensor]:
    """Return all decoded digits, shape (1797, 1, 24, 24), and their classes."""
    made, targets = files()
    return torch.stack([decoded(file) for file in made]), targets


def distort(images: Tensor) -> Tensor:
    """Distort images at random: turn, scale, shear, shift, noise, a hole."""
    many = len(images)

    def between(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(many)

    turn, scale, shear = between(-0.6, 0.6), between(0.8, 1.5), between(-0.3, 0.3)
    cos, sin = torch.cos(turn) * scale, torch.sin(turn) * scale
    rows = [cos, shear - sin, between(-0.2, 0.2), sin, cos, between(-0.2, 0.2)]
    grid = affine_grid(torch.stack(rows, 1).view(-1, 2, 3), list(images.shape), align_corners=False)
    found = grid_sample(images, grid, align_corners=False)
    places = torch.arange(SIDE)
    across, down = torch.randint(SIDE - 7, (2, many, 1))
    hole = (places >= across) & (places < across + 6), (places >= down) & (places < down + 6)
    found = found.masked_fill((hole[0][:, None, None, :] & hole[1][:, None, :, None]), 0.0)
    return found + 0.15 * torch.randn(found.shape)


def distorted(batch: list[Tensor]) -> list[Tensor]:
    """Return a batch with its images distorted: the augmentation of the benchmark."""
    return [distort(batch[0]), batch[1]]


@cache
def unseen() -> tuple[Tensor, Tensor]:
    """Return the test digits, each distorted twice, always the same way."""
    images, targets = pictures()
    generator = torch.get_rng_state()
    torch.manual_seed(0)
    found = distort(images[TRAIN:].repeat(2, 1, 1, 1))
    torch.set_rng_state(generator)
    return found, targets[TRAIN:].repeat(2)


def cnn() -> nn.Module:
    """Return a small CNN, 24 x 24 pixels to 10 classes; a step takes some ten ms."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 9, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def accuracy(model: nn.Module) -> float:
    """Return the share of the distorted test digits that are classified correctly."""
    images, targets = unseen()
    model.eval()
    with torch.no_grad():
        right = (model(images).argmax(1) == targets).float().mean().item()
    model.train()
    return right
