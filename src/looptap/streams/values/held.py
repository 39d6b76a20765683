"""What modules hold, read from their own dicts.

No code of a module's class runs. A class may list its parameters in a way of its own, as Keras does, or look other
names up elsewhere, as wrappers do (`torch.compile`, Lightning Fabric, PEFT): its modules hold what they hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def held_modules(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the model, named "", and each module below it, as ``named_modules()``."""
    seen: set[int] = set()
    waiting = [("", model)]
    while waiting:
        name, module = waiting.pop()
        if module is None or id(module) in seen:
            continue
        seen.add(id(module))
        yield name, module
        prefix = f"{name}." if name else ""
        waiting += [(prefix + child, below) for child, below in reversed([*_held(module, "_modules").items()])]


def held_parameters(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield each parameter once, by name, like ``named_parameters()``."""
    seen: set[int] = set()
    for name, module in held_modules(model):
        for key, parameter in [*_held(module, "_parameters").items()]:
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                yield f"{name}.{key}" if name else key, parameter


def _held(module: Any, which: str) -> dict[str, Any]:
    held = object.__getattribute__(module, "__dict__").get(which)
    return held if isinstance(held, dict) else dict(getattr(module, which))  # TorchScript keeps them in C++
