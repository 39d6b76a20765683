"""Python expressions as syntax trees: errors at a column, names, rewriting."""

from __future__ import annotations

import ast
import linecache
import os
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator
from types import CodeType
from typing import Any, TypeAlias, cast

from looptap.streams.errors import LooptapError, QueryError
from looptap.streams.text import did_you_mean

Comprehension: TypeAlias = ast.GeneratorExp | ast.ListComp | ast.SetComp | ast.DictComp
Hook: TypeAlias = Callable[[ast.expr, frozenset[str]], "ast.expr | None"]
_OWN_FILES = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
COMPREHENSIONS = (ast.GeneratorExp, ast.ListComp, ast.SetComp, ast.DictComp)


class SourceText:
    """The text of a query and its tree; creates errors that point at a column."""

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise QueryError(f"a query is a Python expression, not {text!r}. Try 'step, loss'.")
        self.text = text.strip()
        if all(not line or line.isspace() or line.lstrip().startswith("#") for line in self.text.splitlines()):
            raise QueryError(f"a query is a Python expression, and {text!r} holds none. Try 'step, loss'.")
        self.body = self._parsed()
        for node in ast.walk(self.body):
            if isinstance(node, ast.NamedExpr | ast.Yield | ast.YieldFrom | ast.Await):
                raise self.error("a query cannot assign, yield or await.", node)
            if isinstance(node, ast.comprehension) and node.is_async:
                raise self.error("a query cannot wait for an asynchronous sequence.", node.target)

    def _parsed(self) -> ast.expr:
        try:
            return ast.parse(self.text, mode="eval").body
        except SyntaxError as error:
            if hint := _as_function(self.text):
                raise QueryError(
                    "this is a statement, but a query must be an expression.", self.text, 0, hint
                ) from None
            column = (error.offset or 1) - 1 if error.lineno == 1 else None
            raise QueryError(f"this is not a Python expression: {error.msg}.", self.text, column) from None
        except (ValueError, RecursionError, MemoryError) as error:
            raise QueryError(f"this is not a Python expression: {error}.", self.text[:200]) from None

    def error(self, reason: str, node: ast.AST | None = None, hint: str = "") -> QueryError:
        """Return a QueryError that points at ``node``."""
        column = None
        if node is not None and getattr(node, "lineno", 0) == 1:
            offset = node.col_offset  # type: ignore[attr-defined]  # every node with a lineno has it; bytes, not characters
            column = len(self.text.encode()[:offset].decode(errors="ignore"))
        return QueryError(reason, self.text, column, hint)

    def segment(self, node: ast.AST) -> str:
        """Return the text of ``node``."""
        return ast.get_source_segment(self.text, node) or ast.unparse(node)


def _as_function(text: str) -> str:
    """Return how to write statements as a function; "" for what is no Python.

    >>> _as_function("import os")
    'Write a function, in which statements are allowed and loss is e.loss: def f(e): import os; return 1'
    """
    try:
        statements = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    simple = all(not hasattr(one, "body") for one in statements) and "\n" not in text
    body = f"{text.rstrip('; ')}; return 1" if simple else "..."
    return f"Write a function, in which statements are allowed and loss is e.loss: def f(e): {body:.200}"


def free_names(node: ast.AST, bound: frozenset[str] = frozenset()) -> Iterator[ast.Name]:
    """Yield the names that ``node`` reads and does not bind itself, in order."""
    if isinstance(node, ast.Name):
        if node.id not in bound:
            yield node
        return
    for child, names in _children(node):
        yield from free_names(child, bound | names)


def names_free(node: ast.AST) -> frozenset[str]:
    """Return the names of `free_names`."""
    return frozenset(name.id for name in free_names(node))


def item_name(node: ast.AST) -> str | None:
    """Return the name in `e['train/loss']`; None for anything else."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
        return node.slice.value
    return None


def part_name(node: ast.AST) -> str | None:
    """Return the name that `e.loss` or `e['train/loss']` reads; None for others."""
    return node.attr if isinstance(node, ast.Attribute) else item_name(node)


def names_read(node: ast.AST) -> set[str]:
    """Return all attribute and item names read in ``node``."""
    return {name for n in ast.walk(node) if (name := part_name(n)) is not None}


def called_parts(node: ast.AST) -> set[int]:
    """Return the ids of the parts of ``node`` that are called."""
    return {id(n.func) for n in ast.walk(node) if isinstance(n, ast.Call)}


def attributes_of_names(node: ast.AST, known: Collection[str]) -> frozenset[str]:
    """Return attributes read, not called, of unknown names: `loss` of `e.loss`."""
    called = called_parts(node)
    read = [n for n in ast.walk(node) if isinstance(n, ast.Attribute) and id(n) not in called]
    return frozenset(n.attr for n in read if isinstance(n.value, ast.Name) and n.value.id not in known)


def observables_in(node: ast.AST, item: str) -> frozenset[str]:
    """Return the free names, and what is read of events: ``item`` and bound names.

    >>> tree = ast.parse("step, e.model.bias, [p.grad for p in model.parameters()], e['train/loss']", mode="eval")
    >>> sorted(observables_in(tree.body, "e"))
    ['grad', 'model', 'step', 'train/loss']
    """
    free, called = names_free(node) - {item}, called_parts(node)
    read = [n for n in ast.walk(node) if isinstance(n, ast.Attribute | ast.Subscript) and id(n) not in called]
    names = (part_name(n) for n in read if isinstance(n.value, ast.Name) and n.value.id not in free)
    return frozenset({*free, *filter(None, names)})


def _codes(code: CodeType | None) -> Iterator[CodeType]:
    """Yield a function's code and those inside it."""
    if code is not None:
        yield code
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield from _codes(constant)


def names_in(code: CodeType | None) -> set[str]:
    """Return the attribute and global names in a function's code, nested ones too."""
    return {name for one in _codes(code) for name in one.co_names}


def texts_in(code: CodeType | None) -> set[str]:
    """Return the string constants in a function's code: `getattr` may read them."""
    return {text for one in _codes(code) for text in one.co_consts if isinstance(text, str)}


def mentions(node: ast.AST, name: str, bound: frozenset[str] = frozenset()) -> bool:
    """Return True if ``name`` is read freely in ``node``."""
    return any(n.id == name for n in free_names(node, bound))


def rewrite(node: ast.expr, hook: Hook, bound: frozenset[str] = frozenset()) -> ast.expr:
    """Return a copy of ``node`` with parts replaced by ``hook``, top down.

    ``hook(part, bound names)`` returns the replacement, or None.
    """
    new = hook(node, bound)
    if new is not None:
        return ast.copy_location(new, node)
    copy: Any = type(node).__new__(type(node))  # its constructor wants all fields, from Python 3.15 on
    ast.copy_location(copy, node)
    scopes = {id(child): names for child, names in _children(node)}

    def visit(value: Any, inherited: frozenset[str]) -> Any:
        names = inherited | scopes.get(id(value), frozenset())
        if isinstance(value, list):
            return [visit(v, inherited) for v in value]
        if isinstance(value, ast.expr):
            return rewrite(value, hook, bound | names)
        if isinstance(value, ast.AST) and not isinstance(value, ast.expr_context | ast.operator | ast.cmpop):
            part: Any = type(value).__new__(type(value))
            ast.copy_location(part, value)
            for name, field in ast.iter_fields(value):
                setattr(part, name, visit(field, names))
            return part
        return value

    for name, field in ast.iter_fields(node):
        setattr(copy, name, visit(field, frozenset()))
    return cast(ast.expr, copy)


def targets(node: Comprehension) -> frozenset[str]:
    """Return the names that a comprehension binds."""
    return frozenset(n.id for g in node.generators for n in ast.walk(g.target) if isinstance(n, ast.Name))


def lambda_names(node: ast.Lambda) -> frozenset[str]:
    """Return the names that a lambda binds."""
    a = node.args
    every = [*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg))]
    return frozenset(arg.arg for arg in every)


def _children(node: ast.AST) -> Iterator[tuple[ast.AST, frozenset[str]]]:
    """Yield the expressions directly below ``node``, with the names bound for each."""
    if isinstance(node, ast.Lambda):
        yield node.body, lambda_names(node)
        for default in [*node.args.defaults, *filter(None, node.args.kw_defaults)]:
            yield default, frozenset()
    elif isinstance(node, COMPREHENSIONS):
        names = targets(node)
        for place, generator in enumerate(node.generators):
            yield generator.iter, names if place else frozenset()
            for part in (generator.target, *generator.ifs):
                yield part, names
        for part in results(node):
            yield part, names
    else:
        for child in ast.iter_child_nodes(node):
            yield child, frozenset()


def results(node: Comprehension) -> list[ast.expr]:
    """Return what a comprehension makes: an item, or a key and a value."""
    return [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]


def function(parameter: str | None, body: ast.expr, text: SourceText, names: dict[str, Any]) -> Callable[..., Any]:
    """Return a function of ``parameter`` that evaluates ``body`` among ``names``."""
    # An operator's query is code in the job by design (docs/security.md); it comes from no other source.
    return cast(Callable[..., Any], eval(function_code(parameter, body, body, text), names))


def function_code(parameter: str | None, body: ast.expr, origin: ast.expr, text: SourceText) -> CodeType:
    """Return the code of a function of ``parameter``; errors point at ``origin``."""
    args = [ast.arg(parameter)] if parameter else []
    signature = ast.arguments(posonlyargs=[], args=args, kwonlyargs=[], kw_defaults=[], defaults=[])
    tree = ast.Expression(ast.copy_location(ast.Lambda(signature, body), origin))
    ast.fix_missing_locations(tree)
    try:
        return compile(tree, f"<query {text.text[:200]}>", "eval")
    except (SyntaxError, ValueError, RecursionError) as error:
        raise text.error(f"this cannot be compiled: {error}.", origin) from None


def format_error(error: BaseException, source: str = "") -> str:
    """Return a traceback of ``error`` from the query's first frame, with its line.

    Frames of looptap are left out; where nothing else is left to point at, it is the error's line alone.
    """
    if isinstance(error, LooptapError):  # the message already says what is wrong and where
        return str(error)
    first = error.__traceback__
    while first is not None and not first.tb_frame.f_code.co_filename.startswith("<query "):
        first = first.tb_next
    line = _last_line(error) + _way_out(error)
    if first is None and source:  # raised in looptap's reducers, whose frames do not help a user
        return f"{line}, in {source}"
    name = first.tb_frame.f_code.co_filename if first else ""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    try:
        found = traceback.extract_tb(first or error.__traceback__, limit=-8)
        frames = [frame for frame in found if not frame.filename.startswith(_OWN_FILES)]
        shown = "".join(traceback.format_list(frames))
    finally:
        linecache.cache.pop(name, None)
    if not frames or (first and len(frames) == 1 and "^" not in shown and "\n" not in source):
        return line
    return f"Traceback (most recent call last):\n{shown}{line}\n"


def _way_out(error: BaseException) -> str:
    """Return what to write in place of `optimizer.lr`, which is a control."""
    if not (isinstance(error, AttributeError) and error.name == "lr"):
        return ""
    try:
        known = object.__getattribute__(error.obj, "__dict__")
    except AttributeError:
        return ""
    return ". Its learning rate: lr(optimizer)" if "param_groups" in known else ""


def _last_line(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception_only(error)).strip()
    except Exception:
        return type(error).__qualname__


def nearest(name: str, names: Iterable[str]) -> str:
    """Return 'Did you mean …?' or nothing."""
    return did_you_mean(name, [n for n in names if not n.startswith("_")]).lstrip()
