"""A run's numbers for Prometheus (https://prometheus.io), served over HTTP while it goes on.

Needs prometheus-client (the extra `metrics`). The endpoint listens on loopback unless told
otherwise; it has no access control.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flowengine.errors import FlowError
from flowengine.observe.readings import METRICS, Readings
from flowengine.runtime.events import Event


class Prometheus:
    """An observer that serves http://<host>:<port>/metrics; `close` ends it.

    port: 0 takes any free one; `port` says which. FlowError where it cannot be served.
    """

    def __init__(self, *, port: int, host: str = "127.0.0.1") -> None:
        try:
            from prometheus_client import CollectorRegistry, start_http_server
        except ImportError:
            raise FlowError(
                "--prometheus needs prometheus-client; run: pip install 'flowengine[metrics]'"
            ) from None
        registry = CollectorRegistry()
        self._readings = Readings()
        registry.register(_Collector(self._readings))
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            raise FlowError(f"--prometheus: cannot listen on {host}:{port}: {error}") from None
        self.port: int = self._server.server_port
        self.host = str(self._server.server_address[0])

    def __call__(self, event: Event) -> None:
        self._readings(event)

    def close(self) -> None:
        """Ends the endpoint."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Collector:
    """Reads all metrics, named flowengine_..., when somebody asks."""

    def __init__(self, readings: Readings) -> None:
        self._readings = readings

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for name, metric in METRICS.items():
            kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            family = kind(f"flowengine_{name}", metric.text, labels=metric.labels)
            for labels, value in self._readings.read(name):
                family.add_metric(labels, value)
            yield family
