"""The tuner on the workloads of DeepSpeed's autotuning, beside the figures that its authors published.

Each workload has the published model with random weights, the published sequence length and precision. It
starts from the published micro-batch (`benchmarks.autotuning_catalogue`). It trains with
`transformers.Trainer` and the knobs of hoptui's adapter. The samples of a step stay the same. The tuner has
its usual limits. The start and what it found are then measured in turns, in the same run.

Workloads are measured at the same time, one on each GPU. All of them together take `CALL_S` at most, unless
`--most-s` limits each. DeepSpeed does not run: its figures are from other GPUs.

    python -m benchmarks.autotuning_workloads --only gpt2 gpt2-medium gpt2-large gpt2-xl
    python -m benchmarks.autotuning_workloads --only deberta distilbert bert-base bert-large
    python -m benchmarks.autotuning_workloads --cpu [--lanes N] [--most-s S]
"""

from __future__ import annotations

import math
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.autotuning_catalogue import HARDWARE, SOURCE, WORKLOADS, Workload
from benchmarks.loops.catalogue import TRAINER, LoopCase
from benchmarks.measure import report
from benchmarks.tuner_loops import END_S, command_line, devices_of, on_devices, possible

CALL_S = 540.0


def case_of(workload: Workload) -> LoopCase:
    """Return the loop of a workload. Its grid is the start alone."""
    start = {
        "dataloader_num_workers": (1,),
        "gradient_checkpointing": (False,),
        "micro_batch_split": (workload.steps,),
    }
    return LoopCase(
        workload.name,
        "samples",
        ("--workload", workload.name),
        {},
        start,
        needs=TRAINER,
        module="hf_published",
    )


def share_of_call(workloads: int, devices: int) -> float:
    """Return the seconds of each workload if so many are measured in one call."""
    rounds = math.ceil(workloads / devices) if devices else 1
    return CALL_S / max(1, rounds) - END_S


def compared(workload: Workload, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the published figures of a workload and those of its runs."""
    published = workload.published
    samples = workload.steps * workload.micro_batch
    return {
        "published": asdict(published)
        | {"start": asdict(published.start), "speed_up": round(published.speed_up, 3)},
        "samples_per_step": samples,
        "micro_batch": workload.micro_batch,
        "fp16": workload.fp16,
        "runs": [_figures(run, samples) for run in runs],
    }


def _figures(run: Mapping[str, Any], samples: int) -> dict[str, Any]:
    """Return what a run has come to. What was not measured is None. `details` has everything."""
    measured = "rate" in run
    parts = run.get("found", {}).get("micro_batch_split")
    seconds = run.get("took_s")
    return {
        "seed": run["seed"],
        "start": run["grid"] if measured else None,
        "after": run["rate"] if measured else None,
        "speed_up": run["ratio"] if measured else None,
        "micro_batch": samples / parts if parts else None,
        "minutes": None if seconds is None else round(seconds / 60, 1),
        "trials": run.get("trials"),
        "trained": run.get("trained"),
        "same_work": run.get("same_work"),
        "out_of_memory": [*run.get("out_of_memory", ()), *run.get("later_short", ())],
        "end": run["end"],
        "details": run,
    }


def main(arguments: Sequence[str] = ()) -> dict[str, Any]:
    """Measure and report."""
    parser = command_line("python -m benchmarks.autotuning_workloads")
    parser.set_defaults(seeds=[0], most_s=None)
    options = parser.parse_args(list(arguments))
    names = [workload.name for workload in WORKLOADS]
    if unknown := set(options.only) - {*names}:
        parser.error(f"there is no workload {', '.join(sorted(unknown))}; there are: {', '.join(names)}")
    devices, device = devices_of(options)
    wanted = [
        workload.tiny() if options.cpu else workload
        for workload in WORKLOADS
        if not options.only or workload.name in options.only
    ]
    room = math.inf if options.cpu else len(devices)
    workloads = [workload for workload in wanted if possible(case_of(workload), room)]
    most_s = options.most_s or share_of_call(len(workloads), len(devices))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    started = {workload.name: [*device] for workload in workloads}
    runs = on_devices([case_of(each) for each in workloads], started, options.seeds, devices, most_s)
    kind = "cpu" if options.cpu else "cuda"
    return report(
        "_".join(("autotuning_workloads", kind, *options.only)),
        {
            "device": kind,
            "most_s": most_s,
            "published": {"source": SOURCE, "hardware": HARDWARE},
            "workloads": {each.name: compared(each, runs[each.name]) for each in workloads},
        },
    )


if __name__ == "__main__":
    main(sys.argv[1:])
