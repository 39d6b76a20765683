"""Call known functions, torch's operators, the job's functions, and models."""

from __future__ import annotations

import collections
import contextlib
import copy
import functools
import inspect
import itertools
import operator
import sys
import types
import weakref
from abc import ABCMeta
from collections.abc import Callable
from typing import Any

import numpy as np

from looptap.streams.control import FOR_QUERIES, Reader, bind_reader
from looptap.streams.harmless import known
from looptap.streams.harmless.checked_code import CHECKS, bind_call, is_checked
from looptap.streams.harmless.checked_evaluation import current, evaluating
from looptap.streams.harmless.plain import (
    ATOM,
    MAPPING,
    MODULE,
    OTHER,
    is_a,
    is_module,
    is_of_looptap,
    is_ordinary,
    is_plain_model,
    is_plain_optimizer,
    is_sharded,
    kind_of,
    module_of,
    name_of_type,
    of_class,
    of_python,
    sharded_type,
    type_of,
    types_in,
)
from looptap.streams.harmless.refusal import Refusal
from looptap.streams.harmless.results import to_copy
from looptap.streams.harmless.watch import effect, note_storages, operate
from looptap.streams.proving import vouching, writing
from looptap.streams.proving.attributes import item, read
from looptap.streams.proving.copies import applied, run_copy
from looptap.streams.proving.following import followed
from looptap.streams.proving.methods import bound_method, builtin, shielded
from looptap.streams.proving.vouching import (
    BUILTINS,
    CONTAINERS,
    each,
    iterate,
    judged,
    keyed,
    length,
    name_in_sentence,
    own,
    pairs,
    proxy,
    shown,
    type_name,
    unknown,
    vouch,
    vouched,
)
from looptap.streams.proving.writing import copied_object, delete, fill, is_of_dataclass, make, write

_MISSING = object()
_CACHED = type(functools.cache(lambda: None))


def call(f: Any, /, *given: Any, **named: Any) -> Any:
    """Return ``f(…)``."""
    rule = _rule(f)
    if rule is not None:
        return _made(_RULES[rule](f, given, named), f, given)
    kind = type_of(f)
    by_type = _BY_TYPE.get(kind)
    if by_type is not None:
        return by_type(f, given, named)
    if issubclass(kind, type):
        return make(f, given, named)
    if is_module(f):
        return run_copy(f, given, named)
    if module_of(kind) == "torch._ops" and effect(name := f.__name__.partition(".")[0]):
        return operate(f, name, *vouched(given, named))
    found = of_python(kind, "__call__")
    if found is not None:
        return call(found, f, *given, **named)
    raise unknown(name_in_sentence(f))


def _of_c(f: Any, given: Any, named: Any) -> Any:
    bound = getattr(f, "__self__", None)
    if type(bound) is np.ufunc and f.__name__ != "at":  # that writes, to what is read-only, too
        return _made(_computed(f, given, named), bound, given)
    return builtin(f, given, named)


def _got(f: Any, given: Any, named: Any) -> Any:
    """Return what `itemgetter` and `attrgetter` give."""
    get = item if type(f) is operator.itemgetter else _read_along
    found = tuple([get(given[0], key) for key in f.__reduce__()[1]])
    return found[0] if len(found) == 1 else found


def _read_along(value: Any, path: str) -> Any:
    return functools.reduce(read, path.split("."), value)


def _function(f: types.FunctionType, given: Any, named: Any) -> Any:
    if f is call:  # a function that was handed to a known one
        return call(*given, **named)
    if is_checked(f.__code__):
        result = f(*given, **named)
    elif is_of_dataclass(f, given):
        fill(f, *given, **named)
        result = None
    else:
        inner, checked = followed(f)
        result = checked.function(inner)(*given, **named)
    return own(result) if f.__code__.co_flags & inspect.CO_GENERATOR else result


_BY_TYPE: dict[type, Callable[[Any, Any, Any], Any]] = {
    types.FunctionType: _function,
    types.MethodType: lambda f, given, named: bound_method(f.__func__, f.__self__, given, named),
    functools.partial: lambda f, given, named: call(f.func, *f.args, *given, **{**f.keywords, **named}),
    _CACHED: lambda f, given, named: call(f.__wrapped__, *given, **named),
    weakref.ReferenceType: lambda f, given, named: f(),
    operator.itemgetter: _got,
    operator.attrgetter: _got,
    **dict.fromkeys(BUILTINS, _of_c),
}
"""How things of these types are called."""


def _rule(f: Any) -> str | None:
    if FOR_QUERIES.get(id(f)) is f:
        return "declared"
    found = known.of_identity().get(id(f))
    if found is None and "torch" in sys.modules:
        found = known.of_torch().get(id(f))
    return found[1] if found is not None and found[0] is f else None


def is_harmless(f: Any) -> bool:
    """Return True for a function of the language that may be called."""
    return _rule(f) is not None or (is_a(f, type) and issubclass(f, BaseException))


def handed(value: Any) -> Any:
    """Return an argument of a reducer; each call of an unknown one is checked."""
    return proxy(value) if callable(value) and _rule(value) is None else value


def _made(result: Any, f: Any, given: Any) -> Any:
    """Note an iterator, a container or an array that a known function has made."""
    if type(result) is np.ndarray:
        made = _of_numpy(f) and result.base is None and not any(result is one for one in given)
    else:
        made = (is_a(f, type) or f in (sorted, iter)) and (
            of_class(type(result), "__next__") or type_of(result) in CONTAINERS
        )
    return own(result) if made else result


def _of_numpy(f: Any) -> bool:
    return type(f) is np.ufunc or (getattr(f, "__module__", None) or "").partition(".")[0] == "numpy"


# ---------------------------------------------------------------- rules of known functions


def _computed(f: Any, given: Any, named: Any) -> Any:
    if named.get("out") is not None or (type(f) is np.ufunc and len(given) > f.nin):
        raise Refusal(f"{name_in_sentence(f)} with out= would write to an array or a tensor")
    given, named = vouched(given, named)
    if _of_numpy(f) or type(getattr(f, "__self__", None)) is np.ufunc:
        given, named = [shielded(one) for one in given], {k: shielded(v) for k, v in named.items()}
    result = f(*given, **named)
    if f is getattr(sys.modules.get("torch"), "tensor", None):
        note_storages(result)
    return result


def _iterated(f: Any, given: Any, named: Any) -> Any:
    """Run a function over iterables: what it calls is checked, and what it compares."""
    parts = {**dict(enumerate(given)), **named}
    functions = {at for at in (known.FUNCTION_AT.get(f), "key", "func") if parts.get(at) is not None}
    compares = f in known.COMPARING and not functions
    found = {at: _called_by(f, one) if at in functions else _part(f, at, one, compares) for at, one in parts.items()}
    return f(*[found.pop(at) for at in range(len(given))], **found)


def _called_by(f: Any, function: Any) -> Any:
    return proxy(function) if f in (map, itertools.starmap) else judged(function)


def _part(f: Any, at: int | str, one: Any, compares: bool) -> Any:
    """Return an argument that is iterated, or a setting."""
    if f is itertools.starmap:
        return each(one)
    if at == "fillvalue":
        return one
    if type(at) is str or (at and f in known.COUNTING):
        return vouch(one)
    if kind_of(one) != ATOM and (compares or (f is itertools.compress and at == 1)):
        return map(vouch, iterate(one))
    return iterate(one)


def _alone(f: Any, given: Any, named: Any) -> Any:
    """Run a function that calls nothing as long as it has one argument."""
    if len(given) > 1 or (f is inspect.signature and not is_a(given[0], (types.FunctionType, types.MethodType))):
        raise unknown(name_in_sentence(f))
    return _iterated(f, given, named) if f is iter else f(*given, **named)


def _without_class(value: Any) -> Any:
    """Return a value that does not compute its class."""
    if is_a(value, type):
        if not is_ordinary(value):
            raise unknown(f"the class of {name_of_type(value)}")
    elif of_python(type_of(value), "__getattribute__") is not None or (
        of_class(type_of(value), "__class__") is not object.__dict__["__class__"] and kind_of(value) in (OTHER, MODULE)
    ):
        raise unknown(f"the class of {type_name(value)}")
    return value


def _classes(value: Any) -> Any:
    """Return classes that do not compute what belongs to them."""
    for one in value if type(value) is tuple else (value,):
        if type(one) is tuple:
            _classes(one)
        elif is_a(one, type):
            if not all(map(_lists_plainly, _with_derived(one))):
                raise unknown(f"what belongs to {name_of_type(one)}")
        elif type(one) is not types.UnionType:
            raise unknown(f"what belongs to {type_name(one)}")
    return value


def _with_derived(kind: type) -> list[type]:
    """Return a class, and if it is abstract those derived from it: it asks them all."""
    found = [kind]
    if type(kind) is ABCMeta:
        for one in found:
            found += type.__subclasses__(one)
    return found


def _lists_plainly(kind: type) -> bool:
    """Return True unless code of the job decides what belongs to the class."""
    hook = of_class(kind, "__subclasshook__")
    of_python = type(hook) is not classmethod or module_of(hook.__func__) in ("collections.abc", "_collections_abc")
    return of_python and is_ordinary(kind)


def _keys(f: Any, given: Any, named: Any) -> Any:
    if f is collections.defaultdict:
        factory, *rest = given or (None,)
        made = factory if factory is None or factory in (list, dict, set, int, float) else proxy(factory)
        return collections.defaultdict(made, *map(pairs, rest), **named)
    if f in (dict, collections.OrderedDict):
        return f(*map(pairs, given), **named)
    if f is collections.Counter and given and kind_of(given[0]) == MAPPING:
        return f(*given, **named)
    first = [[keyed(one) for one in iterate(value)] for value in given[:1] if value is not None]
    return f(*first, *given[1:], **named)


def _helped(f: Any, given: Any, named: Any) -> Any:
    return f(*map(_helped_with, given), **{k: _helped_with(v) for k, v in named.items()})


def _helped_with(value: Any) -> Any:
    """Return an argument of a helper: also a model, an optimizer, or a local shard."""
    if is_sharded(value):
        return value._local_tensor
    if type_of(value) in (list, tuple) and sharded_type() in types_in(value):
        return type_of(value)(map(_helped_with, value))
    if id(value) in current().copies:
        return value
    if is_module(value):
        if is_plain_model(value):
            return value
        raise unknown(f"reading {type_name(value)}, which lists its parameters in a way of its own,")
    of_library = module_of(type_of(value)).partition(".")[0] in ("keras", "fastai")  # whose rate `lr` reads
    return value if kind_of(value) == OTHER and (of_library or is_plain_optimizer(value)) else vouch(value)


def _declared(f: Any, given: Any, named: Any) -> Any:
    """Run a function that looptap declares for queries, or a method of its own."""
    ours = given[:1] if given and is_of_looptap(type_of(given[0])) else ()
    given, named = vouched(given[len(ours) :], named)
    return f(*ours, *given, **named)


def _getattr(f: Any, given: Any, named: Any) -> Any:
    value, name, *default = given
    name = vouch(name)
    try:
        return read(value, name)
    except AttributeError:
        if default:
            return default[0]
        raise


def _context(f: Any, given: Any, named: Any) -> Any:
    torch: Any = sys.modules["torch"]
    if f is torch.enable_grad or (f is torch.set_grad_enabled and any([*given, *named.values()])):
        return contextlib.nullcontext()  # no graph is recorded, and the values are the same
    if len(given) == 1 and type(given[0]) is types.FunctionType:  # as a decorator
        return given[0]
    given, named = vouched(given, named)
    return f(*given, **named)


def _shows(f: Any, given: Any, named: Any) -> Any:
    if len(given) == 1 and f is not format:
        return shown(given[0], ord(f.__name__[0]))
    others, named = vouched(given[1:], named)
    return f(*map(shown, given[:1]), *others, **named)


def _refuses(f: Any, given: Any, named: Any) -> None:
    raise Refusal(f"torch.autograd.{f.__name__} runs the hooks of the job's graph: saliency computes on a copy")


_RULES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "computes": _computed,
    "iterates": _iterated,
    "keys": _keys,
    "helper": _helped,
    "getattr": _getattr,
    "context": _context,
    "declared": _declared,
    "shows": _shows,
    "applied": applied,
    "refuses": _refuses,
    "alone": _alone,
    "holds": lambda f, given, named: f(*given, **named),
    "silent": lambda f, given, named: None,
    "len": lambda f, given, named: length(*given),
    "next": lambda f, given, named: next(iterate(given[0]), *given[1:]),
    "repeat": lambda f, given, named: f(given[0], *map(vouch, given[1:])),
    "class": lambda f, given, named: f(_without_class(given[0]), _classes(given[1])),
    "getter": lambda f, given, named: f(*map(keyed, given)),
    "hasattr": lambda f, given, named: _getattr(f, (*given, _MISSING), named) is not _MISSING,
    "setattr": lambda f, given, named: write(given[0], vouch(given[1]), *given[2:]),
    "delattr": lambda f, given, named: delete(given[0], vouch(given[1])),
    "vars": lambda f, given, named: own(dict(read(given[0], "__dict__"))),
    "copies": lambda f, given, named: copied_object(given[0], f is copy.deepcopy, {}),
}


def _checked(f: Any, /, *given: Any) -> tuple[Any, str]:
    try:
        return to_copy(call(f, *given)), ""
    except Refusal as refusal:
        return None, refusal.reason


def _reader() -> Reader | None:
    return _checked if evaluating() else None


bind_call(call)
bind_reader(_reader)
CHECKS.update(
    {
        "__call": call,
        "__read": read,
        "__read_item": item,
        "__Refusal": Refusal,
        **{
            f"__{f.__name__}": f
            for f in (
                vouching.iterate,
                vouching.each,
                vouching.binary,
                vouching.unary,
                vouching.deep,
                vouching.shown,
                vouching.within,
                vouching.truth,
                vouching.own,
                vouching.keyed,
                vouching.keys,
                vouching.mapping,
                vouching.slice_of,
                writing.write,
                writing.write_item,
                writing.delete,
                writing.delete_item,
                writing.in_place,
                writing.enter,
                writing.of_super,
                writing.module,
            )
        },
    }
)
"""The operations of checked code by the names that rewritten code has for them."""
