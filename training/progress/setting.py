"""`Setting`: a control of a `Progress`, which takes effect at once."""

from __future__ import annotations

from typing import Any

from looptap.streams.control import Control


class Setting(Control):
    """A control that calls ``set_up`` of its object when it changes."""

    def __set__(self, instance: Any, value: Any) -> None:
        before = self.__get__(instance)
        super().__set__(instance, value)
        if self.__get__(instance) != before:
            instance.set_up()
