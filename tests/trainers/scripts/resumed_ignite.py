"""ignite: saves each third update, dies at one, and resumes where it was."""

import os
import signal

import torch
from ignite.engine import DeterministicEngine, Events, create_supervised_evaluator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(20, 4), torch.randn(20, 1)), batch_size=4)
path, dies_at = os.environ["SAVED"], int(os.environ.get("DIES_AT", 0))


def update(engine, batch):
    model.train()
    optimizer.zero_grad()
    loss = ((model(batch[0]) - batch[1]) ** 2).mean()
    loss.backward()
    if engine.state.iteration == dies_at:
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.step()
    return loss.item()


def save():
    parts = {"engine": trainer.state_dict(), "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(parts, path)


trainer, evaluator = DeterministicEngine(update), create_supervised_evaluator(model)
trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: evaluator.run(loader, epoch_length=2))
trainer.add_event_handler(Events.ITERATION_COMPLETED(every=3), save)
if os.path.exists(path):
    saved = torch.load(path, weights_only=False)
    trainer.load_state_dict(saved["engine"])
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
torch.manual_seed(3)
trainer.run(loader, max_epochs=4)
print("parameters", [p.tolist() for p in model.parameters()])
