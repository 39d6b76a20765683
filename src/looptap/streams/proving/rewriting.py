"""Rewrite Python so that each operation is checked before it runs.

``x.y`` becomes ``__read(x, 'y')``, ``x[y]`` ``__item(x, y)``, ``f(x)`` ``__call(f, x)``; what is iterated, tested,
unpacked or an operand passes through a check of its own. Their names are those of `CHECKS`. What cannot be rewritten
raises `Unprovable`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any, cast

from looptap.streams.harmless.syntax import UNCHECKED_FORMS

_IDENTITY = (ast.Is, ast.IsNot)
_SHAPES_FUNCTION = (ast.Global, ast.Nonlocal, ast.Yield, ast.YieldFrom, ast.Await)
"""What says of the whole function what it does: it cannot be left out."""


class Unprovable(Exception):
    """A construct that cannot be checked."""


class Rewriting(ast.NodeTransformer):
    """One pass over a function or an expression.

    ``owner`` is the name of the class around a method, which mangles private names.
    """

    def __init__(self, owner: str = "", raw: frozenset[str] = frozenset()) -> None:
        self.owner, self.raw = owner, raw
        self._first_argument: list[str] = []
        self._locals = 0

    # ------------------------------------------------------------ expressions

    def visit(self, node: ast.AST) -> Any:
        """Return the checked form of ``node``."""
        method: Any = getattr(self, f"visit_{type(node).__name__}", None)
        if method is None:
            if isinstance(node, ast.expr | ast.stmt | ast.pattern) and not isinstance(node, UNCHECKED_FORMS):
                raise Unprovable(f"{type(node).__name__.lower()} in {ast.unparse(node):.60}")
            return self.generic_visit(node)
        new: Any = method(node)
        for one in new if isinstance(new, list) else [new]:
            ast.copy_location(one, node)
        return new

    def generic_visit(self, node: Any) -> Any:
        """Check what a part of code tests, iterates, enters and shows; visit all else."""
        for name, field in ast.iter_fields(node):
            check = _OF_FIELDS.get(name)
            setattr(node, name, self._field(field) if check is None else check(self, node, field))
        return node

    def _field(self, field: Any) -> Any:
        if isinstance(field, list):
            return self._block(field) if field and isinstance(field[0], ast.stmt) else list(map(self._field, field))
        return self.visit(field) if isinstance(field, ast.AST) else field

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Keep names, which are local, global or of the language."""
        return ast.Name(self._mangled(node.id), node.ctx) if self.owner else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """Check a read."""
        if isinstance(node.value, ast.Name) and node.value.id in self.raw:
            return node
        return self._read(node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        """Check a read of an item."""
        return self._read(node)

    def _read(self, node: ast.expr) -> ast.expr:
        thing, of, key = self._part(node)
        return _call(f"__read{of}", thing, key)

    def _part(self, node: ast.expr) -> tuple[ast.expr, str, ast.expr]:
        """Return an object, the suffix of operations on its parts, and what part this is."""
        if isinstance(node, ast.Attribute):
            return self.visit(node.value), "", ast.Constant(self._mangled(node.attr))
        if isinstance(node, ast.Subscript):
            return self.visit(node.value), "_item", self._index(node.slice)
        raise Unprovable(f"a change of {ast.unparse(node)}")

    def _mangled(self, name: str) -> str:
        private = name.startswith("__") and not name.endswith("__") and self.owner.strip("_")
        return f"_{self.owner.lstrip('_')}{name}" if private else name

    def _index(self, node: ast.expr) -> ast.expr:
        if isinstance(node, ast.Slice):
            parts = [
                ast.Constant(None) if one is None else self.visit(one) for one in (node.lower, node.upper, node.step)
            ]
            return _call("__slice_of", *parts)
        if isinstance(node, ast.Tuple):
            return ast.Tuple([self._index(one) for one in node.elts], ast.Load())
        return cast(ast.expr, self.visit(node))

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """Check a call; one of the placed parts of a query is looptap's own."""
        f = node.func
        if isinstance(f, ast.Name) and f.id in self.raw:
            return ast.Call(f, [self.visit(one) for one in node.args], [])
        if isinstance(f, ast.Name) and f.id == "super" and not node.args and self._first_argument:
            names = "__class__", self._first_argument[-1]
            return _call("__of_super", *(ast.Name(one, ast.Load()) for one in names))
        given = [self.visit(one) for one in node.args]
        keywords = [
            ast.keyword(k.arg, self.visit(k.value) if k.arg else _call("__mapping", self.visit(k.value)))
            for k in node.keywords
        ]
        return _call("__call", self.visit(f), *given, keywords=keywords)

    def visit_Set(self, node: ast.Set) -> ast.expr:
        """Check what is hashed."""
        elements = [
            ast.Starred(_call("__keys", self.visit(one.value)), ast.Load())
            if isinstance(one, ast.Starred)
            else self._key(one)
            for one in node.elts
        ]
        return _call("__own", ast.Set(elements))

    def _key(self, node: ast.expr) -> ast.expr:
        new: ast.expr = self.visit(node)
        return new if isinstance(node, ast.Constant) else _call("__keyed", new)

    def visit_Tuple(self, node: ast.Tuple) -> ast.expr:
        """Check the items."""
        return cast(ast.expr, self.generic_visit(node))

    def visit_List(self, node: ast.List) -> ast.expr:
        """Check the items; the evaluation may change the list."""
        self.generic_visit(node)
        return node if isinstance(node.ctx, ast.Store) else _call("__own", node)

    def visit_Starred(self, node: ast.Starred) -> Any:
        """Check what is unpacked."""
        if isinstance(node.ctx, ast.Store):
            return self.generic_visit(node)
        return ast.Starred(_call("__iterate", self.visit(node.value)), ast.Load())

    def visit_YieldFrom(self, node: ast.YieldFrom) -> ast.expr:
        """Check what is iterated."""
        return ast.YieldFrom(_call("__iterate", self.visit(node.value)))

    def visit_Dict(self, node: ast.Dict) -> ast.expr:
        """Check what is merged into a display."""
        keys = [None if key is None else self._key(key) for key in node.keys]
        values = [
            _call("__mapping", self.visit(v)) if k is None else self.visit(v)
            for k, v in zip(node.keys, node.values, strict=True)
        ]
        return _call("__own", ast.Dict(keys, values))

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        """Check both operands."""
        return self._binary(node.left, node.op, node.right)

    def _binary(self, left: ast.expr, op: ast.AST, right: ast.expr) -> ast.expr:
        return _call("__binary", ast.Constant(type(op).__name__), self.visit(left), self.visit(right))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        """Check the operand."""
        if isinstance(node.op, ast.Not):
            return ast.UnaryOp(node.op, self.test(node.operand))
        return _call("__unary", ast.Constant(type(node.op).__name__), self.visit(node.operand))

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        """Check all operands, unless they are compared by identity."""
        parts = [node.left, *node.comparators]
        if len(parts) == 2 and isinstance(node.ops[0], ast.In | ast.NotIn):
            found = _call("__within", *(self.visit(part) for part in parts))
            return found if isinstance(node.ops[0], ast.In) else ast.UnaryOp(ast.Not(), found)
        if all(isinstance(op, _IDENTITY) for op in node.ops):
            left, *rest = [self.visit(part) for part in parts]
        elif len(parts) == 2:
            return self._binary(node.left, node.ops[0], parts[1])
        else:
            left, *rest = [_call("__deep", self.visit(part)) for part in parts]
        return ast.Compare(left, node.ops, rest)

    def test(self, node: ast.expr) -> ast.expr:
        """Return what is tested."""
        new: ast.expr = self.visit(node)
        return new if isinstance(node, ast.Constant | ast.Compare | ast.BoolOp) else _call("__truth", new)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        """Check what is tested: all but the last value."""
        *tested, last = node.values
        return ast.BoolOp(node.op, [*(self.test(one) for one in tested), self.visit(last)])

    def visit_FormattedValue(self, node: ast.FormattedValue) -> ast.expr:
        """Check what is formatted."""
        spec = None if node.format_spec is None else self.visit(node.format_spec)
        text = _call("__shown", self.visit(node.value), ast.Constant(node.conversion))
        return ast.FormattedValue(text, -1, spec)

    def visit_arg(self, node: ast.arg) -> ast.arg:
        """Leave the annotation out."""
        return ast.arg(self._mangled(node.arg))

    def visit_ListComp(self, node: ast.ListComp | ast.GeneratorExp) -> ast.expr:
        """Check what is iterated, tested and made."""
        self.generic_visit(node)
        return _call("__own", node)

    visit_GeneratorExp = visit_ListComp

    def visit_SetComp(self, node: ast.SetComp) -> ast.expr:
        """Check what is hashed, too."""
        self.generic_visit(node)
        node.elt = _call("__keyed", node.elt)
        return _call("__own", node)

    def visit_DictComp(self, node: ast.DictComp) -> ast.expr:
        """Check what is hashed, too."""
        self.generic_visit(node)
        node.key = _call("__keyed", node.key)
        return _call("__own", node)

    def iterated(self, node: Any) -> ast.expr:
        """Return what a loop runs over."""
        if getattr(node, "is_async", False):
            raise Unprovable("an asynchronous loop")
        _only_names(node.target)
        return _call("__iterate" if isinstance(node.target, ast.Name) else "__each", self.visit(node.iter))

    # ------------------------------------------------------------ statements

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.stmt:
        """Check the body of a function; its annotations are left out."""
        if node.decorator_list:
            raise Unprovable(f"a decorator in {node.name}")
        names = [*node.args.posonlyargs, *node.args.args]
        self._first_argument.append(names[0].arg if names else "")
        body = self._block(node.body)
        if node.args.kwarg is not None:  # a dict that the call has made
            body.insert(0, ast.Expr(_call("__own", ast.Name(node.args.kwarg.arg, ast.Load()))))
        self._first_argument.pop()
        new = ast.FunctionDef(node.name, self.visit(node.args), body, [], None, None)
        return cast(ast.stmt, without_type_parameters(new))

    def _block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        new: list[ast.stmt] = []
        for statement in body:
            try:
                made = self.visit(statement)
            except Unprovable as found:
                if any(isinstance(part, _SHAPES_FUNCTION) for part in ast.walk(statement)):
                    raise
                made = _refusing(statement, found)
            new += made if isinstance(made, list) else [made]
        return new

    def visit_Assign(self, node: ast.Assign) -> Any:
        """Check each target."""
        if len(node.targets) == 1:
            return self._assigned(node.targets[0], self.visit(node.value))
        name = self._temporary()
        first = ast.Assign([ast.Name(name, ast.Store())], self.visit(node.value))
        return [first, *(self._assigned(target, ast.Name(name, ast.Load())) for target in node.targets)]

    def _assigned(self, target: ast.expr, value: ast.expr) -> ast.stmt:
        if isinstance(target, ast.Name):
            return ast.Assign([target], value)
        if isinstance(target, ast.Tuple | ast.List):
            _only_names(target)
            return ast.Assign([target], _call("__iterate", value))
        thing, of, key = self._part(target)
        return ast.Expr(_call(f"__write{of}", thing, key, value))

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        """Leave the annotation out."""
        if node.value is None:
            return ast.copy_location(ast.Pass(), node)
        return self._assigned(node.target, self.visit(node.value))

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        """Check a change in place."""
        operator, value = ast.Constant(type(node.op).__name__), self.visit(node.value)
        target = node.target
        if isinstance(target, ast.Name):
            return ast.Assign([target], _call("__in_place", operator, ast.Name(target.id, ast.Load()), value))
        thing, of, key = self._part(target)
        whole, place = self._temporary(), self._temporary()
        changed = _call("__in_place", operator, _call(f"__read{of}", _name(whole), _name(place)), value)
        return [
            ast.Assign([ast.Name(whole, ast.Store())], thing),
            ast.Assign([ast.Name(place, ast.Store())], key),
            ast.Expr(_call(f"__write{of}", _name(whole), _name(place), changed)),
        ]

    def visit_Delete(self, node: ast.Delete) -> Any:
        """Check what is deleted from a container."""
        statements: list[ast.stmt] = []
        for target in node.targets:
            if isinstance(target, ast.Name):
                statements.append(ast.Delete([target]))
            else:
                thing, of, key = self._part(target)
                statements.append(ast.Expr(_call(f"__delete{of}", thing, key)))
        return statements

    def visit_Try(self, node: ast.Try) -> ast.stmt:
        """Let no handler catch a refusal, and no end of a block drop it."""
        if any(
            isinstance(part, ast.Return | ast.Break | ast.Continue) for one in node.finalbody for part in ast.walk(one)
        ):
            raise Unprovable("a finally block that ends with a jump")
        self.generic_visit(node)
        if node.handlers:
            node.handlers.insert(0, ast.ExceptHandler(_name("__Refusal"), None, [ast.Raise()]))
        return node

    def visit_Import(self, node: ast.Import) -> Any:
        """Read loaded modules; nothing is imported."""
        statements: list[ast.stmt] = []
        for one in node.names:
            bound, dot, _ = one.name.partition(".")
            if dot and one.asname is None:  # `import a.b` binds a, and needs a.b
                statements.append(ast.Expr(_call("__module", ast.Constant(one.name))))
            name = bound if one.asname is None else one.name
            target = ast.Name(one.asname or bound, ast.Store())
            statements.append(ast.Assign([target], _call("__module", ast.Constant(name))))
        return statements

    def visit_ImportFrom(self, node: ast.ImportFrom) -> Any:
        """Read names of loaded modules; nothing is imported."""
        if any(one.name == "*" for one in node.names):
            raise Unprovable(f"{ast.unparse(node)} inside a function")
        name = ast.Constant("." * node.level + (node.module or ""))
        package = [ast.Name("__package__", ast.Load())] if node.level else []
        return [
            ast.Assign(
                [ast.Name(one.asname or one.name, ast.Store())],
                _call("__read", _call("__module", name, *package), ast.Constant(one.name)),
            )
            for one in node.names
        ]

    def _temporary(self) -> str:
        self._locals += 1
        return f"__local{self._locals}"


def _entered(rewriting: Rewriting, node: ast.withitem, context: ast.expr) -> ast.expr:
    _only_names(node.optional_vars)
    return _call("__enter", rewriting.visit(context))


_OF_FIELDS: dict[str, Callable[[Rewriting, Any, Any], Any]] = {
    "test": lambda rewriting, node, test: rewriting.test(test),
    "ifs": lambda rewriting, node, tests: list(map(rewriting.test, tests)),
    "iter": lambda rewriting, node, iterated: rewriting.iterated(node),
    "msg": lambda rewriting, node, text: text and _call("__shown", rewriting.visit(text), ast.Constant(-1)),
    "context_expr": _entered,
}
"""The fields of parts of code that are checked by what is done with them."""


def _refusing(statement: ast.stmt, found: Unprovable) -> ast.stmt:
    """Return a statement that is refused when it is reached."""
    said = ast.Constant(f"{found} is not known to be harmless")
    return ast.fix_missing_locations(ast.copy_location(ast.Raise(_call("__Refusal", said)), statement))


def without_type_parameters(node: Any) -> Any:
    """Return a definition with the field that Python 3.12 has added."""
    if hasattr(ast, "TypeVar"):
        node.type_params = []
    return node


def _name(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def _call(name: str, *given: ast.expr, keywords: list[ast.keyword] | None = None) -> ast.Call:
    return ast.Call(_name(name), list(given), keywords or [])


def _only_names(target: ast.AST | None) -> None:
    for part in () if target is None else ast.walk(target):
        if not isinstance(part, ast.Name | ast.Tuple | ast.List | ast.Starred | ast.expr_context):
            raise Unprovable(f"an assignment to {ast.unparse(part)} while a sequence is taken apart")
