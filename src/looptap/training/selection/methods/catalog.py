"""The methods by name."""

from __future__ import annotations

from typing import Any

from looptap.streams.control import Control
from looptap.training.selection.methods.autoassist import AutoAssist
from looptap.training.selection.methods.method import Method
from looptap.training.selection.methods.norm import InfoBatch, Norm

METHODS: dict[str, type[Method]] = {one.name: one for one in (Norm, InfoBatch, AutoAssist, Method)}
"""All methods; the first is the default."""


class MethodControl(Control):
    """A method by its name; one that lacks something is refused."""

    def __set__(self, instance: Any, value: Any) -> None:
        method = instance.catalog[self.checked(value, self.name)]
        method.require(instance)
        instance.take_over(method)  # may fail, and then nothing has changed
        super().__set__(instance, value)
