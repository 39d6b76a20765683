"""Small trainings of four frameworks, each a function of what is put into it."""

from __future__ import annotations

import tempfile
import warnings

import pytest
import torch
from torch import nn

from looptap import CommandPending

EXAMPLES = 24


def asked(do):
    """Return ``do`` as a command that nothing waits for; its ``id`` is kept."""

    def ask(run):
        with pytest.raises(CommandPending) as pending:
            do(run)
        ask.id = pending.value.id

    return ask


def last_lines(texts):
    """Return the last line of each text."""
    return [text.splitlines()[-1] for text in texts]


def bits(model) -> str:
    """Return all parameters of a model, exactly."""
    return " ".join(value.detach().double().sum().item().hex() for value in model.parameters())


class Examples(torch.utils.data.Dataset):
    """Inputs and targets of a small regression, as dicts or as pairs."""

    def __init__(self, pairs=False):
        generator = torch.Generator().manual_seed(5)
        self.x = torch.randn(EXAMPLES, 4, generator=generator)
        self.y = self.x.sum(1, keepdim=True) ** 2
        self.pairs = pairs

    def __len__(self):
        return EXAMPLES

    def __getitem__(self, i):
        return (self.x[i], self.y[i]) if self.pairs else {"x": self.x[i], "labels": self.y[i]}


class Net(nn.Module):
    """A net with random numbers in it; returns a loss, as models of transformers do."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 1))

    def forward(self, x, labels=None):
        out = self.layers(x)
        return {"loss": nn.functional.mse_loss(out.float(), labels), "logits": out}


def hugging_face(*callbacks, folder=None, resume=None, **how):
    """Train with a `transformers.Trainer`; return it, and its parameters exactly."""
    import transformers

    torch.manual_seed(1)
    folder = folder or tempfile.mkdtemp()
    how = {"num_train_epochs": 2, "save_strategy": "no", **how}
    arguments = transformers.TrainingArguments(
        output_dir=folder, use_cpu=True, per_device_train_batch_size=4, logging_steps=1, learning_rate=0.05,
        report_to=[], disable_tqdm=True, **how,
    )  # fmt: skip
    trainer = transformers.Trainer(
        model=Net(), args=arguments, train_dataset=Examples(), eval_dataset=Examples(), callbacks=[*callbacks]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.train(resume_from_checkpoint=resume)
    return trainer, bits(trainer.model)


def losses_of(trainer) -> list[float]:
    """Return the loss of each step, as a trainer of transformers has logged them."""
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def lightning_module():
    """Return a Lightning module around the same net, which logs its loss."""
    import pytorch_lightning

    class Module(pytorch_lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Net()
            self.seen = []

        def training_step(self, batch, index):
            loss = self.net(*batch)["loss"]
            self.seen.append(loss.detach().clone())
            self.log("train/loss", loss)
            return loss

        def validation_step(self, batch, index):
            self.log("val_loss", self.net(*batch)["loss"])

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    return Module()


def lightning(*callbacks, resume=None, make=lightning_module, folder=None, loader=None, **how):
    """Train with a Lightning `Trainer`; return it, its module, the parameters."""
    import pytorch_lightning

    torch.manual_seed(1)
    how = {"max_epochs": 2, "enable_checkpointing": False, "limit_val_batches": 0, **how}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = make()
        trainer = pytorch_lightning.Trainer(
            accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
            default_root_dir=folder or tempfile.mkdtemp(), callbacks=[*callbacks], **how,
        )  # fmt: skip
        loaders = [torch.utils.data.DataLoader(Examples(pairs=True), 4, shuffle=shuffle) for shuffle in (True, False)]
        more = {"weights_only": False} if resume else {}
        trainer.fit(module, loader or loaders[0], loaders[1], ckpt_path=resume, **more)
    return trainer, module, bits(module)


def keras_model():
    """Return a small Keras model with random numbers in it."""
    import keras

    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(8, "tanh"), keras.layers.Dropout(0.2), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((4,)), *layers])
    model.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse", metrics=["mae"])
    return model


def keras_fit(*callbacks, epochs=2, model=None, **how):
    """Train a Keras model; return it, its losses by epoch, the parameters."""
    import keras

    model = model or keras_model()
    keras.utils.set_random_seed(2)
    data = Examples()
    history = model.fit(
        data.x.numpy(), data.y.numpy(), batch_size=4, epochs=epochs, verbose=0, callbacks=[*callbacks],
        validation_data=(data.x.numpy(), data.y.numpy()), **how,
    )  # fmt: skip
    return model, history.history, " ".join(float(value.sum()).hex() for value in model.get_weights())


MODELS = []
"""Models of several ranks, which live as long as the process.

A model that is released right after its last backward pass can hang (torch 2.13, gloo): its process group waits with
the GIL for a thread that needs the GIL to release the pass. One in 70 programs did, on a busy machine.
"""


def accelerated(trackers=(), *, at=None, accumulate=1, bf16=False, epochs=2, log=True):
    """Train a loop with Accelerate; return the losses and the parameters."""
    import accelerate

    torch.manual_seed(1)
    accelerator = accelerate.Accelerator(
        cpu=True, gradient_accumulation_steps=accumulate, mixed_precision="bf16" if bf16 else "no",
        log_with=[*trackers] or None,
    )  # fmt: skip
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    loader = torch.utils.data.DataLoader(Examples(pairs=True), 4, shuffle=True)
    model, optimizer, schedule, loader = accelerator.prepare(model, optimizer, schedule, loader)
    if accelerator.num_processes > 1:
        MODELS.append(model)
    accelerator.init_trackers("my project", config={"lr": 0.01})
    losses, number = [], 0
    try:
        for _ in range(epochs):
            for x, y in loader:
                if at is not None:
                    at(number, accelerator)
                with accelerator.accumulate(model):
                    loss = model(x, y)["loss"]
                    accelerator.backward(loss)
                    optimizer.step()
                    schedule.step()
                    optimizer.zero_grad()
                losses.append(loss.item())
                number += 1
                if log:
                    accelerator.log({"train": {"loss": loss.item()}}, step=number)
    finally:
        accelerator.end_training()
    return losses, bits(accelerator.unwrap_model(model))
