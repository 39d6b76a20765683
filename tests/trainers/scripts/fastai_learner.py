"""fastai: three epochs with a validation each, and one validation more."""

import fastai.callback.progress  # noqa: F401 - it gives the learner no_bar
import torch
from fastai.data.core import DataLoaders
from fastai.data.load import DataLoader
from fastai.learner import Learner
from torch import nn
from torch.utils.data import TensorDataset

torch.manual_seed(0)
loaders = [DataLoader(TensorDataset(torch.randn(n, 4), torch.randn(n, 1)), bs=4, num_workers=0) for n in (40, 8)]
learner = Learner(DataLoaders(*loaders), nn.Linear(4, 1), loss_func=nn.MSELoss())
with learner.no_bar(), learner.no_logging():
    learner.fit(3, 1e-2)
    learner.validate()
print("parameters", [p.tolist() for p in learner.model.parameters()])
