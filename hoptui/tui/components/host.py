"""What the host does, and the run's own processes on it."""

from __future__ import annotations

from hoptui.presentation import numbers
from hoptui.presentation.numbers import UNKNOWN
from hoptui.tui.components.figures import Gauge, current, fact, gauges, of, ratio
from hoptui.tui.snapshot import View
from hoptui.tui.styled_text import Line, pack


def gauge_lines(view: View, width: int) -> list[Line]:
    """CPU and memory of the host and of the run's processes."""
    return gauges([*_host(view), *_process(view)], width)


def lines(view: View, width: int) -> list[Line]:
    """The gauges, then load, disk and network in a line."""
    now = current(view, "host")
    facts = [
        fact("load", numbers.si(now.get("load_1m")), 5),
        fact("disk read", _rate(now.get("disk_read_bytes_per_s")), 9),
        fact("written", _rate(now.get("disk_written_bytes_per_s")), 9),
        fact("net in", _rate(now.get("net_received_bytes_per_s")), 9),
        fact("out", _rate(now.get("net_sent_bytes_per_s")), 9),
    ]
    return [*gauge_lines(view, width), *pack(facts, width)[:1]]


def short(view: View, width: int) -> Line:
    """The host in one line, as much as fits."""
    now = current(view, "host")
    chunks = [
        fact("host CPU", numbers.percentage(now.get("cpu_percent")), 5),
        fact("memory", _memory(view, now), 12),
    ]
    if view.run is not None:
        own = current(view, f"process/{view.run.run}")
        chunks.append(fact("run CPU", numbers.percentage(own.get("cpu_percent")), 7))
        chunks.append(fact("RSS", of(numbers.gib(own.get("memory_rss_bytes")), UNKNOWN, "GiB"), 9))
    chunks.append(fact("load", numbers.si(now.get("load_1m")), 5))
    return next(iter(pack(chunks, width, "  ")), ())


def _host(view: View) -> list[Gauge]:
    now = current(view, "host")
    used, total = now.get("memory_used_bytes"), now.get("memory_total_bytes")
    return [
        Gauge("CPU", ratio(now.get("cpu_percent"), 100), numbers.percentage(now.get("cpu_percent")), "1"),
        Gauge("memory", ratio(used, total), _memory(view, now), "3"),
    ]


def _process(view: View) -> list[Gauge]:
    if view.run is None:
        return []
    now = current(view, f"process/{view.run.run}")
    cpus = view.node.cpus if view.node else 0
    rss = now.get("memory_rss_bytes")
    total = current(view, "host").get("memory_total_bytes")
    return [
        Gauge(
            "run CPU",
            ratio(now.get("cpu_percent"), 100 * cpus),
            numbers.percentage(now.get("cpu_percent")),
            "2",
        ),
        Gauge("run RSS", ratio(rss, total), of(numbers.gib(rss), UNKNOWN, "GiB"), "3"),
    ]


def _memory(view: View, now: dict[str, float]) -> str:
    total = now.get("memory_total_bytes") or (view.node.memory_total_bytes if view.node else None)
    return of(numbers.gib(now.get("memory_used_bytes")), numbers.gib(total or None), "GiB")


def _rate(value: float | None) -> str:
    return UNKNOWN if value is None else f"{numbers.si(value)}B/s" if value >= 1000 else f"{value:.0f} B/s"
