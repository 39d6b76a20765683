"""The helper `layer_norms` against the loop one would write by hand, `{n: p.grad.norm().item() ...}`.

A model of 100 linear layers with small weights (200 parameters), so that what is compared is the work around
the arithmetic, which both must do.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from harness import Row, in_units, interleave, main

from looptap.streams.helpers import HELPERS


def rows() -> Iterator[Row]:
    torch.set_num_threads(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(100)))
    model(torch.randn(8, 64)).sum().backward()
    layer_norms = HELPERS["layer_norms"]

    def by_hand() -> dict[str, float]:
        return {name: parameter.grad.norm().item() for name, parameter in model.named_parameters()}

    def timed(function, *arguments: object, calls: int = 20) -> float:
        start = time.perf_counter()
        for _ in range(calls):
            function(*arguments)
        return (time.perf_counter() - start) / calls

    seen = interleave(
        {"by hand": lambda: timed(by_hand), "helper": lambda: timed(layer_norms, model, "grad")}, rounds=40
    )
    yield Row(
        "norms of the gradients of 100 layers (baseline: .norm().item() each)",
        in_units(seen.median("by hand")),
        in_units(seen.median("helper")),
        str(seen.ratio("helper", "by hand")),
        figures=dict(seen.seconds),
    )


if __name__ == "__main__":
    main(rows, __doc__)
