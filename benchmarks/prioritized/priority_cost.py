"""What exact priorities cost in a step, and how exact they are, by path.

python benchmarks/prioritized/priority_cost.py [--json docs/prioritized-cost.json]: with that file, run.py --part page
puts the table on its page. Takes two minutes.

A step is that of a plain loop: zero_grad, forward, mean loss, backward, SGD. Each path takes the same step with the
priorities of its batch: "ghost" in the step's own backward pass, the others in a pass of their own before it. Steps of
a path and plain ones run interleaved; the cost is the ratio of the medians, of processor time with one thread. Promised
is that of "ghost", which "published" and "repaired" take.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import process_time
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from harness import Block, Row, interleave, main
from priority_models import CASES, Case

from looptap.training.prioritized import ExactPriorities

SECONDS_OF_A_BLOCK = 0.15
ROUNDS = {"ghost": 15, "jvp": 5, "finite_difference": 5, "vmap(grad)": 2}
PROMISED = {"MLP": 1.6, "CNN": 1.2, "transformer": 1.2}
"""Most steps that a step with exact priorities may take."""
PROMISED_ERROR, PROMISED_RANK_CORRELATION = 1e-4, 0.995


def single_gradients(case: Case) -> list[Any]:
    """Return the gradients of single examples, (n, ...), by `vmap(grad)`."""
    parameters = {name: one.detach() for name, one in case.model.named_parameters()}

    def of(values: Any, one: Any, target: Any) -> Any:
        return case.loss(torch.func.functional_call(case.model, values, (one[None],)), target[None])[0]

    with sdpa_kernel(SDPBackend.MATH):  # the others have no batching rule
        return list(torch.func.vmap(torch.func.grad(of), (None, 0, 0))(parameters, case.inputs, case.targets).values())


def products(gradients: list[Any], direction: list[Any]) -> Any:
    return sum((g * along).flatten(1).sum(1) for g, along in zip(gradients, direction, strict=True))


class Loop:
    """A training loop on one batch, with a direction as an average gradient is."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.optimizer = torch.optim.SGD(case.model.parameters(), 1e-3)
        self.exact = {
            m: ExactPriorities(case.model, case.loss, method=m) for m in ("ghost", "jvp", "finite_difference")
        }
        case.loss(case.model(case.inputs), case.targets).mean().backward()
        self.direction = [one.grad + 0.1 * one.grad.std() * torch.randn_like(one) for one in case.model.parameters()]

    def plain(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.case.loss(self.case.model(self.case.inputs), self.case.targets).mean().backward()
        self.optimizer.step()

    def ghost(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        with self.exact["ghost"].ghost_pass(self.direction) as ghost:
            ghost.backward(self.case.loss(self.case.model(self.case.inputs), self.case.targets))
        self.optimizer.step()

    def priorities(self, path: str) -> Any:
        """Return the priorities of the batch by a path."""
        case = self.case
        return self.exact[path](case.inputs, case.targets, self.direction).priorities

    def before(self, method: str) -> None:
        self.exact[method](self.case.inputs, self.case.targets, self.direction)
        self.plain()

    def by_single_gradients(self) -> None:
        products(single_gradients(self.case), self.direction)
        self.plain()

    def steps(self) -> dict[str, Callable[[], None]]:
        """Return a step by path."""
        return {
            "ghost": self.ghost,
            "jvp": lambda: self.before("jvp"),
            "finite_difference": lambda: self.before("finite_difference"),
            "vmap(grad)": self.by_single_gradients,
        }


def block(step: Callable[[], None]) -> Block:
    """Return a block of as many steps as fill its time."""
    step()
    start = process_time()
    step()
    count = max(1, round(SECONDS_OF_A_BLOCK / (process_time() - start)))

    def run() -> float:
        start = process_time()
        for _ in range(count):
            step()
        return (process_time() - start) / count

    return run


def costs(name: str) -> Iterator[Row]:
    torch.manual_seed(0)
    loop = Loop(CASES[name]())
    torch.set_num_threads(1)
    for path, step in loop.steps().items():
        found = interleave({"plain": block(loop.plain), path: block(step)}, ROUNDS[path])
        ratio, most = found.ratio(path, "plain"), PROMISED[name] if path == "ghost" else None
        plain = found.median("plain")
        yield Row(
            f"{name}, {path}: a step with priorities",
            f"{1e3 * plain:.3g} ms",
            f"{1e3 * found.median(path):.3g} ms",
            f"{ratio} steps",
            "" if most is None else f"≤ {most}",
            None if most is None else ratio.value <= most,
            {
                "plain": plain, "steps": ratio.value, "low": ratio.low, "high": ratio.high, "model": name,
                "path": path,
            },
        )  # fmt: skip


def errors(name: str) -> Iterator[Row]:
    torch.manual_seed(0)
    loop = Loop(CASES[name]())
    true = products(single_gradients(loop.case), loop.direction)
    for method in loop.exact:
        found = loop.priorities(method)
        error, rank = float((found - true).norm() / true.norm()), rank_correlation(found, true)
        exactly = method != "finite_difference"
        yield Row(
            f"{name}, {method}: priorities against vmap(grad)", "",
            f"relative error {error:.1e}, rank correlation {rank:.4f}", "",
            f"error ≤ {PROMISED_ERROR:g}" if exactly else f"rank correlation ≥ {PROMISED_RANK_CORRELATION}",
            error <= PROMISED_ERROR if exactly else rank >= PROMISED_RANK_CORRELATION,
            {"error": error, "rank_correlation": rank, "model": name, "path": method},
        )  # fmt: skip


def rank_correlation(a: Any, b: Any) -> float:
    return float(torch.corrcoef(torch.stack([one.argsort().argsort().double() for one in (a, b)]))[0, 1])


def rows() -> Iterator[Row]:
    before = torch.get_num_threads()
    try:
        for name in CASES:
            yield from errors(name)
            yield from costs(name)
    finally:
        torch.set_num_threads(before)


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the costs and errors of rows from the JSON file as lines of Markdown."""
    names = ["a plain step", *ROUNDS]
    lines = [
        "The time of a step that computes the exact priorities of its batch of 64, as a multiple of a plain step. "
        "`ghost`, which `published` and `repaired` use, computes them in the step's own backward pass, whose gradients "
        "stay the same to the last bit; the others take a separate pass. Processor time, one thread.",
        "", f"| | {' | '.join(names)} | promised |", "|---|" + "---:|" * (len(names) + 1),
    ]  # fmt: skip
    figures = [row["figures"] for row in rows]
    for name in CASES:
        costs = {one["path"]: one for one in figures if one["model"] == name and "steps" in one}
        cells = [f"{1e3 * costs['ghost']['plain']:.1f} ms", *(_cost(costs[path]) for path in ROUNDS)]
        held = "holds" if costs["ghost"]["steps"] <= PROMISED[name] else "**does not hold**"
        lines.append(f"| {name} | {' | '.join(cells)} | ≤ {PROMISED[name]}: {held} |")
    lines += [
        "", "Relative error against `vmap(grad)`; for the finite difference, the rank correlation:", "",
        "| | error: ghost | error: jvp | correlation: finite_difference |", "|---|---:|---:|---:|",
    ]  # fmt: skip
    for name in CASES:
        found = {one["path"]: one for one in figures if one["model"] == name and "error" in one}
        cells = [f"{found[path]['error']:.0e}" for path in ("ghost", "jvp")]
        cells += [f"{found['finite_difference']['rank_correlation']:.4f}"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    promised = f"≤ {PROMISED_ERROR:g}"
    return [*lines, f"| promised | {promised} | {promised} | ≥ {PROMISED_RANK_CORRELATION} |"]


def _cost(found: dict[str, Any]) -> str:
    return f"{found['steps']:.2f} ({found['low']:.2f}–{found['high']:.2f})"


if __name__ == "__main__":
    main(rows, __doc__)
