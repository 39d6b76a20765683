"""A small CNN that learns handwritten digits; attach to it at any time.

    python -m looptap.examples.digits [--epochs 20] [--seed 0] [--budget 0.03]
    looptap watch digits-cnn "step, loss" --on batch
    looptap progress digits-cnn

The lines with `agent` and `progress` are the whole cost of the integration; LOOPTAP_DISABLED=1 takes the agent away.
"""

import argparse
import hashlib
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import looptap
from looptap.training.progress import Progress

GLYPHS = (
    "0e11131519110e",
    "040c040404040e",
    "0e11010204081f",
    "1f02040201110e",
    "02060a121f0202",
    "1f101e0101110e",
    "0608101e11110e",
    "1f010204080808",
    "0e11110e11110e",
    "0e11110f01020c",
)
"""The digits, a byte for each row of five pixels."""


def make_model() -> nn.Sequential:
    """Return two convolutions and a linear layer, 8 x 8 pixels to 10 classes."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(256, 10),
    )


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Return 1,797 digits, shape (n, 1, 8, 8) in 0..1, and their classes.

    They are those of scikit-learn, read from the file of `load_digits` (importing it would take seconds); where it is
    not installed, they are drawn.
    """
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        return drawn_digits()
    table = np.loadtxt(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    images, targets = torch.from_numpy(table[:, :-1]), torch.from_numpy(table[:, -1])
    return images.float().reshape(-1, 1, 8, 8) / 16, targets.long()


def drawn_digits(count: int = 1797) -> tuple[torch.Tensor, torch.Tensor]:
    """Return digits of a 5 x 7 font, shifted, faded and with noise."""
    random = torch.Generator().manual_seed(0)
    targets = torch.arange(count) % 10
    images = torch.zeros(count, 1, 8, 8)
    rows = torch.tensor([list(bytes.fromhex(glyph)) for glyph in GLYPHS])
    glyphs = (rows.unsqueeze(-1) >> torch.arange(4, -1, -1) & 1).float()
    shifts = torch.stack([torch.randint(most, (count,), generator=random) for most in (2, 4)], 1)
    for image, target, (down, right) in zip(images, targets, shifts.tolist(), strict=True):
        image[0, down : down + 7, right : right + 5] = glyphs[target]
    faded = images * (0.5 + 0.5 * torch.rand(count, 1, 8, 8, generator=random))
    return (faded + 0.1 * torch.rand(count, 1, 8, 8, generator=random)).clamp(0, 1), targets


def main() -> None:
    """Train, and print the test error of each epoch and a checksum of all losses."""
    arguments = argparse.ArgumentParser(description="Train a small CNN on scanned digits.")
    arguments.add_argument("--epochs", type=int, default=20)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--budget", type=float, default=0.03, help="share of the loop's time that queries may take")
    options = arguments.parse_args()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)  # more threads make a model this small several times slower
    images, targets = digits()
    train, test = torch.arange(0, 1500), torch.arange(1500, len(targets))
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    checksum = hashlib.sha256()

    agent = looptap.Agent("digits-cnn", budget=options.budget)
    progress = Progress(24, epochs=options.epochs, validation=len(test))
    agent.expose(model=model, optimizer=optimizer, progress=progress)
    step = 0
    for epoch in range(options.epochs):
        model.train()
        for batch in progress.train(train[torch.randperm(len(train))].split(64)):
            image, target = images[batch], targets[batch]
            image = image + 0.25 * torch.randn_like(image)  # else the task is too easy
            output = model(image)
            losses = cross_entropy(output, target, reduction="none")
            loss = losses.mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            checksum.update(loss.detach().numpy().tobytes())
            agent.emit("batch", step=step, loss=loss, losses=losses, image=image, target=target, output=output)
            step += 1
        model.eval()
        with torch.no_grad():
            error = (model(images[test]).argmax(1) != targets[test]).float().mean()
        progress.validated(error)
        agent.emit("epoch", epoch=epoch, error=error)
        print(f"epoch {epoch}: test error {error:.3f}", flush=True)
    agent.close()
    print(f"checksum of all losses: {checksum.hexdigest()[:16]}")


if __name__ == "__main__":
    main()
