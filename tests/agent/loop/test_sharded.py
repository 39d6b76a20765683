"""Queries on one rank of a sharded model: no collective or change (S19, S23)."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import textwrap

import pytest
import torch
import warm

RANK = """
    import json, signal, sys, warnings
    signal.alarm(300)
    warnings.simplefilter("ignore")
    import torch, torch.distributed as dist
    from torch import nn
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
    from looptap.testing import pair

    rank, store = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    mesh = dist.init_device_mesh("cpu", (2,))

    QUERIES = {
        "grads": "layer_norms(model)", "weights": "layer_norms(model, 'weight', 'max')",
        "histograms": "layer_histograms(model, 'weight', 4)", "activation": "activation_stats(model[0].weight)",
        "norm": "norm(model[0].weight)", "mean": "mean_abs(model[0].weight)", "nan": "isnan(model[0].weight)",
        "all": "isfinite([p for p in model.parameters()])", "shape": "shape(model[0].weight)", "rate": "lr(optimizer)",
        "top": "batch_topk(2, by=losses, x=x)", "bottom": "batch_bottomk(1, by=losses)",
        "sample": "batch_sample(2, x=x)", "confusion": "confusion(target, out, 3)", "thumbnail": "thumbnail(x[:1])",
        "row": "step, loss", "tensor": "model[0].weight", "state": "{n: p for n, p in model.named_parameters()}",
        "reduced": "mean(e.loss for e in events)", "last": "last(e.model[0].weight for e in events)",
        "recent": "mean(e.loss for e in recent(3))", "sliding": "max(e.loss for e in events)", "wrong": "model.nothing",
    }

    def number():
        return mesh.get_group()._get_sequence_number_for_group()

    def train(kind, attached):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
        if kind == "fsdp":
            fully_shard(model, mesh=mesh)
        else:
            for layer in model:
                for name, p in list(layer.named_parameters(recurse=False)):
                    layer.register_parameter(name, nn.Parameter(distribute_tensor(p.detach(), mesh, [Shard(0)])))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        agent, run = pair("sharded")
        agent.expose(model=model, optimizer=optimizer)
        streams, losses, calls = {}, [], []
        if attached and rank == 0:
            for name, query in QUERIES.items():
                window = __import__("looptap").sliding(3) if name == "sliding" else None
                streams[name] = run.stream(query, on="batch", window=window)
            streams["function"] = run.stream(lambda e: e.model[0].weight, on="batch")
        for step in range(4):
            x = torch.randn(6, 6)
            target = torch.arange(6) % 3
            given = x if kind == "fsdp" else distribute_tensor(x, mesh, [Replicate()])
            out = model(given)
            out = out.full_tensor() if isinstance(out, DTensor) else out
            each = nn.functional.cross_entropy(out, target, reduction="none")
            optimizer.zero_grad()
            each.mean().backward()
            optimizer.step()
            losses.append(each.mean().item())
            before = number()
            agent.emit("batch", step=step, loss=each.mean(), losses=each, x=x, out=out, target=target)
            calls.append(number() - before)
        agent.emit("epoch")
        shard = tuple(model[0].weight.to_local().shape)
        agent.close()
        return losses, calls, streams, shard

    reported = []
    for kind in ("distribute_tensor", "fsdp"):
        bare = train(kind, False)[0]
        before = number()
        losses, calls, streams, shard = train(kind, True)
        reported.append({
            "bare": bare, "losses": losses, "started": calls, "counted": number() - before, "shard": shard,
            "arrived": {n: s.arrived for n, s in streams.items()},
            "wrong": {n: s.traceback for n, s in streams.items() if s.traceback},
            "seen": {n: list(streams[n].latest.shape) for n in ("tensor", "function", "last") if streams},
            "notes": [note for s in streams.values() for note in s.notes],
        })
    with open(sys.argv[3], "w") as file:  # on stdout, libraries have their say, too
        json.dump(reported, file)
    dist.barrier()
    dist.destroy_process_group()
"""


@pytest.mark.promise("S19", "S23")
@pytest.mark.usefixtures("processes")
@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch is built without torch.distributed")
def test_a_query_on_one_rank_sees_its_shard_and_starts_no_collective(tmp_path):
    reported = [tmp_path / f"{rank}.json" for rank in range(2)]
    program = tmp_path / "rank.py"
    program.write_text(textwrap.dedent(RANK))  # in a file, where a function has its source
    with contextlib.ExitStack() as processes:
        started = []
        for rank, path in enumerate(reported):
            command = [sys.executable, str(program), str(rank), str(tmp_path / "store"), str(path)]
            started.append(processes.enter_context(warm.Popen(command, stderr=subprocess.PIPE, text=True)))
            processes.callback(started[-1].kill)
        for process in started:
            _, err = process.communicate(timeout=300)
            assert process.returncode == 0, err
    found = [json.loads(path.read_text()) for path in reported]
    assert [len(kinds) for kinds in found] == [2, 2]
    for kinds in found:
        for one in kinds:
            assert one["losses"] == one["bare"]
            assert set(one["started"]) == {0}
            assert one["counted"] > 0  # the job's own are seen by what counts them
    for first in found[0]:
        assert set(first["wrong"]) == {"wrong"}, first["wrong"]
        assert [name for name, arrived in first["arrived"].items() if not arrived] == ["wrong"]
        assert first["shard"] == [2, 6]
        assert list(first["seen"].values()) == [first["shard"]] * 3
        assert "in place" not in str(first["notes"])
