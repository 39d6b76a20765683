"""Rewrite Python so that each operation is checked before it runs.

``x.y`` becomes ``__read(x, 'y')``, ``x[y]`` ``__item(x, y)``, ``f(x)`` ``__call(f, x)``; what is iterated, tested,
unpacked or an operand passes through a check of its own. Their names are those of `CHECKS`. What cannot be rewritten
raises `Unprovable`.
"""

from __future__ import annotations

import ast
from typing import Any, cast

from looptap.streams.expressions import COMPREHENSIONS

_UNCHANGED = (
    ast.Constant, ast.Expr, ast.Return, ast.Pass, ast.Break, ast.Continue, ast.Nonlocal,
    ast.NamedExpr, ast.Yield,
)
"""Parts of code that do nothing by themselves."""
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
        if isinstance(node, _UNCHANGED):
            return self.generic_visit(node)
        if isinstance(node, COMPREHENSIONS):
            method = self._comprehension
        elif isinstance(node, ast.List | ast.Tuple):
            method = self._listed
        if method is None:
            if isinstance(node, ast.expr | ast.stmt | ast.pattern):
                raise Unprovable(f"{type(node).__name__.lower()} in {ast.unparse(node):.60}")
            return self.generic_visit(node)
        new: Any = method(node)
        for one in new if isinstance(new, list) else [new]:
            for part in ast.walk(one):
                if isinstance(part, ast.expr | ast.stmt | ast.keyword) and not hasattr(part, "lineno"):
                    ast.copy_location(part, node)
        return new

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Keep names, which are local, global or of the language."""
        return ast.Name(self._mangled(node.id), node.ctx) if self.owner else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """Check a read."""
        if isinstance(node.value, ast.Name) and node.value.id in self.raw:
            return node
        return _call("__read", self.visit(node.value), ast.Constant(self._mangled(node.attr)))

    def _mangled(self, name: str) -> str:
        private = name.startswith("__") and not name.endswith("__") and self.owner.strip("_")
        return f"_{self.owner.lstrip('_')}{name}" if private else name

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        """Check a read of an item."""
        return _call("__item", self.visit(node.value), self._index(node.slice))

    def _index(self, node: ast.expr) -> ast.expr:
        if isinstance(node, ast.Slice):
            parts = [ast.Constant(None) if one is None else self.visit(one)
                     for one in (node.lower, node.upper, node.step)]
            return _call("__slice_of", *parts)
        if isinstance(node, ast.Tuple):
            return ast.Tuple([self._element(one) if isinstance(one, ast.Starred) else self._index(one)
                              for one in node.elts], ast.Load())
        return cast(ast.expr, self.visit(node))

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """Check a call; one of the placed parts of a query is looptap's own."""
        f = node.func
        if isinstance(f, ast.Name) and f.id in self.raw:
            return ast.Call(f, [self.visit(one) for one in node.args], [])
        if isinstance(f, ast.Name) and f.id == "super" and not node.args and self._first_argument:
            names = "__class__", self._first_argument[-1]
            return _call("__of_super", *(ast.Name(one, ast.Load()) for one in names))
        given = [ast.Starred(_call("__iterate", self.visit(one.value)), ast.Load()) if isinstance(one, ast.Starred)
                 else self.visit(one) for one in node.args]
        keywords = [ast.keyword(k.arg, self.visit(k.value) if k.arg else _call("__mapping", self.visit(k.value)))
                    for k in node.keywords]
        return _call("__call", self.visit(f), *given, keywords=keywords)

    def visit_Set(self, node: ast.Set) -> ast.expr:
        """Check what is hashed."""
        elements = [ast.Starred(_call("__keys", self.visit(one.value)), ast.Load()) if isinstance(one, ast.Starred)
                    else self._key(one) for one in node.elts]
        return _call("__own", ast.Set(elements))

    def _key(self, node: ast.expr) -> ast.expr:
        new: ast.expr = self.visit(node)
        return new if isinstance(node, ast.Constant) else _call("__keyed", new)

    def _listed(self, node: ast.expr) -> ast.expr:
        if isinstance(getattr(node, "ctx", None), ast.Store):
            return cast(ast.expr, self.generic_visit(node))
        elements = [self._element(part) for part in getattr(node, "elts", ())]
        if isinstance(node, ast.Tuple):
            return ast.Tuple(elements, ast.Load())
        return _call("__own", ast.List(elements, ast.Load()))

    def _element(self, node: ast.expr) -> ast.expr:
        if isinstance(node, ast.Starred):
            return ast.Starred(_call("__iterate", self.visit(node.value)), ast.Load())
        new: ast.expr = self.visit(node)
        return new

    def visit_Dict(self, node: ast.Dict) -> ast.expr:
        """Check what is merged into a display."""
        keys = [None if key is None else self._key(key) for key in node.keys]
        values = [_call("__mapping", self.visit(v)) if k is None else self.visit(v)
                  for k, v in zip(node.keys, node.values, strict=True)]
        return _call("__own", ast.Dict(keys, values))

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        """Check both operands."""
        return self._binary(node.left, node.op, node.right)

    def _binary(self, left: ast.expr, op: ast.AST, right: ast.expr) -> ast.expr:
        return _call("__binary", ast.Constant(type(op).__name__), self.visit(left), self.visit(right))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        """Check the operand."""
        if isinstance(node.op, ast.Not):
            return ast.UnaryOp(node.op, self._test(node.operand))
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

    def _test(self, node: ast.expr) -> ast.expr:
        new: ast.expr = self.visit(node)
        return new if isinstance(node, ast.Constant | ast.Compare | ast.BoolOp) else _call("__truth", new)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        """Check what is tested: all but the last value."""
        *tested, last = node.values
        return ast.BoolOp(node.op, [*(self._test(one) for one in tested), self.visit(last)])

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        """Check the condition."""
        return ast.IfExp(self._test(node.test), self.visit(node.body), self.visit(node.orelse))

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.expr:
        """Check what is formatted."""
        return ast.JoinedStr([self.visit(one) for one in node.values])

    def visit_FormattedValue(self, node: ast.FormattedValue) -> ast.expr:
        """Check what is formatted."""
        spec = None if node.format_spec is None else self.visit(node.format_spec)
        text = _call("__shown", self.visit(node.value), ast.Constant(node.conversion))
        return ast.FormattedValue(text, -1, spec)

    def visit_Lambda(self, node: ast.Lambda) -> ast.expr:
        """Check the body."""
        return ast.Lambda(self._arguments(node.args), self.visit(node.body))

    def _arguments(self, node: ast.arguments) -> ast.arguments:
        return ast.arguments(
            posonlyargs=[_bare(one) for one in node.posonlyargs], args=[_bare(one) for one in node.args],
            vararg=node.vararg and _bare(node.vararg), kwonlyargs=[_bare(one) for one in node.kwonlyargs],
            kw_defaults=[None if one is None else self.visit(one) for one in node.kw_defaults],
            kwarg=node.kwarg and _bare(node.kwarg), defaults=[self.visit(one) for one in node.defaults],
        )

    def _comprehension(self, node: Any) -> ast.expr:
        generators = []
        for one in node.generators:
            if one.is_async:
                raise Unprovable("an asynchronous loop")
            check = "__iterate" if isinstance(one.target, ast.Name) else "__each"
            _only_names(one.target)
            tests = [self._test(test) for test in one.ifs]
            generators.append(ast.comprehension(one.target, _call(check, self.visit(one.iter)), tests, 0))
        if isinstance(node, ast.DictComp):
            new: ast.expr = ast.DictComp(self._key(node.key), self.visit(node.value), generators)
        else:
            element = self._key(node.elt) if isinstance(node, ast.SetComp) else self.visit(node.elt)
            new = type(node)(element, generators)
        return _call("__own", new)

    # ------------------------------------------------------------ statements

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.stmt:
        """Check the body of a function inside the function."""
        if node.decorator_list:
            raise Unprovable(f"a decorator in {node.name}")
        return self.function(node)

    def function(self, node: ast.FunctionDef) -> ast.FunctionDef:
        """Return ``node`` with a checked body, without decorators and annotations."""
        names = [*node.args.posonlyargs, *node.args.args]
        self._first_argument.append(names[0].arg if names else "")
        outermost = len(self._first_argument) == 1
        arguments = self._arguments(_without_defaults(node.args) if outermost else node.args)
        body = self._block(node.body)
        if node.args.kwarg is not None:  # a dict that the call has made
            body.insert(0, ast.Expr(_call("__own", ast.Name(node.args.kwarg.arg, ast.Load()))))
            ast.copy_location(body[0], node.body[0])
        self._first_argument.pop()
        new = ast.FunctionDef(node.name, arguments, body, [], None, None)
        return cast(ast.FunctionDef, ast.copy_location(without_type_parameters(new), node))

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
        if isinstance(target, ast.Attribute):
            name = ast.Constant(self._mangled(target.attr))
            return ast.Expr(_call("__write", self.visit(target.value), name, value))
        if isinstance(target, ast.Subscript):
            return ast.Expr(_call("__write_item", self.visit(target.value), self._index(target.slice), value))
        raise Unprovable(f"an assignment to {ast.unparse(target)}")

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
        name = self._temporary()
        whole = ast.Name(name, ast.Load())
        first = ast.Assign([ast.Name(name, ast.Store())], self.visit(target.value))
        if isinstance(target, ast.Attribute):
            key: ast.expr = ast.Constant(self._mangled(target.attr))
            read, write, before = "__read", "__write", []
        else:
            place = self._temporary()
            before = [ast.Assign([ast.Name(place, ast.Store())], self._index(target.slice))]
            key, read, write = ast.Name(place, ast.Load()), "__item", "__write_item"
        changed = _call("__in_place", operator, _call(read, whole, key), value)
        return [first, *before, ast.Expr(_call(write, whole, key, changed))]

    def visit_Delete(self, node: ast.Delete) -> Any:
        """Check what is deleted from a container."""
        statements: list[ast.stmt] = []
        for target in node.targets:
            if isinstance(target, ast.Name):
                statements.append(ast.Delete([target]))
            elif isinstance(target, ast.Subscript):
                statements.append(ast.Expr(_call("__delete_item", self.visit(target.value), self._index(target.slice))))
            elif isinstance(target, ast.Attribute):
                name = ast.Constant(self._mangled(target.attr))
                statements.append(ast.Expr(_call("__delete", self.visit(target.value), name)))
            else:
                raise Unprovable(f"del {ast.unparse(target)}")
        return statements

    def visit_For(self, node: ast.For) -> ast.stmt:
        """Check what is iterated."""
        _only_names(node.target)
        check = "__iterate" if isinstance(node.target, ast.Name) else "__each"
        return ast.For(
            node.target, _call(check, self.visit(node.iter)), self._block(node.body), self._block(node.orelse)
        )

    def visit_While(self, node: ast.While) -> ast.stmt:
        """Check the condition."""
        return ast.While(self._test(node.test), self._block(node.body), self._block(node.orelse))

    def visit_If(self, node: ast.If) -> ast.stmt:
        """Check the condition."""
        return ast.If(self._test(node.test), self._block(node.body), self._block(node.orelse))

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        """Check the condition."""
        return ast.Assert(self._test(node.test), node.msg and _call("__shown", self.visit(node.msg), ast.Constant(-1)))

    def visit_Raise(self, node: ast.Raise) -> ast.stmt:
        """Check how the error is made."""
        return ast.Raise(node.exc and self.visit(node.exc), node.cause and self.visit(node.cause))

    def visit_Try(self, node: ast.Try) -> ast.stmt:
        """Let no handler catch a refusal, and no end of a block drop it."""
        if any(
            isinstance(part, ast.Return | ast.Break | ast.Continue) for one in node.finalbody for part in ast.walk(one)
        ):
            raise Unprovable("a finally block that ends with a jump")
        ours = ast.ExceptHandler(ast.Name("__Refusal", ast.Load()), None, [ast.Raise()])
        handlers = [ast.ExceptHandler(one.type and self.visit(one.type), one.name, self._block(one.body))
                    for one in node.handlers]
        found = [ours, *handlers] if handlers else []
        return ast.Try(self._block(node.body), found, self._block(node.orelse), self._block(node.finalbody))

    def visit_With(self, node: ast.With) -> ast.stmt:
        """Check the context."""
        items = []
        for item in node.items:
            if item.optional_vars is not None:
                _only_names(item.optional_vars)
            items.append(ast.withitem(_call("__enter", self.visit(item.context_expr)), item.optional_vars))
        return ast.With(items, self._block(node.body))

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
            ast.Assign([ast.Name(one.asname or one.name, ast.Store())],
                       _call("__read", _call("__module", name, *package), ast.Constant(one.name)))
            for one in node.names
        ]

    def _temporary(self) -> str:
        self._locals += 1
        return f"__local{self._locals}"


def _refusing(statement: ast.stmt, found: Unprovable) -> ast.stmt:
    """Return a statement that is refused when it is reached."""
    said = ast.Constant(f"{found} is not known to be harmless")
    return ast.fix_missing_locations(ast.copy_location(ast.Raise(_call("__Refusal", said)), statement))


def without_type_parameters(node: Any) -> Any:
    """Return a definition with the field that Python 3.12 has added."""
    if hasattr(ast, "TypeVar"):
        node.type_params = []
    return node


def _call(name: str, *given: ast.expr, keywords: list[ast.keyword] | None = None) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(given), keywords or [])


def _without_defaults(node: ast.arguments) -> ast.arguments:
    """Return arguments without defaults: the function itself has them."""
    none = ast.Constant(None)
    return ast.arguments(
        posonlyargs=node.posonlyargs, args=node.args, vararg=node.vararg, kwonlyargs=node.kwonlyargs, kwarg=node.kwarg,
        kw_defaults=[one and none for one in node.kw_defaults], defaults=[none for _ in node.defaults],
    )


def _bare(argument: ast.arg) -> ast.arg:
    return ast.copy_location(ast.arg(argument.arg), argument)


def _only_names(target: ast.AST) -> None:
    for part in ast.walk(target):
        if not isinstance(part, ast.Name | ast.Tuple | ast.List | ast.Starred | ast.expr_context):
            raise Unprovable(f"an assignment to {ast.unparse(part)} while a sequence is taken apart")
