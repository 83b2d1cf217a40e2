"""What limits a run: verdicts, the figures behind them, and what might help."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from hoptui.domain.code_lines import CodeLine
from hoptui.domain.enumerations import ByValue
from hoptui.presentation import gpu_readings, numbers
from hoptui.presentation.sentences.template import Entry, Fields, Write, facts
from hoptui.presentation.stacks import called, does, place


class VerdictText(NamedTuple):
    """What a verdict means, and what helps where no knob of the run does ("": only a knob could)."""

    meaning: str
    without_a_knob: str = ""


VERDICTS: Mapping[str, VerdictText] = {
    "launch-bound": VerdictText(
        "kernels are too small, or are launched too slowly, to fill the GPU",
        "more work in each kernel: larger batches, torch.compile, CUDA graphs",
    ),
    "data-bound": VerdictText(
        "training waits for its input",
        "more or faster loading: processes that load ahead, smaller or already decoded input",
    ),
    "env-bound": VerdictText(
        "training waits for environments that run on the CPU",
        "faster steps: environments in several processes, on more cores, or on the GPU",
    ),
    "memory-bandwidth-bound": VerdictText(
        "the memory bus of the GPU is near its limit",
        "fewer passes over memory: torch.compile fuses them, narrower number formats halve them",
    ),
    "compute-bound": VerdictText(
        "the arithmetic units of the GPU are near their limit",
        "near what the GPU can do: only less work or a narrower number format is faster",
    ),
    "power-limited": VerdictText(
        "the board's power limit holds the clocks down",
        "the board draws what it may: only an administrator can raise the limit (nvidia-smi -pl)",
    ),
    "heat-limited": VerdictText(
        "heat holds the clocks down",
        "look after the cooling: the clocks stay low until the GPU is cooler",
    ),
    "host-bound": VerdictText(
        "training waits for Python code of the script",
        "do it less often, in another process, or while the GPU works",
    ),
    "transfer-bound": VerdictText(
        "the GPU waits for copies between it and the host",
        "pinned memory and non_blocking copies, smaller number formats, data that stay on the GPU",
    ),
    "save-bound": VerdictText(
        "training waits for a checkpoint to be written",
        "save less often, or in the background (torch.distributed.checkpoint.async_save)",
    ),
    "compiling": VerdictText(
        "training waits for a compiler",
        "if it goes on: fewer shapes (padding, dynamic=True), and a compiler cache that stays",
    ),
    "wrong-device": VerdictText(
        "the CPU computes the model, and the GPU has nothing to do",
        "move the model and its input to the GPU: model.to('cuda')",
    ),
    "memory-latency-bound": VerdictText(
        "the SMs wait for memory: scattered reads, little work per read",
        "more work for each read: larger blocks, sorted indices, fused kernels",
    ),
    "straggler": VerdictText(
        "the other ranks wait for one",
        "look at what that rank does, and at its GPU",
    ),
    "communication-bound": VerdictText(
        "ranks wait for each other",
        "fewer, larger exchanges: more work between two of them",
    ),
    "memory-unused": VerdictText("work is cut into smaller pieces than memory requires"),
    "healthy": VerdictText("nothing stands out"),
    "unknown": VerdictText("too little is known"),
}
"""Every verdict of `hoptui.domain.diagnosis`."""
COSTS: Mapping[str, str] = ByValue(
    {
        "free": "takes effect at once",
        "shape": "may compile anew",
        "rebuild": "pauses while it is rebuilt",
        "restart": "restarts the run",
    },
    str,
)


def _change(fields: Fields, _: Write) -> str:
    """`num_envs 2 048 → 4 096`."""
    return f"{fields['knob']} {numbers.value(fields['before'])} → {numbers.value(fields['value'])}"


def _advice(fields: Fields, write: Write) -> str:
    """`num_envs 2 048 → 4 096 (changes what is learned; its last change took 8.3 s)`."""
    took = fields.get("took_s")
    cost = f"its last change took {took:.2g} s" if took is not None else COSTS[fields["cost"]]
    learning = "changes what is learned; " if fields["effect"] == "learning" else ""
    return f"{_change(fields, write)} ({learning}{cost})"


def _verdict(fields: Fields, write: Write) -> str:
    return ": ".join(filter(None, (fields["verdict"], facts(fields["facts"], write))))


def _power(fields: Fields, _: Write) -> str:
    limit = f" of {fields['limit_w']:.0f}" if "limit_w" in fields else ""
    return f"{fields['watts']:.0f}{limit} W"


def _of_gpu(fields: Fields) -> str:
    return f"GPU {fields['gpu']} " if "gpu" in fields else ""


def _slow_rank(fields: Fields, _: Write) -> str:
    wait = numbers.percent(fields["others_wait"])
    text = f"the others wait {wait} of the time for rank {fields['rank']} of {fields['world']}"
    device = gpu_readings.rank_device(fields)
    return f"{text}: {device}" if device else text


def _rate(fields: Fields) -> str:
    rate = fields["bytes_per_s"] / 1e9
    return f"{rate:.0f} GB/s" if rate >= 9.95 else f"{rate:.1f} GB/s"


def _no_counters(fields: Fields, write: Write) -> str:
    return f"no SM counters{_which_gpu(fields)}: {facts([fields['problem']], write)}"


def _which_gpu(fields: Fields) -> str:
    return f" of GPU {fields['gpu']}" if "gpu" in fields else ""


def _line(fields: Fields, _: Write) -> str:
    """`loads data 83 % of the time: data.py:37 augment (rotate)`.

    Of several such lines: `loads data 83 % of the time, 41 % at data.py:37 augment (rotate)`.
    """
    inside = f" ({called(fields['inside'])})" if fields.get("inside") else ""
    what = does(fields["kind"], fields.get("inside") or "")
    at, share = f"{_place(fields)}{inside}", numbers.percent(fields["share"])
    if "whole" in fields:
        return f"{what} {numbers.percent(fields['whole'])} of the time, {share} at {at}"
    return f"{what} {share} of the time: {at}"


CURES: Mapping[str, str] = ByValue(
    {
        "load_in_workers": "the DataLoader reads in the training process: num_workers=4 or more",
        "avoid_sync": "the thread waits for a result there, before it may go on: read results less often",
        "fewer_kernels": "many small kernels: torch.compile, CUDA graphs, larger batches",
        "pin_results": "copy results less often, or to pinned memory with non_blocking=True",
        "pin_memory": "pin_memory=True in the DataLoader, and .to(device, non_blocking=True)",
        "save_in_background": "save less often, or with torch.distributed.checkpoint.async_save",
        "autocast": "it computes in FP32 without tensor cores: torch.autocast with bfloat16, or TF32",
        "move_to_gpu": "move the model and its input to the GPU: .to('cuda')",
        "log_less": "log less often",
        "own_process": "this thread keeps the interpreter: run it in another process",
    },
    str,
)
"""What usually helps, by what a line does."""


def _cure(fields: Fields, _: Write) -> str:
    """`data.py:37 augment: num_workers=4 or more`."""
    where = f"{_place(fields)}: " if "file" in fields else ""
    return f"{where}{CURES[fields['cure']]}"


def _place(fields: Fields) -> str:
    return numbers.clean(place(CodeLine(fields["file"], fields["line"], fields["function"])))


def _unused(fields: Fields, _: Write) -> str:
    count = fields["count"]
    return "a GPU of the node is free" if count == 1 else f"{count} GPUs of the node are free"


SENTENCES: Mapping[str, Entry] = {
    "diagnosis.verdict": _verdict,
    "diagnosis.newer_verdict": "a newer hoptui found {verdict}",
    "diagnosis.text": "{text}",  # of a recording by hoptui 0.1
    # time
    "phase.share": "{phase} {share:percent} of the time",
    "phase.largest": "largest phase: {phase} {share:percent}",
    "time.aside": "{share:percent} of all time goes into evaluation and checkpoints",
    "time.all_aside": "{share:percent} of the time went into evaluation, checkpoints or a pause",
    # what the training thread does
    "line.hot": _line,
    "line.brief": lambda fields, _: f"{_place(fields)} {numbers.percent(fields['share'])}",  # the same, short
    "rank.slow": _slow_rank,
    "cpu.computes": "it computes on the CPU {share:percent} of the time",
    "cpu.thread_waits": "its thread computes, but had a processor only {share:percent} of the time",
    "cpu.queued": "it waited for a processor {share:percent} of the time",
    "cpu.interpreter_kept": "another thread keeps the interpreter {share:percent} of the time",
    # how busy GPUs and host are
    "gpu.idle_share": "GPU idle {share:percent}",
    "gpu.none_used": _unused,
    "gpu.busy": "GPU busy {share:percent}",
    "gpu.any_kernel": "busy {share:percent}",  # the same, beside the SMs
    "gpu.sm_active": "SM active {share:percent}",
    "gpu.tensor_active": "tensor cores {share:percent}",
    "gpu.fp32_active": "FP32 units {share:percent}",
    "gpu.fp64_active": "FP64 units {share:percent}",
    "gpu.dram_active": "memory bandwidth {share:percent}",
    "gpu.kernel_fill": "a kernel fills {share:percent} of the GPU",
    "gpu.memory": "memory {share:percent} in use",
    "gpu.pcie": lambda fields, _: f"{_rate(fields)} over PCIe",
    "gpu.nvlink": lambda fields, _: f"NVLink {_rate(fields)}",
    "host.memory": "it holds {share:percent} of free memory",
    "host.cpu": "CPU {share:percent} of {cores} cores",
    "batch.pieces": "computed in {pieces} pieces",
    # power and clocks
    "gpu.power": _power,
    "gpu.at_power_limit": "at its power limit",
    "gpu.clock": "clock {mhz:.0f} of {max_mhz:.0f} MHz",
    "gpu.hot": lambda fields, _: f"{_of_gpu(fields)}too hot {numbers.percent(fields['share'])} of the time",
    "gpu.temperature": "{celsius:.0f} °C",
    "gpu.power_brake": lambda fields, _: (
        f"{_of_gpu(fields)}power brake {numbers.percent(fields['share'])} of the time"
    ),
    # GPUs that are not alike, or not alone
    "gpu.shared": lambda fields, _: f"other processes work on GPU {', '.join(map(str, fields['gpus']))}",
    "gpu.less_work": (
        "GPU {gpu} has less to do: SM active {share:percent}, GPU {other} {other_share:percent}"
    ),
    "gpu.slower": "GPU {gpu} is slower: {mhz:.0f} MHz, GPU {other} {other_mhz:.0f}",
    # what is missing
    "gpu.no_readings": "no GPU readings ({problem:fact})",
    "gpu.none_of_run": "no GPU readings: none is known to be its own",
    "gpu.no_counters": _no_counters,
    "gpu.no_rows": lambda fields, _: f"no SM counters{_which_gpu(fields)}: no readings",
    "gpu.counters_not_read": lambda fields, _: f"no SM counters{_which_gpu(fields)}: not read yet",
    "gpu.waits_for_host": "it waits for the host, in no phase that names the cause",
    "cause.none_clear": "no single cause stands out",
    # advice
    "advice.knob": _advice,
    "advice.change": _change,  # the same, where there is little room
    "advice.cure": _cure,
    "advice.without_a_knob": lambda fields, _: VERDICTS[fields["verdict"]].without_a_knob,
}
