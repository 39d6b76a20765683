"""Serializes queries and commands: text as it is, Python functions by value.

A function is pickled with what it refers to, so that the job needs none of the client's modules; if its source
needs nothing around it, the text is sent too, for a job that runs another Python.
"""

from __future__ import annotations

import ast
import builtins
import copy
import functools
import inspect
import sys
import sysconfig
import textwrap
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from looptap.protocol.messages import Code
from looptap.streams.errors import QueryError
from looptap.streams.harmless.checked_code import SOURCE
from looptap.streams.values.modules.module_read import KINDS

_registering = threading.Lock()
MAX_FUNCTIONS_COUNT = 1000
"""Functions whose source travels with a query."""


def code_of(code: str | Callable[..., Any]) -> Code:
    """Return ``code`` as it is sent. Raises QueryError if it cannot be pickled.

    >>> code_of("step, loss")
    Code(text='step, loss', pickled=b'', python=(0, 0))
    """
    if isinstance(code, str):
        return Code(text=code)
    if not callable(code):
        raise QueryError(f"a query is text or a function, not {_article(code)} {type(code).__name__}: {code!r:.80}")
    text = portable_source(code) or ""
    if text and isinstance(code, types.FunctionType) and not KINDS.isdisjoint(_globals_of(code.__code__)):
        return Code(text=text)  # names of modules are read from the text
    return Code(text=text, pickled=_pickled(code), python=sys.version_info[:2])


def _article(value: object) -> str:
    return "an" if type(value).__name__[0].lower() in "aeiou" else "a"


def query_name(code: str | Callable[..., Any]) -> str:
    """Return the default name of a query's stream."""
    if isinstance(code, str):
        return " ".join(code.split())
    name = getattr(code, "__name__", type(code).__name__)
    return (portable_source(code) or name) if name == "<lambda>" else str(name)


# ---------------------------------------------------------------- by value


def _pickled(code: Callable[..., Any]) -> bytes:
    import cloudpickle

    function = _completed(code) if isinstance(code, types.FunctionType) and not _of_looptap(code) else code
    followed = {id(one): one for one in [function, *_functions_of(code)] if isinstance(one, types.FunctionType)}
    with _registering:
        modules = [module for module in _own_modules(code) if module.__name__ not in _carried(cloudpickle)]
        try:
            for module in modules:
                cloudpickle.register_pickle_by_value(module)
            for one in followed.values():
                if (lines := _lines_of(one)) is not None:
                    one.__dict__[SOURCE] = lines
            return bytes(cloudpickle.dumps(function))
        except Exception as error:
            name = getattr(code, "__name__", type(code).__name__)
            raise QueryError(
                f"the function {name} refers to something that cannot travel ({type(error).__name__}: {error}).",
                hint="Write the query as text, or give the function only numbers, text and functions from outside.",
            ) from None
        finally:
            for module in modules:
                cloudpickle.unregister_pickle_by_value(module)
            for one in followed.values():
                one.__dict__.pop(SOURCE, None)


def _of_looptap(function: types.FunctionType) -> bool:
    """Return True for a function that the job has, too; an older agent may lack it."""
    return (function.__module__ or "").partition(".")[0] == "looptap"


def _lines_of(function: types.FunctionType) -> tuple[str, int, str] | None:
    """Return the lines of a function, the number of the first, and the file."""
    code = function.__code__
    try:
        lines, first = inspect.getsourcelines(function)
    except (OSError, TypeError, IndexError, SyntaxError):
        return None
    return "".join(lines), max(first, 1), code.co_filename


def _functions_of(code: object) -> Iterator[types.FunctionType]:
    """Yield the functions of the user that travel with ``code``."""
    todo: list[object] = [code]
    seen: set[int] = set()
    while todo:
        item = todo.pop()
        if id(item) in seen or len(seen) > MAX_FUNCTIONS_COUNT:
            continue
        seen.add(id(item))
        if isinstance(item, types.FunctionType):
            if _installed_name(item.__module__):
                continue
            yield item
            todo += [item.__globals__.get(name) for name in _globals_of(item.__code__)]
            todo += [_content(cell) for cell in item.__closure__ or ()]
        elif isinstance(item, type) and not _installed_name(item.__module__):
            todo += [getattr(one, "__func__", getattr(one, "fget", one)) for one in vars(item).values()]


def _installed_name(module: str | None) -> bool:
    found = sys.modules.get(module or "")
    return found is not None and found.__name__ != "__main__" and _installed(found)


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _carried(cloudpickle: Any) -> set[str]:
    return set(cloudpickle.list_registry_pickle_by_value())


def _completed(function: types.FunctionType) -> types.FunctionType:
    """Copy ``function`` so that it sees the language's names, unless it has its own."""
    known = _known_names()
    missing = {name for name in _globals_of(function.__code__) if name not in function.__globals__}
    lent = {name: known[name] for name in missing if name in known and not hasattr(builtins, name)}
    completed = types.FunctionType(
        function.__code__,
        {**function.__globals__, **lent},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    completed.__kwdefaults__ = function.__kwdefaults__
    completed.__qualname__, completed.__module__ = function.__qualname__, function.__module__
    return completed


def _known_names() -> dict[str, Any]:
    from looptap.streams.language.builtins import names  # not at the top: only a function needs them, a text does not

    return names()


def _globals_of(code: types.CodeType) -> set[str]:
    """Return the global names that ``code`` and the functions inside it read."""
    names = {name for name in _loaded(code)}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _globals_of(constant)
    return names


def _loaded(code: types.CodeType) -> Iterator[str]:
    import dis

    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield instruction.argval


def _own_modules(code: object) -> list[types.ModuleType]:
    """Return the user's modules that ``code`` needs; the job may lack them."""
    found: dict[str, types.ModuleType] = {}
    todo, seen = [code], set()
    while todo:
        item = todo.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        module = sys.modules.get(getattr(item, "__module__", None) or "")
        if module is None or module.__name__ == "__main__" or _installed(module):
            continue
        found[module.__name__] = module
        if isinstance(item, types.FunctionType):
            names = [item.__globals__.get(name) for name in _globals_of(item.__code__)]
            todo += [value for value in names if isinstance(value, types.FunctionType | type)]
    return list(found.values())


@functools.cache
def _folders_of_installed() -> tuple[Path, ...]:
    names = "stdlib", "platstdlib", "purelib", "platlib"
    return tuple(Path(sysconfig.get_path(name)).resolve() for name in names)


def _installed(module: types.ModuleType) -> bool:
    """Return True for a module that other processes of this machine can import, too."""
    if module.__name__.partition(".")[0] in {*sys.stdlib_module_names, "looptap"}:
        return True
    file = getattr(module, "__file__", None)
    return file is None or any(Path(file).resolve().is_relative_to(place) for place in _folders_of_installed())


# ---------------------------------------------------------------- as text


def portable_source(code: Callable[..., Any]) -> str | None:
    """Return the source of a function that uses only the language's names, or None.

    >>> portable_source(lambda e: e.loss * 2)
    'lambda e: e.loss * 2'
    """
    if not isinstance(code, types.FunctionType) or code.__closure__ or not _only_known_names(code):
        return None
    if code.__defaults__ or code.__kwdefaults__:
        return None
    try:
        lines, _ = inspect.findsource(code)
        tree = ast.parse("".join(lines))
    except (OSError, SyntaxError, TypeError, IndexError):
        return None
    text = "".join(lines)
    kind = ast.Lambda if code.__name__ == "<lambda>" else ast.FunctionDef
    candidates = [
        node for node in ast.walk(tree) if isinstance(node, kind) and node.lineno == code.__code__.co_firstlineno
    ]
    same = [node for node in candidates if _same_code(node, code.__code__)]
    if len({ast.dump(node) for node in same}) != 1 or getattr(same[0], "decorator_list", []):
        return None
    segment = ast.get_source_segment(text, same[0], padded=True)
    return None if segment is None else textwrap.dedent(segment).strip()


def _only_known_names(function: types.FunctionType) -> bool:
    """Return True if every global name is a builtin, or a name of the language."""
    known = _known_names()
    for name in _globals_of(function.__code__):
        if name in function.__globals__:
            if name not in known or function.__globals__[name] is not known[name]:
                return False
        elif name not in known and not hasattr(builtins, name):
            return False
    return True


def _same_code(node: ast.Lambda | ast.FunctionDef, code: types.CodeType) -> bool:
    """Return True if ``node`` is the unchanged source of ``code``.

    Two lambdas on one line are distinguished by their position. The byte code is no help: it depends on what else the
    module imports.
    """
    if not all(_inside(node, *position) for position in code.co_positions()):
        return False
    statement: ast.stmt
    if isinstance(node, ast.Lambda):
        statement = ast.copy_location(ast.Expr(node), node)
    else:
        statement = copy.copy(node)
        statement.decorator_list = []
    module = ast.fix_missing_locations(ast.Module([statement], []))
    compiled = compile(module, "<same>", "exec", dont_inherit=True)
    inner = [c for c in compiled.co_consts if isinstance(c, types.CodeType)]
    return any(_essence(c) == _essence(code) for c in inner)


def _inside(
    node: ast.expr | ast.stmt, line: int | None, end_line: int | None, column: int | None, end: int | None
) -> bool:
    """Return True unless a position is known to lie outside ``node``."""
    if line is None or end_line is None or column is None or end is None or (line, column) == (end_line, end):
        return True
    last = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
    return (node.lineno, node.col_offset) <= (line, column) and (end_line, end) <= last


def _essence(code: types.CodeType) -> tuple[Any, ...]:
    constants = [_essence(c) if isinstance(c, types.CodeType) else (type(c), c) for c in code.co_consts]
    return code.co_names, code.co_varnames, tuple(constants)


def all_named(call: str, unnamed: tuple[Any, ...]) -> None:
    """Raise TypeError for positional arguments of `Run.stream` or `Run.call`."""
    if unnamed:
        raise TypeError(
            f"run.{call}, …) takes one argument without a name, and {unnamed[0]!r:.80} is one more. Name it: "
            f"run.{call}, on={unnamed[0]!r:.80})."
        )
