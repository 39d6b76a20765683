"""The streaming parts of a query: sequences, reductions, `recent`, `latest`."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable
from typing import Any

from looptap.streams.aggregations.registry import REDUCERS, Bounds, Reducer
from looptap.streams.columns.evaluation import Node
from looptap.streams.errors import QueryError
from looptap.streams.expressions import (
    COMPREHENSIONS,
    Comprehension,
    SourceText,
    free_names,
    function,
    item_name,
    names_free,
    names_read,
    part_name,
    results,
    rewrite,
    targets,
)
from looptap.streams.harmless.checked_evaluation import evaluated
from looptap.streams.harmless.refusal import Refusal
from looptap.streams.language.column_form import IsSource, sequence_form
from looptap.streams.language.over_values import event_of_latest
from looptap.streams.operators.pipeline import Latest
from looptap.streams.operators.slots import Items, SlidingSlot, Slot, SlotColumns
from looptap.streams.operators.stages import (
    FoldStage,
    as_made_by,
    chained,
    collected_events,
    ema_fold,
    snapshotting,
    uncopied,
)
from looptap.streams.proving.calls import handed
from looptap.streams.proving.following import checked_expression
from looptap.streams.values.modules.module_read import ModuleRead, module_read, reads_modules

_MODULES = {"functools", "itertools", "statistics", "heapq", "collections", "builtins"}
_SEQUENCE_AT = {"map": 1, "filter": 1, "starmap": 1, "accumulate": 0, "ema": 0}
"""The place of the sequence in calls that make one."""
_STACKED = {"sum", "min", "max", "len", "any", "all", "mean", "stdev", "variance", "first", "last"}
_COUNTED = {"len", "reduce"}  # the reducers that take bare events
_OF_VALUES = {  # the reducers of values, which take events only with a key
    "sum",
    "mean",
    "median",
    "stdev",
    "variance",
    "quantile",
    "histogram",
    "min",
    "max",
    "sorted",
    "nlargest",
    "nsmallest",
}


class StreamingExtractor:
    """Finder and compiler of the streaming parts of one query."""

    def __init__(
        self,
        text: SourceText,
        names: dict[str, Any],
        per_event: Callable[[ast.expr, frozenset[str]], ast.expr],
        bounds: Bounds,
        of_events: bool,
        checked: bool,
    ) -> None:
        self.text, self.names, self.per_event, self.bounds = text, names, per_event, bounds
        self.checked = checked  # whether each operation is checked before it runs
        self.of_events = of_events  # items are events, not values as in a stream
        self.slots: list[SlidingSlot] = []  # of recent(n)
        self.sliding: dict[int, Node] = {}  # what they give at many events, by the identity of the part
        self.latest: list[Latest] = []
        self.module_reads: dict[str, ModuleRead] = {}
        self.conditions: list[str] = []
        self.collects = False  # whether whole observables of events are kept
        self._places = 0

    def place(self, read: Callable[..., Any], *given: ast.expr) -> ast.expr:
        """Return a call of ``read``, to replace a part of the query."""
        self._places += 1
        name = f"__part{self._places}"
        self.names[name] = read
        return ast.Call(ast.Name(name, ast.Load()), [*given], [])

    # ------------------------------------------------------------ sequences

    def sequence(self, node: ast.expr, is_source: IsSource, bound: frozenset[str] = frozenset()) -> Items | None:
        """Return the per-event sequence that ``node`` is, or None."""
        if is_source(node, bound):
            return Items(lambda item: item, one=True, bare=self.of_events, copied=not self.of_events)
        name = item_name(node)
        if name is not None and isinstance(node, ast.Subscript) and is_source(node.value, bound):
            return Items(operator.itemgetter(name), one=True)  # events['train/loss']
        if bound & names_free(node):
            return None  # depends on a variable of an enclosing loop
        if isinstance(node, COMPREHENSIONS):
            return self._comprehension(node, is_source, bound)
        if isinstance(node, ast.Call):
            return self._call(node, is_source, bound)
        return None

    def _comprehension(self, node: Comprehension, is_source: IsSource, bound: frozenset[str]) -> Items | None:
        first = node.generators[0]
        inner = self.sequence(first.iter, is_source, bound)
        rest = [*first.ifs, *node.generators[1:], *results(node)]
        names = bound | targets(node)
        if inner is None or any(_contains(part, is_source, names) for part in rest):
            return None
        self.conditions += [self.text.segment(c) for g in node.generators for c in g.ifs]
        return chained(inner, self._stage(node, names))

    def _stage(self, node: Comprehension, bound: frozenset[str]) -> Items:
        """Return the comprehension, applied to the one item of a push."""
        made = results(node)
        item: ast.expr = made[0] if len(made) == 1 else ast.Tuple(made, ast.Load())
        first = node.generators[0]
        if len(node.generators) == 1 and isinstance(first.target, ast.Name):
            name, body = first.target.id, self.per_event(item, bound)
            if not first.ifs:
                return Items(self.code(name, body), one=True)
            conditions = [self.per_event(c, bound) for c in first.ifs]
            test = conditions[0] if len(conditions) == 1 else ast.BoolOp(ast.And(), conditions)
            choice = ast.IfExp(test, ast.Tuple([body], ast.Load()), ast.Tuple([], ast.Load()))
            return Items(self.code(name, choice), one=False)
        one_item = ast.Tuple([ast.Name("__item", ast.Load())], ast.Load())
        generators = [
            ast.comprehension(
                g.target,
                one_item if i == 0 else self.per_event(g.iter, bound),
                [self.per_event(c, bound) for c in g.ifs],
                0,
            )
            for i, g in enumerate(node.generators)
        ]
        listed = ast.ListComp(self.per_event(item, bound), generators)
        return Items(self.code("__item", ast.copy_location(listed, node)), one=False)

    def _call(self, node: ast.Call, is_source: IsSource, bound: frozenset[str]) -> Items | None:
        name = called_name(node)
        position = _SEQUENCE_AT.get(name or "")
        if name is None or position is None or len(node.args) <= position:
            return None
        inner = self.sequence(node.args[position], is_source, bound)
        if inner is None or any(_contains(part, is_source, bound) for part in _besides(node, position)):
            return None
        if name in ("accumulate", "ema"):
            return self._running(node, name, inner)
        return self._applied(node, name, inner, bound) if len(node.args) == 2 and not node.keywords else None

    def _applied(self, node: ast.Call, name: str, inner: Items, bound: frozenset[str]) -> Items:
        """Return the sequence of a `map`, `filter` or `starmap`."""
        given = node.args[0]
        if name == "filter":
            self.conditions.append(self.text.segment(given))
        if name == "map" and isinstance(given, ast.Lambda) and len(given.args.args) == 1 and not given.args.defaults:
            parameter = given.args.args[0].arg
            body = self.per_event(given.body, bound | {parameter})
            return chained(inner, Items(self.code(parameter, body), one=True))
        f = self.evaluate(self.per_event(given, bound))
        if name == "filter":
            keep = bool if f is None else f
            return chained(inner, Items(lambda x: (x,) if keep(x) else (), one=False))
        return chained(inner, Items((lambda x: f(*x)) if name == "starmap" else f, one=True))

    def _running(self, node: ast.Call, name: str, inner: Items) -> Items:
        if inner.bare:
            raise self._without_reducer(name, node.args[0])
        args = [self.evaluate(a) for a in node.args[1:]]
        keywords = {k.arg or "": self.evaluate(k.value) for k in node.keywords}
        try:
            fold = ema_fold(*args, **keywords) if name == "ema" else FoldStage(*args, **keywords)
        except TypeError as error:
            raise self.text.error(f"{error}.", node) from None
        stage = Items(fold.push, one=True, resets=[fold.reset])
        whole = chained(inner, stage)
        if isinstance(fold, FoldStage) and fold.has_initial:  # Python yields the initial value first
            return Items(lambda e: [*fold.begin(), *whole.items(e)], one=False, resets=whole.resets)
        return whole

    def _without_reducer(self, name: str, sequence: ast.expr) -> QueryError:
        shown = f"(e.loss for e in {self.text.segment(sequence)})"
        return self.text.error(f"{name} of bare events: an event is not a value.", sequence, f"Put {shown} there.")

    # ------------------------------------------------------------ reductions

    def reduction(
        self, node: ast.expr, is_source: IsSource, bound: frozenset[str]
    ) -> tuple[str, Items, Callable[[], Reducer]] | None:
        """Return the name, sequence and factory of the reducer that ``node`` calls."""
        name = _named_call(node)
        spec = REDUCERS.get(name or "")
        if not isinstance(node, ast.Call) or name is None or spec is None or len(node.args) <= spec.sequence:
            return None
        others = _besides(node, spec.sequence)
        if any(isinstance(a, ast.Starred) for a in node.args) or any(k.arg is None for k in node.keywords):
            return None
        if any(_contains(part, is_source, bound) or bound & names_free(part) for part in others):
            return None
        items = self.sequence(node.args[spec.sequence], is_source, bound)
        if items is None or (items.bare and not self._takes_events(node, name, spec.sequence)):
            return None
        if name == "len" and not items.bare:
            items = uncopied(items)
        return name, items, self._maker(node, name, others)

    def _takes_events(self, node: ast.Call, name: str, place: int) -> bool:
        """Return True if a reducer takes bare events. Raises QueryError for a mistake."""
        if name in _OF_VALUES and not any(k.arg == "key" for k in node.keywords):
            raise self._without_reducer(name, node.args[place])
        if name == "reduce" and len(node.args) < 3 and not node.keywords:
            raise self.text.error("reduce of bare events needs an initial value.", node, "reduce(f, events, 0)")
        return name in _COUNTED

    def _maker(self, node: ast.Call, name: str, others: list[ast.expr]) -> Callable[[], Reducer]:
        """Return what makes the reducer, with its arguments evaluated."""
        given = [self.evaluate(part) for part in others]
        args, words = given[: len(node.args) - 1], given[len(node.args) - 1 :]
        if name == "reduce":
            args[0] = snapshotting(args[0])
        try:
            keywords = {str(k.arg): word for k, word in zip(node.keywords, words, strict=True)}
            return REDUCERS[name].maker(*args, bounds=self.bounds, **keywords)
        except Exception as error:
            raise self.text.error(str(error), node) from None

    def evaluate(self, node: ast.expr) -> Any:
        """Return the value of an argument without events, which runs unguarded."""
        for name in free_names(node):
            if name.id not in self.names and not name.id.startswith("__"):
                raise self.text.error(
                    f"{name.id!r} is not known where this argument is evaluated: once, before any event.", name
                )
        try:
            if not self.checked:
                return self.code(None, node)()
            return handed(evaluated(checked_expression(None, node, self.text, self.names)))
        except Refusal as refusal:
            raise self.text.error(
                f"this argument is evaluated once, before any event, and may do nothing but compute: {refusal.reason}.",
                node,
            ) from None
        except Exception as error:
            raise self.text.error(f"this argument cannot be evaluated: {error}.", node) from None

    def code(self, parameter: str | None, body: ast.expr) -> Callable[..., Any]:
        """Return a function of ``parameter`` that evaluates ``body``."""
        make = checked_expression if self.checked else function
        return make(parameter, body, self.text, self.names)

    # ------------------------------------------------------------ recent(n), latest(event).name

    def recent_and_latest(self, body: ast.expr, bound: frozenset[str]) -> ast.expr:
        """Replace `recent(n)` reductions and `latest(event).name` in ``body`` with calls."""

        def hook(node: ast.expr, inner: frozenset[str]) -> ast.expr | None:
            read = part_name(node)
            if read and isinstance(node, ast.Attribute | ast.Subscript) and _named_call(node.value) == "latest":
                return self._latest(node.value, read)
            if _named_call(node) in ("recent", "latest"):
                raise self.text.error(
                    f"{ast.unparse(node)} alone is not a value.",
                    node,
                    "mean(e.loss for e in recent(100)), latest('epoch').error",
                )
            if isinstance(node, ast.Call) and reads_modules(node, bound | inner, self.names):
                return self._module_read(node, bound | inner)
            size = self._recent_in(node)
            if size is None:
                return None
            extraction = Extraction(self, _is_recent, size, names_read(node))
            new = extraction.part(node, bound | inner)
            self.slots += extraction.slots  # type: ignore[arg-type]  # with a size, all of them slide
            return new

        return rewrite(body, hook)

    def _module_read(self, node: ast.Call, bound: frozenset[str]) -> ast.expr:
        try:
            read = module_read(node, self.of_events)
        except ValueError as error:
            raise self.text.error(str(error), node, "activations('encoder.layer.3')") from None
        read = self.module_reads.setdefault(str(read), read)
        return self.place(read.get, *(self.recent_and_latest(part, bound) for part in node.args[1:]))

    def _recent_in(self, node: ast.expr) -> int | None:
        """Return n if ``node`` is a reduction or sequence over `recent(n)`, else None."""
        if isinstance(node, COMPREHENSIONS):
            return self._recent_in(node.generators[0].iter)
        if item_name(node) is not None and isinstance(node, ast.Subscript):
            return self._recent_in(node.value)
        if not isinstance(node, ast.Call):
            return None
        if called_name(node) != "recent":
            found = (self._recent_in(a) for a in node.args)
            return next((n for n in found if n is not None), None)
        size = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= 1_000_000:
            raise self.text.error("recent(n) takes a number of events from 1 to 1,000,000.", node, "recent(100)")
        return size

    def _latest(self, call: ast.expr, read: str) -> ast.expr:
        place = Latest(event_of_latest(call, self.of_events, self.text), read)
        self.latest.append(place)
        return self.place(place.get)


class Extraction:
    """One pass over a reduction that replaces its streaming parts with slots.

    With ``size`` the slots slide over the last ``size`` events. ``attributes`` are the ones that collected events
    keep.
    """

    def __init__(
        self, parts: StreamingExtractor, is_source: IsSource, size: int | None, attributes: Iterable[str]
    ) -> None:
        self.parts, self.is_source, self.size, self.attributes = parts, is_source, size, frozenset(attributes)
        self.slots: list[Slot | SlidingSlot] = []
        self.explanation: list[str] = []
        self.notes: list[str] = []
        self._rest: ast.expr | None = None

    def rewrite(self, body: ast.expr) -> ast.expr:
        """Return ``body`` with each streaming part replaced by a call."""
        self._rest = rewrite(body, self.part)
        return self._rest

    def only(self) -> Callable[[], Any] | None:
        """Return the read function of the only slot, if nothing else remains."""
        rest = self._rest
        if len(self.slots) == 1 and isinstance(rest, ast.Call) and isinstance(rest.func, ast.Name):
            read: Callable[[], Any] | None = self.parts.names.get(rest.func.id)
            return read if rest.func.id.startswith("__part") else None
        return None

    def part(self, node: ast.expr, bound: frozenset[str]) -> ast.expr | None:
        """Return the replacement of ``node`` if it streams or is collected, else None."""
        reduction = self.parts.reduction(node, self.is_source, bound)
        shown = self.parts.text.segment(node)
        if reduction is not None and self.size and reduction[0] == "reduce" and reduction[1].bare:
            reduction = None  # a sliding fold over events needs to keep them
        if reduction is not None:
            name, items, make = reduction
            slot = self.slot(node, items, make, name in _STACKED)
            assert isinstance(node, ast.Call)
            slot.columns = None if bound else self.columns(node, name)
            if isinstance(slot, SlidingSlot):
                self.parts.sliding[id(node)] = slot.values
            self.explanation.append(f"streams: {shown}")
            return self.parts.place(slot.result)
        if self.parts.of_events and self.is_source(node, bound):
            slot = collected_events(self.attributes, self.size, self.parts.bounds)
            self.slots.append(slot)
            self.parts.collects = True
            kept = ", ".join(sorted(self.attributes)) or "nothing"
            self._collects(f"{shown} (of each event: {kept})")
            return self.parts.place(slot.result)
        items_ = self.parts.sequence(node, self.is_source, bound)
        if items_ is None:
            return None
        slot = self.slot(node, items_, REDUCERS["list"].maker(bounds=self.parts.bounds), False)
        self._collects(shown)
        return self.parts.place(as_made_by(node, slot.result))

    def columns(self, call: ast.Call, name: str) -> SlotColumns | None:
        """Return how the reducer called ``name`` takes many events at once, or None."""
        spec = REDUCERS[name]
        # The third argument of nlargest(n, xs, f) is a key.
        keyed = any(k.arg == "key" for k in call.keywords) or len(call.args) > 2 > spec.sequence > 0
        slides = name in ("sum", "mean") and len(call.args) == 1 and not call.keywords
        if spec.takes is None or keyed or not self.parts.of_events or not (slides or self.size is None):
            return None
        form = sequence_form(call.args[spec.sequence], self.is_source, self.parts.names, counted=name == "len")
        return None if form is None else SlotColumns(form, spec.takes)

    def slot(self, node: ast.expr, items: Items, make: Callable[[], Reducer], merges: bool) -> Slot | SlidingSlot:
        """Return a new slot for the sequence in ``node``."""
        if self.size is not None and items.resets:
            raise self.parts.text.error(
                "a running fold (accumulate, ema) does not slide: it restarts with each window.",
                node,
                "Use window=n, or the fold without a reduction around it.",
            )
        slot = Slot(items, make) if self.size is None else SlidingSlot(items, make, self.size, merges)
        self.slots.append(slot)
        return slot

    def _collects(self, shown: str) -> None:
        text = f"collected until the window closes, bounded: {shown}"
        self.explanation.append(text)
        self.notes.append(text)


def called_name(node: ast.Call) -> str | None:
    """Return the name of a called function: `reduce` for `functools.reduce`, too."""
    f = node.func
    if isinstance(f, ast.Name):
        return f.id
    if isinstance(f, ast.Attribute) and isinstance(f.value, ast.Name) and f.value.id in _MODULES:
        return f.attr
    return None


def plain_name(node: ast.expr) -> str | None:
    """Return the last name of `loss`, `e.loss`, `e['train/loss']`; None otherwise."""
    return node.id if isinstance(node, ast.Name) else part_name(node)


def _besides(call: ast.Call, place: int) -> list[ast.expr]:
    """Return the arguments of a call besides the one at ``place``."""
    return [*call.args[:place], *call.args[place + 1 :], *(keyword.value for keyword in call.keywords)]


def _named_call(node: ast.AST) -> str | None:
    return called_name(node) if isinstance(node, ast.Call) else None


def _is_recent(node: ast.expr, bound: frozenset[str]) -> bool:
    return _named_call(node) == "recent"


def _contains(node: ast.AST, is_source: IsSource, bound: frozenset[str]) -> bool:
    return any(isinstance(n, ast.expr) and is_source(n, bound) for n in ast.walk(node))
