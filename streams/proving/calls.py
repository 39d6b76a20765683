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

from looptap.streams.control import FOR_QUERIES
from looptap.streams.harmless import known
from looptap.streams.harmless.checked_code import bind_call, is_checked
from looptap.streams.harmless.checked_evaluation import current
from looptap.streams.harmless.plain import (
    ATOM,
    MAPPING,
    MODULE,
    OTHER,
    TENSOR,
    attributes_of,
    is_a,
    is_of_looptap,
    is_of_torch,
    is_ordinary,
    is_plain_model,
    is_plain_optimizer,
    is_sharded,
    kind_of,
    kind_of_type,
    module_of,
    name_of_type,
    of_class,
    sharded_type,
    type_of,
    types_in,
)
from looptap.streams.harmless.refusal import Refusal
from looptap.streams.harmless.watch import effect, note, operate
from looptap.streams.proving.attributes import as_object
from looptap.streams.proving.copies import applied, run
from looptap.streams.proving.following import followed
from looptap.streams.proving.methods import method, method_of_base, method_of_tensor, shielded
from looptap.streams.proving.reading import item, read
from looptap.streams.proving.vouching import (
    BUILTINS,
    CONTAINERS,
    each,
    is_module,
    iterate,
    judged,
    keyed,
    length,
    name_of,
    own,
    pairs,
    proxy,
    shown,
    type_name,
    unknown,
    vouch,
)
from looptap.streams.proving.writing import copied_object, delete, fill, is_of_dataclass, make, set_plainly, write

_MISSING = object()


def call(f: Any, /, *given: Any, **named: Any) -> Any:
    """Return ``f(…)``."""
    rule = _rule(f)
    if rule is not None:
        return _made(_RULES[rule](f, given, named), f, given)
    kind = type_of(f)
    if f is call:  # a function that was handed to a known one
        return call(*given, **named)
    if kind is weakref.ReferenceType:
        return f()
    if f is weakref.ref and len(given) == 1:
        return f(*given)
    if kind is types.FunctionType:
        return _function(f, given, named)
    if kind is types.MethodType:
        return method_of(f.__func__, f.__self__, given, named)
    if kind is functools.partial:
        return call(f.func, *f.args, *given, **{**f.keywords, **named})
    if is_a(f, BUILTINS):
        return _builtin(f, given, named)
    if is_a(f, type):
        return make(f, given, named)
    if kind_of_type(kind) == MODULE or is_module(f):
        return run(f, given, named)
    if kind is _CACHED:
        return call(f.__wrapped__, *given, **named)
    if kind is operator.itemgetter:
        found = [item(given[0], key) for key in f.__reduce__()[1]]
        return found[0] if len(found) == 1 else tuple(found)
    if kind is operator.attrgetter:
        found = [functools.reduce(read, path.split("."), given[0]) for path in f.__reduce__()[1]]
        return found[0] if len(found) == 1 else tuple(found)
    if module_of(kind) == "torch._ops" and effect(name := f.__name__.partition(".")[0]):
        return operate(f, name, tuple(map(vouch, given)), {k: vouch(v) for k, v in named.items()})
    found = of_class(kind, "__call__")
    if type(found) is types.FunctionType:
        return call(found, f, *given, **named)
    raise unknown(name_of(f))


_CACHED = type(functools.cache(lambda: None))


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
    if not callable(value) or _rule(value) is not None:
        return value
    return proxy(value)


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


def _computed(f: Any, given: Any, named: Any) -> Any:
    if named.get("out") is not None:
        raise Refusal(f"{name_of(f)} with out= would write to an array or a tensor")
    given, named = [vouch(one) for one in given], {k: vouch(v) for k, v in named.items()}
    if _of_numpy(f) or type(getattr(f, "__self__", None)) is np.ufunc:
        given, named = [shielded(one) for one in given], {k: shielded(v) for k, v in named.items()}
    result = f(*given, **named)
    if f is getattr(sys.modules.get("torch"), "tensor", None):
        note(result)
    return result


def _ufunc(f: Any, given: Any, named: Any) -> Any:
    if len(given) > f.nin or named.get("out") is not None:
        raise Refusal(f"{name_of(f)} with out= would write to an array")
    return _computed(f, given, named)


_TESTING = (filter, itertools.filterfalse, itertools.takewhile, itertools.dropwhile)
_ONE = (id, callable)


def _held(f: Any, given: Any, named: Any) -> Any:
    if f is len:
        return length(*given)
    if f in (isinstance, issubclass):
        return f(_without_class(given[0]), _classes(given[1]))
    if f in _ONE or (f is type and len(given) == 1):
        return f(*given)
    if f in _TESTING and len(given) == 2:
        test, items = given
        return f(None, vouch(iterate(items))) if test is None else f(judged(test), iterate(items))
    if f is map:
        return map(proxy(given[0]), *map(iterate, given[1:]), **named)
    if f is itertools.starmap:
        return itertools.starmap(proxy(given[0]), each(given[1]))
    if f in (itertools.groupby, itertools.accumulate):
        key = [*given[1:2], *(named.pop(name) for name in ("key", "func") if name in named)][:1]
        items = iterate(given[0]) if key and key[0] is not None else map(vouch, iterate(given[0]))
        return f(
            items, *(None if one is None else judged(one) for one in key), **{k: vouch(v) for k, v in named.items()}
        )
    if f is itertools.compress:
        return itertools.compress(iterate(given[0]), map(vouch, iterate(given[1])))
    if f is itertools.repeat:
        return itertools.repeat(given[0], *map(vouch, given[1:]))
    if f is itertools.count:
        return itertools.count(*map(vouch, given), **{k: vouch(v) for k, v in named.items()})
    if f in (operator.is_, operator.is_not, functools.partial):
        return f(*given, **named)
    if f in (operator.itemgetter, operator.attrgetter):
        return f(*map(keyed, given))
    if f is inspect.signature and is_a(given[0], (types.FunctionType, types.MethodType)):
        return f(*given)
    if f is next:
        return next(iterate(given[0]), *given[1:])
    if f in (list, tuple, reversed, enumerate, collections.deque, itertools.islice, itertools.tee) or (
        f is iter and len(given) == 1
    ):
        return f(*map(iterate, given[:1]), *map(_plain, given[1:]), **{k: _plain(v) for k, v in named.items()})
    if f in (zip, *_OF_ITERABLES):
        return f(*map(_iterated, given), **{k: _plain(v) if k != "fillvalue" else v for k, v in named.items()})
    raise unknown(name_of(f))


_OF_ITERABLES = tuple(getattr(itertools, name) for name in
                      ("chain", "zip_longest", "product", "cycle", "pairwise", "permutations", "combinations",
                       "combinations_with_replacement"))


def _iterated(value: Any) -> Any:
    return value if type_of(value) is int else iterate(value)


def _plain(value: Any) -> Any:
    if kind_of(value) != ATOM:
        raise unknown(f"counting with {type_name(value)}")
    return value


def _without_class(value: Any) -> Any:
    """Return a value that does not compute its class."""
    if type(of_class(type_of(value), "__getattribute__")) is types.FunctionType or (
        of_class(type_of(value), "__class__") is not object.__dict__["__class__"]
        and kind_of(value) in (OTHER, MODULE)
        and not is_a(value, type)
    ):
        raise unknown(f"the class of {type_name(value)}")
    return value


def _classes(value: Any) -> Any:
    """Return classes that do not compute what belongs to them."""
    for one in value if type_of(value) is tuple else (value,):
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
    return is_ordinary(kind) and (
        type(hook) is not classmethod or module_of(hook.__func__) in ("collections.abc", "_collections_abc")
    )


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
    if kind_of(value) == OTHER and (is_plain_optimizer(value) or _of_library(value)):
        return value
    return vouch(value)


def _of_library(value: Any) -> bool:
    """Return True for an optimizer of Keras or fastai itself, whose rate `lr` reads."""
    return module_of(type_of(value)).partition(".")[0] in ("keras", "fastai")


def _declared(f: Any, given: Any, named: Any) -> Any:
    """Run a function that looptap declares for queries, or a method of its own."""
    own_object = given and is_of_looptap(type_of(given[0]))
    arguments = [*given[:1], *map(vouch, given[1:])] if own_object else map(vouch, given)
    return f(*arguments, **{k: vouch(v) for k, v in named.items()})


def _getattr(f: Any, given: Any, named: Any) -> Any:
    value, name, *default = given
    name = vouch(name)
    try:
        return read(value, name)
    except AttributeError:
        if default:
            return default[0]
        raise


def _hasattr(f: Any, given: Any, named: Any) -> Any:
    return _getattr(f, (*given, _MISSING), named) is not _MISSING


def _vars(f: Any, given: Any, named: Any) -> Any:
    return own(dict(attributes_of(_without_class(given[0]))))


def _context(f: Any, given: Any, named: Any) -> Any:
    torch: Any = sys.modules["torch"]
    if f is torch.enable_grad or (f is torch.set_grad_enabled and any([*given, *named.values()])):
        return contextlib.nullcontext()  # no graph is recorded, and the values are the same
    if len(given) == 1 and type(given[0]) is types.FunctionType:  # as a decorator
        return given[0]
    return f(*map(vouch, given), **{k: vouch(v) for k, v in named.items()})


def _shows(f: Any, given: Any, named: Any) -> Any:
    if len(given) == 1 and f is not format:
        return shown(given[0], ord(f.__name__[0]))
    return f(*map(shown, given[:1]), *map(vouch, given[1:]), **{k: vouch(v) for k, v in named.items()})


def _copies(f: Any, given: Any, named: Any) -> Any:
    return copied_object(given[0], f is copy.deepcopy, {})


def _refuses(f: Any, given: Any, named: Any) -> None:
    raise Refusal(f"torch.autograd.{f.__name__} runs the hooks of the job's graph: saliency computes on a copy")


def _silent(f: Any, given: Any, named: Any) -> None:
    """Do nothing."""


_RULES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "computes": _computed, "ufunc": _ufunc, "holds": _held, "keys": _keys, "helper": _helped, "getattr": _getattr,
    "hasattr": _hasattr, "setattr": lambda f, given, named: write(given[0], vouch(given[1]), *given[2:]),
    "delattr": lambda f, given, named: delete(given[0], vouch(given[1])), "vars": _vars, "context": _context,
    "declared": _declared, "shows": _shows, "silent": _silent, "applied": applied, "copies": _copies,
    "refuses": _refuses,
}


def _followed(f: types.FunctionType, given: Any, named: Any) -> Any:
    """Run the checked form of a function."""
    inner, checked = followed(f)
    return checked.function(inner)(*given, **named)


def _function(f: types.FunctionType, given: Any, named: Any) -> Any:
    if is_checked(f.__code__):
        result = f(*given, **named)
    elif is_of_dataclass(f, given):
        fill(f, *given, **named)
        result = None
    else:
        result = _followed(f, given, named)
    return own(result) if f.__code__.co_flags & inspect.CO_GENERATOR else result


def _builtin(f: Any, given: Any, named: Any) -> Any:
    bound = getattr(f, "__self__", None)
    name = f.__name__
    if name.startswith(("_get_", "_is_")) and module_of(f).startswith("torch._C") and not given and not named:
        return f()
    if is_a(bound, type) and not is_ordinary(bound):
        raise unknown(name_of(f))
    if type(f) in (types.MethodDescriptorType, types.WrapperDescriptorType) and given:
        bound, *given = given
        f = f.__get__(bound)
    if type_of(bound) is np.ufunc and name != "at":  # that writes, to what is read-only, too
        return _made(_computed(f, given, named), bound, given)
    if bound is not None and not is_a(bound, types.ModuleType | type):
        if kind_of(bound) in (OTHER, MODULE):
            if name == "__getattribute__" and len(given) == 1 and not named:
                return as_object(bound, *given)
            if name == "__setattr__" and f.__objclass__ is object:
                return set_plainly(bound, *given)
            return method_of_base(f, bound, name, given, named)
        if kind_of(bound) == TENSOR:
            return method_of_tensor(f, bound, given, named)
        return method(bound, name, *given, **named)
    if _of_torch(f, bound) and effect(name):
        return operate(f, name, tuple(map(vouch, given)), {k: vouch(v) for k, v in named.items()})
    if is_a(bound, type) and bound in (dict, str, bytes, float, int):
        return f(*map(vouch, given), **{k: vouch(v) for k, v in named.items()})
    raise unknown(name_of(f))


def _of_torch(f: Any, bound: Any) -> bool:
    return module_of(f) == "torch" or (is_a(bound, (type, types.ModuleType)) and bound.__name__.startswith("torch"))


def method_of(function: Any, value: Any, given: Any, named: Any) -> Any:
    """Return what a bound method gives."""
    if (
        type(function) is types.FunctionType
        and is_module(value)
        and _walks(function)
        and is_plain_model(value, lists=True)
    ):
        found = function(value, *map(_bare, given), **{k: _bare(v) for k, v in named.items()})
        return own(found) if of_class(type(found), "__next__") else found
    return call(function, value, *given, **named)


def _bare(value: Any) -> Any:
    if kind_of(value) != ATOM:
        raise unknown(f"walking over a model with {type_name(value)}")
    return value


def _walks(function: types.FunctionType) -> bool:
    return function.__name__ in known.MODULE_METHODS and is_of_torch(function)


bind_call(call)
