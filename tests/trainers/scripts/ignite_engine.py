"""ignite: epochs of seven batches of ten, and evaluations of two."""

import torch
from ignite.engine import Engine, Events, create_supervised_evaluator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(40, 4), torch.randn(40, 1)), batch_size=4)


def update(engine, batch):
    model.train()
    optimizer.zero_grad()
    loss = ((model(batch[0]) - batch[1]) ** 2).mean()
    loss.backward()
    optimizer.step()
    return loss.item()


trainer, evaluator = Engine(update), create_supervised_evaluator(model)
trainer.add_event_handler(Events.ITERATION_COMPLETED(every=5), lambda: evaluator.run(loader, epoch_length=2))
trainer.run(loader, max_epochs=12, epoch_length=7)
print("parameters", [p.tolist() for p in model.parameters()])
