"""Does being watched slow a job whose speed depends on the CPU alone? A launch-bound loop, sampling on and
off in turns.

The samplers are the daemon's own programs, started as it starts them, but by this benchmark: off means that
they are stopped (SIGSTOP), so that no call is made into the driver, and no watchdog takes their silence for a
hang. Blocks follow each other on-off-off-on, so that a steady drift cancels in each two pairs; spells of the
load that lie in two blocks are left out. The figure is the median of the pairs' relative differences, with a
95 % interval from a bootstrap over the pairs: below zero, sampling slows the load.

    python -m benchmarks.observer [--load cpu|launches] [--pairs N]

`--load cpu` needs no GPU: a dry run of the mechanics.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from benchmarks.gpu_node import Load
from benchmarks.measure import SPELL_S, machine, quantile, report, tell, until
from hoptui.daemon.sampler_supervisor import SamplerProcess
from hoptui.domain.devices import Sample, Watch

HZ = 10.0
HOST_HZ = 1.0
BLOCK_S, PAIRS = 1.2, 60
RESAMPLES = 10_000
TOLD_EVERY = 10  # pairs
MOST = 0.01


class Samplers:
    """The GPU sampler and the host's, both running; `stamps` are when (monotonic seconds) a message with
    readings came from the former. Above 5 Hz a message carries more than one tick."""

    def __init__(self) -> None:
        now = time.monotonic()
        program = [sys.executable, "-m", "hoptui.telemetry"]
        self._gpus = SamplerProcess([*program, "gpus"], (), now)
        self._host = SamplerProcess([*program, "host"], None, now)
        self._gpus.say(Watch(hz=HZ))
        self._host.say(Watch(hz=HOST_HZ, pids={"observed": os.getpid()}))
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self.stamps: list[float] = []
        self._thread.start()

    def switch(self, on: bool) -> None:
        """Let them go on, or stop them."""
        for child in (self._gpus, self._host):
            if child.status is not None:
                raise RuntimeError(f"a sampler ended with exit code {child.status}; its last words are above")
            os.kill(child.pid, signal.SIGCONT if on else signal.SIGSTOP)

    def close(self) -> None:
        """End them, stopped or not."""
        self._ending.set()
        self._thread.join()
        for child in (self._gpus, self._host):
            child.kill()
            child.wait(10)

    def _listen(self) -> None:
        """Take what they send, as the daemon would."""
        children = {child.fd: child for child in (self._gpus, self._host)}
        while children and not self._ending.is_set():
            for fd in select.select(children, [], [], 0.1)[0]:
                now, child = time.monotonic(), children[fd]
                readings = sum(isinstance(message, Sample) for message in child.read(now))
                if child is self._gpus:
                    self.stamps += [now] * readings
                if child.closed:
                    del children[fd]


@contextmanager
def samplers() -> Iterator[Samplers]:
    """Both samplers, read from already; ended afterwards."""
    running = Samplers()
    try:
        until(lambda: running.stamps, 60, "the first readings")
        yield running
    finally:
        running.close()


@contextmanager
def load(name: str) -> Iterator[Load]:
    """One of `benchmarks.loads`, working already; what goes wrong in it is on stderr."""
    child = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.loads", name], stdout=subprocess.PIPE, text=True
    )
    try:
        running = Load(child)
        running.wait()
        yield running
    finally:
        child.kill()
        child.wait(30)


def interval(differences: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the median of the differences, from medians of samples drawn from them with
    replacement."""
    draw = random.Random(0).choices
    medians = [statistics.median(draw(differences, k=len(differences))) for _ in range(RESAMPLES)]
    return quantile(medians, 0.025), quantile(medians, 0.975)


def measure(name: str, pairs: int) -> dict[str, Any]:
    """The figures of one load."""
    blocks: list[tuple[bool, float, float]] = []
    with samplers() as sampling, load(name) as running:
        for i in range(pairs):
            for on in (True, False) if i % 2 == 0 else (False, True):
                sampling.switch(on)
                start = time.monotonic()
                time.sleep(BLOCK_S)
                blocks.append((on, start, time.monotonic()))
            if (i + 1) % TOLD_EVERY == 0:
                tell(f"{i + 1} of {pairs} pairs", {"units_per_s": round(running.rates[-1][1])})
        sampling.switch(True)
        until(lambda: running.rates[-1][0] >= blocks[-1][2], 60, "the last spell of the load")
    rates = [(on, statistics.mean(running.between(start, end) or [0.0])) for on, start, end in blocks]
    found = [dict(rates[i : i + 2]) for i in range(0, len(rates), 2)]
    differences = [pair[True] / pair[False] - 1 for pair in found if all(pair.values())]
    if len(differences) < pairs / 2:
        raise RuntimeError(f"only {len(differences)} of {pairs} pairs have a whole spell in both blocks")
    low, high = interval(differences)
    ticks = {
        wanted: sum(
            start + SPELL_S <= stamp <= end
            for on, start, end in blocks
            if on is wanted
            for stamp in sampling.stamps
        )
        for wanted in (True, False)
    }
    return {
        "load": name,
        "hz": HZ,
        "pairs": len(differences),
        "block_s": BLOCK_S,
        "messages_per_s": {
            "on": round(ticks[True] / pairs / (BLOCK_S - SPELL_S), 2),
            "off": round(ticks[False] / pairs / (BLOCK_S - SPELL_S), 2),
        },
        "units_per_s_off": round(statistics.median(rate for on, rate in rates if not on)),
        "effect_percent": round(100 * statistics.median(differences), 3),
        "interval_percent": [round(100 * low, 3), round(100 * high, 3)],
        "met": {"slower by less than 1 %": low > -MOST},
    }


def main() -> dict[str, Any]:
    """Measure beside the launch-bound load, and report."""
    return report("observer", measure("launches", PAIRS))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.observer", description="The observer effect.")
    parser.add_argument("--load", choices=("cpu", "launches"), default="launches")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    return parser.parse_args()


if __name__ == "__main__":
    asked = _options()
    if (asked.load, asked.pairs) == ("launches", PAIRS):
        main()
    else:  # a dry run is no result to keep
        print(json.dumps({"benchmark": "observer", "machine": machine(), **measure(asked.load, asked.pairs)}))
