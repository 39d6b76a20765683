"""A small language model: prefetched batches, accumulation, clipping."""

import torch
from torch import nn

torch.manual_seed(0)
data = torch.randint(0, 16, (4000,))


def get_batch():
    at = torch.randint(0, 3990, (4,))
    return torch.stack([data[i : i + 8] for i in at]), torch.stack([data[i + 1 : i + 9] for i in at])


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(16, 8), nn.Linear(8, 16)

    def forward(self, idx, targets):
        logits = self.head(self.embed(idx))
        return logits, nn.functional.cross_entropy(logits.view(-1, 16), targets.view(-1))


@torch.no_grad()
def estimate_loss():
    model.eval()
    found = model(*get_batch())[1].item()
    model.train()
    return found


model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", enabled=False)
X, Y = get_batch()
for iter_num in range(6):
    if iter_num % 3 == 0:
        val_loss = estimate_loss()
    micro = []
    for _ in range(2):
        logits, loss = model(X, Y)
        loss = loss / 2
        used = X.sum().item()
        X, Y = get_batch()
        micro.append(loss.item())
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    print("step", sum(micro[1:], micro[0]), used, X.sum().item(), flush=True)
    optimizer.zero_grad(set_to_none=True)
print("parameters", [p.tolist() for p in model.parameters()])
