"""What the states of a run on several nodes add to a recording.

    python -m benchmarks.job_recording [--ranks 8 64 512 2048] [--hours 4]

The states are those of `benchmarks.simulated_job`, one each 30 s, as the daemon hands them to the recording.
That keeps one a minute of the last four hours. The file is measured after it was closed, against one with the
rows alone. Prints JSON.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.measure import quantile, report, tell
from benchmarks.simulated_job import SimulatedJob
from hoptui.domain.columns import pack
from hoptui.protocol.recorded_jobs import decode_recorded, encode_recorded
from hoptui.recording import Recording
from hoptui.recording.timed_states import JOB

SECOND, EVERY_S, HOUR_S = 1_000_000_000, 30, 3600
FIRST = 1000 * SECOND


def measure(ranks: int, hours: float) -> dict[str, Any]:
    """Return the figures of a run with so many ranks."""
    encoded: list[float] = []
    sizes: list[int] = []
    job = SimulatedJob(ranks)
    for _ in range(20):
        job.tick()
    with tempfile.TemporaryDirectory(prefix="hoptui-job-") as folder:
        without = _written(Path(folder) / "without.hoptui", hours, lambda second: None)

        def state(_: int) -> bytes:
            job.tick()
            found = job.state()
            began = time.perf_counter()
            body = encode_recorded(found)
            encoded.append(1000 * (time.perf_counter() - began))
            sizes.append(len(body))
            return body

        with_states = _written(Path(folder) / "with.hoptui", hours, state)
        began = time.perf_counter()
        with Recording.open(Path(folder) / "with.hoptui") as recording:
            for _, body in recording.states(JOB):
                decode_recorded(body)
        read_s = time.perf_counter() - began
    return {
        "state_kb": round(quantile(sizes, 0.5) / 1000, 2),
        "mb_per_hour": round((with_states - without) / 1e6 / hours, 3),
        "encode_ms": round(quantile(encoded, 0.5), 2),
        "read_all_s": round(read_s, 2),
    }


def _written(path: Path, hours: float, state: Callable[[int], bytes | None]) -> int:
    """Write a recording with a row a second, and return its size."""
    with Recording.create(path) as recording:
        for second in range(0, round(hours * HOUR_S), EVERY_S):
            seconds = range(second, second + EVERY_S)
            rows = [(FIRST + each * SECOND, each, {"iteration_s": 1.0}) for each in seconds]
            recording.append(pack("run/simulated", rows))
            body = state(second)
            if body is not None:
                recording.state(JOB, FIRST + second * SECOND, body)
            recording.flush()
    return path.stat().st_size


def main() -> None:
    """Measure each number of ranks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 64, 512, 2048])
    parser.add_argument("--hours", type=float, default=4.0)
    options = parser.parse_args()
    found = {}
    for ranks in options.ranks:
        found[f"{ranks} ranks"] = tell(f"{ranks} ranks", measure(ranks, options.hours))
    report("job_recording", found)


if __name__ == "__main__":
    main()
