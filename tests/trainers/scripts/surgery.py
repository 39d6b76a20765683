"""Gradients of three tasks that are put together by hand, in four ways, and none."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(15):
    outputs = (model(torch.randn(8, 4)) ** 2).mean(0)
    merged = [torch.zeros_like(p) for p in model.parameters()]
    for task in range(3):
        optimizer.zero_grad()
        loss = outputs[task]
        loss.backward(retain_graph=True)
        for total, p in zip(merged, model.parameters(), strict=True):
            total += p.grad
    if step % 5 == 1:
        optimizer.zero_grad()
    if step % 5:
        for total, p in zip(merged, model.parameters(), strict=True):
            if step % 5 < 3:
                p.grad = total.clone()
            elif step % 5 == 3:
                p.grad.copy_(total)
            else:
                p.grad.data = total.clone()
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    optimizer.step()
    optimizer.zero_grad()
    print("step", step, loss.item(), *outputs.tolist(), flush=True)
print("parameters", [p.tolist() for p in model.parameters()])
