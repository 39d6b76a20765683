"""Follow a function of the job: check its source, with its own globals."""

from __future__ import annotations

import ast
import builtins
import copy
import dis
import inspect
import itertools
import linecache
import os
import types
from collections.abc import Callable, Iterator
from typing import Any, cast

from looptap.streams.expressions import SourceText, function_code
from looptap.streams.harmless.checked_code import CHECKS, code_lines, note_checked
from looptap.streams.harmless.plain import name_of_type
from looptap.streams.harmless.refusal import Refusal
from looptap.streams.proving.rewriting import Rewriting, Unprovable, without_type_parameters
from looptap.streams.proving.vouching import name_in_sentence

MAX_FUNCTIONS = 1000
"""Functions whose checked form is kept."""
_OF_COMPILER = os.path.join("torch", "_compile.py")
_OF_TAGS = os.path.join("torch", "_dynamo", "mutation_guard.py")
_numbers = itertools.count(1)


class CheckedForm:
    """The checked form of one code of the job."""

    def __init__(self, factory: types.CodeType) -> None:
        self._factory = factory
        self._made: Callable[..., Any] | None = None

    def function(self, f: types.FunctionType) -> Callable[..., Any]:
        """Return the checked form of ``f``, whose code this is."""
        made: Any = self._made
        if made is None:
            make = types.FunctionType(self._factory, f.__globals__)
            made = make(*CHECKS.values(), *map(_content, f.__closure__ or ()))
            self._made = None if f.__closure__ else made
        # Defaults may be tensors of the job: none is kept after the call.
        new = types.FunctionType(made.__code__, f.__globals__, None, f.__defaults__, made.__closure__)
        new.__kwdefaults__ = f.__kwdefaults__
        return new


# By identity, with the code itself so that no identity is taken twice: the hash of code takes a millisecond.
_followed: dict[int, tuple[types.CodeType, CheckedForm | str]] = {}


def checked_expression(
    parameter: str | None, body: ast.expr, text: SourceText, names: dict[str, Any]
) -> Callable[..., Any]:
    """Return a function that evaluates ``body``, with each operation checked."""
    raw = frozenset(name for name in _names_of(body) if name.startswith("__part") or name == "__event")
    try:
        new = Rewriting(raw=raw).visit(copy.deepcopy(body))
    except Unprovable as found:
        raise text.error(f"{found} is not known to be harmless.", body) from None
    code = function_code(parameter, new, body, text)
    note_checked(code, code.co_filename)
    names.update(CHECKS)
    # Each operation in it is checked before it runs.
    return cast(Callable[..., Any], eval(code, names))


def _names_of(body: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(body) if isinstance(node, ast.Name)}


def followed(f: types.FunctionType) -> tuple[types.FunctionType, CheckedForm]:
    """Return the function inside decorators, and its checked form. Raises `Refusal`."""
    inner = undecorated(f)
    code = inner.__code__
    known = _followed.get(id(code))
    if known is None:
        try:
            known = code, CheckedForm(_factory(inner))
        except Unprovable as found:
            known = code, str(found)
        if len(_followed) > MAX_FUNCTIONS:
            _followed.clear()
        _followed[id(code)] = known
    if isinstance(known[1], str):
        raise Refusal(f"{name_in_sentence(f)} is not known to be harmless: {known[1]}")
    builtin: Any = getattr(inner, "__builtins__", None)
    if type(inner.__globals__) is not dict or type(builtin) is not dict:
        raise Refusal(f"{name_in_sentence(f)}, whose globals are no plain dict, is not known to be harmless")
    return inner, known[1]


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def undecorated(f: types.FunctionType) -> types.FunctionType:
    """Return the function inside ``torch.no_grad()``, which is in force anyway.

    Or inside that by which `torch.compile` tags each new module.
    """
    while type(inner := _inside(f)) is types.FunctionType:
        wrapper = f.__code__
        context = wrapper.co_name == "decorate_context" and "torch" in wrapper.co_filename
        compiler = wrapper.co_filename.endswith(_OF_COMPILER) or "_dynamo" in wrapper.co_filename
        if not compiler and not (context and _turns_off(f)):
            break
        f = inner
    return f


def _inside(f: types.FunctionType) -> Any:
    if f.__code__.co_filename.endswith(_OF_TAGS) and f.__closure__:
        return _content(f.__closure__[f.__code__.co_freevars.index("init")])
    return f.__dict__.get("__wrapped__")


def _turns_off(f: types.FunctionType) -> bool:
    """Return True for the decorators ``torch.no_grad`` and ``torch.inference_mode``."""
    made = [one.__self__ if type(one) is types.MethodType else one for one in map(_content, f.__closure__ or ())]
    return any(name_of_type(type(one)).endswith((".no_grad", ".inference_mode")) for one in made)


def _factory(f: types.FunctionType) -> types.CodeType:
    code = f.__code__
    if code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        raise Unprovable("it is asynchronous")
    node, file = _definition(f)
    new = Rewriting(owner=_owner(f)).visit(node)
    body = [ast.Return(new)] if isinstance(node, ast.Lambda) else [new, ast.Return(ast.Name(node.name, ast.Load()))]
    names = [*CHECKS, *code.co_freevars]
    module = ast.fix_missing_locations(ast.Module([_function("__factory", names, body)], []))
    try:
        compiled = compile(module, file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise Unprovable(f"it cannot be compiled: {error}") from None
    made = next(one for one in compiled.co_consts if isinstance(one, types.CodeType))
    note_checked(made, file)
    return made


def _definition(f: types.FunctionType) -> tuple[Any, str]:
    """Return the tree of a function, and its file. Raises Unprovable."""
    code = f.__code__
    found = code_lines(f)
    if found is None:
        raise Unprovable("its source is not at hand")
    text, first, file = found
    kind: type[ast.AST] = ast.Lambda if code.co_name == "<lambda>" else ast.FunctionDef
    for node in itertools.chain.from_iterable(map(ast.walk, _parsed(text))):
        if isinstance(node, kind) and _is_source_of(_bare(node), f):
            ast.increment_lineno(node, first - 1)
            return node, file
    raise Unprovable("its source has changed since it was loaded")


def _parsed(text: str) -> Iterator[ast.AST]:
    """Yield the trees of lines that hold a function, which may stand inside a call."""
    indented = text[:1].isspace()
    try:  # the lines stay as they are: a docstring belongs to what is compared
        yield ast.increment_lineno(ast.parse("if 1:\n" + text), -1) if indented else ast.parse(text)
        return
    except SyntaxError:
        pass
    start = text.find("lambda")
    while start >= 0:
        for end in range(len(text), start, -1):
            try:
                tree = ast.parse("\n" * text.count("\n", 0, start) + "(" + text[start:end] + ")", mode="eval")
            except (SyntaxError, ValueError):
                continue
            yield tree
            break
        start = text.find("lambda", start + 1)


def _bare(node: Any) -> Any:
    """Return a definition without its decorators and defaults."""
    node.decorator_list = []
    for defaults in (node.args.defaults, node.args.kw_defaults):
        defaults[:] = [one and ast.Constant(None) for one in defaults]
    return node


def _is_source_of(node: Any, f: types.FunctionType) -> bool:
    """Return True if ``node`` compiles to what ``f`` runs."""
    code, owner = f.__code__, _owner(f)
    statement: ast.stmt = ast.Expr(node) if isinstance(node, ast.Lambda) else node
    if owner:  # it mangles private names, and holds __class__
        statement = ast.ClassDef(name=owner, bases=[], keywords=[], body=[statement], decorator_list=[])
        statement = without_type_parameters(statement)
    free = [name for name in code.co_freevars if name != "__class__"]
    if free:
        statement = _function("__outer", free, [ast.Global([owner]), statement] if owner else [statement])
    module = ast.fix_missing_locations(ast.Module([statement], []))
    flags = code.co_flags & 0x1000000  # from __future__ import annotations
    try:
        compiled = compile(module, "<same>", "exec", flags=flags, dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    for _ in filter(None, (module, free, owner)):
        compiled = next(one for one in compiled.co_consts if isinstance(one, types.CodeType))
    return _essence(compiled) == _essence(code)


def _function(name: str, parameters: list[str], body: list[ast.stmt]) -> ast.FunctionDef:
    arguments = ast.arguments(
        posonlyargs=[], args=[ast.arg(one) for one in parameters], kwonlyargs=[], kw_defaults=[], defaults=[]
    )
    return cast(ast.FunctionDef, without_type_parameters(ast.FunctionDef(name, arguments, body, [], None, None)))


def _owner(f: types.FunctionType) -> str:
    """Return the name of the class around a method; "" for other functions."""
    owner = f.__qualname__.rpartition(".")[0].rpartition(".")[2]
    return "" if owner == "<locals>" else owner


_COMPUTING = ("BINARY", "COMPARE", "CONTAINS", "IS", "UNARY", "LOAD_FAST", "LOAD_CONST", "LOAD_GLOBAL")


def _computing(code: types.CodeType) -> list[tuple[str, Any]]:
    """Return the operators, names and constants of a function in their order.

    Keywords of a call are left out: how they are passed depends on whether the file has imported what is called.
    """
    every = list(dis.get_instructions(code))
    return [
        (one.opname, one.argval)
        for one, after in itertools.pairwise(every)
        if one.opname.startswith(_COMPUTING)
        and after.opname != "BUILD_CONST_KEY_MAP"
        and type(one.argval) is not types.CodeType
    ]


def _essence(code: types.CodeType) -> tuple[Any, ...]:
    constants = [_essence(c) if isinstance(c, types.CodeType) else (type(c), repr(c)) for c in code.co_consts]
    return code.co_name, _computing(code), code.co_names, code.co_varnames, code.co_freevars, tuple(constants)


def defined(text: str, names: dict[str, Any]) -> types.FunctionType | None:
    """Return the one function that a text defines, and keep its source."""
    file = f"<query def {next(_numbers)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    tree = ast.parse(text, file)
    if len(tree.body) != 1 or not isinstance(tree.body[0], ast.FunctionDef):
        return None
    before = set(names) | {"__builtins__"}
    names.setdefault("__builtins__", vars(builtins))
    # Only the definition runs here, whose defaults are constants; the body is checked at each event.
    exec(compile(tree, file, "exec"), names)
    made = [value for name, value in names.items() if name not in before]
    return made[0] if len(made) == 1 and isinstance(made[0], types.FunctionType) else None
