"""What of Python's syntax is harmless, and one walk over an expression.

The proof, the columns, expressions over runs and those of a page take their operators, functions and forms from the
tables here; each may take fewer. `ExpressionReader` refuses what its subclass does not name.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Generic, TypeVar

T = TypeVar("T")


def split_words(text: str) -> tuple[str, ...]:
    """Return the words of a text."""
    return tuple(text.split())


OPERATORS: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow, ast.MatMult: operator.matmul,
    ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.BitXor: operator.xor, ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Not: operator.not_, ast.Invert: operator.invert,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.In: lambda item, items: item in items, ast.NotIn: lambda item, items: item not in items,
}  # fmt: skip
"""Python's operators as functions."""
ARITHMETIC = frozenset({ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.USub, ast.UAdd})
"""The operators of numbers, of whatever size: a reader has to bound what a power makes."""
ORDERING = frozenset({ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE})
"""The comparisons of two numbers."""

LITERALS = (float, int, bool, str, type(None))
"""Types of constants that are numbers, text or nothing."""
NUMBERS = ("pi", "e", "inf", "nan", "tau")
"""Numbers of `math`."""
MATH = frozenset(split_words(
    "sqrt cbrt exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh "
    "hypot pow fabs floor ceil trunc copysign fmod remainder isnan isinf isfinite isclose degrees radians erf erfc "
    "gamma lgamma"
)) & set(vars(math))
"""Functions of `math` that make a number of numbers, and none that grows without bound."""

MODULES = frozenset({"math", "statistics", "itertools", "functools", "operator", "collections"})
"""Modules of which arithmetic may call what is known."""
FUNCTIONS = frozenset(split_words(
    "abs round float int bool divmod pow complex range enumerate zip map filter reversed frozenset dict slice "
    "isinstance accumulate starmap ema recent isnan isinf isfinite"
))
"""Functions that arithmetic may call, besides the reducers."""
FORMS_OF_ARITHMETIC = (
    ast.Constant, ast.Name, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Tuple, ast.List, ast.Dict,
    ast.Set, ast.Lambda, ast.Subscript, ast.Slice, ast.Starred, ast.keyword,
    ast.comprehension, ast.GeneratorExp, ast.ListComp, ast.SetComp, ast.DictComp, ast.arguments, ast.arg,
    ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context,
)  # fmt: skip
"""What arithmetic consists of, besides calls and attributes, which depend on the names."""
UNCHECKED_FORMS = (
    ast.Constant, ast.Expr, ast.Return, ast.Pass, ast.Break, ast.Continue, ast.Nonlocal, ast.NamedExpr, ast.Yield,
    ast.JoinedStr, ast.Lambda, ast.Raise, ast.If, ast.IfExp, ast.While, ast.Assert, ast.For, ast.With,
)  # fmt: skip
"""Parts of code that do nothing by themselves, or only with fields that are checked."""


class ExpressionReader(ast.NodeVisitor, Generic[T]):
    """One walk over an expression; a subclass says what each part becomes.

    A form for which neither has a method is refused, and so is an operator that is not one of ``operators``.
    """

    operators: Collection[type[ast.AST]] = frozenset(OPERATORS)

    def refusal(self, node: ast.AST) -> Exception:
        """Return the error for a part that is not admitted."""
        raise NotImplementedError

    def applied(self, op: ast.operator | ast.unaryop, *parts: T) -> T:
        """Return what an operator of one or two operands becomes."""
        raise NotImplementedError

    def compared(self, ops: Sequence[ast.cmpop], parts: Sequence[T]) -> T:
        """Return what a chain of comparisons becomes."""
        raise NotImplementedError

    def compared_with(self, op: ast.cmpop, node: ast.expr) -> T:
        """Return what the right side of a comparison becomes."""
        return self.visit(node)  # type: ignore[no-any-return]

    def generic_visit(self, node: ast.AST) -> T:
        """Refuse what has no method."""
        raise self.refusal(node)

    def check(self, node: ast.AST, *ops: ast.AST) -> None:
        """Refuse ``node`` if one of its operators is not admitted."""
        if not all(type(op) in self.operators for op in ops):
            raise self.refusal(node)

    def visit_BinOp(self, node: ast.BinOp) -> T:
        """Read both operands."""
        self.check(node, node.op)
        return self.applied(node.op, self.visit(node.left), self.visit(node.right))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> T:
        """Read the operand."""
        self.check(node, node.op)
        return self.applied(node.op, self.visit(node.operand))

    def visit_Compare(self, node: ast.Compare) -> T:
        """Read what is compared."""
        self.check(node, *node.ops)
        return self.compared(node.ops, [self.visit(node.left), *map(self.compared_with, node.ops, node.comparators)])
