"""Epochs over a DataLoader, each with a test, and a learning rate schedule."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train(model, loader, optimizer, epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(loader):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(data), target)
        loss.backward()
        optimizer.step()
        print("step", loss.item(), epoch, batch_idx, flush=True)


def test(model, loader):
    model.eval()
    test_loss = 0.0
    with torch.no_grad():
        for data, target in loader:
            test_loss += nn.functional.cross_entropy(model(data), target, reduction="sum").item()
    print("test", test_loss, flush=True)


def main():
    torch.manual_seed(0)
    x, y = torch.randn(24, 4), torch.randint(0, 3, (24,))
    loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
    test_loader = DataLoader(TensorDataset(x[:8], y[:8]), batch_size=4)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    for epoch in range(3):
        train(model, loader, optimizer, epoch)
        test(model, test_loader)
        scheduler.step()
    print("parameters", [p.tolist() for p in model.parameters()])


if __name__ == "__main__":
    main()
