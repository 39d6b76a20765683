"""The methods by name."""

from __future__ import annotations

from looptap.training.selection.methods.autoassist import AutoAssist
from looptap.training.selection.methods.method import Method
from looptap.training.selection.methods.norm import InfoBatch, Loss, Norm

METHODS: dict[str, type[Method]] = {one.name: one for one in (Norm, InfoBatch, Loss, AutoAssist, Method)}
"""All methods; the first is the default."""
