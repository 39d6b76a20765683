"""The state guard: less usual things of a job that a query can reach."""

from __future__ import annotations

import array
import collections
import contextvars
import decimal
import functools
import gc
import io
import itertools
import math
import os
import queue
import random
import signal
import sys
import threading
import types
import warnings
import weakref

import numpy as np
import pytest
import torch
from guarded_jobs import ask, reported
from interrupts import interrupted
from torch import nn

from looptap.streams.preserving.torch_state import TorchStateGuard
from looptap.testing import pair

_draws = np.random.default_rng(4)
_calls = 0
_TABLE = {"n": 0}
_variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)
helper = types.ModuleType("job_helper")


def draw_elsewhere():
    return _draws.normal()


class Thing:
    """Holds what a loop may hold, and changes it in all ways."""

    shared, common = 0, [1]

    def __init__(self):
        self.rng, self.dice = np.random.default_rng(1), random.Random(2)
        self.ids, self.pairs, self.zipped = itertools.count(), enumerate([5, 6, 7]), zip([1, 2], [3, 4], strict=True)
        self.cycle, self.mapped = itertools.cycle([1, 2, 3]), map(abs, [1, 2, 3])
        self.keys = iter({1: 2, 3: 4})
        self.sobol = torch.quasirandom.SobolEngine(2, scramble=True, seed=1)
        self.letters, self.numbers = bytearray(b"abc"), array.array("d", [1, 2, 3])
        self.view = memoryview(bytearray(b"xyz"))
        self.weight = torch.ones(3)
        self.reference, self.others = weakref.ref(self.weight), weakref.WeakValueDictionary(w=self.weight)
        self.simple = types.SimpleNamespace(rng=np.random.default_rng(9), x=1)
        self.tasks = queue.Queue()
        self.tasks.put(1)
        count = 0

        def counted():
            nonlocal count
            count += 1
            return count

        self.counted = counted

    @property
    def by_class(self):
        type(self).shared += 1
        return type(self).shared

    @property
    def by_global(self):
        global _calls
        _calls += 1
        return _calls

    @property
    def by_table(self):
        _TABLE["n"] += 1
        return _TABLE["n"]

    @property
    def by_function(self):
        return draw_elsewhere()

    def draw(self):
        return self.rng.normal()

    def take(self, name):
        return next(getattr(self, name))

    def __call__(self):
        return self.dice.random()


class Scripted(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x):
        return self.norm(self.fc(x))


DRAWS = (
    "thing.draw()",
    "draw()",
    "part()",
    "closure()",
    "cached()",
    "called()",
    "thing.by_function",
    "thing.simple.rng.normal()",
    "thing.sobol.draw(1).sum()",
)


@pytest.mark.parametrize("query", DRAWS)
def test_generators_are_restored_wherever_a_function_or_property_keeps_them(query):
    thing, other = Thing(), np.random.default_rng(8)
    exposed = {
        "draw": thing.draw,
        "part": functools.partial(Thing.draw, thing),
        "closure": lambda: other.normal(),
        "cached": functools.lru_cache(lambda: other.normal()),
        "called": thing,
        "thing": thing,
    }
    before = states(thing, other)
    stream = ask(query, **exposed)
    assert not stream.error_count, stream.traceback
    assert states(thing, other) == before


def states(thing, other):
    generators = [thing.rng, thing.simple.rng, other, _draws]
    return [str(g.bit_generator.state) for g in generators], thing.dice.getstate(), thing.sobol.num_generated


CHANGES = {
    "thing.by_class": "thing.shared",
    "thing.by_global": "_calls",
    "thing.by_table": "_TABLE['n']",
    "thing.counted()": "count",
    "type(thing).common.append(1) or 1": "thing.common",
    "setattr(type(thing), 'draw', None) or 1": "thing.draw",
    "setattr(type(thing), 'more', 1) or 1": "thing.more",
    "thing.letters.extend(b'z') or 1": "thing.letters",
    "thing.numbers.append(4.0) or 1": "thing.numbers",
    "operator.setitem(thing.view, 0, 65) or 1": "thing.view",
    "thing.reference().zero_().sum()": "thing.",
    "thing.others['w'].data.zero_().sum()": "thing.",
    "setattr(thing.simple, 'x', 2) or 1": "thing.simple.x",
}


def snapshot(thing):
    return (
        Thing.shared,
        Thing.common[:],
        _calls,
        dict(_TABLE),
        sorted(vars(Thing)),
        bytes(thing.letters),
        thing.numbers.tolist(),
        bytes(thing.view),
        thing.weight.tolist(),
        thing.simple.x,
    )


@pytest.mark.parametrize("query", CHANGES)
def test_a_change_by_way_of_a_class_a_global_a_view_or_a_weak_reference_is_restored_and_named(query):
    thing = Thing()
    before = snapshot(thing)
    (sentence,) = reported(ask(query, thing=thing))
    assert sentence.startswith(CHANGES[query])
    assert "restored" in sentence
    assert snapshot(thing) == before
    assert thing.counted() == 1


@pytest.mark.parametrize("name", ["ids", "pairs", "zipped", "cycle", "mapped", "keys"])
def test_an_iterator_that_a_method_hides_is_restored_or_reported(name):
    thing = Thing()
    assert reported(ask(f"thing.take('{name[:2]}' + '{name[2:]}') and 1", thing=thing))


def test_queues_locks_and_files_are_the_loops():
    thing, lock, file = Thing(), threading.Lock(), io.StringIO("abc")
    for query, kind in (("thing.tasks.get()", "queue"), ("lock.acquire()", "lock"), ("file.write('x')", "file")):
        stream = ask(query, thing=thing, lock=lock, file=file)
        assert f"is a {kind} of the loop" in stream.traceback
    assert (thing.tasks.qsize(), lock.locked(), file.getvalue()) == (1, False, "abc")
    assert ask("thing.tasks.qsize()", thing=thing).latest == 1


def test_generators_that_a_query_spawns_are_not_missed_by_the_loop():
    rng, seeds = np.random.default_rng(1), np.random.SeedSequence(5)
    before = np.random.default_rng(1).spawn(1)[0].normal(), np.random.SeedSequence(5).spawn(1)[0].generate_state(1)
    ask("rng.spawn(2)[0].normal()", rng=rng)
    ask("seeds.spawn(2)[0].generate_state(1)", seeds=seeds)
    assert (rng.spawn(1)[0].normal(), seeds.spawn(1)[0].generate_state(1)) == before


def test_one_element_of_a_large_tensor_is_seen_where_the_query_names_it():
    large = nn.Linear(300, 300)
    before = large.weight.detach().clone()
    at = "(7, 3), 9"
    for query in (
        "large.weight.data[7, 3].fill_(9.0)", f"large.weight.detach().numpy().__setitem__({at}) or 1",
        "large.weight.data.zero_().sum()",
    ):  # fmt: skip
        assert "restored" in reported(ask(query, large=large))[0]
    assert torch.equal(large.weight, before)


@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize(
    "query",
    [
        "script(x).sum()",
        "script.eval() and 1",
        "script.fc.weight.data.zero_().sum()",
        "script.norm.running_mean.add_(1).sum()",
    ],
)
def test_a_scripted_module_is_as_before(query):
    script = torch.jit.script(Scripted())
    before = {name: value.clone() for name, value in script.state_dict().items()}
    ask(query, {"x": torch.randn(4, 4)}, script=script)
    assert all(torch.equal(value, before[name]) for name, value in script.state_dict().items())
    assert all(module.training for module in script.modules())


def test_the_layers_that_a_query_names_are_copied_first():
    deep = nn.Sequential(*[nn.Linear(2, 2) for _ in range(400)])
    expected = deep[399].bias.tolist()
    (sentence,) = reported(ask("deep[399].bias.data.zero_().sum()", deep=deep))
    assert "restored" in sentence
    assert deep[399].bias.tolist() == expected


def test_tensors_of_inference_mode_and_of_a_subclass_are_restored():
    class Mine(torch.Tensor):
        pass

    with torch.inference_mode():
        inferred = torch.ones(3)
    mine = torch.ones(3).as_subclass(Mine)
    query = "def q(e):\n    import torch\n    with torch.inference_mode():\n        e.inferred.zero_()\n    return 1"
    assert reported(ask(query, inferred=inferred))
    assert reported(ask("mine.data.zero_().sum().item()", mine=mine))
    assert inferred.tolist() == mine.tolist() == [1, 1, 1]


def test_memory_that_a_query_frees_is_there_again():
    small, large = torch.arange(4.0), torch.arange(100_000.0)
    for query in ("small.untyped_storage().resize_(0) and 1", "large.untyped_storage().resize_(0) and 1"):
        assert reported(ask(query, small=small, large=large))
    assert small.tolist() == [0, 1, 2, 3]
    assert large.sum().isfinite()  # of what is large only the place is there


def test_memory_that_the_loop_has_freed_is_not_read():
    freed = torch.ones(1000)
    freed.untyped_storage().resize_(0)
    assert ask("setattr(thing, 'x', 1) or 1", thing=types.SimpleNamespace(freed=freed)).arrived


EVENT = {
    "overwrites": "def q(e):\n    e.loss = 9\n    return 1",
    "deletes": "def q(e):\n    del e.__dict__['loss']\n    return 1",
    "adds": "def q(e):\n    e.more = 9\n    return 1",
}


@pytest.mark.parametrize("how", EVENT)
def test_other_queries_see_the_event_as_the_loop_emitted_it(how):
    agent, run = pair("guarded")
    agent.expose(late=__import__("looptap").lazy(lambda: 5))
    changing, late = run.stream(EVENT[how]), run.stream("str(late)")
    loss, more = run.stream("loss"), run.stream("'more' in e.__dict__")
    agent.emit("batch", loss=0.5)
    assert loss.values == [0.5]
    assert more.values == [False]
    assert late.values == ["5"]
    assert reported(changing)
    agent.close()


PROCESS = {
    "gc.disable() or 1": gc.isenabled,
    "gc.set_threshold(3) or 1": gc.get_threshold,
    "warnings.simplefilter('ignore') or 1": lambda: list(warnings.filters),
    "os.environ.update(ZZ='1') or 1": lambda: dict(os.environ),
    "os.environ.pop('PATH')": lambda: dict(os.environ),
    "os.chdir('/') or 1": os.getcwd,
    "sys.path.append('x') or 1": lambda: list(sys.path),
    "sys.setrecursionlimit(900) or 1": sys.getrecursionlimit,
    "signal.signal(10, print) and 1": lambda: signal.getsignal(10),
    "signal.setitimer(0, 99.0) and 1": lambda: signal.getitimer(0),
    "setattr(decimal.getcontext(), 'prec', 3) or 1": lambda: decimal.getcontext().prec,
    "setattr(sys, 'stdout', None) or 1": lambda: sys.stdout,
}


@pytest.mark.parametrize("query", PROCESS)
def test_what_all_code_of_the_process_shares_is_restored_and_named(query):
    module = query.partition(".")[0].removeprefix("setattr(")
    module = module.removesuffix(", 'stdout', None) or 1")
    timer = signal.setitimer(0, 0.0)
    try:
        before = PROCESS[query]()
        stream = ask(f"def q(e):\n    import {module}\n    return {query}")
        after = PROCESS[query]()
    finally:
        signal.setitimer(0, *timer)
    assert not stream.error_count, stream.traceback
    assert after == before
    assert reported(stream)


MODES = {
    "torch.set_flush_denormal(True) and 1": lambda: 5e-324 * float(1),
    "torch.backends.mkldnn.set_flags(False) and 1": lambda: torch.backends.mkldnn.enabled,
    "torch.backends.cuda.enable_flash_sdp(False) or 1": torch.backends.cuda.flash_sdp_enabled,
    "torch.backends.cuda.enable_math_sdp(False) or 1": torch.backends.cuda.math_sdp_enabled,
    "setattr(torch.backends.opt_einsum, 'enabled', False) or 1": lambda: torch.backends.opt_einsum.enabled,
    "setattr(torch.utils.deterministic, 'fill_uninitialized_memory', False) or 1": lambda: (
        torch.utils.deterministic.fill_uninitialized_memory
    ),
    "torch._C._set_fwd_grad_enabled(False) or 1": torch._C._is_fwd_grad_enabled,
    "torch._C._set_multithreading_enabled(False) or 1": torch._C._is_multithreading_enabled,
}


@pytest.mark.parametrize("query", MODES)
def test_modes_that_decide_about_the_last_bit_are_restored(query):
    before = MODES[query]()
    assert not ask(query).error_count
    assert MODES[query]() == before


def trained(query=None, inside=False):
    """Return the weights of a few steps with autocast."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer, agent, run = torch.optim.SGD(model.parameters(), 0.5), *pair("guarded")
    agent.expose(model=model)
    stream = run.stream(query, budget=math.inf) if query else None
    for _ in range(4):
        x = torch.randn(8, 4)
        if not inside:
            agent.emit("batch", x=x)
        with torch.autocast("cpu", torch.bfloat16):
            if inside:
                agent.emit("batch", x=x)
            loss = (model(x).float() - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    agent.close()
    assert stream is None or (len(stream) == 4 and not stream.error_count)
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize(
    "query",
    [
        "torch.autocast('cpu', torch.bfloat16).__enter__() and 1",
        "torch.clear_autocast_cache() or 1",
        "probe(model, x).sum()",
        "def q(e):\n    import torch\n    with torch.no_grad():\n        return e.model(e.x).sum()",
    ],
)
@pytest.mark.parametrize("inside", [False, True])
def test_autocast_finds_no_weights_of_another_step_nor_without_a_graph(query, inside):
    bare = trained()
    assert torch.equal(trained(query, inside), bare)
    assert torch.equal(trained(), bare)


def test_a_container_of_the_job_is_still_seen():
    counts = collections.Counter(a=1)
    assert reported(ask("counts.update('ab') or 1", counts=counts))
    assert counts == {"a": 1}


# ---------------------------------------------------------------- modules of the job, and objects of libraries

HELPER = """
import numpy as np
rng, count, table = np.random.default_rng(3), 0, {"n": 0}
def draw():
    return rng.normal()
def bump():
    global count
    count += 1
    return count
"""


class Registry:
    rng, count, log = np.random.default_rng(4), 0, [1]


class User:
    """Uses what another module and another class hold."""

    def by_function(self):
        return helper.draw()

    def by_name(self):
        return helper.rng.normal()

    def by_import(self):
        import job_helper as own

        return own.rng.normal()

    def by_count(self):
        helper.count += 1
        return helper.bump()

    def by_class(self):
        Registry.count += 1
        Registry.log.append(1)
        return Registry.rng.normal()

    def by_context(self):
        _variable.set(5)
        return 1


@pytest.fixture
def job_helper(monkeypatch):
    """Return a module of the job, imported here as ``helper``."""
    exec(HELPER, vars(helper))
    monkeypatch.setitem(sys.modules, "job_helper", helper)
    return helper


@pytest.mark.parametrize(
    "query",
    [
        "user.by_function()",
        "user.by_name()",
        "user.by_import()",
        "user.by_count()",
        "user.by_class()",
        "user.by_context()",
        "module.draw()",
        "module.rng.normal()",
        "setattr(module, 'count', 9) or 1",
        "setattr(module, 'more', 9) or 1",
        "module.table.update(n=9) or 1",
        "kind.rng.normal()",
        "setattr(kind, 'count', 9) or 1",
        "kind.log.append(9) or 1",
        "__import__('job_helper').rng.normal()",
        "def q(e):\n    import sys\n    return sys.modules['job_helper'].bump()",
    ],
)
def test_other_modules_and_classes_of_the_job_are_as_before(query, job_helper):
    def state():
        generators = [str(one.rng.bit_generator.state) for one in (job_helper, Registry)]
        names = sorted(name for name in vars(job_helper) if name[0] != "_"), sorted(vars(Registry))
        return (
            generators,
            names,
            job_helper.count,
            job_helper.table.copy(),
            Registry.count,
            Registry.log[:],
            _variable.get(),
        )

    _variable.set(0)
    before = state()
    stream = ask(query, user=User(), module=job_helper, kind=Registry)
    assert not stream.error_count, stream.traceback
    assert state() == before


def objects():
    """Return objects of libraries, and how each is read."""
    pandas, pictures = pytest.importorskip("pandas"), pytest.importorskip("PIL.Image")
    return {
        "masked": (np.ma.masked_array(np.arange(4.0), mask=[0, 1, 0, 0]), lambda m: (m.tolist(), m.mask.tolist())),
        "user": (collections.UserDict(a=1), dict),
        "chain": (collections.ChainMap({"a": 1}), dict),
        "normal": (torch.distributions.Normal(torch.zeros(2), torch.ones(2)), lambda d: d.loc.tolist()),
        "strided": (np.ones((400, 400))[::2, ::2], lambda a: a.sum()),
        "frame": (pandas.DataFrame({"a": [1.0, 2.0]}), lambda f: f.to_dict()),
        "picture": (pictures.new("L", (4, 4)), lambda p: p.tobytes()),
        "table": (collections.defaultdict(list), dict),
    }


CHANGES_OF_LIBRARIES = {
    "masked.shape": True,
    "masked.__setitem__(0, 9) or 1": True,
    "masked.mask.fill(True) or 1": True,
    "user.update(b=2) or 1": True,
    "chain.update(b=2) or 1": True,
    "normal.loc.data.add_(1).sum()": True,
    "strided.__setitem__((3, 3), 7) or 1": True,
    "len(table['new'])": True,
    "frame.insert(0, 'b', 1) or 1": False,
    "frame.loc.__setitem__((0, 'a'), 9) or 1": False,
    "picture.putpixel((0, 0), 5) or 1": False,
}


@pytest.mark.parametrize("query", CHANGES_OF_LIBRARIES)
def test_objects_of_libraries_are_restored_or_their_change_is_named(query):
    things = objects()
    before = {name: read(thing) for name, (thing, read) in things.items()}
    stream = ask(query, **{name: thing for name, (thing, _) in things.items()})
    changed = [name for name, (thing, read) in things.items() if read(thing) != before[name]]
    assert changed == ([] if CHANGES_OF_LIBRARIES[query] else [query.partition(".")[0]])
    assert bool(reported(stream)) == (query != "masked.shape")


def test_ctrl_c_leaves_no_region_of_autocast_open():
    """Let Ctrl-C come at each instruction of a query that opens a region."""
    opened(TorchStateGuard())  # what it looks up once comes before the instructions that are counted
    for at in itertools.count(1):
        guard = TorchStateGuard()
        count, _ = interrupted(lambda guard=guard: opened(guard), at)
        guard.restore()
        torch.autocast_increment_nesting()
        assert torch.autocast_decrement_nesting() == 0
        if count < at:
            break
    assert at > 100


def opened(guard):
    with guard:
        torch.autocast("cpu", torch.bfloat16).__enter__()
