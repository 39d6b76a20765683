"""fastai: saves each epoch, dies at an update, resumes by `start_epoch`."""

import os
import signal

import fastai.callback.progress  # noqa: F401 - it gives the learner no_bar
import torch
from fastai.callback.core import Callback
from fastai.callback.tracker import SaveModelCallback
from fastai.data.core import DataLoaders
from fastai.data.load import DataLoader
from fastai.learner import Learner
from torch import nn
from torch.utils.data import TensorDataset

torch.manual_seed(0)
folder, dies_at = os.environ["SAVED"], int(os.environ.get("DIES_AT", 0))


class Dies(Callback):
    def before_step(self):
        if self.learn.epoch * 5 + self.learn.iter + 1 == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)


loaders = [DataLoader(TensorDataset(torch.randn(n, 4), torch.randn(n, 1)), bs=4, num_workers=0) for n in (20, 8)]
saves = SaveModelCallback(every_epoch=True, with_opt=True)
learner = Learner(DataLoaders(*loaders), nn.Linear(4, 1), loss_func=nn.MSELoss(), path=folder, cbs=[saves, Dies()])
found = sorted(int(name.split("_")[1].split(".")[0]) for name in os.listdir(folder + "/models")) \
    if os.path.exists(folder + "/models") else []  # fmt: skip
if found:
    learner.load(f"model_{found[-1]}", with_opt=True)
with learner.no_bar(), learner.no_logging():
    learner.fit(4, 1e-2, start_epoch=len(found))
print("parameters", [p.tolist() for p in learner.model.parameters()])
