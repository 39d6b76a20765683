"""Exact priorities of every kind of model: each works, or says which way does."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from single_gradients import error, gradients_of, products, rank_correlation
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from looptap.training.prioritized import ExactPriorities, GhostPass, PriorityError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what Dynamo's own imports warn of is not ours
    import torch._dynamo

N, T, WIDTH, CLASSES = 8, 5, 6, 4
CROSS_ENTROPY = nn.CrossEntropyLoss(reduction="none")


class Of(nn.Module):
    """A model of parts and a function over them."""

    def __init__(self, run, **parts) -> None:
        super().__init__()
        self.run = run
        for name, one in parts.items():
            setattr(self, name, one)

    def forward(self, *inputs):
        return self.run(self, *inputs)


def head():
    return nn.Linear(WIDTH, CLASSES)


def in_training():
    return nn.Sequential(nn.Linear(WIDTH, 7), nn.BatchNorm1d(7), nn.ReLU(inplace=True), nn.Linear(7, CLASSES))


def flash():
    def run(self, x):
        q, k, v = self.qkv(x).view(N, T, 3, 2, 3).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(mixed.transpose(1, 2).reshape(N, T, WIDTH).mean(1))

    return Of(run, qkv=nn.Linear(WIDTH, 3 * WIDTH), head=head())


def shared():
    first, second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    second.weight = first.weight
    return nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), head())


def checkpointed(reentrant: bool):
    def run(self, x):
        return self.head(checkpoint(self.inner, x.clone().requires_grad_(), use_reentrant=reentrant))

    return Of(run, inner=nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.2), nn.Tanh()), head=head())


def recurrent(kind):
    return Of(lambda self, x: self.head(self.rnn(x)[0][:, -1]), rnn=kind(WIDTH, WIDTH, batch_first=True), head=head())


def bare_parameters():
    def run(self, x):
        x = torch.cat([self.token.expand(len(x), 1, WIDTH), x], 1) + self.position
        return self.head(self.inner(x).tanh()[:, 0] + x.mean(1))

    parts = {"token": nn.Parameter(torch.randn(1, 1, WIDTH)), "position": nn.Parameter(torch.randn(1, T + 1, WIDTH))}
    return Of(run, **parts, inner=nn.Linear(WIDTH, WIDTH), head=head())


def outside_of_its_layer():
    return Of(lambda self, x: self.head(functional.linear(x, self.inner.weight).tanh()),
              inner=nn.Linear(WIDTH, WIDTH, bias=False), head=head())  # fmt: skip


def several_calls():
    def run(self, x):
        for _ in range(3):
            x = self.inner(x).tanh()
        return self.head(self.inner(x))

    return Of(run, inner=nn.Linear(WIDTH, WIDTH), head=head())


def frozen():
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), head())
    model[0].requires_grad_(False)
    model[2].weight.requires_grad_(False)
    return model


def integers():
    return nn.Sequential(nn.Embedding(9, WIDTH), nn.Flatten(), nn.Linear(T * WIDTH, CLASSES))


def weight_norm():
    return nn.Sequential(parametrizations.weight_norm(nn.Linear(WIDTH, 7)), nn.Linear(7, CLASSES))


def positions():
    def run(self, x):
        return self.head((self.embed(x) + self.position(torch.arange(T))).tanh().mean(1))

    return Of(run, embed=nn.Embedding(9, WIDTH), position=nn.Embedding(T, WIDTH), head=head())


def flattened():
    return Of(lambda self, x: self.head(self.inner(x.flatten(0, 1)).tanh().view(N, T, WIDTH).mean(1)),
              inner=nn.Linear(WIDTH, WIDTH), head=head())  # fmt: skip


def time_first():
    return Of(lambda self, x: self.head(self.inner(x.transpose(0, 1).flatten(0, 1)).tanh().view(T, N, WIDTH).mean(0)),
              inner=nn.Linear(WIDTH, WIDTH), head=head())  # fmt: skip


def changed_outputs():
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), head())
    model[0].register_forward_hook(lambda layer, given, output: 2 * output)
    model[2].register_forward_pre_hook(lambda layer, given: (given[0] + 1,))
    return model


def many_layers():
    return nn.Sequential(
        *(nn.Conv3d(2, 4, 2, padding=1), nn.PReLU(4), nn.GroupNorm(2, 4), nn.Conv3d(4, 2, 2, stride=2, groups=2)),
        *(nn.PReLU(), nn.Flatten(), nn.RMSNorm(54), nn.Linear(54, CLASSES)),
    )


def vectors():
    return torch.randn(N, WIDTH), torch.randint(CLASSES, (N,))


def sequences():
    return torch.randn(N, T, WIDTH), torch.randint(CLASSES, (N,))


def tokens():
    return torch.randint(9, (N, T)), torch.randint(CLASSES, (N,))


def volumes():
    return torch.randn(N, 2, 5, 5, 5), torch.randint(CLASSES, (N,))


def dropout():
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.4), nn.Tanh(), nn.Dropout1d(0.2), head())


def encoder():
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 8, dropout=0.0, batch_first=True)
    return nn.Sequential(
        nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Flatten(), nn.Linear(T * WIDTH, CLASSES)
    )


def attention(batch_first: bool = True, keys: float = 1.0, checkpointed: bool = False):
    def mix(self, x, weights):
        return self.mix(x, x if keys == 1 else keys * x, x, need_weights=weights, attn_mask=mask)[0]

    def run(self, x):
        x = x if batch_first else x.transpose(0, 1)
        x = (
            checkpoint(mix, self, x, False, use_reentrant=False)
            if checkpointed
            else mix(self, mix(self, x, True), False)
        )
        return self.head(x.mean(1 if batch_first else 0))

    mask = nn.Transformer.generate_square_subsequent_mask(T)
    return Of(run, mix=nn.MultiheadAttention(WIDTH, 2, dropout=0.1, batch_first=batch_first), head=head())


def compiled_part():
    return nn.Sequential(torch.compile(nn.Linear(WIDTH, WIDTH), backend="eager"), nn.Tanh(), head())


def compiled_in_place():
    model = dropout()
    model.compile(backend="eager")
    return model


CASES = {
    "BatchNorm in training": (in_training, vectors, "jvp"),
    "dropout": (dropout, vectors, "ghost"),
    "fused attention": (flash, sequences, "ghost"),
    "shared weight": (shared, vectors, "ghost"),
    "checkpoint": (lambda: checkpointed(False), vectors, "ghost"),
    "reentrant checkpoint": (lambda: checkpointed(True), vectors, "finite_difference"),
    "LSTM": (lambda: recurrent(nn.LSTM), sequences, "finite_difference"),
    "GRU": (lambda: recurrent(nn.GRU), sequences, "jvp"),
    "MultiheadAttention": (attention, sequences, "ghost"),
    "MultiheadAttention, time first": (lambda: attention(batch_first=False), sequences, "ghost"),
    "MultiheadAttention of other keys": (lambda: attention(keys=2.0), sequences, "jvp"),
    "MultiheadAttention in a checkpoint": (lambda: attention(checkpointed=True), sequences, "jvp"),
    "TransformerEncoder": (encoder, sequences, "ghost"),
    "bare parameters": (bare_parameters, sequences, "jvp"),
    "a weight outside of its layer": (outside_of_its_layer, vectors, "jvp"),
    "several calls": (several_calls, vectors, "ghost"),
    "frozen parameters": (frozen, vectors, "ghost"),
    "integers": (integers, tokens, "ghost"),
    "positions": (positions, tokens, "jvp"),
    "flattened tokens": (flattened, sequences, "ghost"),
    "time first": (time_first, sequences, "jvp"),
    "hooks of the user": (changed_outputs, vectors, "ghost"),
    "weight norm": (weight_norm, vectors, "finite_difference"),
    "further layers": (many_layers, volumes, "ghost"),
    "torch.compile": (lambda: torch.compile(dropout(), backend="eager"), vectors, "ghost"),
    "module.compile": (compiled_in_place, vectors, "ghost"),
    "a compiled part": (compiled_part, vectors, "ghost"),
}  # fmt: skip


def made(case: str):
    torch.manual_seed(5)
    build, data, method = CASES[case]
    model = build()
    return model, *data(), [torch.randn_like(one) for one in model.parameters()], method


def true_gradients(model, x, y):
    """Return the gradients of single examples in the whole batch; draws nothing."""
    state, parameters = torch.get_rng_state(), [*model.parameters()]
    buffers = copy.deepcopy(dict(model.named_buffers()))
    found = []
    for place in range(N):  # a graph each: a reentrant checkpoint runs backward by itself
        torch.set_rng_state(state)
        before = [one.grad for one in parameters]
        for one in parameters:
            one.grad = None
        with torch.compiler.set_stance("force_eager"):
            CROSS_ENTROPY(model(x), y)[place].backward()
        found.append([torch.zeros_like(one) if one.grad is None else one.grad for one in parameters])
        for one, grad in zip(parameters, before, strict=True):
            one.grad = grad
        for name, one in model.named_buffers():
            one.copy_(buffers[name])
    torch.set_rng_state(state)
    return [torch.stack(single) for single in zip(*found, strict=True)]


@pytest.mark.parametrize("case", CASES)
def test_each_kind_of_model_finds_its_way(case):
    model, x, y, gbar, method = made(case)
    true = true_gradients(model, x, y)
    state, modes = torch.get_rng_state(), [one.training for one in model.modules()]
    buffers = copy.deepcopy(dict(model.named_buffers()))
    exact = ExactPriorities(model, CROSS_ENTROPY)
    found = exact(x, y, gbar)
    assert exact.method == method
    if method == "finite_difference":
        assert rank_correlation(found.priorities, products(true, gbar)) >= 0.97  # 8 examples
    else:
        assert error(found.priorities, products(true, gbar)) <= 1e-4
    assert found.losses.shape == (N,)
    assert all(why.endswith(".") for why in exact.refused.values())
    difference = ExactPriorities(model, CROSS_ENTROPY, method="finite_difference")(x, y, gbar)
    assert rank_correlation(difference.priorities, products(true, gbar)) >= 0.97  # 8 examples
    assert torch.equal(torch.get_rng_state(), state)
    assert [one.training for one in model.modules()] == modes
    assert all(torch.equal(one, buffers[name]) for name, one in model.named_buffers())
    assert all(one.grad is None for one in model.parameters())
    assert all(len(one._forward_hooks) == (case == "hooks of the user" and one is model[0]) for one in model.modules())


def test_an_embedding_that_divides_its_gradient_is_for_hooks_alone():
    torch.manual_seed(5)
    embed = nn.Embedding(9, WIDTH, padding_idx=2, scale_grad_by_freq=True)
    model, (x, y) = nn.Sequential(embed, nn.Flatten(), nn.Linear(T * WIDTH, CLASSES)), tokens()
    gbar, true = [torch.randn_like(one) for one in model.parameters()], true_gradients(model, x, y)
    found = ExactPriorities(model, CROSS_ENTROPY)(x, y, gbar)
    assert error(found.priorities, products(true, gbar)) <= 1e-4
    for method in ("jvp", "finite_difference"):
        with pytest.raises(PriorityError, match=r"scale_grad_by_freq=True\): use method='ghost'"):
            ExactPriorities(model, CROSS_ENTROPY, method=method)(x, y, gbar)


IN_THE_LOOP = [name for name, (*_, method) in CASES.items() if method == "ghost" and "compile" not in name]


@pytest.mark.parametrize("case", IN_THE_LOOP)
def test_a_step_with_priorities_trains_bit_for_bit_as_without(case):
    model, x, y, gbar, _ = made(case)
    plain = copy.deepcopy(model)
    state = torch.get_rng_state()
    exact = ExactPriorities(model, CROSS_ENTROPY)
    for _ in range(2):  # the first batch is checked; the gradients accumulate
        CROSS_ENTROPY(plain(x), y).mean().backward()
    after = torch.get_rng_state()
    torch.set_rng_state(state)
    for _ in range(2):
        with exact.ghost_pass(gbar) as ghost:
            ghost.backward(CROSS_ENTROPY(model(x), y))
    assert torch.equal(torch.get_rng_state(), after)
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert (one.grad is None and other.grad is None) or torch.equal(one.grad, other.grad)
    torch.set_rng_state(state)
    true_gradients(model, x, y)
    CROSS_ENTROPY(model(x), y)  # the random numbers of the first step
    assert error(ghost.priorities, products(true_gradients(model, x, y), gbar)) <= 1e-4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_with_a_scaler_keeps_gradients_and_ranks(dtype):
    model, x, y, gbar, _ = made("fused attention")
    gbar = [1e-7 * one for one in gbar]  # below what float16 holds
    true, plain = products(true_gradients(model, x, y), gbar), copy.deepcopy(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with torch.autocast("cpu", dtype):
        losses = CROSS_ENTROPY(plain(x), y)
    scaler.scale(losses.mean()).backward()
    with ExactPriorities(model, CROSS_ENTROPY).ghost_pass(gbar) as ghost:
        with torch.autocast("cpu", dtype):
            losses = CROSS_ENTROPY(model(x), y)
        scaler.scale(ghost.mean(losses)).backward()
        ghost.finish(scaler.get_scale())
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(model.parameters(), plain.parameters(), strict=True))
    assert error(ghost.priorities, true) <= 0.05


def test_what_fails_in_a_hook_leaves_the_gradients_whole():
    model, x, y, gbar, _ = made("time first")
    plain = copy.deepcopy(model)
    CROSS_ENTROPY(plain(x), y).mean().backward()
    with GhostPass(model, gbar) as ghost, pytest.raises(PriorityError, match=r"first dimension.*jvp"):
        ghost.backward(CROSS_ENTROPY(model(x), y))
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(model.parameters(), plain.parameters(), strict=True))
    assert ghost.priorities is None


def test_an_input_that_is_changed_after_the_call_is_noticed():
    def run(self, x):
        x = x.clone()
        first = self.first(x)
        x += 1
        return self.head(first + x)

    torch.manual_seed(0)
    model, (x, y) = Of(run, first=nn.Linear(WIDTH, WIDTH), head=head()), vectors()
    model.first.weight.requires_grad_(False)  # autograd does not need the input
    gbar = [torch.randn_like(one) for one in model.parameters()]
    exact = ExactPriorities(model, CROSS_ENTROPY)
    assert error(exact(x, y, gbar).priorities, products(true_gradients(model, x, y), gbar)) <= 1e-4
    assert "changed in place" in exact.refused["ghost"]


def test_the_layers_are_looked_for_again_when_the_model_has_changed():
    torch.manual_seed(0)
    (x, y), model = vectors(), nn.Sequential(nn.Linear(WIDTH, 7), nn.BatchNorm1d(7), nn.Linear(7, CLASSES)).eval()
    exact = ExactPriorities(model, CROSS_ENTROPY)

    def right(method):
        gbar = [torch.randn_like(one) for one in model.parameters()]
        found = exact(x, y, gbar).priorities
        return exact.method == method and error(found, products(true_gradients(model, x, y), gbar)) <= 1e-4

    assert right("ghost")
    assert right("ghost")
    model.train()
    assert right("jvp")
    model.eval()
    model[0].weight.requires_grad_(False)
    assert right("ghost")
    model[0].weight.requires_grad_(True)
    model[2] = nn.Linear(7, CLASSES)
    assert right("ghost")
    model[0].weight = nn.Parameter(torch.randn(7, WIDTH))
    assert right("ghost")
    model.append(nn.Bilinear(1, 1, 1))
    model.forward = lambda x: model[2](model[1](model[0](x)))
    assert right("jvp")


def test_a_batch_is_compared_along_a_direction_of_its_own():
    model, x, y, gbar, _ = made("a weight outside of its layer")
    exact = ExactPriorities(model, CROSS_ENTROPY)
    exact(x, y, [torch.zeros_like(one) for one in gbar])  # the first average gradient of a loop
    assert exact.method == "jvp"


def test_what_torch_compile_makes_is_refused_in_the_loop_and_computed_beside_it():
    for case in ("torch.compile", "module.compile", "a compiled part"):
        model, _, _, gbar, _ = made(case)
        with pytest.raises(PriorityError, match=r"is compiled.*ExactPriorities"):
            ExactPriorities(model, CROSS_ENTROPY).ghost_pass(gbar)
        with pytest.raises(PriorityError, match=r"is compiled.*ExactPriorities"):
            GhostPass(model, gbar)


def test_models_that_allow_no_method_are_refused_at_construction():
    with pytest.raises(PriorityError, match=r"'1' has no shape yet"):
        ExactPriorities(nn.Sequential(nn.Linear(2, 2), nn.LazyLinear(2)), CROSS_ENTROPY)
    with pytest.raises(PriorityError, match=r"no trainable parameter"):
        ExactPriorities(nn.Linear(2, 2).requires_grad_(False), CROSS_ENTROPY)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch.jit's own
        script = torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2))
    with pytest.raises(PriorityError, match=r"torch.jit"):
        ExactPriorities(script, CROSS_ENTROPY)


def test_wrapped_and_sharded_models(tmp_path):
    from torch.distributed.fsdp import fully_shard

    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model, x, y, gbar, _ = made("dropout")
        wrapped, plain = nn.parallel.DistributedDataParallel(model), copy.deepcopy(model)
        state = torch.get_rng_state()
        plain = nn.parallel.DistributedDataParallel(plain)
        CROSS_ENTROPY(plain(x), y).mean().backward()
        torch.set_rng_state(state)
        true = products(true_gradients(model, x, y), gbar)
        exact = ExactPriorities(wrapped, CROSS_ENTROPY)
        assert error(exact(x, y, gbar).priorities, true) <= 1e-4
        with exact.ghost_pass(gbar) as ghost:
            ghost.backward(CROSS_ENTROPY(wrapped(x), y))
        assert error(ghost.priorities, true) <= 1e-4
        assert all(torch.equal(a.grad, b.grad) for a, b in zip(wrapped.parameters(), plain.parameters(), strict=True))
        sharded = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES))
        fully_shard(sharded, mesh=torch.distributed.init_device_mesh("cpu", (1,)))
        with pytest.raises(PriorityError, match=r"sharded over ranks.*norms of the gradients"):
            ExactPriorities(sharded, CROSS_ENTROPY)
    finally:
        torch.distributed.destroy_process_group()


def test_gradients_of_the_loss_in_a_loop_agree_with_single_backward_passes():
    model, x, y, _, _ = made("several calls")
    single = gradients_of(CROSS_ENTROPY(model(x), y), [*model.parameters()])
    assert all(error(a, b) <= 1e-5 for a, b in zip(single, true_gradients(model, x, y), strict=True))
