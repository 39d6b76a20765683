"""skorch: three epochs with a validation each."""

import numpy as np
import torch
from skorch import NeuralNetRegressor
from skorch.dataset import ValidSplit
from torch import nn

torch.manual_seed(0)
data = np.random.default_rng(0).standard_normal((40, 5)).astype("f4")
net = NeuralNetRegressor(
    nn.Linear, module__in_features=4, module__out_features=1, max_epochs=3, batch_size=8, train_split=ValidSplit(5),
    verbose=0,
)  # fmt: skip
net.fit(data[:, :4], data[:, 4:])
print("parameters", [p.tolist() for p in net.module_.parameters()])
