"""Probe a model: run a forward pass on a copy, without effects on the loop.

Evaluation mode, no gradients, no hooks, no compilation, no collective; random numbers, buffers and attributes of its
own.
"""

from __future__ import annotations

import sys
from typing import Any

from looptap.streams.errors import QueryError
from looptap.streams.harmless.checked_evaluation import evaluating
from looptap.streams.proving.copies import on_copy
from looptap.streams.proving.plain_reads import proven


def probe(model: Any, /, *inputs: Any, gradient: bool = False, train: bool = False, **named: Any) -> Any:
    """Return the model's output for the inputs, without effects on model or loop.

    A copy of the model runs in evaluation mode, without gradients and hooks: it shares the parameters and has buffers,
    plain attributes and random numbers of its own. Inside `torch.compile` or `DistributedDataParallel`, the wrapped
    module is copied: nothing is compiled, no rank waits. What its `forward` would change outside of the copy is
    refused before it happens.

    Args:
        model: A module.
        inputs: The inputs of its forward pass, on its device.
        gradient: True gives the output a graph, over aliases of the parameters, and over an input that is a leaf and
            requires a gradient; the parameters' own ``.grad`` stays unchanged.
        train: True lets modules that are in training mode stay in it.
        named: Inputs by name.

    Raises QueryError for a model that cannot be probed, for inputs on another device, and for code that is not known
    to be harmless; otherwise whatever the model raises.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Dropout(0.5))
    >>> probe(model, torch.zeros(4, 2)).argmax(1).shape
    torch.Size([4])
    >>> model.training
    True
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(model, torch.nn.Module):
        raise QueryError(f"probe takes a torch.nn.Module, not {type(model).__name__}.")

    def ask() -> Any:
        return on_copy(model, inputs, named, gradient=gradient, train=train)

    return ask() if evaluating() else proven(ask, f"probe({type(model).__name__})")
