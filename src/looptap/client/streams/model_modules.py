"""The modules of a job's models, as its client sees them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from looptap.protocol.replies import ModuleInfo, ModuleReport


class ModelModules(Mapping[str, ModuleInfo]):
    """Modules by name, in the order of the model; its text is a table.

    ``models`` are the observables that hold them, ``left_out`` counts the modules beyond the bound of 5,000.
    """

    def __init__(self, modules: Mapping[str, ModuleInfo], models: tuple[str, ...] = (), left_out: int = 0) -> None:
        self._modules, self.models, self.left_out = dict(modules), models, left_out

    @classmethod
    def of(cls, report: ModuleReport) -> ModelModules:
        """Return the modules of a report."""
        return cls({one.name: one for one in report.modules}, report.models, report.left_out)

    def __getitem__(self, name: str) -> ModuleInfo:
        return self._modules[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)

    def __repr__(self) -> str:
        width = max(map(len, self), default=0)
        lines = [f"{name:{width}}  {module_line(one)}" for name, one in self.items()]
        if self.left_out:
            lines.append(f"and {self.left_out:,} more modules")
        none = "<no modules: the job exposes no model, and none was passed to an event>"
        return "\n".join(lines) or ("<no modules of this name>" if self.models else none)


def module_line(module: ModuleInfo) -> str:
    """Return class, parameters, shapes and problem of a module as a line."""
    frozen = module.parameters - module.trained
    facts = [
        f"{module.parameters:,} parameters" if module.parameters else "",
        f"{frozen:,} of them frozen" if frozen else "",
        " ".join(f"{name} {'×'.join(map(str, shape)) or 'scalar'}" for name, shape in module.shapes.items()),
        f"cannot be watched: {module.problem}" if module.problem else "",
    ]
    return ", ".join([module.kind, *filter(None, facts)])
