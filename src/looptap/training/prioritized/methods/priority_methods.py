"""The methods of `Prioritized` by name."""

from __future__ import annotations

from looptap.training.prioritized.methods.proportional import ProportionalLoss
from looptap.training.prioritized.methods.published import Published, Repaired
from looptap.training.selection.methods.method import Method
from looptap.training.selection.methods.norm import Norm

PRIORITY_METHODS: dict[str, type[Method]] = {
    one.name: one for one in (Norm, ProportionalLoss, Published, Repaired, Method)
}
"""All methods; the first is the default."""
