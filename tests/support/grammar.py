"""Random queries, whose evaluation must leave a loop as it was."""

from __future__ import annotations

import random

NUMBERS = (
    "{e}loss.item()", "{e}step", "{e}x.mean().item()", "{e}out.std()", "norm({e}x)", "float({e}out.argmax(1).sum())",
    "{e}model.fc.weight.norm().item()", "{e}model[0].weight.mean()", "{e}optimizer.param_groups[0]['lr']",
    "lr({e}optimizer)", "sum(layer_norms({e}model, 'weight').values())", "len({e}history)", "{e}config.depth",
    "sum(p.norm() for p in {e}model.parameters())", "np.mean({e}x.numpy())", "np.exp({e}counts).sum()",
)  # fmt: skip
"""Harmless where what they read is plain."""

DATA = (
    "sum(1 for _ in {e}loader)", "next(iter({e}loader))[0].mean()", "{e}loader.dataset[{n}][0].mean()",
    "{e}dataset[{n}][0].mean()", "sum(x.sum() for x, _ in itertools.islice({e}dataset, 3))", "len({e}loader)",
    "torch.utils.data.random_split({e}dataset, [30, 34])[0][{n}][0].mean()", "float({e}dataset.rng.normal())",
    "torch.stack([{e}dataset[i][0] for i in range(3)]).mean()",
    "torch.utils.data.default_collate([{e}dataset[{n}]])[0].sum()",
    "list({e}loader.sampler)[0]", "next(iter({e}loader.batch_sampler))[0]", "float({e}dataset.labels[{n}])",
)  # fmt: skip
"""Loaders and data sets, which draw and count."""

DRAWS = (
    "torch.rand({n}).sum()", "np.random.rand()", "{e}rng.normal()", "{e}legacy.rand()",
    "{e}dice.random()", "torch.rand(1, generator={e}generator).item()",
    "list(itertools.starmap(torch.randn, [(2,)]))[0].sum()",
    "next(map(torch.rand, [{n}])).sum()", "torch.manual_seed({n}).initial_seed()", "np.random.seed({n}) or 1",
    "torch.nn.functional.dropout({e}x).sum()", "torch.randperm({n})[0].item()", "{e}config.jitter", "float({e}config)",
    "torch.rand(1, generator={e}loader.generator).item()", "sum({e}config)", "{e}config.anything", "{e}config.cached",
    "torch.nn.Linear(3, 3)({e}x.flatten()[:3]).sum()",
)  # fmt: skip
"""Random numbers: of the process, of generators that the job owns, of properties and other methods of its objects."""

FORWARD = (
    "{e}model({e}x).sum()", "{e}model.norm({e}h).sum()", "{e}model[1]({e}model[0]({e}x)).sum()",
    "{e}model.eval()({e}x).sum()",
    "torch.vmap({e}model.fc)({e}h).sum()", "{e}model.fc({e}h).std()", "copy_of({e}model)({e}x).sum()",
    "torch.func.functional_call({e}model.fc, dict({e}model.fc.named_parameters()), ({e}h,)).sum()",
    "probe({e}model, {e}x).sum()", "{e}loss_of({e}model({e}x), {e}target)", "{e}model.spectral({e}h).sum()",
)  # fmt: skip
"""Forward passes, which update statistics."""

GRADIENTS = (
    "torch.autograd.grad({e}out.sum(), {e}model.fc.bias, allow_unused=True)[0].norm()",
    "torch.autograd.grad({e}loss, {e}h, retain_graph=False)[0].abs().max()",
    "torch.autograd.grad({e}model({e}x).sum(), {e}model.fc.weight)[0].norm()",
    "torch.autograd.grad(({e}h * 2).sum(), {e}h, create_graph=True)[0].sum()",
    "torch.func.grad(lambda v: {e}model.fc(v).sum())({e}h.detach()).sum()", "{e}loss.backward() or 1",
    "{e}model({e}x).sum().backward() or 1", "torch.autograd.backward({e}loss) or 1",
    "torch.autograd.functional.jacobian(lambda v: v.sum(), {e}h.detach()).sum()", "{e}loss.detach_().item()",
)  # fmt: skip
"""Gradients, before the loop's own and after."""

CHANGES = (
    "torch.set_grad_enabled(False) and 1", "{e}model.train(False) and 1", "{e}model.zero_grad() or 1",
    "{e}model.requires_grad_(False) and 1", "{e}model.half() and 1", "{e}history.append(1) or 1",
    "{e}history.sort() or 1",
    "{e}history.clear() or 1", "{e}table.pop('a')", "{e}table.setdefault('b', 1)", "{e}table['deep'].append(2) or 1",
    "{e}optimizer.param_groups[0].update(lr=9.0) or 1", "{e}optimizer.zero_grad() or 1", "{e}optimizer.step() or 1",
    "operator.iadd({e}x, 1.0).sum()", "operator.setitem({e}counts, 0, 9.0) or 1", "np.exp({e}counts, {e}counts).sum()",
    "np.add.at({e}counts, 0, 1) or 1", "{e}x.data.zero_().sum()", "{e}x.numpy().fill(3) or 1",
    "{e}loss.detach().zero_().item()",
    "{e}model.fc.weight.data.zero_().sum()", "torch.nn.init.zeros_({e}model.fc.weight).sum()",
    "{e}dice.shuffle({e}history) or 1",
    "{e}model.fc.register_forward_hook(print) and 1", "{e}model.fc.weight.register_hook(print) and 1",
    "setattr({e}config, 'depth', 7) or 1", "setattr({e}model, 'extra', 7) or 1", "{e}queue.popleft()",
    "{e}file.read({n}) and 1",
    "next({e}batches)", "list({e}batches)", "torch.nn.utils.clip_grad_norm_({e}model.parameters(), 0.01).item()",
    "{e}model.add_module('more', torch.nn.Linear(1, 1)) or 1", "{e}optimizer.state.clear() or 1",
    "np.seterr(all='raise') and 1",
    "{e}h.mul_(0).sum()", "{e}h.sub_({e}h).sum()", "{e}table.update(a=torch.rand(1)) or 1",
)  # fmt: skip
"""What is put back, or refused."""

KINDS = {
    "numbers": NUMBERS, "data": DATA, "draws": DRAWS, "forward": FORWARD, "gradients": GRADIENTS, "changes": CHANGES,
}  # fmt: skip


def term(dice: random.Random, e: str, depth: int = 2) -> str:
    """Return a random expression for a number, of an event called ``e``."""
    shape = dice.random() if depth else 1.0
    if shape < 0.2:
        return f"({term(dice, e, depth - 1)} {dice.choice('+-*')} {term(dice, e, depth - 1)})"
    if shape < 0.3:
        return f"({term(dice, e, depth - 1)} if {term(dice, e, 0)} else {term(dice, e, depth - 1)})"
    if shape < 0.4:
        return f"max([{term(dice, e, depth - 1)}, {term(dice, e, depth - 1)}], key=lambda v: float(v))"
    if shape < 0.5:
        return f"sum(float(v) for v in [{term(dice, e, depth - 1)}, 1])"
    return "float(" + dice.choice(dice.choice(list(KINDS.values()))).format(e=e, n=dice.randrange(1, 20)) + ")"


def query(dice: random.Random) -> str:
    """Return the text of a random query."""
    shape = dice.random()
    if shape < 0.45:
        return term(dice, "")
    if shape < 0.55:
        return f"lambda e: ({term(dice, 'e.')}, {term(dice, 'e.')})"
    if shape < 0.65:
        return f"def q(e):\n    return {term(dice, 'e.')}"
    if shape < 0.75:
        return f"max({term(dice, 'e.')} for e in events)"
    if shape < 0.85:
        return f"mean({term(dice, 'e.', 0)} for e in events if {term(dice, 'e.', 0)})"
    if shape < 0.95:
        return f"loss > mean({term(dice, 'e.', 0)} for e in recent(3))"
    return f"[e.step for e in events if {term(dice, 'e.', 0)}]"
