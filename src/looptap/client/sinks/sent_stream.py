"""`SentStream`: the methods of a live stream that send it into other engines."""

from __future__ import annotations

import os
from typing import Any

from looptap.client.sinks.sending import Sending
from looptap.client.sinks.shared_sink import shared_sink
from looptap.streams.stream.feed import Feed


class SentStream:
    """The part of a live stream that sends its numbers into the engines of others.

    Each method returns at once. A thread of its own sends what the stream keeps and what comes, until the stream ends
    or `Sending.stop`. The step of a value is its field ``step`` (or global_step, iteration, batch, epoch), else the
    number of its event; its other numbers go by the names of their fields.
    """

    feed: Feed
    name: str
    text: str
    run: Any

    def to_tensorboard(self, place: str | os.PathLike[str] | Any = "looptap-live") -> Sending:
        """Write event files for TensorBoard, in a folder for each run.

        Args:
            place: The directory; or a `SummaryWriter` of yours, which stays open.

        Raises ValueError without the package tensorboard.
        """
        return self._send("tensorboard", place)

    def to_wandb(self, project: str = "looptap") -> Sending:
        """Log to W&B, into a run for each run; its settings and modes are W&B's own.

        Args:
            project: The project.

        Raises ValueError without the package wandb.
        """
        return self._send("wandb", project)

    def to_mlflow(self, experiment: str = "looptap") -> Sending:
        """Log to MLflow's tracking server, into a run for each run.

        Args:
            experiment: The experiment.

        Raises ValueError without the package mlflow.
        """
        return self._send("mlflow", experiment)

    def to_trackio(self, project: str = "looptap") -> Sending:
        """Log to Trackio, into a run for each run.

        Args:
            project: The project.

        Raises ValueError without the package trackio.
        """
        return self._send("trackio", project)

    def to_prometheus(self, address: str | int = 9464) -> Sending:
        """Serve the newest numbers for Prometheus to fetch, as gauges ``looptap_value``.

        Streams of this process at the same address are served together. Anyone who can reach the address can read them.

        Args:
            address: A port, or "host:port"; the host is 127.0.0.1 unless it is named. Port 0 is a free one, which
                `Sending.sink` knows as ``port``.

        Raises ValueError without the package prometheus-client, and OSError if the port is taken.
        """
        return self._send("prometheus", str(address))

    def to_otel(self, endpoint: str | None = None) -> Sending:
        """Send the newest numbers to an OpenTelemetry collector, every 5 s.

        Args:
            endpoint: Its address, for OTLP over HTTP; by default ``OTEL_EXPORTER_OTLP_ENDPOINT``.

        Raises ValueError without the packages of OpenTelemetry.
        """
        return self._send("otel", endpoint)

    def _send(self, to: str, place: Any) -> Sending:
        sink = shared_sink(to, place)
        try:
            return Sending(self, sink, to)
        except BaseException:
            sink.close()
            raise
