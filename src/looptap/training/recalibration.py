"""`recalibrate`: estimates the statistics of BatchNorm layers again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from looptap.streams.preserving.random_state import RandomState


def recalibrate(model: Any, batches: Iterable[Any]) -> int:
    """Estimate the statistics of BatchNorm layers on uniformly drawn batches.

    While instances are selected, running means and variances are those of the selected ones. Call this at the end of
    the training, before the model is evaluated or saved: ``recalibrate(model, (x for x, _ in loader))``, with at least
    ten batches of a loader that does not select. If a batch is a tuple, its first element is the input, as in
    ``torch.optim.swa_utils.update_bn``; unlike there, all other layers are in evaluation mode.

    Layers that are frozen (in evaluation mode in a model that trains) keep their statistics. Modes, random numbers and
    gradients do not change, nor do the statistics if a batch raises. Return the number of layers.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.BatchNorm1d(1))
    >>> recalibrate(model, [torch.tensor([[1.0], [3.0]])]), model[0].running_mean
    (1, tensor([2.]))
    """
    import torch
    from torch import nn

    kinds = nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm
    norms = [
        one
        for one in model.modules()
        if isinstance(one, kinds) and one.track_running_stats and (one.training or not model.training)
    ]
    if not norms:
        return 0
    modes = [(one, one.training) for one in model.modules()]
    momenta = [one.momentum for one in norms]
    kept = [{name: values.clone() for name, values in one.named_buffers()} for one in norms]
    numbers, finished = RandomState(), False
    try:
        model.eval()
        for one in norms:
            one.train()
            one.reset_running_stats()
            one.momentum = None  # the mean over all batches
        with torch.no_grad():
            for batch in batches:
                finished = True
                model((batch[0] if isinstance(batch, tuple | list) else batch).to(norms[0].running_mean.device))
    except BaseException:
        finished = False
        raise
    finally:
        for one, momentum, buffers in zip(norms, momenta, kept, strict=True):
            one.momentum = momentum
            if not finished:
                for name, values in buffers.items():
                    getattr(one, name).copy_(values)
        for module, training in modes:
            module.training = training
        numbers.put_back()
    return len(norms)
