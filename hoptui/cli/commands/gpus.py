"""`hoptui gpus`: list GPU readings and processes. `status`, `watch` and `demo` show the same readings."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import fmean
from typing import Annotated, Any

from cyclopts import Parameter

from hoptui.cli.support.options import Json
from hoptui.cli.support.snapshot import NodeSnapshot, headline, look
from hoptui.cli.support.terminal import MISSING, OK, dump, say, table, usage, warn
from hoptui.domain.devices import GpuInfo, GpuProcess
from hoptui.domain.facts import Fact
from hoptui.presentation import numbers, sentences
from hoptui.presentation.gpu_readings import GPU
from hoptui.presentation.readings import small, value_text
from hoptui.protocol.messages import NodeState, RunState

NUMBERS = (0, 2, 3, 4, 5, 6, 7, 8, 9)
"""The columns of `line` that are aligned to the right."""
NO_READINGS = "no recent readings"
SHARES = (("busy", "busy"), ("SM", "sm_active"), ("tensor", "tensor_active"), ("DRAM", "dram_active"))
_OTHERS = (
    ("power", "power_w"),
    ("memory", "memory_used_bytes"),
    ("temperature", "temperature_c"),
    ("clock", "sm_clock_mhz"),
)


def gpus(
    *,
    watch: Annotated[
        float | None,
        Parameter(show_default=False, help="Print a row of each GPU every so many seconds, until Ctrl-C."),
    ] = None,
    count: Annotated[
        int | None,
        Parameter(show_default=False, help="With --watch: end after so many rows of each GPU."),
    ] = None,
    csv: Annotated[
        str | None,
        Parameter(
            show_default=False,
            allow_leading_hyphen=True,
            help="Append rows as CSV to this file; - is standard output. Without --watch one row of a GPU.",
        ),
    ] = None,
    json: Json = False,
) -> int:
    """List the GPUs: readings, processes and their runs. Exit code 3 if no GPU can be read.

    With --watch, rows follow each other: a table that fits the terminal, all columns in a pipe.
    """
    if watch is not None or csv is not None or count is not None:
        from hoptui.cli.gpu_log import rounds

        if wrong := rounds.checked(watch, count):
            raise usage(wrong)
        if json and csv == "-":
            raise usage("--json and --csv - both write to standard output: give --csv a file")
        return rounds.watch(watch, count, csv, json=document if json else None, why_none=why_none)
    with look() as seen:
        if seen.session.started_daemon:
            seen.await_readings()
        node = seen.node
        read = any(readings(seen, gpu) for gpu in node.gpus)
        if json:
            dump(document(seen))
        else:
            if not read:
                warn(f"hoptui: no GPU readings: {why_none(seen)}")
            elif node.sampler_problems:
                warn(f"hoptui: {sentences.joined(node.sampler_problems)}")
            if node.gpus:
                _list(seen, seen.processes())
    return OK if read else MISSING


def document(seen: NodeSnapshot) -> dict[str, Any]:
    """The GPUs as `--json` shows them."""
    node, processes = seen.node, seen.processes()
    read = any(readings(seen, gpu) for gpu in node.gpus)
    reason, none = ("", ()) if read else _why_none(seen)
    return {
        "host": node.host,
        "time": time.time(),
        "hz": node.hz,
        "reason": reason,
        "sampler": sentences.joined(node.sampler_problems),
        "problems": none,
        "sampler_problems": node.sampler_problems,
        "gpus": [_details(seen, gpu, processes) for gpu in node.gpus],
        **({} if read else {"error": f"no GPU readings: {reason}", "code": MISSING}),
    }


def why_none(seen: NodeSnapshot) -> str:
    """Why there are no readings, as one sentence."""
    return _why_none(seen)[0]


def _why_none(seen: NodeSnapshot) -> tuple[str, tuple[Fact, ...]]:
    """Why there are no readings: the sentence, and the facts it is made of."""
    node = seen.node
    if not node.gpus:
        return none_found(node), (node.gpu_problem,) if node.gpu_problem else node.sampler_problems
    if node.sampler_problems:
        return sentences.joined(node.sampler_problems), node.sampler_problems
    return "no GPU can be read" if all(gpu.problem for gpu in node.gpus) else NO_READINGS, ()


def none_found(node: NodeState) -> str:
    """Why the node has no GPUs, as one sentence."""
    known = sentences.text_of(node.gpu_problem) or sentences.joined(node.sampler_problems)
    return known or "no GPU was found"


def readings(seen: NodeSnapshot, gpu: GpuInfo) -> dict[str, float]:
    """The current readings of a GPU; empty if it cannot be read or the newest readings are old."""
    return {} if gpu.problem else seen.readings(f"gpu/{gpu.uuid}")


def report(seen: NodeSnapshot, gpu: GpuInfo) -> dict[str, Any]:
    """A GPU as `--json` shows it: its known readings by name."""
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "name": gpu.name,
        **({"reason": sentences.sentence(gpu.problem), "problem": gpu.problem} if gpu.problem else {}),
        **readings(seen, gpu),
    }


def line(gpu: GpuInfo, now: dict[str, float]) -> tuple[str, ...]:
    """A GPU as one row; its last cell is the estimated MFU, or why there are no readings."""
    mfu = now.get("mfu_estimated")
    note = f"MFU ≈ {_share(mfu)}" if mfu is not None else ""
    return (
        str(gpu.index),
        _name(gpu),
        *(f"{label} {_share(now.get(name))}" for label, name in SHARES),
        _of(
            numbers.grouped(now.get("power_w")), gpu.power_limit_w and numbers.grouped(gpu.power_limit_w), "W"
        ),
        _of(numbers.gib(now.get("memory_used_bytes")), numbers.gib(_memory(gpu, now)), "GiB"),
        f"{numbers.grouped(now.get('temperature_c'))} °C",
        f"{numbers.grouped(now.get('sm_clock_mhz'))} MHz",
        sentences.text_of(gpu.problem) or note,
    )


def unknown(gpu: GpuInfo, now: dict[str, float]) -> list[str]:
    """Why cells of `line` are unknown, one sentence per reason: `SM, tensor, DRAM unknown: …`."""
    reasons: dict[str, list[str]] = {}
    for label, name in (*SHARES, *_OTHERS) if now else ():
        keys = (*GPU[name].needs, name)
        why = sentences.text_of(next(filter(None, map(gpu.missing_because.get, keys)), None))
        if why and name not in now:
            reasons.setdefault(why, []).append(label)
    return [f"{', '.join(labels)} unknown: {why}" for why, labels in reasons.items()]


def together(all_of_them: Sequence[dict[str, float]]) -> list[str]:
    """Summarize the readings of a run's GPUs: the mean of each share, the sum of the power."""
    if not all_of_them:
        return []
    shares = [f"{label} {_share(_mean(all_of_them, name))}" for label, name in SHARES]
    watts = [now["power_w"] for now in all_of_them if "power_w" in now]
    power = sum(watts) if len(watts) == len(all_of_them) else None
    return [*shares, f"{numbers.grouped(power)} W"]


def derived(seen: NodeSnapshot, run: RunState) -> dict[str, float]:
    """Values derived from GPUs and training, by the metric names of the source `derived/<run>`."""
    return seen.readings(f"derived/{run.run}") if seen.lives(run) else {}


def derived_lines(run: RunState, found: dict[str, float]) -> list[tuple[str, str]]:
    """The derived values as rows of a table, without the unknown ones."""
    get = found.get
    lines: list[tuple[str, str]] = []
    if (watts := get("power_w")) is not None:
        idle = get("idle_power_w")
        aside = f", {numbers.grouped(idle)} W of it while SMs are idle" if idle is not None else ""
        lines.append(("power", f"{numbers.grouped(watts)} W{aside}"))
    energies = [
        small(found[name], "J") + suffix
        for name, suffix in (
            ("energy_j", ""),
            ("energy_per_iteration_j", " an iteration"),
            ("energy_per_unit_j", f" per {_unit(run, found)}"),
        )
        if name in found
    ]
    if energies:
        lines.append(("energy", ", ".join(energies)))
    shares = [
        (f"{_share(found[name])} {how}")
        for name, how in (
            ("mfu", "by the declared FLOPs"),
            ("mfu_estimated", "estimated from the tensor cores"),
        )
        if name in found
    ]
    if shares:
        lines.append(("MFU", ", ".join(shares)))
    if (least := get("memory_headroom_bytes")) is not None:
        own = get("gpu_memory_bytes")
        aside = f", {numbers.gib(own)} GiB used by its processes" if own is not None else ""
        lines.append(("memory", f"{numbers.gib(least)} GiB free on the fullest GPU{aside}"))
    return lines


def _list(seen: NodeSnapshot, processes: Sequence[GpuProcess]) -> None:
    """Print each GPU and its processes below it."""
    every = seen.node.gpus
    rows = [line(gpu, readings(seen, gpu)) for gpu in every]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for gpu, row in zip(every, rows, strict=True):
        padded = [
            cell.rjust(width) if i in NUMBERS else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        say("  ".join(padded).rstrip())
        for sentence in unknown(gpu, readings(seen, gpu)):
            say(f"    {sentence}")
        here = _processes(seen, gpu, processes)
        if here:
            table([_process_line(seen, process) for process in here], right=(2, 3), indent="    ")
        elif here is None and not gpu.problem:
            why = sentences.text_of(gpu.missing_because.get("processes")) or NO_READINGS
            say(f"    its processes are unknown: {why}")


def _processes(seen: NodeSnapshot, gpu: GpuInfo, processes: Sequence[GpuProcess]) -> list[GpuProcess] | None:
    """The processes on a GPU; None if they are unknown, as with old readings."""
    if "processes" in gpu.missing_because or not readings(seen, gpu):
        return None
    return [process for process in processes if process.gpu == gpu.uuid]


def _process_line(seen: NodeSnapshot, process: GpuProcess) -> tuple[str, ...]:
    run = seen.store.run(process.run) if process.run else None
    return (
        f"pid {process.pid}",
        numbers.clean(process.user, 32) or numbers.UNKNOWN,
        value_text("B", process.memory_used_bytes),
        f"SM {_share(process.sm_percent)}",
        f"run {numbers.clean(run.name, 40)} ({run.run})" if run else "",
        numbers.clean(process.command, 80) or numbers.UNKNOWN,
    )


def _details(seen: NodeSnapshot, gpu: GpuInfo, processes: Sequence[GpuProcess]) -> dict[str, Any]:
    """A GPU as `gpus --json` shows it: report, static facts and processes (null if unknown)."""
    here = _processes(seen, gpu, processes)
    return {
        "power_limit_w": gpu.power_limit_w,
        "limits": gpu.limits,
        "memory_total_bytes": gpu.memory_total_bytes,
        "sm_clock_max_mhz": gpu.sm_clock_max_mhz,
        "architecture": gpu.architecture,
        "driver": gpu.driver,
        "parent": gpu.parent or None,
        "missing": {name: sentences.sentence(why) for name, why in gpu.missing_because.items()},
        "missing_because": gpu.missing_because,
        **report(seen, gpu),
        "runs": [run.run for run in seen.node.runs if gpu.uuid in run.gpus and seen.lives(run)],
        "processes": [
            {
                "pid": process.pid,
                "user": process.user or None,
                "command": process.command or None,
                "memory_used_bytes": process.memory_used_bytes,
                "sm_percent": process.sm_percent,
                "run": process.run or None,
            }
            for process in here
        ]
        if here is not None
        else None,
    }


def _name(gpu: GpuInfo) -> str:
    """The name of a GPU; for a MIG instance also the start of its UUID."""
    name = numbers.clean(gpu.name.removeprefix("NVIDIA "), 40)
    return f"{name} {numbers.clean(gpu.uuid[:12])}" if gpu.parent else name


def _memory(gpu: GpuInfo, now: dict[str, float]) -> float | None:
    return now.get("memory_total_bytes", gpu.memory_total_bytes)


def _mean(all_of_them: Sequence[dict[str, float]], name: str) -> float | None:
    known = [now[name] for now in all_of_them if name in now]
    return fmean(known) if known else None


def _share(per_cent: float | None) -> str:
    return value_text("%", per_cent)


def _of(part: str, whole: str | float | None, unit: str) -> str:
    return f"{part} / {whole} {unit}" if whole and whole != numbers.UNKNOWN else f"{part} {unit}"


def _unit(run: RunState, found: dict[str, float]) -> str:
    """The unit that the headline rate counts: `env step`, `token`."""
    name, _ = headline(run, found)
    return numbers.clean(name.removesuffix("_per_s").replace("_", " ").removesuffix("s"), 20) or "unit"
