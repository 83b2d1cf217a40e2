"""What watching costs is counted in full: by the kernel's own clock, and of every process that watches."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil
import pytest

from benchmarks import sampler_cost
from benchmarks.gpu_node import cpu_s, hoptui_processes, wake_ups
from benchmarks.measure import Bench, bench, until


def test_cpu_time_is_the_kernels_own_and_finer_than_its_tick() -> None:
    own = [psutil.Process()]
    readings = []
    for _ in range(3):
        before, between, after = cpu_s(own), time.process_time(), cpu_s(own)
        assert before <= between <= after
        readings.append(between)
    assert len({round(after * os.sysconf("SC_CLK_TCK"), 6) % 1 for after in readings}) > 1


def test_who_waited_woke_up_and_who_is_gone_is_an_error() -> None:
    own = [psutil.Process()]
    before = wake_ups(own)
    child = psutil.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    child.communicate(b"\n")  # waited for
    assert wake_ups(own) > before
    with pytest.raises(OSError, match=os.strerror(3)):
        cpu_s([child])


def one_of_each(node: Bench) -> dict[str, list[psutil.Process]] | None:
    """The processes once all have started; a child of the daemon's is another daemon until it runs its
    program."""
    try:
        parts = sampler_cost.by_part(hoptui_processes(node))
    except (RuntimeError, psutil.Error):
        return None
    return parts if all(len(own) == 1 for own in parts.values()) else None


def test_each_process_that_watches_is_known_for_what_it_is() -> None:
    with bench() as node, node.session():
        parts = until(lambda: one_of_each(node), what="one of each")
        assert list(parts) == list(sampler_cost.PARTS)
        others = [p for part, own in parts.items() if part != "host sampler" for p in own]
        with pytest.raises(RuntimeError, match="host sampler"):
            sampler_cost.by_part(others)
