"""The time of a phase is that of the work queued in it, told one iteration late and without waiting for this
one."""

from __future__ import annotations

import time

import pytest
import torch

import hoptui
from hoptui_trainer.common.metrics import DelayedMetrics, Finished
from hoptui_trainer.common.phases import CudaClock, phase_clock
from tests.run_state import queued_rows, run_state

CYCLES = 50_000_000
"""Of the GPU's clock: 25 to 50 ms, where launching it takes some µs."""


def rows(run: hoptui.Run) -> list[dict[str, float]]:
    return [row for _, _, row in queued_rows(run_state(run))]


def test_phases_are_the_gpus_time_and_not_the_hosts(device: torch.device) -> None:
    run = hoptui.connect("gpu")
    clock = phase_clock(run, device)
    assert isinstance(clock, CudaClock)
    ahead = []
    for _ in run.iterations(4):
        began = time.monotonic()
        with clock.queued("outer"):
            with clock.queued("long"):
                torch.cuda._sleep(2 * CYCLES)  # type: ignore[no-untyped-call]
            with clock.queued("short"):
                torch.cuda._sleep(CYCLES)  # type: ignore[no-untyped-call]
        ahead.append(time.monotonic() - began)
        clock.end_iteration()
    known = [row for row in rows(run) if "phase/outer" in row]
    assert len(known) == 3  # that of the last iteration is not known yet
    for row in known:
        long, short, outer = (row[f"phase/{name}"] for name in ("outer/long", "outer/short", "outer"))
        assert long == pytest.approx(2 * short, rel=0.2)
        assert outer == pytest.approx(long + short, rel=0.05)
        assert short > 0.005
    assert min(ahead) < 0.2 * known[-1]["phase/outer"]  # the host did not wait for what it had queued


def test_what_is_waited_for_does_not_get_the_time_of_what_was_queued_before(device: torch.device) -> None:
    run = hoptui.connect("gpu")
    clock = phase_clock(run, device)
    for _ in run.iterations(1):
        with clock.queued("update"):
            torch.cuda._sleep(CYCLES)  # type: ignore[no-untyped-call]
        with clock.waited("checkpoint"):
            pass
        clock.end_iteration()
    [row] = [row for row in rows(run) if "phase/checkpoint" in row]
    assert row["phase/checkpoint"] < 0.005


@pytest.mark.parametrize("waits", [True, False])
def test_long_phases_are_placed_on_the_hosts_clock(device: torch.device, waits: bool) -> None:
    """Whether the host waits for each phase, or is an iteration ahead of the GPU."""
    run = hoptui.connect("gpu")
    clock = phase_clock(run, device)
    torch.cuda.synchronize()
    begun, ended = time.monotonic(), []
    for _ in run.iterations(4):
        with clock.queued("long"):
            torch.cuda._sleep(6 * CYCLES)  # type: ignore[no-untyped-call]
            if waits:
                torch.cuda.synchronize()
                ended.append(time.monotonic())
        clock.end_iteration()
    torch.cuda.synchronize()
    spans = list(run_state(run).phases.spans)
    assert [path for path, _, _ in spans] == ["long"] * 3  # that of the last iteration is not known yet
    for i, (_, start, end) in enumerate(spans):
        if i:
            assert start == pytest.approx(spans[i - 1][2], abs=0.01)
        assert start > begun - 0.01
        if waits:
            assert end == pytest.approx(ended[i], abs=0.01)
    assert spans[-1][2] < time.monotonic()


def test_metrics_are_read_without_waiting_for_what_was_queued_behind_them(device: torch.device) -> None:
    delayed = DelayedMetrics(device)
    assert delayed.ready(Finished(1, 10, {"loss": torch.full((), 1.5, device=device)}), due=True) is None
    torch.cuda.synchronize()
    torch.cuda._sleep(4 * CYCLES)  # type: ignore[no-untyped-call]
    began = time.monotonic()
    done = delayed.ready(Finished(2, 20, {"loss": torch.full((), 2.5, device=device)}), due=True)
    assert done is not None
    assert (done.iteration, float(done.metrics["loss"])) == (1, 1.5)
    assert time.monotonic() - began < 0.05  # a quarter of what is queued, or less
