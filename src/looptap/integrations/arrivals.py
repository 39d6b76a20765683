"""Calls a function as soon as a module has been imported, without importing it.

A search alone, such as ``importlib.util.find_spec("torch")``, imports nothing, and the hook keeps waiting.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def once_imported(name: str, call: Callable[[ModuleType], object]) -> None:
    """Call with a module now if it has been imported, else right after that.

    What ``call`` raises reaches the import.
    """
    module = sys.modules.get(name)
    if module is None:
        _arrivals.awaited[name] = call
        if _arrivals not in sys.meta_path:
            sys.meta_path.insert(0, _arrivals)
    elif not getattr(module.__spec__, "_initializing", False):
        call(module)


class Arrivals(MetaPathFinder):
    """An import hook that waits for modules by name, and is gone with the last."""

    def __init__(self) -> None:
        self.awaited: dict[str, Callable[[ModuleType], object]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return None, but for an awaited module its spec with a loader that calls."""
        if fullname not in self.awaited:
            return None
        for finder in [*sys.meta_path]:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if find is None else find(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _ThenCall(spec.loader, self._arrived)
                return spec
        return None

    def _arrived(self, module: ModuleType) -> None:
        call = self.awaited.pop(module.__name__, None)
        if not self.awaited and self in sys.meta_path:
            sys.meta_path.remove(self)
        if call is not None:
            call(module)


class _ThenCall(Loader):
    """A loader that calls a function once it has loaded its module."""

    def __init__(self, loader: Any, call: Callable[[ModuleType], object]) -> None:
        self._loader, self._call = loader, call

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)  # for those who only search

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__loader__ = module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._call(module)


_arrivals = Arrivals()
