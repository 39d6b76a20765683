"""Keras: trainings by `fit`, one of which fails, an evaluation, a loop by hand."""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
import torch

keras.utils.set_random_seed(0)
x, y = np.random.rand(64, 8).astype("float32"), np.random.rand(64, 1).astype("float32")
model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)])
model.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse", metrics=["mae"])


class Fails(keras.callbacks.Callback):
    """Fails in the second epoch."""

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            raise ValueError("out of luck")


history = model.fit(x, y, batch_size=16, epochs=3, validation_split=0.25, verbose=0).history
for train, test in zip(history["loss"], history["val_loss"], strict=True):
    print("epoch", train, test)
try:
    model.fit(x, y, batch_size=16, epochs=3, verbose=0, callbacks=[Fails()])
except ValueError:
    print("failed")
print("evaluation", *model.evaluate(x, y, verbose=0))
layer = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for _ in range(3):
    loss = ((layer(torch.tensor(x)) - torch.tensor(y)) ** 2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("step", loss.item())
print("parameters", [float(p.sum()) for p in (*model.get_weights(), *layer.parameters())])
