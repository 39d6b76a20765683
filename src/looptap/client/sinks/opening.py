"""`open_sink`: a sink by its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from looptap.client.sinks.metric_sinks import OpenTelemetrySink, PrometheusSink
from looptap.client.sinks.sink import Sink
from looptap.client.sinks.tracker_sinks import MlflowSink, TensorboardSink, TrackioSink, WandbSink

SINKS: dict[str, tuple[Callable[..., Sink], str]] = {
    "prometheus": (PrometheusSink, "prometheus-client"),
    "otel": (OpenTelemetrySink, "opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"),
    "wandb": (WandbSink, "wandb"),
    "mlflow": (MlflowSink, "mlflow-skinny"),
    "trackio": (TrackioSink, "trackio"),
    "tensorboard": (TensorboardSink, "tensorboard"),
}
"""Each sink, and what it needs installed."""


def open_sink(name: str, place: Any = None) -> Sink:
    """Return the sink of this name at ``place``, which means to each something else.

    Raises ValueError for an unknown one, and for one whose package is missing.
    """
    if name not in SINKS:
        raise ValueError(f"{name!r} is no sink; there are {', '.join(SINKS)}.")
    make, needs = SINKS[name]
    try:
        return make() if place is None else make(place)
    except ModuleNotFoundError as error:
        raise ValueError(f"{name} needs what is not installed here ({error}): pip install {needs}") from None
