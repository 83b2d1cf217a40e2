"""What one full tick of the GPUs costs: all readings and the rows packed, idle and under load, at 2 and 10
Hz.

Measured inside the sampler's own code, paced as it is paced, with the real driver; slow readings (energy
counter, ECC, processes) are made between the ticks, as in the sampler, and timed apart. Each of them has its
price under load, too.
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks.gpu_node import load
from benchmarks.measure import Bench, bench, quantile, report, tell

TICKS = {2.0: 40, 10.0: 100}
PRICED, PAUSE_S = 15, 0.1
TARGET_US = {"p50": 300, "p95": 600}


def measure(hz: float, ticks: int) -> dict[str, Any]:
    """So many ticks of every GPU of this node."""
    import pynvml

    from hoptui.telemetry.nvml import Gpus

    gpus = Gpus(pynvml, time.monotonic_ns, print)
    period = int(1e9 / hz)
    took, aside, cpu = [], [], []
    values = 0
    for _ in range(5):
        gpus.read(period)
        time.sleep(1 / hz)
    next_tick = time.monotonic_ns()
    for _ in range(ticks):
        next_tick += period
        time.sleep(max(0, next_tick - time.monotonic_ns()) / 1e9)
        began, used = time.perf_counter_ns(), time.process_time_ns()
        parts = gpus.read(period)
        took.append((time.perf_counter_ns() - began) / 1e3)
        cpu.append((time.process_time_ns() - used) / 1e3)
        began = time.perf_counter_ns()
        gpus.aside(next_tick + period // 2)
        aside.append((time.perf_counter_ns() - began) / 1e3)
        values = max([values, *(len(part.names) for part in parts)])
    return {
        "gpus": len(gpus.infos()),
        "readings": values,
        "tick_us": {
            "p50": round(quantile(took, 0.5)),
            "p95": round(quantile(took, 0.95)),
            "max": round(max(took)),
            "n": ticks,
        },
        "cpu_us_p50": round(quantile(cpu, 0.5)),
        "aside_us_mean": round(sum(aside) / ticks),
    }


def prices(nvml: Any, handle: Any, pause_s: float = PAUSE_S) -> dict[str, int | None]:
    """The median time of each reading beside the tick, in µs; None for one that the GPU has not got."""
    from hoptui.telemetry.metrics_table import EACH_SECOND, ENERGY, HEALTH, PCIE
    from hoptui.telemetry.poller import Reader

    found: dict[str, int | None] = {}
    for reading in (*EACH_SECOND, *HEALTH, *PCIE, *ENERGY):
        reader = Reader(nvml, handle, (reading,), "GPU 0", print)
        took = []
        for _ in range(PRICED):
            time.sleep(pause_s)
            began = time.perf_counter_ns()
            known = reader.read(time.monotonic_ns())
            if known:
                took.append((time.perf_counter_ns() - began) / 1e3)
            else:
                break
        found[reading.name] = round(quantile(took, 0.5)) if len(took) == PRICED else None
    return found


def both_rates() -> dict[str, Any]:
    """The figures at each rate."""
    return {f"{hz:g} Hz": measure(hz, ticks) for hz, ticks in TICKS.items()}


def under(node: Bench, name: str) -> dict[str, Any]:
    """The figures beside a load."""
    with load(node, name):
        return both_rates()


def priced(node: Bench) -> dict[str, int | None]:
    """The prices of the first GPU beside a matmul."""
    import pynvml

    with load(node, "matmul"):
        pynvml.nvmlInit()
        try:
            return prices(pynvml, pynvml.nvmlDeviceGetHandleByIndex(0))
        finally:
            pynvml.nvmlShutdown()


def main() -> dict[str, Any]:
    """Measure and report."""
    with bench() as node:
        figures = {name: tell(name, under(node, name)) for name in ("idle", "matmul")}
        beside = tell("beside the tick, µs", priced(node))
    met = {
        f"{name}, {rate}: {quantile_} of a tick of one GPU at most {most} µs": found["tick_us"][quantile_]
        <= most * max(1, found["gpus"])
        for name, rates in figures.items()
        for rate, found in rates.items()
        for quantile_, most in TARGET_US.items()
    }
    return report("tick", {"loads": figures, "beside_tick_us": beside, "met": met})


if __name__ == "__main__":
    main()
