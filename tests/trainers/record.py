"""Records the trainers' own decisions on the histories, in decisions.json.

pip install keras transformers pytorch-lightning, then python tests/trainers/record.py
"""

from __future__ import annotations

import base64
import json
import logging
import os
import zlib
from pathlib import Path
from types import SimpleNamespace

os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy as np
import pytorch_lightning
import torch
import transformers
from histories import COUNT, Case, case, ours

FILE = Path(__file__).with_name("decisions.json")


def by_keras(case: Case) -> int:
    """Return the epoch after which Keras stops."""
    callback = keras.callbacks.EarlyStopping(
        monitor="m", patience=case.patience, min_delta=case.delta, mode=case.mode, start_from_epoch=case.warm_up,
        baseline=case.baseline,
    )  # fmt: skip
    model = SimpleNamespace(stop_training=False)
    callback.set_model(model)
    callback.on_train_begin()
    for epoch, value in enumerate(case.history):
        callback.on_epoch_end(epoch, {"m": value})
        if model.stop_training:
            return epoch + 1
    return 0


def by_lightning(case: Case) -> int:
    """Return the check at which Lightning stops."""
    callback = pytorch_lightning.callbacks.EarlyStopping(
        monitor="m", patience=case.patience, min_delta=case.delta, mode=case.mode, check_finite=case.check_finite,
        stopping_threshold=case.good, divergence_threshold=case.diverged,
    )  # fmt: skip
    for index, value in enumerate(case.history):
        if callback._evaluate_stopping_criteria(torch.tensor(value, dtype=torch.float64))[0]:
            return index + 1
    return 0


def by_huggingface(case: Case) -> int:
    """Return the evaluation at which the callback stops; the best moves after it."""
    callback = transformers.EarlyStoppingCallback(case.patience, case.delta)
    state, control = transformers.TrainerState(), transformers.TrainerControl()
    arguments = SimpleNamespace(metric_for_best_model="m", greater_is_better=case.mode == "max")
    better = np.greater if case.mode == "max" else np.less
    for index, value in enumerate(case.history):
        callback.on_evaluate(arguments, state, control, {"eval_m": value})
        if state.best_metric is None:
            state.best_metric = float("-inf") if case.mode == "max" else float("inf")
        if better(value, state.best_metric):
            state.best_metric = value
        if control.should_training_stop:
            return index + 1
    return 0


def main() -> None:
    """Record all decisions, and print where we differ."""
    logging.disable(logging.CRITICAL)
    trainers = {"keras": by_keras, "lightning": by_lightning, "huggingface": by_huggingface}
    found: dict[str, list[int]] = {name: [] for name in trainers}
    for seed in range(COUNT):
        for name, trainer in trainers.items():
            found[name].append(trainer(case(seed)))
            if found[name][-1] != ours(case(seed), name):
                print(f"{name}, seed {seed}: {found[name][-1]}, and ours {ours(case(seed), name)}")
    versions = {"keras": keras.__version__, "lightning": pytorch_lightning.__version__}
    packed = {name: base64.b64encode(zlib.compress(bytes(stops), 9)).decode() for name, stops in found.items()}
    reported = {"versions": {**versions, "huggingface": transformers.__version__}, "stops": packed}
    FILE.write_text(json.dumps(reported, indent=1) + "\n")


if __name__ == "__main__":
    main()
