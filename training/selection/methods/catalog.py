"""The methods by name."""

from __future__ import annotations

from typing import Any

from looptap.streams.control import Control
from looptap.training.selection.methods.autoassist import AutoAssist
from looptap.training.selection.methods.method import Method
from looptap.training.selection.methods.norm import InfoBatch, Loss, Norm
from looptap.training.selection.methods.rho import Rho
from looptap.training.selection.methods.screener import Screener
from looptap.training.selection.methods.selective_backprop import SelectiveBackprop
from looptap.training.selection.methods.self_paced import SelfPaced

METHODS: dict[str, type[Method]] = {
    one.name: one for one in (Norm, InfoBatch, Loss, AutoAssist, SelfPaced, Screener, SelectiveBackprop, Rho, Method)
}
"""All methods; the first is the default."""


class MethodControl(Control):
    """A method by its name; one that lacks something is refused."""

    def __set__(self, instance: Any, value: Any) -> None:
        method = instance.catalog[self.checked(value, self.name)]
        method.require(instance)
        instance.take_over(method)  # may fail, and then nothing has changed
        super().__set__(instance, value)
