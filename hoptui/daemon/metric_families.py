"""Families of samples for Prometheus. Values that are unknown are left out, and so are empty families."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from hoptui.domain.columns import is_known

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

Labels = tuple[str, ...]
Point = tuple[Labels, float]


def gauge(name: str, text: str, labels: Labels, points: Iterable[Point]) -> Iterator[Metric]:
    """Yield a gauge with the known points. An infinite value is known, and so is a NaN that was logged."""
    from prometheus_client.core import GaugeMetricFamily

    known = [(key, value) for key, value in points if is_known(value)]
    if known:
        family = GaugeMetricFamily(name, text, labels=labels)
        for key, value in known:
            family.add_metric(key, value)
        yield family


def counter(name: str, text: str, labels: Labels, points: Iterable[Point]) -> Iterator[Metric]:
    """Yield a counter with the known points."""
    from prometheus_client.core import CounterMetricFamily

    known = [(key, value) for key, value in points if not math.isnan(value)]
    if known:
        family = CounterMetricFamily(name, text, labels=labels)
        for key, value in known:
            family.add_metric(key, value)
        yield family
