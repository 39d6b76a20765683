"""Models with hooks of ours on them: copied, saved, sent and scripted as without."""

from __future__ import annotations

import copy
import copyreg
import io
import pickle
import subprocess
import sys
import textwrap
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from looptap.agent.loop.hooks.unsaved_hook import UnsavedHook
from looptap.testing import pair


class Plain(nn.Module):
    """A model with a hook of the job's own."""

    def __init__(self):
        super().__init__()
        self.part = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.part.register_forward_hook(own_hook)

    def forward(self, x):
        return self.part(x)


def own_hook(module, arguments, output):
    return output + 1


class Inherits(Plain):
    pass


class OwnState(Plain):
    def __getstate__(self):
        return {**self.__dict__, "saved": True}

    def __setstate__(self, state):
        self.__dict__.update(state)


class VersionedState(Plain):
    def __getstate__(self):
        return "version 2", dict(self.__dict__)

    def __setstate__(self, state):
        self.__dict__.update(state[1])


class StateAsArgument(Plain):
    def __reduce__(self):
        return rebuilt, (type(self), self.__dict__.copy())


class OwnReduceEx(Plain):
    def __reduce_ex__(self, protocol):
        return rebuilt, (type(self), dict(self.__dict__))


class Weights(Plain):
    def __reduce__(self):
        return loaded, (type(self), self.state_dict())


class OwnDeepcopy(Plain):
    def __deepcopy__(self, memo):
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        twin.__dict__ = copy.deepcopy(self.__dict__, memo)
        return twin


class Slots(Plain):
    __slots__ = ("extra",)


class WithArguments(Plain):
    def __new__(cls, *arguments):
        one = super().__new__(cls)
        one.arguments = arguments
        return one

    def __init__(self, *arguments):
        super().__init__()

    def __getnewargs__(self):
        return self.arguments


def rebuilt(kind, state):
    made = kind.__new__(kind)
    nn.Module.__init__(made)
    made.__dict__.update(state)
    return made


def loaded(kind, state):
    made = kind()
    made.load_state_dict(state)
    return made


def parametrized():
    model = Plain()
    nn.utils.parametrizations.weight_norm(model.part[0])
    return model


KINDS = {
    kind.__name__: kind
    for kind in (Plain, Inherits, OwnState, VersionedState, StateAsArgument, OwnReduceEx, Weights, OwnDeepcopy, Slots,
                 lambda: WithArguments(3), parametrized)
}  # fmt: skip


def saved(model, **how):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, **how)


def in_a_thread(work):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def averaged_and_saved(model):
    return saved(torch.optim.swa_utils.AveragedModel(model), weights_only=False).module


WAYS = {
    "copy.deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "pickle, protocol 2": lambda model: pickle.loads(pickle.dumps(model, 2)),
    "pickle in Python": lambda model: pickle._loads(pickle._dumps(model)),
    "torch.save": lambda model: saved(model, weights_only=False),
    "torch.save in a thread": lambda model: in_a_thread(lambda: saved(model, weights_only=False)),
    "an average": torch.optim.swa_utils.AveragedModel,
    "an average, saved": averaged_and_saved,
    "copies of a compiled model": lambda model: copy.deepcopy(torch.compile(model, backend="eager"))._orig_mod,
    "an fx graph, copied": lambda model: copy.deepcopy(torch.fx.symbolic_trace(model)),
}


def outcome(way, model, x):
    """Return the result of the copy, and the form of the hooks that are on it."""
    try:
        twin = WAYS[way](model)
        shape = [
            (name, [type(hook) for table in tables(one) for hook in table.values()], one._forward_pre_hooks_with_kwargs)
            for name, one in twin.named_modules()
        ]  # fmt: skip
        return shape, twin(x).tolist()
    except Exception as error:
        return type(error), str(error)


def tables(module):
    return module._forward_hooks, module._forward_pre_hooks


def ours(model):
    return [hook for one in model.modules() for table in tables(one) for hook in table.values()
            if isinstance(hook, UnsavedHook)]  # fmt: skip


def asked(model):
    """Watch each module of a model; return the agent, and the streams to keep."""
    agent, run = pair("saved")
    agent.expose(model=model)
    queries = "activations('*', norm)", "inputs('part', norm)", "activations('model', norm)", "grads_of('part.0')"
    streams = [run.stream(query, on="batch") for query in queries]
    for _ in range(2):
        model(torch.ones(1, 4)).sum().backward()
        agent.emit("batch")
    model.zero_grad()
    assert len(ours(model)) >= 3
    return agent, streams


COPIES_ITSELF = {("OwnDeepcopy", way) for way in ("copy.deepcopy", "an average", "copies of a compiled model")}
COPIES_ITSELF |= {("parametrized", way) for way in ("an fx graph, copied", *(way for _, way in COPIES_ITSELF))}
"""Classes that copy their ``__dict__``, where a hook that does nothing stays in the copy."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_is_copied_saved_and_sent_as_without_hooks(kind):
    torch.manual_seed(1)
    model, x = KINDS[kind](), torch.randn(2, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = {way: outcome(way, model, x) for way in WAYS}
        agent, _streams = asked(model)
        hooked = {way: outcome(way, model, x) for way in WAYS}
    for way in WAYS:
        if (kind, way) in COPIES_ITSELF:
            assert hooked[way][1] == plain[way][1], way
        else:
            assert hooked[way] == plain[way], way
    assert len(ours(model)) >= 3
    agent.close()
    assert not ours(model)


def test_a_file_of_a_model_that_copied_itself_holds_none_of_our_hooks():
    model = OwnDeepcopy()
    _watching = asked(model)
    allowed = [OwnDeepcopy, nn.Sequential, nn.Linear, nn.ReLU, own_hook]
    with torch.serialization.safe_globals(allowed):
        loaded = saved(copy.deepcopy(model), weights_only=True)
    assert [type(hook) for one in loaded.modules() for table in tables(one) for hook in table.values()] == [
        type(own_hook)
    ]


@pytest.mark.parametrize("kind", ["Plain", "VersionedState"])
def test_what_a_thread_saves_is_not_changed_by_hooks_that_come_meanwhile(kind):
    model = KINDS[kind]()
    agent, _streams = asked(model)
    agent.close()
    assert not ours(model)
    kept = copyreg.dispatch_table[type(model)](model)  # what a pickler holds while it writes
    _watching = asked(model)
    assert ours(model)
    state = kept[2] if kind == "Plain" else kept[2][1]
    assert not state["_forward_hooks"]
    assert not state["_forward_pre_hooks"]


class Scripted(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x):
        return self.part(x)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_model_is_scripted_traced_and_exported_as_without_hooks():
    model, x = Scripted(), torch.randn(2, 4)
    before = torch.jit.script(model).code
    _watching = asked(model)
    hooks = ours(model)
    scripted = torch.jit.script(model)
    assert scripted.code == before
    assert torch.equal(scripted(x), model(x))
    assert not scripted._forward_hooks
    assert ours(model) == hooks
    assert torch.equal(torch.jit.trace(model, x)(x), model(x))
    assert torch.equal(torch.export.export(model, (x,)).module()(x), model(x))


@pytest.mark.usefixtures("processes")
def test_a_spawned_process_gets_a_model_without_hooks_and_without_looptap(tmp_path):
    (tmp_path / "job.py").write_text(textwrap.dedent("""
        import sys
        import torch, torch.multiprocessing as mp

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.part = torch.nn.Linear(4, 4)
            def forward(self, x):
                return self.part(x)

        def child(model, queue):
            hooks = [hook for one in model.modules() for hook in one._forward_hooks.values()]
            queue.put((len(hooks), "looptap" in sys.modules, model(torch.ones(4)).tolist()))

        if __name__ == "__main__":
            from looptap.testing import pair
            model = Model()
            agent, run = pair("spawns")
            agent.expose(model=model)
            stream = run.stream("activations('part')", on="batch")
            for _ in range(2):
                model(torch.ones(4)); agent.emit("batch")
            assert model.part._forward_hooks
            context = mp.get_context("spawn")
            queue = context.Queue()
            process = context.Process(target=child, args=(model, queue))
            process.start()
            assert queue.get() == (0, False, model(torch.ones(4)).tolist())
            process.join()
            print("the same", process.exitcode)
    """))
    done = subprocess.run([sys.executable, "job.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "the same 0\n", done.stderr
