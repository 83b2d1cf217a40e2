"""The daemon and what it serves: readings, history, metrics."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

from hoptui import __version__
from hoptui.cli.doctor.check import Check
from hoptui.cli.support.snapshot import STALE_S, NodeSnapshot
from hoptui.presentation import numbers
from hoptui.protocol.messages import NodeState


def daemon(node: NodeState, *, started: bool) -> Check:
    """That it runs, and is of this version."""
    found = "has been started now (it leaves when idle)" if started else "is running"
    detail = f"{found}, pid {node.pid}, hoptui {node.version}"
    if node.version != __version__:
        advice = "hoptui daemon stop, then start it again to have the new one (runs survive)"
        return Check("daemon", "warning", f"{detail}, and this is {__version__}", advice)
    return Check("daemon", "ok", detail)


def sampler(seen: NodeSnapshot, log: str) -> Check:
    """How often the GPUs are read, and how fresh and how wide the newest readings are."""
    node = seen.node
    if node.sampler:
        return Check("sampler", "failed", numbers.clean(node.sampler), f"see {log}")
    sources = [f"gpu/{gpu.uuid}" for gpu in node.gpus if not gpu.reason]
    rate = f"GPUs are read {numbers.often(node.hz)}" if sources else "the host is read"
    sources = sources or ["host"]
    ages = [seen.age_s(source) for source in sources]
    known = [age for age in ages if age is not None]
    if len(known) < len(ages) or max(known) > STALE_S:
        age = f"the newest is {numbers.seconds(max(known))} old" if known else "none has arrived"
        return Check("sampler", "warning", f"{rate}, but {age}", f"see {log}")
    detail = f"{rate}, the newest is {numbers.seconds(max(known))} old"
    windows = [w for s in sources if (w := seen.store.latest(s).get("window_s")) is not None]
    if windows:
        detail += f", counters over {numbers.seconds(max(windows))}"
    return Check("sampler", "ok", detail)


def history(node: NodeState) -> Check:
    """Whether recordings are being written."""
    if node.history:
        return Check("history", "warning", numbers.clean(node.history), "see state-directory and disk")
    return Check("history", "ok", "is being kept")


def metrics(node: NodeState, environ: Mapping[str, str], log: str) -> Check:
    """The Prometheus endpoint: never there unless asked for."""
    if node.metrics:
        return Check("metrics", "ok", f"served at http://{numbers.clean(node.metrics)}/metrics")
    asked = environ.get("HOPTUI_METRICS")
    if find_spec("prometheus_client") is None:
        advice = "pip install 'hoptui[metrics]'"
        detail = "no endpoint for Prometheus: prometheus-client is not installed"
        return Check("metrics", "warning" if asked else "ok", detail, advice)
    if asked:
        detail = f"HOPTUI_METRICS={numbers.clean(asked, 60)}, but the daemon serves none"
        advice = f"{log} says why; it takes an address such as 127.0.0.1:9400, or :9400 for loopback"
        return Check("metrics", "warning", detail, advice)
    return Check("metrics", "ok", "not asked for: hoptui daemon --metrics :9400 serves them to Prometheus")
