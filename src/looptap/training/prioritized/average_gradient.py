"""`AverageGradient`: gbar, the running average of the gradients of past steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from looptap.training.saved_state import require_state


class AverageGradient:
    """The exponential average of mean gradients, one tensor for each parameter.

    ``gbar = decay * gbar + (1 - decay) * gradient``. Gradients of 16 bits are averaged in 32. The tensors stay the same
    objects, so a direction that was given once follows them.

    >>> import torch
    >>> average = AverageGradient([torch.zeros(2)], decay=0.5)
    >>> for gradient in ([4.0, 0.0], [0.0, 4.0]):
    ...     average.update([torch.tensor(gradient)])
    >>> average.tensors, average.updates
    ([tensor([1., 2.])], 2)
    """

    def __init__(self, parameters: Iterable[Any], decay: float) -> None:
        import torch

        self.decay = decay
        """The share of the average that an update keeps, from 0 to 1; may be set between two updates."""
        self.tensors = [
            torch.zeros_like(one, dtype=torch.promote_types(one.dtype, torch.float32), requires_grad=False)
            for one in parameters
        ]
        """gbar, in the order of the parameters; zeros at first."""
        self.updates = 0
        """The updates so far."""

    def update(self, gradients: Sequence[Any]) -> None:
        """Add the mean gradient of a step, one tensor for each parameter.

        None counts as zero. Does not wait for a device. Raises ValueError for another number of tensors.
        """
        import torch

        if len(gradients) != len(self.tensors):
            raise ValueError(f"{len(gradients)} gradients for {len(self.tensors)} parameters.")
        with torch.no_grad():
            pairs = list(zip(self.tensors, gradients, strict=True))
            if dense := [(mine, new) for mine, new in pairs if new is not None and not new.is_sparse]:
                new = [one.detach().to(mine.dtype) for mine, one in dense]
                torch._foreach_lerp_([mine for mine, _ in dense], new, 1 - self.decay)  # in one pass over them
            for mine, other in pairs:
                if other is None or other.is_sparse:
                    mine.mul_(self.decay)
                if other is not None and other.is_sparse:
                    mine.add_(other.detach().to(mine.dtype), alpha=1 - self.decay)
        self.updates += 1

    def state_dict(self) -> dict[str, Any]:
        """Return the average as copies of its tensors and plain data."""
        return {"tensors": [one.clone() for one in self.tensors], "updates": self.updates, "decay": self.decay}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned.

        Raises ValueError for the average of another model; nothing has changed then.
        """
        require_state(state, dict.fromkeys(("tensors", "updates", "decay")), "an AverageGradient")
        shapes = [[tuple(one.shape) for one in tensors] for tensors in (state["tensors"], self.tensors)]
        if shapes[0] != shapes[1]:
            raise ValueError("The average gradient of the state is that of a model with other parameters.")
        for mine, kept in zip(self.tensors, state["tensors"], strict=True):
            mine.copy_(kept)
        self.updates, self.decay = state["updates"], state["decay"]
