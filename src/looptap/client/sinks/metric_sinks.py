"""Sinks that keep the newest numbers: Prometheus, and OpenTelemetry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from looptap.client.sinks.sink import Origin

LABELS = ("run", "id", "host", "rank", "stream", "field")
"""What a number is called after."""
MAX_SERIES_COUNT = 10_000
"""Series of one sink; numbers beyond are left out."""


class PrometheusSink:
    """Serves the newest numbers at an address, for Prometheus to fetch.

    ``address`` is a port, or host and port; the host is 127.0.0.1 unless it is named. Raises ValueError for
    another text, and OSError if the port is taken.
    """

    def __init__(self, address: str = "9464") -> None:
        import prometheus_client as prometheus

        host, _, port = address.rpartition(":")
        if not port.isdecimal() or int(port) > 65_535:
            raise ValueError(f"{address!r} is not an address for prometheus: a port such as 9464, or host:port.")
        registry = prometheus.CollectorRegistry()
        self._values = prometheus.Gauge("looptap_value", "the newest value of a stream", LABELS, registry=registry)
        self._steps = prometheus.Gauge("looptap_step", "the step of the newest value", LABELS[:-1], registry=registry)
        self._series: dict[str, set[tuple[str, ...]]] = {}
        self.left_out = 0
        self._server, self._thread = prometheus.start_http_server(int(port), host or "127.0.0.1", registry)
        self.port = int(self._server.server_port)

    def put(self, origin: Origin, step: int, numbers: Mapping[str, float]) -> None:
        """Replace the newest numbers of a stream."""
        stream = tuple(map(str, origin))
        series = self._series.setdefault(origin.id, set())
        for tag, number in numbers.items():
            if (*stream, tag) not in series and sum(map(len, self._series.values())) >= MAX_SERIES_COUNT:
                self.left_out += 1
                continue
            series.add((*stream, tag))
            self._values.labels(*stream, tag).set(number)
        series.add(stream)
        self._steps.labels(*stream).set(step)

    def end(self, id: str) -> None:
        """Remove the series of a run."""
        for labels in self._series.pop(id, ()):
            (self._values if len(labels) == len(LABELS) else self._steps).remove(*labels)

    def close(self) -> None:
        """Close the address."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


class OpenTelemetrySink:
    """Sends the newest numbers to a collector, by OTLP over HTTP every 5 s.

    ``endpoint`` is its address, by default what ``OTEL_EXPORTER_OTLP_ENDPOINT`` says; ``provider`` is a meter provider
    of your own in its place.
    """

    def __init__(self, endpoint: str | None = None, provider: Any = None) -> None:
        if provider is None:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.sdk.metrics import MeterProvider
            from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

            exporter = OTLPMetricExporter(**({"endpoint": endpoint} if endpoint else {}))
            provider = MeterProvider([PeriodicExportingMetricReader(exporter, 5000)])
        self._provider = provider
        meter = provider.get_meter("looptap")
        self._values = meter.create_gauge("looptap.value", description="the newest value of a stream")
        self._steps = meter.create_gauge("looptap.step", description="the step of the newest value")

    def put(self, origin: Origin, step: int, numbers: Mapping[str, float]) -> None:
        """Record the numbers, with what they are called after as attributes."""
        attributes = {f"looptap.{name}": value for name, value in origin._asdict().items()}
        for tag, number in numbers.items():
            self._values.set(number, {**attributes, "looptap.field": tag})
        self._steps.set(step, attributes)

    def end(self, id: str) -> None:
        """Do nothing: a collector forgets a series that is silent."""

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()
