"""What GPUs and a run together say: the readings of `derived/<run id>`."""

from __future__ import annotations

from hoptui.presentation.readings.units import Meaning

_WINDOW = "over the last ten seconds, at least one whole iteration"

DERIVED: dict[str, Meaning] = {
    "mfu": Meaning(
        "MFU", "%", "Compute", "of the peak FLOP/s, as declared",
        "Model FLOPs utilization: the floating-point operations that the run declares for each unit of its "
        "work, times its rate, as a share of what its GPUs could do at most (dense, in the precision that "
        "it names). Work done twice, such as recomputed activations, does not count.",
        f"declared FLOPs × rate / Σ peak FLOP/s of the run's GPUs, {_WINDOW}",
        "40 to 60 % is good for large language models on Hopper; small models and RL reach far less",
    ),
    "mfu_estimated": Meaning(
        "MFU estimated", "%", "Compute", "≈ from the tensor pipe and the clock",
        "An estimate for runs that declare no FLOPs: how busy the tensor pipes are, scaled to the clock of "
        "the datasheet's peak, less five per cent. It was within 1 % of a language model's true MFU at "
        "four batch sizes; it knows nothing of the model, and counts recomputed and padded work as well.",
        "mean over the run's GPUs of tensor active × SM clock / peak clock × 0.95",
        "read it as MFU, with a pinch of salt",
    ),
    "power_w": Meaning(
        "power", "W", "Power", "of all GPUs of the run",
        "What the run's GPUs draw together, boards included; CPU, network and cooling are not in it.",
        "Σ power_w of the run's GPUs",
    ),
    "energy_j": Meaning(
        "energy", "J", "Power", "since the run's first reading",
        "What the run's GPUs have used together since the first reading that belongs to this run. 3.6 MJ "
        "are a kilowatt-hour.",
        "Σ energy_j of the run's GPUs, less what they read at first",
    ),
    "energy_per_iteration_j": Meaning(
        "energy per iteration", "J", "Power", "what an iteration costs",
        "The energy of the run's GPUs for one iteration.",
        f"power × seconds of an iteration, {_WINDOW}",
        "lower at the same result is better",
    ),
    "energy_per_unit_j": Meaning(
        "energy per unit", "J", "Power", "what a step, sample or token costs",
        "The energy of the run's GPUs for one unit of the headline rate: an environment step, a sample, a "
        "token. Unlike the rate it tells a faster run from one that only draws more power.",
        f"power / headline rate, {_WINDOW}",
        "lower is better; compare it only at the same model and data",
    ),
    "idle_power_w": Meaning(
        "idle power", "W", "Power", "for SM time without work",
        "The part of the power that falls on SM time without work: power × (1 − SM active). It is what "
        "waiting costs, not what could be saved: an idle H100 draws 70 to 130 W.",
        "Σ power_w × (1 − sm_active / 100) of the run's GPUs",
        "near zero; hundreds of watts say that the GPUs wait for something",
    ),
    "memory_headroom_bytes": Meaning(
        "memory headroom", "B", "Memory", "free on the fullest GPU",
        "Free memory of the run's GPU that has the least. PyTorch keeps what it has freed, so a run may "
        "need less than it holds; a larger batch has to fit into this all the same.",
        "least memory_total_bytes − memory_used_bytes over the run's GPUs",
        "some GiB; below one, a small change of shape may run out of memory",
    ),
    "sm_active": Meaning(
        "SM active", "%", "Compute", "mean of the run's GPUs",
        "SM active of all GPUs of the run, where it has several: what they do together, in one curve.",
        "mean of sm_active over the run's GPUs",
        "above 80 %",
        needs=("gpm",),
    ),
    "sm_active_least": Meaning(
        "SM active, least", "%", "Compute", "of the GPU that does least",
        "SM active of that GPU of the run which has least of it. In data-parallel training all wait for "
        "the slowest, so those that wait stand out from one that works.",
        "least sm_active over the run's GPUs",
        "near the mean; far below it, the work is not shared evenly",
        needs=("gpm",),
    ),
    "gpu_memory_bytes": Meaning(
        "own GPU memory", "B", "Memory", "held by the run's processes",
        "What the run's own processes hold on all GPUs, CUDA contexts included; neighbours on the same GPU "
        "are left out.",
        "Σ memory of the run's processes, nvmlDeviceGetComputeRunningProcesses",
    ),
    "gpu_sm_percent": Meaning(
        "own SM share", "%", "Compute", "of the run's processes",
        "The SM time that the driver books on the run's own processes. It is coarser than SM active: use "
        "it only to tell the run from its neighbours.",
        "Σ SM share of the run's processes, nvmlDeviceGetProcessUtilization",
        needs=("process_utilization",),
    ),
}  # fmt: skip
