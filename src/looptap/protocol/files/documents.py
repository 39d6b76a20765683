"""Load YAML that people write, without running code, and locate its values.

``on`` and ``no`` are text here, and 1e-3 is a number, as people expect. JSON is YAML too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

import yaml

from looptap.protocol.files.regular_files import read_regular
from looptap.streams.errors import LooptapError

LINE_CHARACTERS = 1_000_000
"""Maximum length of a line, so that each entry fits on one."""
MAX_BYTES = 16_777_216
"""Maximum size of a file."""
MAX_NODES = 2_000_000
"""Maximum number of values in a file; an aliased value counts at each use."""
MAX_DIGITS = 4_300
"""Maximum length of a number: Python's default limit for integers from text."""


class Document:
    """The content of a file, as ``value``; `where` returns the line of a part.

    Raises ``error``, made of a sentence that names the file and the line, for what cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str], error: Callable[[str], LooptapError]) -> None:
        self.path = os.fspath(path)
        try:
            loader = _Loader(read_regular(path, MAX_BYTES).decode("utf-8"))
            try:
                self._node = loader.get_single_node()
                _check_size(self._node)
                self.value: Any = None if self._node is None else loader.construct_document(self._node)
            finally:
                loader.dispose()
        except yaml.MarkedYAMLError as wrong:
            mark = wrong.problem_mark or wrong.context_mark
            place = "" if mark is None else f", line {mark.line + 1}"
            problem = f"this is not valid YAML: {wrong.problem or wrong.context}.{_hint(wrong)}"
            raise error(f"{self.path}{place}: {problem}") from None
        except (OSError, ValueError, RecursionError, yaml.YAMLError) as wrong:
            why = getattr(wrong, "strerror", None) or str(wrong)
            raise error(f"{self.path} cannot be read: {' '.join(why.split())}.") from None

    def where(self, *keys: str | int) -> str:
        """Return the file and the line of the value at the path ``keys``."""
        node = self._node
        for key in keys:
            if isinstance(node, yaml.SequenceNode) and isinstance(key, int):
                node = node.value[key]
            elif isinstance(node, yaml.MappingNode):
                node = next((value for name, value in node.value if name.value == key), node)
        return self.path if node is None else f"{self.path}, line {node.start_mark.line + 1}"


def entries(records: list[dict[str, Any]]) -> str:
    """Return a list as YAML, an entry on each line.

    >>> print(entries([{"event": "batch", "value": 1e-05, "name": "on"}]), end="")
    - {event: batch, value: 1.0e-05, name: 'on'}
    """
    if not records:
        return ""
    return yaml.dump(
        records, Dumper=_Dumper, default_flow_style=None, sort_keys=False, width=LINE_CHARACTERS, allow_unicode=True
    )


def _check_size(top: Any) -> None:
    """Raise ValueError for a document that aliases make huge or endless."""
    sizes: dict[int, int] = {}

    def size(node: Any) -> int:
        if id(node) not in sizes:
            sizes[id(node)] = MAX_NODES + 1  # a node that contains itself exceeds any bound
            sizes[id(node)] = min(1 + sum(map(size, _parts(node))), MAX_NODES + 1)
        return sizes[id(node)]

    if size(top) > MAX_NODES:
        raise ValueError(f"with its aliases written out it has more than {MAX_NODES:,} values")


def _parts(node: Any) -> list[Any]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return node.value if isinstance(node, yaml.SequenceNode) else []


def _hint(wrong: yaml.MarkedYAMLError) -> str:
    if "\\t" in str(wrong.problem):
        return " Indent with spaces."
    if "mapping values are not allowed" in str(wrong.problem):
        return " Quote a text that contains a colon."
    return ""


class _Loader(yaml.SafeLoader):
    """The safe loader: makes numbers, text, lists and dicts only."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        names: set[str] = set()
        for name, _ in node.value:
            if isinstance(name, yaml.ScalarNode):
                if name.value in names:
                    problem = f"{name.value!r:.200} appears twice"
                    raise yaml.constructor.ConstructorError(None, None, problem, name.start_mark)
                names.add(name.value)
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: Any) -> Any:
        if len(node.value) > MAX_DIGITS:
            problem = f"a number of more than {MAX_DIGITS:,} digits"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        return super().construct_yaml_int(node)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_OURS = ("bool", "float", "timestamp", "merge")
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if tag.rpartition(":")[2] not in _OURS]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_BOOL = re.compile(r"(?:[Tt]rue|[Ff]alse)$")
_FLOAT = re.compile(r"[-+]?(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][-+]?\d+)?$|[-+]?\.(?:inf|Inf)$|\.(?:nan|NaN)$")
for _kind in (_Loader, _Dumper):  # text that looks like a number needs quotes
    _kind.add_implicit_resolver("tag:yaml.org,2002:bool", _BOOL, list("tTfF"))
    _kind.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))
_Dumper.add_representer(
    str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, '"' if "\n" in text else None)
)
_Dumper.add_multi_representer(bool, lambda dumper, value: dumper.represent_bool(bool(value)))
_Dumper.add_multi_representer(int, lambda dumper, value: dumper.represent_int(int(value)))
_Dumper.add_multi_representer(float, lambda dumper, value: dumper.represent_float(float(value)))
_Dumper.add_multi_representer(object, lambda dumper, value: dumper.represent_str(f"{value!r:.200}"))
