"""The query language: text or a Python function in, a `Pipeline` out.

`compile_query` chooses the form of a query. Text without `events` is an expression mapped over them. A per-event
sequence (a generator, map, filter, accumulate of events) yields its items as they come. Anything else that mentions
`events` is a reduction, whose streaming parts become slots and whose rest is evaluated when the window closes.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any

import msgspec

from looptap.streams.errors import QueryError
from looptap.streams.events import CALLS
from looptap.streams.expressions import (
    SourceText,
    attributes_of_names,
    called_parts,
    free_names,
    mentions,
    names_free,
    names_in,
    names_read,
    nearest,
    observables_in,
    rewrite,
    texts_in,
)
from looptap.streams.harmless.refusal import WAY_OUT
from looptap.streams.language import builtins
from looptap.streams.language.column_form import bare_names, mapped_form, sequence_form
from looptap.streams.language.copyable import names_of_arithmetic
from looptap.streams.language.extraction import Extraction, StreamingExtractor, called_name, plain_name
from looptap.streams.language.item_modules import modules_of_items
from looptap.streams.language.over_values import HINT, check_field, check_parameter
from looptap.streams.operators.pipeline import Mapped, Pipeline
from looptap.streams.operators.reducing import Reducing
from looptap.streams.operators.slots import Items
from looptap.streams.operators.stages import collected_events, collected_values
from looptap.streams.operators.windows import Group, Sliding, Window
from looptap.streams.proving.calls import call, is_harmless
from looptap.streams.proving.following import defined
from looptap.streams.values.sizing import DEFAULT_BOUNDS, Bounds

EVENT = "__event"
ARITHMETIC = "proven: arithmetic on numbers, text and tensors changes nothing"
"""The explanation of a query that is proven before any event."""
CHECKED = (
    "proven as it runs: each operation is checked on the values at hand, functions of the job are followed by their "
    "source, a model runs on a copy; what is not known to be harmless is refused before anything has happened"
)
"""The explanation of a query that is proven at each event."""
UNSAFE = "unsafe: runs as it is, on record; what it changes of the job stays changed"
"""The explanation of a query that is not proven."""


class QuerySpec(msgspec.Struct, frozen=True):
    """A query before it is compiled.

    ``code`` is an expression or a function of one parameter; ``source`` is the name of the sequence (`events` in the
    agent, `values` at the client); ``known`` are the observables seen so far, None if no event has come; ``functions``
    are those that the host exposed; ``bounds`` limit what its parts hold for one window; ``unsafe``: an operator wants
    it to run as it is, even if it may change the job.
    """

    code: str | Callable[..., Any]
    window: Window = Group()
    every: int = 1
    throttle: float = 0.0
    source: str = "events"
    known: frozenset[str] | None = None
    functions: Mapping[str, Any] = {}
    bounds: Bounds = DEFAULT_BOUNDS
    unsafe: bool = False

    @property
    def item(self) -> str:
        """The name of an item of the sequence in error messages: e or v."""
        return "e" if self.source == "events" else "v"


def compile_query(spec: QuerySpec) -> Pipeline:
    """Compile ``spec``. Raises QueryError, pointing at the column, if it cannot.

    >>> pipeline = compile_query(QuerySpec("max(v for v in values)", source="values"))
    >>> _ = [pipeline.push(x) for x in (1, 3, 2)]
    >>> pipeline.flush()
    ((0, 3),)
    """
    _check(spec)
    if not isinstance(spec.code, str):
        return _from_function(spec, spec.code)
    if spec.code.lstrip().startswith(("def ", "@")):
        return _from_function(spec, _defined(spec))
    try:
        return _Compiler(spec, SourceText(spec.code)).compile()
    except RecursionError:
        hint = "For a sum of many terms, write sum([…])."
        raise QueryError("this expression is nested too deeply.", spec.code[:200], hint=hint) from None


def _check(spec: QuerySpec) -> None:
    if not isinstance(spec.every, int) or isinstance(spec.every, bool) or spec.every < 1:
        raise QueryError(f"every={spec.every!r} must be a whole number of events, 1 or more.")
    if not isinstance(spec.throttle, int | float) or not 0 <= spec.throttle < float("inf"):
        raise QueryError(f"throttle={spec.throttle!r} must be a number of seconds, 0 or more.")


class _Compiler:
    """Compiler of the text of one query."""

    def __init__(self, spec: QuerySpec, text: SourceText) -> None:
        self.spec, self.text = spec, text
        self.names = builtins.names(spec.functions)
        self.known = set(spec.known or ()) - set(spec.functions)
        self.shadowed: set[str] = set()  # names of the language that an observable may hide
        self.parts = StreamingExtractor(text, self.names, self.per_event, spec.bounds, spec.item == "e", True)
        self.alias = spec.item  # the name of the bare event in a mapped expression
        self.parameter = ""  # the alias if the query names it itself: then no observable hides it

    def compile(self) -> Pipeline:
        body, source = self.text.body, self.spec.source
        if isinstance(body, ast.Lambda):
            alias = _only_parameter(body, self.text)
            check_parameter(alias, source)
            body = body.body
            if alias == source:
                return self.reducing(rewrite(body, lambda n, b: None))
            self.alias = self.parameter = alias
            self.known.discard(alias)
        self.judge(body, self.spec.item if mentions(body, source) else self.alias)
        if not mentions(body, source):
            return self.mapped(body)
        body = modules_of_items(body, self.names.keys()) if source == "events" else body
        if isinstance(body, ast.Name):
            hint = "Say what of it: 'step, loss'." if self.spec.item == "e" else "Say what: 'v', or list(values)."
            raise self.text.error(f"{source} alone is the whole sequence, not a value.", body, hint)
        if not isinstance(body, ast.ListComp | ast.SetComp | ast.DictComp):
            items = self.parts.sequence(body, self.is_source)
            if items is not None:
                return self.generator(body, items)
        return self.reducing(body)

    def is_source(self, node: ast.expr, bound: frozenset[str]) -> bool:
        """Return True if ``node`` is the sequence of all events."""
        return isinstance(node, ast.Name) and node.id == self.spec.source and node.id not in bound

    # ------------------------------------------------------------ mapped

    def mapped(self, body: ast.expr) -> Pipeline:
        if isinstance(body, ast.Call) and called_name(body) in ("ema", "accumulate") and body.args:
            self.sequence_wanted(body, body.args[0])
        sequence = Items(self.expression(body), one=True)

        def rebind(item: Any) -> Items | None:
            """Compile again at the first event if its observables hide language names."""
            names = _observables(item) - {self.parameter}
            if not names & self.shadowed:
                return None
            self.known |= names
            self.parts.slots, self.parts.sliding = [], {}
            pipeline.numbers = self.judge(body, self.alias)
            pipeline.checked = self.parts.checked
            sequence = Items(self.expression(body), one=True)
            pipeline.slots = tuple(self.parts.slots)
            self.in_columns(pipeline, body)
            return sequence

        pipeline = Mapped(
            self.text.text, self.spec.window, self.spec.every, self.spec.throttle, sequence,
            tuple(self.parts.slots), rebind,
        )  # fmt: skip
        self.in_columns(pipeline, body)
        return self.described(pipeline, body, ["at each event: " + self.text.segment(body)])

    def in_columns(self, pipeline: Pipeline, body: ast.expr) -> None:
        """Set what the pipeline does with many events at once."""
        if self.parts.of_events:
            pipeline.bare = bare_names(body, self.alias, self.known, set(self.names))
            pipeline.form = mapped_form(body, self.alias, self.known, self.names, self.parts.sliding)

    def sequence_wanted(self, call: ast.Call, given: ast.expr) -> None:
        """Raise an error for `ema(loss, 0.1)`, whose argument is a single item."""
        if isinstance(given, ast.Name | ast.Attribute):
            item, shown = self.spec.item, self.text.segment(given)
            what = shown if isinstance(given, ast.Attribute) or shown == item else f"{item}.{shown}"
            raise self.text.error(
                f"{called_name(call)} needs a sequence, but {shown!r} is read at a single item.", given,
                f"Put ({what} for {item} in {self.spec.source}) there.",
            )  # fmt: skip

    def expression(self, body: ast.expr) -> Callable[[Any], Any]:
        """Return ``body`` as a function of one event; unknown names are observables."""
        return self.parts.code(EVENT, self.resolve(self.per_event(body, frozenset())))

    def resolve(self, body: ast.expr) -> ast.expr:
        called, parts = called_parts(body), _read_parts(body)

        def hook(node: ast.expr, bound: frozenset[str]) -> ast.expr | None:
            if not isinstance(node, ast.Name) or node.id in bound or node.id.startswith("__"):
                return None
            return self.meant(node, id(node) in called, id(node) in parts)

        return rewrite(body, hook)

    def meant(self, node: ast.Name, is_called: bool, is_read: bool) -> ast.expr | None:
        """Return what a free name is: the event, an observable, or None for a word."""
        name = node.id
        if is_called and name in self.names:  # a number of that name cannot be called
            return None
        if name in self.known and (name != self.alias or (name == "e" and not is_read)):
            return _observable(name)
        if name == self.alias or name in self.names:
            self.shadowed.add(name)
            return ast.Name(EVENT, ast.Load()) if name == self.alias else None
        if is_called and (self.spec.known is not None or nearest(name, self.names)):
            raise self.unknown_function(node)
        if self.spec.source != "events":
            if name == "events":
                raise self.other_side(node)
            check_field(node, self.spec.known, self.text)
        return _observable(name)

    def per_event(self, body: ast.expr, bound: frozenset[str]) -> ast.expr:
        """Replace `recent(n)` reductions and `latest(event).name` with calls."""
        return self.parts.recent_and_latest(body, bound)

    def generator(self, body: ast.expr, items: Items) -> Pipeline:
        self.complete(body)
        pipeline = Mapped(
            self.text.text, self.spec.window, self.spec.every, self.spec.throttle, items,
            tuple(self.parts.slots), lambda item: None,
        )  # fmt: skip
        pipeline.form = sequence_form(body, self.is_source, self.names) if self.parts.of_events else None
        shown = ["as they come, at each event: " + self.text.segment(body)]
        return self.described(pipeline, body, shown)

    # ------------------------------------------------------------ reducing

    def reducing(self, body: ast.expr) -> Pipeline:
        self.complete(body)
        window = self.spec.window
        size = window.size if isinstance(window, Sliding) else None
        extraction = Extraction(self.parts, self.is_source, size, names_read(body))
        rest = extraction.rewrite(body)
        finish = extraction.only() or self.parts.code(None, rest)
        pipeline = Reducing(
            self.text.text, window, self.spec.every, self.spec.throttle, extraction.slots,
            tuple(self.parts.slots), finish,
        )  # fmt: skip
        when = "at each event, over" if size else "when the window closes, for"
        shown = [f"one value {when} {window}", *extraction.explanation]
        if extraction.only() is None:
            shown.append("at the close: " + self.text.segment(body))
        pipeline.notes = extraction.notes
        if self.parts.collects:
            pipeline.expects = attributes_of_names(body, self.names)
        return self.described(pipeline, body, shown)

    def complete(self, body: ast.expr) -> None:
        """Raise an error for free names: outside an item there are no observables."""
        called, source = called_parts(body), self.spec.source
        for node in free_names(body):
            name = node.id
            if name in ("recent", "latest") and id(node) not in called:
                raise self.text.error(f"{name} is a function.", node, CALLS[name])
            if name in self.names or name in (source, "recent", "latest"):
                continue
            if id(node) in called:
                raise self.unknown_function(node)
            if name in ("events", "values"):
                raise self.other_side(node)
            item = self.spec.item
            what = f"{item}.…" if name == item else f"{item}.{name}"
            raise self.text.error(
                f"{name!r} is read at no particular item of {source}: outside a reduction it needs one.", node,
                f"Try last({what} for {item} in {source}), or mean, max, … in place of last.",
            )  # fmt: skip

    def other_side(self, node: ast.Name) -> QueryError:
        events = self.spec.source == "events"
        also = " For a query over the values of a stream, name it: of='loss'."
        hint = f"In a run the sequence is 'events'.{also}" if events else HINT
        return self.text.error(f"there is no {node.id!r} here.", node, hint)

    def unknown_function(self, node: ast.Name) -> QueryError:
        hint = nearest(node.id, self.names) or f"The host can expose it: agent.expose({node.id}={node.id})."
        return self.text.error(f"unknown function {node.id!r}.", node, hint)

    def described(self, pipeline: Pipeline, body: ast.expr, explanation: list[str]) -> Pipeline:
        pipeline.explanation, pipeline.fields = explanation, _fields(body, self.text)
        pipeline.unsafe = self.spec.unsafe
        pipeline.latest, pipeline.module_reads = self.parts.latest, tuple(self.parts.module_reads.values())
        free, held = names_free(body), _read_parts(body)
        pipeline.reads = free | names_read(body)
        texts = {n.value for n in ast.walk(body) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
        pipeline.mentions = pipeline.reads | texts
        alias = self.alias if pipeline.mapped else self.spec.item
        pipeline.observed = observables_in(body, alias) - self.words(body)
        if any(n.id == alias == "e" and id(n) not in held for n in free_names(body)):  # perhaps its own e
            pipeline.observed |= {alias}
        pipeline.language = self.language(body, alias)
        pipeline.numbers, pipeline.checked = self.judge(body, alias), self.parts.checked
        pipeline.trusted = not pipeline.unsafe and free.isdisjoint(self.spec.functions)
        pipeline.explanation.append(UNSAFE if pipeline.unsafe else CHECKED if pipeline.checked else ARITHMETIC)
        if self.parts.conditions:
            shown = ", ".join(dict.fromkeys(self.parts.conditions))
            said = f"{shown}: read in Python at each event; on a device tensor this waits for the device"
            pipeline.explanation.append(said)
        return pipeline

    def language(self, body: ast.expr, alias: str) -> frozenset[str]:
        """Return the language names in ``body`` that an observable may hide."""
        free = names_free(body) - {self.spec.source, alias}
        return free & {*self.names, "recent", "latest"} - self.known

    def words(self, body: ast.expr) -> set[str]:
        """Return the names that no observable hides: called ones, modules, `events`."""
        called = called_parts(body)
        bare = {n.id for n in free_names(body) if id(n) not in called}
        language = names_free(body) & self.names.keys()
        modules = {name for name in language & bare if issubclass(type(self.names[name]), ModuleType)}
        return {*CALLS, self.spec.source, *(language - bare), *modules}

    def judge(self, body: ast.expr, alias: str) -> frozenset[str] | None:
        """Return the names that arithmetic reads; None for code that is checked.

        Raises QueryError for a function of the language that is not harmless.
        """
        free = names_free(body) - {self.spec.source, alias}
        language = self.language(body, alias)
        hosts = free & set(self.spec.functions)
        numbers = None if hosts else names_of_arithmetic(body, free - language, language)
        self.parts.checked = numbers is None and not self.spec.unsafe
        if self.parts.checked and self.spec.known is not None:
            for node in ast.walk(body):
                name = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
                if name in language - hosts - {"recent", "latest"} and not is_harmless(self.names[name]):
                    raise self.text.error(f"{name} is not known to be harmless.", node, WAY_OUT)
        return numbers


def _observable(name: str) -> ast.expr:
    return ast.Attribute(ast.Name(EVENT, ast.Load()), name, ast.Load())


def _only_parameter(node: ast.Lambda, text: SourceText) -> str:
    a = node.args
    names = [*a.posonlyargs, *a.args]
    if len(names) - len(a.defaults) > 1 or not names or a.vararg or a.kwarg or a.kwonlyargs:
        raise text.error("a query's function takes one parameter, the event.", node, "lambda e: e.loss")
    return names[0].arg


def _read_parts(body: ast.expr) -> set[int]:
    """Return the ids of the nodes of which attributes or items are read."""
    return {id(node.value) for node in ast.walk(body) if isinstance(node, ast.Attribute | ast.Subscript)}


def _observables(item: Any) -> set[str]:
    names = getattr(item, "__looptap_names__", None)
    return names() if names is not None else set(getattr(item, "_fields", ()))


def _fields(body: ast.expr, text: SourceText) -> tuple[str, ...] | None:
    """Return the names of a tuple's elements if the query yields tuples."""
    if isinstance(body, ast.GeneratorExp):
        body = body.elt
    if isinstance(body, ast.Call) and isinstance(body.func, ast.Name) and body.func.id == "map" and body.args:
        body = body.args[0]
    if isinstance(body, ast.Lambda):
        body = body.body
    if not isinstance(body, ast.Tuple) or any(isinstance(x, ast.Starred) for x in body.elts):
        return None
    fields = [plain_name(x) or f"v{i}" for i, x in enumerate(body.elts)]
    return tuple(name if name not in fields[:i] else f"{name}_{i}" for i, name in enumerate(fields))


# ---------------------------------------------------------------- Python functions


def _defined(spec: QuerySpec) -> Callable[..., Any]:
    """Return the function that a text with `def` defines."""
    text = textwrap.dedent(str(spec.code))
    try:
        made = defined(text, builtins.names(spec.functions))
    except Exception as error:
        raise QueryError(f"this function cannot be compiled: {error}.", str(spec.code)) from None
    if made is None:
        raise QueryError("the text of a function defines exactly one.", str(spec.code))
    return made


def _from_function(spec: QuerySpec, code: Callable[..., Any]) -> Pipeline:
    name = getattr(code, "__name__", type(code).__name__)
    try:
        parameters = list(inspect.signature(code).parameters.values())
    except (TypeError, ValueError):
        raise QueryError(f"{name} has no signature that can be read; wrap it: lambda e: {name}(e.loss).") from None
    if isinstance(code, type):
        raise QueryError(
            f"{name} is a class; a query is text or a function.",
            hint=f"Call it in one: lambda {spec.item}: {name}({spec.item}).",
        )
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if not positional or len(required) > 1:
        takes = f"{name} takes {len(required)} arguments; a query's function takes one: the event, "
        raise QueryError(f"{takes}or all of the window if its name is {spec.source!r}.")
    check_parameter(positional[0].name, spec.source)
    window, every, throttle = spec.window, spec.every, spec.throttle
    compiled = getattr(code, "__code__", None)
    reads, texts = frozenset(names_in(compiled)), texts_in(compiled)  # a text may be a name: e['train/loss']
    pipeline: Pipeline
    function: Callable[..., Any] = code if spec.unsafe else functools.partial(call, code)
    if positional[0].name == spec.source:
        size = window.size if isinstance(window, Sliding) else None
        ours = spec.item == "e"
        slot = collected_events(reads | texts, size, spec.bounds) if ours else collected_values(size, spec.bounds)
        finish: Callable[[], Any] = lambda: function(slot.result())  # noqa: E731  # a closure over the one slot
        pipeline = Reducing(name, window, every, throttle, [slot], (), finish)
        pipeline.explanation = [f"{name}({spec.source}): called when the window closes, for {window}"]
        pipeline.notes = [_collected(reads if ours else None)]
        pipeline.expects = reads - {*builtins.names(), *getattr(code, "__globals__", ())}
    else:
        pipeline = Mapped(name, window, every, throttle, Items(function, one=True), (), lambda item: None)
        pipeline.explanation = [f"at each event: {name}(event)"]
    pipeline.reads, pipeline.observed = reads, (reads | texts) - {*builtins.names(), *getattr(code, "__globals__", ())}
    pipeline.mentions, pipeline.unsafe, pipeline.checked = reads | texts, spec.unsafe, not spec.unsafe
    pipeline.explanation.append(UNSAFE if spec.unsafe else CHECKED)
    return pipeline


def _collected(reads: Iterable[str] | None) -> str:
    what = "values" if reads is None else f"events with {', '.join(sorted(reads)) or 'nothing'}"
    return f"collected until the window closes, bounded: {what}"
