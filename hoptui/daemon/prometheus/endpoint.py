"""The node for Prometheus: an HTTP endpoint of its own threads, which read snapshots that the daemon's loop
publishes.

Nothing listens unless somebody asks for it, and then on this machine alone unless an address is written out:
whoever can reach it can read it. Needs the extra `metrics` (prometheus-client).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from hoptui.daemon.prometheus.exposition import Snapshot, families
from hoptui.daemon.state.node import Node

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

FRESH_NS = 15_000_000_000
"""A reading that was not taken for longer is unknown; the slowest are taken every five seconds."""
MOST_ROWS = 256
LOOPBACK = "127.0.0.1"
LAST_REQUEST_S = 1.0


class MetricsError(Exception):
    """There is no endpoint; the text is one sentence."""


class Endpoint:
    """Serves what was published last; `address` is where, with the port that it got.

    Raises:
        MetricsError: the address makes no sense or is taken, or the extra is not installed.
    """

    def __init__(self, address: str) -> None:
        try:
            host, port = parse(address)
        except ValueError as error:
            raise MetricsError(f"no metrics for Prometheus: {error}") from None
        try:
            from prometheus_client import CollectorRegistry, start_http_server
        except ImportError:
            raise MetricsError(
                "no metrics for Prometheus: prometheus-client is not installed (pip install 'hoptui[metrics]')"
            ) from None
        self._snapshot: Snapshot | None = None
        registry = CollectorRegistry()
        registry.register(self)
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            why = error.strerror or str(error)
            raise MetricsError(f"no metrics for Prometheus: {address} cannot be served: {why}") from None
        self.address = (
            f"[{host}]:{self._server.server_port}" if ":" in host else f"{host}:{self._server.server_port}"
        )

    def publish(self, snapshot: Snapshot | None) -> None:
        """What to answer from now on; None where nothing is known: what was known before is not so any
        more."""
        self._snapshot = snapshot

    def collect(self) -> Iterable[Metric]:
        """Called by the server's threads, once a scrape."""
        snapshot = self._snapshot
        return families(snapshot) if snapshot is not None else ()

    def describe(self) -> Iterable[Metric]:
        """Nothing in advance: which metrics there are depends on the hardware and on the runs."""
        return ()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(LAST_REQUEST_S)


def parse(address: str) -> tuple[str, int]:
    """Host and port of "HOST:PORT", "[IPV6]:PORT" or ":PORT", which is of this machine alone.

    Raises:
        ValueError: it is none of them.
    """
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{address!r} is no HOST:PORT, such as 127.0.0.1:9400")
    return host or LOOPBACK, int(port)


def snapshot(node: Node) -> Snapshot:
    """The node now: the newest known readings of each source, and the newest metrics of live runs."""
    t = node.clock.t()
    readings: dict[str, Mapping[str, float]] = {}
    for ring in node.rings:
        rows = None if ring.source.startswith("run/") else ring.newest(MOST_ROWS).after(t - FRESH_NS)
        if rows is not None and len(rows):
            readings[ring.source] = rows.last()
    live = node.registry.live()
    readings.update((f"run/{run.id}", dict(run.metrics)) for run in live)
    return Snapshot(
        node=node.state(),
        vitals={run.id: run.vital(t / 1e9) for run in live},
        readings=readings,
        happened=dict(node.happened),
    )
