"""The helper `layer_norms`, compared with a loop written by hand.

The loop is `{n: p.grad.norm().item() ...}`; the models are 100 linear layers of 64 × 64, and three smaller ones. Their
gradients have ordinary sizes: the gradients of a deep stack would be denormal, and only their slow arithmetic would be
measured. On a CPU there is no wait to save; the floor is torch's own fused pass over the gradients, without finding or
naming them. On a GPU, if there is one, each `.item()` waits for the device.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from harness import Row, in_units, interleave, main

from looptap.streams.values.checks import HELPERS


def rows() -> Iterator[Row]:
    torch.set_num_threads(1)
    for device in ("cpu", "cuda")[: 1 + torch.cuda.is_available()]:
        yield from measured(device)


def measured(device: str) -> Iterator[Row]:
    for layers, width in ((100, 64), (10, 256), (4, 64), (1, 8)):
        model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers))).to(device)
        promised = 1.0 if layers < 100 else 0.5 if device == "cpu" else 0.1
        yield from compared(model, f"{device}: norms of the gradients of {layers} × {width} × {width}", promised)


def compared(model: torch.nn.Module, what: str, promised: float) -> Iterator[Row]:
    gradients = [torch.randn_like(parameter) for parameter in model.parameters()]
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        parameter.grad = gradient
    layer_norms = HELPERS["layer_norms"]

    def by_hand() -> dict[str, float]:
        return {name: parameter.grad.norm().item() for name, parameter in model.named_parameters()}

    def fused() -> list[float]:
        return torch.stack(torch._foreach_norm(gradients)).tolist()

    def timed(function, *arguments: object, calls: int = 20) -> float:
        start = time.perf_counter()
        for _ in range(calls):
            function(*arguments)
        return (time.perf_counter() - start) / calls

    assert layer_norms(model, "grad").keys() == by_hand().keys()
    blocks = {
        "by hand": lambda: timed(by_hand),
        "helper": lambda: timed(layer_norms, model, "grad"),
        "fused": lambda: timed(fused),
    }
    seen = interleave(blocks, rounds=40)
    ratio = seen.ratio("helper", "by hand")
    for name, by, promise in (("helper", "layer_norms", f"≤ {promised}"), ("fused", "torch's fused pass alone", "")):
        yield Row(
            f"{what}, {by} (baseline: .norm().item() each)",
            in_units(seen.median("by hand")),
            in_units(seen.median(name)),
            str(seen.ratio(name, "by hand")),
            promise,
            ratio.at_most(promised) if promise else None,
            figures={"seconds": seen.seconds[name]},
        )


if __name__ == "__main__":
    main(rows, __doc__)
