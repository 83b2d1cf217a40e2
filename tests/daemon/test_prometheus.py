"""The node for Prometheus: names, units, labels, and nothing that is unknown."""

from __future__ import annotations

import contextlib
import http.client
import math
import re
import socket
import sys
import threading
import urllib.request
from dataclasses import replace

import pytest
from msgspec import structs
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from hoptui.daemon.metrics_server import MOST_CONNECTIONS, MetricsServer
from hoptui.daemon.prometheus import (
    DERIVED,
    GPU,
    GPU_EVENTS,
    HOST,
    PROCESS,
    Endpoint,
    MetricsError,
    Snapshot,
    families,
    parse,
)
from hoptui.domain.columns import LOGGED_NAN
from hoptui.domain.devices import REASONS, GpuInfo
from hoptui.domain.facts import fact
from hoptui.domain.phases import PhaseReadings
from hoptui.domain.targets import Target, TargetState
from hoptui.protocol.messages import NodeState, RunState, Vital
from hoptui.telemetry.events import XIDS
from tests.conftest import until

INFO = GpuInfo(uuid="GPU-a", index=0, name="NVIDIA H100 80GB HBM3", power_limit_w=700.0, driver="580.0")
RUN = RunState(
    run="abcd2345",
    name="ppo",
    epoch=1,
    pid=1,
    started_wall=0.0,
    headline="env_steps_per_s",
    gpus=("GPU-a", "GPU-elsewhere"),
)
NODE = NodeState(
    host="gpu07",
    pid=1,
    version="0.1.0",
    started_wall=0.0,
    wall_offset_ns=0,
    runs=(RUN,),
    gpus=(INFO,),
    hz=2.0,
)
WHOLE = Snapshot(
    node=NODE,
    vitals={"abcd2345": Vital(state="live", step=12, iteration_s=0.5, progress_age_s=0.1)},
    readings={
        "gpu/GPU-a": dict.fromkeys(GPU, 50.0) | {"throttle": 4.0},
        "host": dict.fromkeys(HOST, 50.0),
        "run/abcd2345": {"env_steps_per_s": 1e6, "loss": 0.5, "grad_norm": float("nan")},
        "derived/abcd2345": dict.fromkeys(DERIVED, 50.0),
        "process/abcd2345": dict.fromkeys(PROCESS, 50.0),
    },
    happened={("xid", "alarm", "GPU-a"): 2, ("exited", "warning", ""): 1},
)


class Once:
    """A collector of one snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot

    def collect(self) -> list[Metric]:
        return list(families(self.snapshot))


def scrape(snapshot: Snapshot) -> dict[str, list[tuple[dict[str, str], float]]]:
    """As Prometheus reads it: the samples by name."""
    registry = CollectorRegistry()
    registry.register(Once(snapshot))
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def test_base_units() -> None:
    found = scrape(WHOLE)
    gpu = {"gpu": "0", "uuid": "GPU-a", "name": "NVIDIA H100 80GB HBM3", "parent": ""}
    assert found["hoptui_gpu_sm_active_ratio"] == [(gpu, 0.5)]
    assert found["hoptui_gpu_sm_clock_hertz"] == [(gpu, 50e6)]
    assert found["hoptui_gpu_power_watts"] == [(gpu, 50.0)]
    assert found["hoptui_gpu_power_limit_watts"] == [(gpu, 700.0)]
    assert found["hoptui_gpu_energy_joules_total"] == [(gpu, 50.0)]
    assert found["hoptui_host_cpu_ratio"] == [({}, 0.5)]
    run = {"run": "abcd2345", "run_name": "ppo"}
    assert found["hoptui_run_mfu_ratio"] == [(run, 0.5)]
    assert found["hoptui_run_cpu_cores"] == [(run, 0.5)]


def test_every_reading_has_a_name_of_its_own() -> None:
    found = scrape(WHOLE)
    for prefix, table in (("gpu", GPU), ("host", HOST), ("run", DERIVED), ("run", PROCESS)):
        for series in table.values():
            assert f"hoptui_{prefix}_{series.name}{'_total' if series.counter else ''}" in found
    assert all(re.fullmatch(r"hoptui_[a-z0-9_]+", name) for name in found)


def test_a_loss_that_ran_away_is_infinite_and_an_unknown_one_is_not_there() -> None:
    lost = {"loss": float("inf"), "value_loss": float("-inf"), "grad_norm": float("nan")}
    found = scrape(replace(WHOLE, readings={"run/abcd2345": lost}))
    assert {labels["name"]: value for labels, value in found["hoptui_run_metric"]} == {
        "loss": float("inf"),
        "value_loss": float("-inf"),
    }


def test_a_nan_that_was_logged_is_a_nan() -> None:
    found = scrape(replace(WHOLE, readings={"run/abcd2345": {"loss": LOGGED_NAN}}))
    [(labels, value)] = found["hoptui_run_metric"]
    assert labels["name"] == "loss"
    assert math.isnan(value)


def test_throttle_reasons_one_by_one() -> None:
    holding = {labels["reason"]: value for labels, value in scrape(WHOLE)["hoptui_gpu_throttle_reason"]}
    assert holding["power_cap"] == 1.0
    assert sum(holding.values()) == 1.0
    assert len(holding) == 9


def test_runs_and_what_they_log() -> None:
    found = scrape(WHOLE)
    run = {"run": "abcd2345", "run_name": "ppo"}
    assert found["hoptui_run_gpu_info"] == [(run | {"gpu": "0", "uuid": "GPU-a"}, 1.0)]
    assert found["hoptui_run_throughput_per_second"] == [(run | {"metric": "env_steps_per_s"}, 1e6)]
    assert found["hoptui_run_iteration"] == [(run, 12.0)]
    assert {labels["name"]: value for labels, value in found["hoptui_run_metric"]} == {
        "env_steps_per_s": 1e6,
        "loss": 0.5,
    }
    states = {labels["state"]: value for labels, value in found["hoptui_run_state"]}
    assert states == {"live": 1, "busy": 0, "paused": 0, "unresponsive": 0, "exited": 0}


def test_targets_and_whether_they_are_met() -> None:
    target = Target(reading="busy", value=90.0)
    targets = (
        TargetState(target=target, standing="missed", mean=71.0),
        TargetState(target=Target(reading="power_w", value=0.85, share=True), standing="met", mean=0.9),
        TargetState(target=Target(reading="temperature_c", value=80.0, side="most")),
    )
    run = structs.replace(RUN, targets=targets)
    found = scrape(replace(WHOLE, node=structs.replace(NODE, runs=(run,))))

    def of(name: str) -> dict[tuple[str, str], float]:
        return {(labels["reading"], labels["side"]): value for labels, value in found[name]}

    wanted = {("busy_ratio", "least"): 0.9, ("power_ratio", "least"): 0.85}
    assert of("hoptui_run_target") == wanted | {("temperature_celsius", "most"): 80.0}
    assert of("hoptui_run_target_met") == {("busy_ratio", "least"): 0.0, ("power_ratio", "least"): 1.0}
    assert of("hoptui_run_target_mean") == {("busy_ratio", "least"): 0.71, ("power_ratio", "least"): 0.9}
    assert "hoptui_run_target" not in scrape(WHOLE)


def test_readings_by_phase() -> None:
    update = PhaseReadings(phase="update", samples=24, readings={"sm_active": 71.0, "power_w": 512.0})
    vital = structs.replace(WHOLE.vitals["abcd2345"], phases=(update,))
    found = scrape(replace(WHOLE, vitals={"abcd2345": vital}))
    labels = {"run": "abcd2345", "run_name": "ppo", "phase": "update"}
    assert found["hoptui_run_phase_sm_active_ratio"] == [(labels, 0.71)]
    assert found["hoptui_run_phase_power_watts"] == [(labels, 512.0)]
    assert "hoptui_run_phase_busy_ratio" not in found


def test_events_are_counted_from_zero_and_by_gpu() -> None:
    """Prometheus takes the first value of a series for what was always there: the first Xid must not be
    it."""
    other = structs.replace(INFO, uuid="GPU-b", index=1)
    part = structs.replace(INFO, uuid="MIG-a", parent="GPU-a")
    node = structs.replace(NODE, gpus=(INFO, part, other))
    happened = {**WHOLE.happened, ("tuned", "info", ""): 3, ("xid", "alarm", "GPU-gone"): 1}
    found = {
        (s["kind"], s["level"], s["gpu"], s["uuid"]): count
        for s, count in scrape(Snapshot(node, {}, {}, happened))["hoptui_events_total"]
    }
    assert {event: count for event, count in found.items() if count} == {
        ("xid", "alarm", "0", "GPU-a"): 2,
        ("exited", "warning", "", ""): 1,
        ("tuned", "info", "", ""): 3,
        ("xid", "alarm", "", "GPU-gone"): 1,
    }
    assert found["xid", "alarm", "1", "GPU-b"] == found["xid", "warning", "0", "GPU-a"] == 0
    assert found["throttle", "alarm", "0", "GPU-a"] == found["started", "info", "", ""] == 0
    assert "MIG-a" not in {uuid for *_, uuid in found}


def test_every_event_of_a_gpu_is_counted_from_zero() -> None:
    levels = {("throttle", reason.level) for reason in REASONS if reason.event}
    levels |= {("xid", level) for level in XIDS.values()}
    assert levels <= set(GPU_EVENTS)


def test_a_mig_instance_is_told_from_its_gpu() -> None:
    part = structs.replace(INFO, uuid="MIG-a", name="H100 MIG 1g.10gb", parent="GPU-a")
    node = structs.replace(NODE, gpus=(INFO, part))
    readings = {"gpu/GPU-a": {"power_w": 350.0}, "gpu/MIG-a": {"sm_active": 10.0}}
    found = scrape(Snapshot(node, {}, readings, {}))
    [(labels, _)] = found["hoptui_gpu_sm_active_ratio"]
    assert (labels["gpu"], labels["uuid"], labels["parent"]) == ("0", "MIG-a", "GPU-a")
    assert [labels["parent"] for labels, _ in found["hoptui_gpu_info"]] == ["", "GPU-a"]


def test_what_is_unknown_is_absent() -> None:
    lost = structs.replace(INFO, problem=fact("gpu.fell_off_bus", error="GPU is lost"), power_limit_w=None)
    found = scrape(Snapshot(structs.replace(NODE, gpus=(lost,)), {}, {}, {}))
    assert [value for _, value in found["hoptui_gpu_up"]] == [0.0]
    assert set(found) == {
        "hoptui_build_info",
        "hoptui_sampling_hertz",
        "hoptui_viewers",
        "hoptui_gpu_info",
        "hoptui_gpu_up",
        "hoptui_events_total",
    }


@pytest.mark.parametrize(
    ("raw", "host", "port"),
    [
        (":9400", "127.0.0.1", 9400),
        ("0.0.0.0:0", "0.0.0.0", 0),
        ("[::1]:9400", "::1", 9400),
        ("gpu07:9400", "gpu07", 9400),
    ],
)
def test_addresses(raw: str, host: str, port: int) -> None:
    assert parse(raw) == (host, port)


@pytest.mark.parametrize("raw", ["", "9400", "host", "host:", ":x", ":70000", ":-1", "host:٣"])
def test_no_addresses(raw: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        parse(raw)
    with pytest.raises(MetricsError) as caught:
        Endpoint(raw)
    assert caught.value.fact == fact("metrics.bad_address", address=raw)


def test_the_endpoint_serves_the_newest_snapshot_on_this_machine_alone() -> None:
    endpoint = Endpoint(":0")
    try:
        host, port = parse(endpoint.address)
        assert host == "127.0.0.1"
        assert port
        assert b"hoptui" not in get(endpoint)
        endpoint.publish(WHOLE)
        assert b'hoptui_gpu_sm_active_ratio{gpu="0"' in get(endpoint)
        endpoint.publish(None)
        assert b"hoptui" not in get(endpoint), "what was known before is not told as if it were now"
        with pytest.raises(MetricsError) as caught:
            Endpoint(endpoint.address)
        taken = fact("metrics.unavailable", address=endpoint.address, error="Address already in use")
        assert caught.value.fact == taken
    finally:
        endpoint.close()
    with pytest.raises(OSError), socket.create_connection((host, port), 1):
        pass


def get(endpoint: Endpoint) -> bytes:
    with urllib.request.urlopen(f"http://{endpoint.address}/metrics", timeout=5) as answer:
        body: bytes = answer.read()
    return body


def test_without_the_extra_it_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MetricsError) as caught:
        Endpoint(":0")
    assert caught.value.fact.code == "metrics.not_installed"


def asked(endpoint: Endpoint, host: str) -> int:
    """The status of a request with this Host."""
    address, port = parse(endpoint.address)
    connection = http.client.HTTPConnection(address, port, timeout=5)
    with contextlib.closing(connection):
        connection.request("GET", "/metrics", headers={"Host": host})
        return connection.getresponse().status


def test_a_page_of_another_name_cannot_read_the_metrics() -> None:
    """A browser sends the name that it was given, whatever address it resolves to."""
    endpoint = Endpoint(":0")
    try:
        _, port = parse(endpoint.address)
        for host in ("localhost", f"localhost:{port}", f"127.0.0.1:{port}", f"[::1]:{port}"):
            assert asked(endpoint, host) == 200
        for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "192.0.2.1", ""):
            assert asked(endpoint, host) == 403, host
    finally:
        endpoint.close()


def test_half_requests_hold_few_connections_and_not_for_long() -> None:
    server = MetricsServer("127.0.0.1", 0, lambda environ, start: [], request_s=0.3)
    before = threading.active_count()
    with contextlib.ExitStack() as stack:
        stack.callback(server.close, 1.0)
        idle = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.server_port), 5))
            for _ in range(3 * MOST_CONNECTIONS)
        ]
        for connection in idle:
            with contextlib.suppress(OSError):
                connection.sendall(b"GET /met")
        assert threading.active_count() <= before + 2 * MOST_CONNECTIONS
        for connection in idle:
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(1) == b"", "it was closed without an answer"
        until(lambda: threading.active_count() <= before, what="the end of every thread")
