"""What a run and its GPUs say together, with numbers computed by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec import structs

from hoptui.daemon.state.derived_rows import Account, GpuRow, headline, reading
from hoptui.domain.columns import pack
from hoptui.domain.devices import GpuInfo, GpuProcess
from hoptui.protocol.messages import Flops, RunState

S = 1_000_000_000
NAN = math.nan
H100 = GpuInfo(uuid="a", index=0, name="H100", peak_flops={"bf16": 1e15})
PAIR = (H100, structs.replace(H100, uuid="b", index=1))
RUN = RunState(run="r", name="toy", epoch=1, pid=9, started_wall=0.0, headline="tokens_per_s")


def gpu(watts: float = 400.0, joules: float = 0.0, **fields: float) -> GpuRow:
    plain = GpuRow(
        watts, joules, sm_active=75.0, memory_used_bytes=30, memory_total_bytes=80, mfu_estimated=40.0
    )
    return plain._replace(**fields)


class Bench:
    """A GPU of constant watts, and a run of constant iterations."""

    def __init__(
        self, state: RunState = RUN, gpus: tuple[GpuInfo, ...] = (H100,), watts: float = 400.0
    ) -> None:
        self.account, self.state, self.gpus, self.watts = Account(), state, gpus, watts

    def tick(
        self, second: float, processes: tuple[GpuProcess, ...] = (), **fields: float
    ) -> dict[str, float]:
        read = {g.uuid: gpu(self.watts, 5000.0 + self.watts * second, **fields) for g in self.gpus}
        return self.account.tick(int(second * S), read, self.state, self.gpus, processes)

    def iteration(self, end: float, seconds: float, **values: float) -> None:
        rows = pack("run/r", [(int(end * S), 1, {"iteration_s": seconds} | values)])
        self.account.iterations(rows, self.state)


def test_sums_over_the_runs_gpus() -> None:
    row = Bench(gpus=PAIR).tick(0.0)
    assert row == {
        "power_w": 800.0,
        "energy_j": 0.0,
        "idle_power_w": 200.0,  # 2 × 400 W × 25 %
        "memory_headroom_bytes": 50,
        "mfu_estimated": 40.0,
        "sm_active": 75.0,
        "sm_active_least": 75.0,
    }


def test_of_several_gpus_the_one_that_does_least_is_told() -> None:
    account = Account()
    read = {"a": gpu(sm_active=90.0), "b": gpu(sm_active=20.0)}
    row = account.tick(S, read, RUN, PAIR, ())
    assert (row["sm_active"], row["sm_active_least"]) == (55.0, 20.0)
    assert "sm_active" not in account.tick(2 * S, read, RUN, (H100,), ())
    assert not {"sm_active", "sm_active_least"} & account.tick(3 * S, {"a": gpu()}, RUN, PAIR, ()).keys()


def test_energy_counts_from_the_first_reading() -> None:
    bench = Bench(gpus=PAIR)
    bench.tick(0.0)
    assert bench.tick(3.0)["energy_j"] == 2400.0  # 2 × 400 W × 3 s


def test_energy_of_an_iteration_and_of_a_token() -> None:
    bench = Bench()
    for i in range(41):
        bench.tick(0.5 * i)
        if i and i % 4 == 0:  # iterations of 2 s at 1000 tokens/s
            bench.iteration(0.5 * i, 2.0, tokens_per_s=1000.0)
    row = bench.tick(20.5)
    assert row["energy_per_iteration_j"] == 800.0  # 400 W × 2 s
    assert row["energy_per_unit_j"] == 0.4  # 800 J / 2000 tokens


@pytest.mark.parametrize("seconds", [math.inf, -math.inf, NAN, -1.0, 0.0, 1e308, 1e9])
def test_an_iteration_that_took_as_long_as_none_can_is_not_counted(seconds: float) -> None:
    bench = Bench()
    bench.tick(0.0)
    bench.iteration(0.5, 0.5)
    bench.iteration(0.6, seconds)
    assert bench.tick(1.0)["energy_per_iteration_j"] == 200.0


def test_what_ran_before_the_first_reading_does_not_hold_back_the_figures() -> None:
    bench = Bench()
    for second in range(1, 8):
        bench.iteration(float(second), 1.0, tokens_per_s=1000.0)
    bench.tick(5.5)
    bench.tick(6.5)
    assert "energy_per_iteration_j" not in bench.tick(
        6.9
    )  # the sixth began before, the seventh has not ended
    row = bench.tick(7.5)
    assert row["energy_per_iteration_j"] == 400.0
    assert row["energy_per_unit_j"] == 0.4


def test_a_change_of_power_within_an_iteration_is_interpolated() -> None:
    account = Account()
    for second, joules in ((0, 0.0), (1, 100.0), (2, 500.0)):
        account.tick(second * S, {"a": gpu(joules=joules)}, RUN, (H100,), ())
    account.iterations(pack("run/r", [(3 * S // 2, 1, {"iteration_s": 1.0, "tokens_per_s": 10.0})]), RUN)
    row = account.tick(5 * S // 2, {"a": gpu(joules=600.0)}, RUN, (H100,), ())
    assert row["energy_per_iteration_j"] == 250.0  # 300 J at 1.5 s less 50 J at 0.5 s


def test_an_iteration_longer_than_the_window_counts_whole() -> None:
    bench = Bench()
    for i in range(100):
        bench.tick(float(i))
    bench.iteration(95.0, 60.0, tokens_per_s=1000.0)
    assert bench.tick(100.0)["energy_per_iteration_j"] == 24_000.0


def test_an_iteration_that_began_before_the_first_reading_is_not_counted() -> None:
    bench = Bench()
    bench.tick(10.0)
    bench.iteration(12.0, 5.0, tokens_per_s=1000.0)
    assert "energy_per_iteration_j" not in bench.tick(13.0)


def test_figures_of_iterations_end_with_the_iterations() -> None:
    bench = Bench()
    for i in range(6):
        bench.tick(float(i))
    bench.iteration(5.0, 4.0, tokens_per_s=1000.0)
    assert "energy_per_unit_j" in bench.tick(16.0)
    assert "energy_per_unit_j" not in bench.tick(17.5)  # more than three iterations without one


def test_mfu_is_declared_work_over_the_peak_of_all_gpus() -> None:
    state = structs.replace(RUN, flops=Flops(per_unit=6e9))
    bench = Bench(state, gpus=PAIR)
    bench.tick(0.0)
    bench.iteration(2.0, 1.0, tokens_per_s=100_000.0)
    assert bench.tick(2.0)["mfu"] == 30.0  # 6e9 × 1e5 / 2e15
    bench.state = structs.replace(state, flops=Flops(per_unit=6e9, precision="fp8"))
    assert "mfu" not in bench.tick(3.0)


def test_a_small_mfu_is_not_zero() -> None:
    bench = Bench(structs.replace(RUN, flops=Flops(per_unit=8.4e4)))
    bench.tick(0.0)
    bench.iteration(2.0, 1.0, tokens_per_s=500_000.0)
    assert bench.tick(2.0)["mfu"] == 0.0042  # 8.4e4 × 5e5 / 1e15


def test_mfu_of_a_metric_of_its_own() -> None:
    state = structs.replace(RUN, flops=Flops(per_unit=1e12, metric="samples_per_s"))
    bench = Bench(state)
    bench.tick(0.0)
    bench.iteration(2.0, 1.0, tokens_per_s=1.0, samples_per_s=250.0)
    assert bench.tick(2.0)["mfu"] == 25.0


def test_ranks_on_other_nodes_leave_the_whole_unknown() -> None:
    bench = Bench(structs.replace(RUN, world=8), gpus=PAIR)
    bench.tick(0.0)
    bench.iteration(2.0, 1.0, tokens_per_s=1000.0)
    row = bench.tick(2.5)
    assert row["power_w"] == 800.0
    assert not {"mfu", "energy_per_unit_j", "energy_per_iteration_j"} & row.keys()


@pytest.mark.parametrize(
    ("unknown", "names"),
    [
        ("power_w", {"power_w", "idle_power_w"}),
        ("energy_j", {"energy_j"}),
        ("sm_active", {"idle_power_w", "sm_active", "sm_active_least"}),
        ("memory_used_bytes", {"memory_headroom_bytes"}),
        ("mfu_estimated", {"mfu_estimated"}),
    ],
)
def test_what_depends_on_an_unknown_is_left_out(unknown: str, names: set[str]) -> None:
    whole = Bench(gpus=PAIR).tick(0.0)
    read = {"a": gpu(), "b": gpu(**{unknown: NAN})}
    row = Account().tick(0, read, RUN, PAIR, ())
    assert whole.keys() - row.keys() == names


def test_a_gpu_that_was_not_read_leaves_the_sums_unknown() -> None:
    assert Account().tick(0, {"a": gpu()}, RUN, PAIR, ()) == {}


def test_a_counter_that_began_anew_takes_nothing_away() -> None:
    account = Account()
    for second, joules in ((0, 9000.0), (1, 9100.0), (2, 50.0), (3, 150.0)):
        row = account.tick(second * S, {"a": gpu(joules=joules)}, RUN, (H100,), ())
    assert row["energy_j"] == 200.0


def test_energy_goes_on_after_a_daemon_that_died() -> None:
    account = Account(energy_j=1000.0, counters={"a": 7000.0})
    assert account.tick(0, {"a": gpu(joules=7500.0)}, RUN, (H100,), ())["energy_j"] == 1500.0


def test_what_happened_between_two_processes_of_a_run_is_not_its_own() -> None:
    bench = Bench()
    bench.tick(0.0)
    assert bench.tick(1.0)["energy_j"] == 400.0
    bench.account.restart()
    assert bench.tick(100.0)["energy_j"] == 400.0
    assert bench.tick(101.0)["energy_j"] == 800.0


def test_the_runs_processes() -> None:
    own = (
        GpuProcess(gpu="a", pid=1, memory_used_bytes=5, sm_percent=60.0),
        GpuProcess(gpu="b", pid=2, memory_used_bytes=7, sm_percent=20.0),
    )
    row = Bench(gpus=PAIR).tick(0.0, own)
    assert (row["gpu_memory_bytes"], row["gpu_sm_percent"]) == (12, 40.0)
    partly = (own[0], structs.replace(own[1], sm_percent=None))
    assert "gpu_sm_percent" not in Bench(gpus=PAIR).tick(0.0, partly)


def test_a_reading_is_the_newest_row() -> None:
    rows = pack("gpu/a", [(1, -1, {"power_w": 1.0, "sm_active": 2.0}), (2, -1, {"power_w": 3.0})])
    found = reading(rows)
    assert found.power_w == 3.0
    assert math.isnan(found.sm_active)
    assert math.isnan(found.energy_j)


@pytest.mark.parametrize(
    ("fields", "names", "expected"),
    [
        ({"headline": "tokens_per_s"}, (), "tokens_per_s"),
        ({"headline": "speed", "units": {"speed": "games/s"}}, (), "speed"),
        ({"headline": "return"}, ("env_steps_per_s",), "env_steps_per_s"),
        ({"headline": ""}, ("loss",), ""),
    ],
)
def test_only_a_rate_is_a_throughput(fields: dict[str, Any], names: tuple[str, ...], expected: str) -> None:
    assert headline(structs.replace(RUN, **fields), names) == expected


def test_memory_is_bounded_over_a_long_run() -> None:
    bench = Bench()
    for i in range(6000):
        bench.tick(0.5 * i)
        bench.iteration(0.5 * i, 0.01, tokens_per_s=1.0)
    assert len(bench.account._t) <= 3700
    assert len(bench.account._window) <= 256
