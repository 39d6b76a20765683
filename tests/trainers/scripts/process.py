"""What a script sees of its process: arguments, main, pickles, children."""

import multiprocessing
import os
import pickle
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Squares(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        return torch.tensor([float(index)]), torch.tensor([float(index * index)])


class Line(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, x):
        return self.layer(x)


def in_child(number, queue):
    torch.manual_seed(number)
    queue.put((number, __name__, sys.argv[1:], torch.rand(1).item()))


def main():
    print("arguments", sys.argv[1:], __name__, os.path.basename(__file__), os.path.basename(sys.argv[0]))
    print("interpreter", __debug__, sys.flags.optimize, os.path.relpath(sys.path[0]))
    print("main", sys.modules["__main__"].Line is Line, Line.__module__)
    print("package", __package__, __spec__ and __spec__.name)
    torch.manual_seed(0)
    model = Line()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for context in ("fork", "forkserver"):
        for x, y in DataLoader(Squares(), batch_size=4, num_workers=1, multiprocessing_context=context):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            print("step", loss.item(), context, flush=True)
    copy = pickle.loads(pickle.dumps(model))
    print("pickled", type(copy) is Line, pickle.dumps(Line))
    print("hooks", *(len(table) for one in copy.modules() for name, table in vars(one).items() if "_hooks" in name))
    start = multiprocessing.get_context("spawn")
    queue = start.Queue()
    children = [start.Process(target=in_child, args=(3, queue))]
    for child in children:
        child.start()
    print("children", sorted(queue.get() for _ in children))
    for child in children:
        child.join()
    print("exit codes", [child.exitcode for child in children], multiprocessing.active_children())
    print("parameters", [p.tolist() for p in model.parameters()])


if __name__ == "__main__":
    main()
