"""hoptui beside other terminal monitors, in one run on one machine: start to the first frame, CPU, bytes to
the terminal, memory, and what is on the screen.

Each draws to a terminal of 120×40 at its own default rate, one after another, on a GPU node beside the same
load. hoptui's dashboard is a separate process beside a daemon and samplers that also record. Their cost is
listed separately, because they run with or without a dashboard. A tool that is not available or exits early
is listed as such, with its last output.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import Any

import psutil

from benchmarks.gpu_node import RUN, cpu_s, hoptui_processes, load
from benchmarks.measure import Bench, Terminal, bench, machine, report, spread, tell

OPENINGS, OPENING_S, PATIENCE_S = 3, 5.0, 12.0
"""How often each is opened; for how long the first time, and where it has drawn nothing then, until when.
Later openings last half as long again as its first frame took."""
SLICE_S, SLICES = 3.0, 3
HOPTUI = [sys.executable, "-m", "hoptui"]
TOOLS: dict[str, list[str]] = {
    "hoptui": HOPTUI,
    "hoptui attach": [*HOPTUI, "attach", "beside"],
    "nvitop": ["nvitop"],
    "nvtop": ["nvtop"],
    "wandb leet symon": ["wandb", "leet", "symon"],
    "PufferLib": ["puffer", "train", "puffer_cartpole"],
}
WHY_NOT = {
    "PufferLib": "its console is part of its trainer; release 3.0 is source only, built against torch with a "
    "compiler and libraries that its build downloads, and the wheels of 2.0 are without it",
}
"""Why a tool that is not on the PATH is hard to have, where that is more than not being installed."""
SIGNS = {
    "GPU busy": r"busy ?%|gpu[- ]?util|gpu ?%|\butl\b|\bgpu \d+ +[█░]+ +\d",
    "SM active": r"(?<!%)\bsm ?%|sm active",  # `%SM` is a process's share of the time, from NVML
    "tensor cores": r"tensor",
    "DRAM": r"\bdram\b",
    "power": r"\d ?w\b|\bpower\b",
    "why clocks give way": r"power cap|thermal|throttl",
    "processes": r"\bpid\s+[a-z]|on the gpus",
    "training's throughput": r"(steps|samples|tokens)/s|\bsps\b",
    "knobs of the run": r"\bknobs\b",
}
"""What is looked for on a screen, in small letters, by what it stands for."""
CONTROL = re.compile(rb"\x1b\][^\x07\x1b]*(\x07|\x1b\\\\)|\x1b\[[0-?]*[ -/]*[@-~]|\x1b[^\[\]]|[\x00-\x1f]")
"""What a terminal obeys and does not show: titles, control sequences, other escapes, control characters
(ECMA-48)."""


def measure(node: Bench, name: str) -> dict[str, Any]:
    """The figures of one tool."""
    command = TOOLS[name]
    if shutil.which(command[0]) is None:
        why = f"{command[0]} is not on the PATH"
        return {"ran": False, "why": "not available: " + "; ".join(filter(None, (why, WHY_NOT.get(name))))}
    with _terminal(node, command) as terminal:
        terminal.read(OPENING_S)
        while not _drew(terminal) and not _ended(terminal) and terminal.clock() < PATIENCE_S:
            terminal.read(1.0)
        if _ended(terminal) or not _drew(terminal):
            why = "it ends by itself" if _ended(terminal) else f"it draws nothing within {PATIENCE_S:g} s"
            return {"ran": False, "why": why, "last_words": _text(terminal)[-8:]}
        opened_by = terminal.clock()
        cpu, sent, rss = [], [], []
        for _ in range(SLICES):
            before, at = terminal.cpu_s(), terminal.clock()
            terminal.read(SLICE_S)
            took = terminal.clock() - at
            cpu.append(100 * (terminal.cpu_s() - before) / took)
            sent.append(terminal.bytes_between(at, at + took) / took / 1000)
            rss.append(_rss_mib([terminal.process, *terminal.process.children(recursive=True)]))
        if _ended(terminal):
            return {"ran": False, "why": "it ends by itself", "last_words": _text(terminal)[-8:]}
    screen, opened = _text(terminal), [terminal.first_full_frame_s(share=0.7, within_s=opened_by)]
    for _ in range(OPENINGS - 1):
        with _terminal(node, command) as terminal:
            terminal.read(1.0 + 1.5 * opened[0])
        opened.append(terminal.first_full_frame_s(share=0.7))
    return {
        "ran": True,
        "first_frame_s": spread(opened, 2),
        "cpu_percent_of_a_core": spread(cpu, 2),
        "kb_per_s": spread(sent, 2),
        "rss_mib": spread(rss, 1),
        "shows": shows(screen),
        "screen": screen,
    }


def background(node: Bench) -> dict[str, Any]:
    """Return the cost of the daemon and its samplers without a viewer."""
    processes = hoptui_processes(node)
    cpu = []
    for _ in range(SLICES):
        before = cpu_s(processes)
        _, alive = psutil.wait_procs(processes, timeout=SLICE_S)
        cpu.append(100 * (cpu_s(alive) - before) / SLICE_S)
    return {
        "cpu_percent_of_a_core": spread(cpu, 2),
        "rss_mib": round(_rss_mib(processes), 1),
        "processes": len(processes),
    }


def shows(screen: Sequence[str]) -> list[str]:
    """What of `SIGNS` is on a screen."""
    text = "\n".join(screen).lower()
    return [what for what, sign in SIGNS.items() if re.search(sign, text)]


def _terminal(node: Bench, command: Sequence[str]) -> AbstractContextManager[Terminal]:
    return contextlib.closing(Terminal(command, node.environment))


def _ended(terminal: Terminal) -> bool:
    return terminal.process.status() == psutil.STATUS_ZOMBIE


def _drew(terminal: Terminal) -> bool:
    """Return whether it has written more than control sequences. Must be fast: its output is not read."""
    return any(CONTROL.sub(b"", data).strip() for _, data in terminal.written)


def _text(terminal: Terminal) -> list[str]:
    """The lines that are on its screen, without empty ones at the end of it."""
    lines = [line.rstrip() for line in terminal.screen()]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _rss_mib(processes: Sequence[psutil.Process]) -> float:
    return float(sum(process.memory_info().rss for process in processes)) / 2**20


def main() -> None:
    """Measure and report."""
    if find_spec("pyte") is None:
        sys.exit("rivals: screens are read with pyte, which is not installed: pip install pyte")
    gpus = machine().get("gpus", [])
    with bench() as node, load(node, "matmul") if gpus else nullcontext():
        node.python(RUN, CUDA_VISIBLE_DEVICES="0")  # as one that trains there: its GPU is on its screen
        node.run("beside")
        tools = {}
        for name in TOOLS:
            tools[name] = measure(node, name)
            tell(name, {what: found for what, found in tools[name].items() if what != "screen"})
        behind = tell("hoptui behind it", background(node))
    report(
        "rivals",
        {"size": "120x40", "load": "matmul" if gpus else None, "tools": tools, "hoptui_behind_it": behind},
    )


if __name__ == "__main__":
    main()
