"""The methods by which scripts log to trackers, and what their arguments say.

A row for each. None of the packages is imported here. A method is the innermost one that all ways lead to:
``wandb.log`` is bound to its run when that begins, and ``from mlflow import log_metric`` is a function of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

Said: TypeAlias = "tuple[Mapping[str, Any], Any] | None"
"""Values by tag, and their step; None for nothing."""
Reader: TypeAlias = Callable[..., Said]
"""Takes what the method takes."""


class TrackerMethod(NamedTuple):
    """A method of a tracker."""

    source: str
    """What events ``log`` call it."""
    module: str
    owner: str
    methods: tuple[str, ...]
    """Of these the first that there is."""
    read: Reader


def _tagged(
    writer: Any, /, tag: Any = None, value: Any = None, global_step: Any = None, *more: Any, **named: Any
) -> Said:
    for name in ("scalar_value", "values", "img_tensor", "figure", "text_string", "tensor"):
        value = named.get(name, value)
    return {str(tag): value}, global_step


def _scalars(
    writer: Any, /, main_tag: Any, tag_scalar_dict: Any, global_step: Any = None, *more: Any, **named: Any
) -> Said:
    return {str(main_tag): tag_scalar_dict}, global_step


def _wandb(run: Any, /, data: Any, step: Any = None, *more: Any, **named: Any) -> Said:
    return data, getattr(run, "_local_step", None) if step is None else step


def _mlflow_metric(
    client: Any, /, run_id: Any, key: Any, value: Any, timestamp: Any = None, step: Any = None, *more: Any, **named: Any
) -> Said:
    return {str(key): value}, step or 0


def _mlflow_batch(client: Any, /, run_id: Any, metrics: Any = (), *more: Any, **named: Any) -> Said:
    return {str(metric.key): metric.value for metric in metrics}, next((metric.step for metric in metrics), None)


def _trackio(run: Any, /, metrics: Any, step: Any = None, *more: Any, **named: Any) -> Said:
    return metrics, getattr(run, "_next_step", None) if step is None else step


def _lightning(module: Any, /, name: Any, value: Any, *more: Any, **named: Any) -> Said:
    trainer = getattr(module, "_trainer", None)
    if trainer is None or getattr(trainer, "sanity_checking", False):
        return None
    return {str(name): value}, trainer.global_step


def _tqdm(bar: Any, /, ordered_dict: Any = None, refresh: Any = True, **named: Any) -> Said:
    return {str(tag): number_in(value) for tag, value in {**(ordered_dict or {}), **named}.items()}, None


def number_in(value: Any) -> Any:
    """Return the number that a text shows, if it shows one.

    >>> number_in("0.3120"), number_in("3/10"), number_in(2)
    (0.312, '3/10', 2)
    """
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _of_tensorboard(module: str) -> list[TrackerMethod]:
    names = ("add_scalar", "add_histogram", "add_image", "add_images", "add_figure", "add_text", "add_tensor")
    found = [TrackerMethod("tensorboard", module, "SummaryWriter", (name,), _tagged) for name in names]
    return [*found, TrackerMethod("tensorboard", module, "SummaryWriter", ("add_scalars",), _scalars)]


METHODS = (
    *_of_tensorboard("torch.utils.tensorboard.writer"),
    *_of_tensorboard("tensorboardX.writer"),
    TrackerMethod("wandb", "wandb.sdk.wandb_run", "Run", ("_log", "log"), _wandb),
    TrackerMethod("mlflow", "mlflow.tracking.client", "MlflowClient", ("log_metric",), _mlflow_metric),
    TrackerMethod("mlflow", "mlflow.tracking.client", "MlflowClient", ("log_batch",), _mlflow_batch),
    TrackerMethod("trackio", "trackio.run", "Run", ("log",), _trackio),
    TrackerMethod("lightning", "pytorch_lightning.core.module", "LightningModule", ("log",), _lightning),
    TrackerMethod("lightning", "lightning.pytorch.core.module", "LightningModule", ("log",), _lightning),
    TrackerMethod("tqdm", "tqdm.std", "tqdm", ("set_postfix",), _tqdm),
)
SOURCES = tuple(dict.fromkeys(row.source for row in METHODS))
"""The names of all sources."""
