"""Files that people write, in YAML: read without running anything, and with the line at which each thing stands.

``on`` and ``no`` are words here, and 1e-3 a number, as people mean them. What is JSON is YAML too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from looptap.streams.errors import LooptapError

WIDE = 1_000_000
"""Characters of a line, so that an entry has one."""


class Document:
    """What a file holds, as ``value``; `where` tells at which line something stands.

    Raises ``error``, made of a sentence that names the file and the line, for what cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str], error: Callable[[str], LooptapError]) -> None:
        self.path = os.fspath(path)
        try:
            loader = _Loader(Path(path).read_text(encoding="utf-8"))
            try:
                self._node = loader.get_single_node()
                self.value: Any = None if self._node is None else loader.construct_document(self._node)
            finally:
                loader.dispose()
        except yaml.MarkedYAMLError as wrong:
            mark = wrong.problem_mark or wrong.context_mark
            place = "" if mark is None else f", line {mark.line + 1}"
            problem = f"this is no YAML: {wrong.problem or wrong.context}.{_hint(wrong)}"
            raise error(f"{self.path}{place}: {problem}") from None
        except (OSError, ValueError, RecursionError, yaml.YAMLError) as wrong:
            raise error(f"{self.path} cannot be read: {' '.join(str(wrong).split())}") from None

    def where(self, *keys: str | int) -> str:
        """The file, and the line of what ``keys`` lead to from the top."""
        node = self._node
        for key in keys:
            if isinstance(node, yaml.SequenceNode) and isinstance(key, int):
                node = node.value[key]
            elif isinstance(node, yaml.MappingNode):
                node = next((value for name, value in node.value if name.value == key), node)
        return self.path if node is None else f"{self.path}, line {node.start_mark.line + 1}"


def entries(records: list[dict[str, Any]]) -> str:
    """A list as YAML, a line for each entry.

    >>> print(entries([{"event": "batch", "value": 1e-05, "name": "on"}]), end="")
    - {event: batch, value: 1.0e-05, name: 'on'}
    """
    if not records:
        return ""
    return yaml.dump(
        records, Dumper=_Dumper, default_flow_style=None, sort_keys=False, width=WIDE, allow_unicode=True
    )


def _hint(wrong: yaml.MarkedYAMLError) -> str:
    if "\\t" in str(wrong.problem):
        return " Indent with spaces."
    if "mapping values are not allowed" in str(wrong.problem):
        return " Put a text that holds a colon into quotes."
    return ""


class _Loader(yaml.SafeLoader):
    """The safe loader, which makes numbers, texts, lists and dicts and nothing else."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        names = [name.value for name, _ in node.value if isinstance(name, yaml.ScalarNode)]
        twice = next((at for i, (at, _) in enumerate(node.value) if at.value in names[:i]), None)
        if twice is not None:
            raise yaml.constructor.ConstructorError(None, None, f"{twice.value!r} stands there twice", twice.start_mark)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


_OURS = ("bool", "float", "timestamp", "merge")
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if tag.rpartition(":")[2] not in _OURS]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_BOOL = re.compile(r"(?:[Tt]rue|[Ff]alse)$")
_FLOAT = re.compile(r"[-+]?(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][-+]?\d+)?$|[-+]?\.(?:inf|Inf)$|\.(?:nan|NaN)$")
for _kind in (_Loader, _Dumper):  # who writes a text that looks like a number puts it into quotes
    _kind.add_implicit_resolver("tag:yaml.org,2002:bool", _BOOL, list("tTfF"))
    _kind.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))
_Dumper.add_representer(
    str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, '"' if "\n" in text else None)
)
_Dumper.add_multi_representer(bool, lambda dumper, value: dumper.represent_bool(bool(value)))
_Dumper.add_multi_representer(int, lambda dumper, value: dumper.represent_int(int(value)))
_Dumper.add_multi_representer(float, lambda dumper, value: dumper.represent_float(float(value)))
_Dumper.add_multi_representer(object, lambda dumper, value: dumper.represent_str(f"{value!r:.200}"))
