"""The readings of one GPU (`gpu/<uuid>`), in display order.

`memory_headroom_bytes`, `idle_power_w` and `xid` are in no row: they come from other readings and events.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hoptui.domain.devices import REASONS, Reason
from hoptui.presentation import numbers
from hoptui.presentation.readings import Meaning

_MOST = 1 << 53  # a greater float is not a bit mask


def reasons(mask: float | None) -> list[Reason]:
    """Return the reasons in a `throttle` reading, the worst first; none if unknown.

    An unnamed bit is shown as a number.
    """
    if mask is None or not math.isfinite(mask) or not 0 < mask < _MOST:
        return []
    left = int(mask)
    found = [reason for reason in REASONS if left & reason.bit]
    for reason in found:
        left &= ~reason.bit
    if left:
        found.append(
            Reason(
                left,
                "unknown",
                f"reason 0x{left:x}",
                "warning",
                "This version of hoptui has no word for it: see nvml.h.",
            )
        )
    return found


def alarms(mask: float | None) -> list[Reason]:
    """Return the reasons that should not occur on a healthy GPU."""
    return [reason for reason in reasons(mask) if reason.level == "alarm"]


def rank_device(fields: Mapping[str, Any]) -> str:
    """Return where a rank runs and the clock of its GPU: `it is on gpu07, GPU 3, at 1410 MHz, the others at
    1980; too hot 40 % of the time`. Empty if an older daemon did not say."""
    if not fields.get("host"):
        return ""
    parts = [f"it is on {numbers.clean(fields['host'])}"]
    if fields["gpu"] is not None:
        parts.append(f"GPU {fields['gpu']}")
    if fields["clock_mhz"] is not None:
        parts.append(f"at {fields['clock_mhz']:.0f} MHz")
        if fields["others_mhz"] is not None:
            parts.append(f"the others at {fields['others_mhz']:.0f}")
    words = {reason.name: reason.word for reason in REASONS}
    reasons = [
        f"{words.get(n, n)} {numbers.percent(s)} of the time" for n, s in (fields["throttled"] or {}).items()
    ]
    return "; ".join((", ".join(parts), *reasons))


_GPM = ("gpm",)
_LINKS = ("nvlink", "gpm")

GPU: dict[str, Meaning] = {
    "busy": Meaning(
        "busy", "%", "Compute", "time with any kernel",
        "The share of time in which at least one kernel was running, however small: what nvidia-smi calls "
        "GPU utilization. One thread on one SM keeps it at 100 %. It says that work is queued, not that "
        "the GPU works hard.",
        "nvmlDeviceGetUtilizationRates, gpu: a moving figure of about a second",
        "high, though that alone says little: look at SM active. Low means that the GPU waits for the host",
    ),
    "sm_active": Meaning(
        "SM active", "%", "Compute", "SM time that had a warp",
        "The share of the SMs' time in which they had at least one warp, averaged over all SMs. It sees "
        "what busy hides: small kernels, short tails, idle SMs. A warp that waits for memory counts too, "
        "so a copy reaches 100 %.",
        "NVML GPM metric 2, SM_UTIL",
        "above 80 %; far below busy, kernels are too small: larger batches, CUDA graphs, compilation",
        _GPM,
    ),
    "sm_occupancy": Meaning(
        "SM occupancy", "%", "Compute", "warps of the most possible",
        "Resident warps as a share of what the SMs could hold. Fast kernels need not fill it: matrix "
        "multiplication does well at 15 to 40 %, because it lives on registers and shared memory.",
        "NVML GPM metric 3, SM_OCCUPANCY",
        "no goal in itself; below 5 % there is too little parallel work to hide latencies",
        _GPM,
    ),
    "tensor_active": Meaning(
        "tensor active", "%", "Compute", "time tensor pipes were busy",
        "The share of time in which the tensor cores' pipes were computing, in any precision. Almost all "
        "FLOP/s of a modern GPU are there, so this is the closest to real arithmetic: an FP32 matrix "
        "multiplication without TF32 leaves it at 0.",
        "NVML GPM metric 5, ANY_TENSOR_UTIL",
        "40 to 60 % in a well-tuned language model, above 90 % in one large matrix multiplication",
        _GPM,
    ),
    "tensor_half_active": Meaning(
        "tensor half", "%", "Compute", "… in bf16, fp16, tf32, fp8",
        "The part of tensor active that computes in floating point below FP64 (HMMA instructions).",
        "NVML GPM metric 7, HMMA_TENSOR_UTIL",
        needs=_GPM,
    ),
    "tensor_int_active": Meaning(
        "tensor int", "%", "Compute", "… in integers",
        "The part of tensor active that computes in integers (IMMA instructions): INT8 inference.",
        "NVML GPM metric 9, IMMA_TENSOR_UTIL",
        needs=_GPM,
    ),
    "tensor_double_active": Meaning(
        "tensor double", "%", "Compute", "… in fp64",
        "The part of tensor active that computes in double precision (DFMA instructions): scientific codes.",
        "NVML GPM metric 6, DFMA_TENSOR_UTIL",
        needs=_GPM,
    ),
    "fp64_active": Meaning(
        "FP64", "%", "Compute", "double math, without tensor",
        "The share of time in which SMs computed in double precision outside the tensor cores.",
        "NVML GPM metric 11, FP64_UTIL",
        "0 in training: anything else is an accidental float64",
        _GPM,
    ),
    "fp32_active": Meaning(
        "FP32", "%", "Compute", "float math, without tensor",
        "The share of time in which SMs computed in single precision outside the tensor cores: "
        "element-wise work, normalization, optimizers, and matrix multiplications that are not allowed "
        "TF32.",
        "NVML GPM metric 12, FP32_UTIL",
        "high beside tensor 0: matrix multiplications miss the tensor cores; try bf16 or TF32",
        _GPM,
    ),
    "fp16_active": Meaning(
        "FP16", "%", "Compute", "half math, without tensor",
        "The share of time in which SMs computed in half precision outside the tensor cores.",
        "NVML GPM metric 13, FP16_UTIL",
        needs=_GPM,
    ),
    "int_active": Meaning(
        "integer", "%", "Compute", "time in integer math",
        "The share of time in which SMs computed in integers: indices, hashes, random numbers.",
        "NVML GPM metric 4, INTEGER_UTIL",
        needs=_GPM,
    ),
    "mfu_estimated": Meaning(
        "MFU estimated", "%", "Compute", "from tensor active, clock",
        "An estimate of model FLOPs utilization that needs no word from the run: how busy the tensor pipes "
        "are, scaled to the clock of the datasheet's peak, less five per cent. It was within 1 % of a "
        "language model's true MFU at four batch sizes; recomputed and padded work counts as well, and "
        "other kinds of models were not checked.",
        "tensor active × SM clock / peak clock × 0.95; peak clock: where all tensor cores give the "
        "datasheet's dense FLOP/s",
        "a hint where the run declares no FLOPs; run.flops() gives the real figure",
        _GPM,
    ),
    "dram_active": Meaning(
        "DRAM bandwidth", "%", "Memory", "of the memory's peak",
        "Bytes moved to and from the GPU's memory as a share of its theoretical peak. Beside tensor active "
        "it says which wall a run is at: arithmetic, memory, or neither.",
        "NVML GPM metric 10, DRAM_BW_UTIL",
        "above 70 % the run is bound by memory: fuse kernels, reuse data, smaller types",
        _GPM,
    ),
    "memory_busy": Meaning(
        "memory busy", "%", "Memory", "time memory was touched",
        "The share of time in which memory was being read or written at all. It is no bandwidth: 100 % can "
        "be a trickle.",
        "nvmlDeviceGetUtilizationRates, memory",
        "look at DRAM bandwidth instead, where there is one",
    ),
    "memory_used_bytes": Meaning(
        "memory used", "B", "Memory", "allocated by all processes",
        "Memory that processes have allocated, without the driver's reserve. PyTorch's cache counts as "
        "used, whether or not tensors live in it.",
        "nvmlDeviceGetMemoryInfo_v2, used",
    ),
    "memory_headroom_bytes": Meaning(
        "memory headroom", "B", "Memory", "free on this GPU",
        "Memory that no process has allocated. PyTorch keeps what it has freed, so a run may need less "
        "than it holds. A larger batch must still fit into this.",
        "memory_total_bytes − memory_used_bytes",
        "some GiB; below one, a small change of shape may run out of memory",
    ),
    "memory_total_bytes": Meaning(
        "memory", "B", "Memory", "that the GPU has",
        "The GPU's whole memory; a small part of it is the driver's own.",
        "nvmlDeviceGetMemoryInfo_v2, total",
    ),
    "memory_temperature_c": Meaning(
        "HBM temperature", "°C", "Memory", "of the memory stacks",
        "The temperature of the memory stacks. They slow the GPU down when they get too hot, often before "
        "the chip does.",
        "NVML_FI_DEV_MEMORY_TEMP",
        "below about 95 °C",
    ),
    "power_w": Meaning(
        "power", "W", "Power", "drawn now by the board",
        "What the board draws at this moment. It follows real work better than busy does: a GPU at 100 % "
        "busy and a third of its limit is mostly waiting.",
        "NVML_FI_DEV_POWER_INSTANT (else nvmlDeviceGetPowerUsage, the average of a second)",
        "near the limit under full load; that the clocks then give way is normal",
    ),
    "power_average_w": Meaning(
        "power average", "W", "Power", "over the last second",
        "What the board drew over about a second, as nvidia-smi shows it. It lags a change of load by as "
        "much.",
        "NVML_FI_DEV_POWER_AVERAGE",
    ),
    "idle_power_w": Meaning(
        "idle power", "W", "Power", "for SM time without work",
        "The part of the power that falls on SM time without work. It is what waiting costs, not what "
        "could be saved: an idle H100 draws 70 to 130 W.",
        "power_w × (1 − sm_active / 100)",
        "near zero; hundreds of watts say that the GPU waits for something",
        _GPM,
    ),
    "energy_j": Meaning(
        "energy", "J", "Power", "since the driver's start",
        "What the board has used since the driver was loaded. The counter is read every ten seconds, and "
        "power is added up in between. 3.6 MJ are a kilowatt-hour.",
        "nvmlDeviceGetTotalEnergyConsumption",
        needs=("energy",),
    ),
    "sm_clock_mhz": Meaning(
        "SM clock", "MHz", "Clocks", "of the compute units, now",
        "The clock of the SMs. It falls when nothing runs, when the power limit is reached, and when it "
        "gets too hot; the reading below says which.",
        "nvmlDeviceGetClockInfo, NVML_CLOCK_SM",
        "near its maximum, or held back by the power cap alone",
    ),
    "memory_clock_mhz": Meaning(
        "memory clock", "MHz", "Clocks", "of the memory, now",
        "The clock of the memory. On data-centre GPUs it is the same from the first kernel on.",
        "nvmlDeviceGetClockInfo, NVML_CLOCK_MEM",
    ),
    "throttle": Meaning(
        "held back by", "bit mask", "Clocks", "why clocks are not higher",
        "Everything that keeps the clocks below their maximum at this moment. A power cap is usual at full "
        "load, and idle is no fault; heat, a power brake or a hardware slowdown are.",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nothing, or the power cap",
    ),
    "power_violation_s": Meaning(
        "held by power", "s", "Clocks", "time below the clocks asked",
        "For how long the power limit has held the clocks down since the driver was loaded. The share of the "
        "last ten seconds is shown beside it; nvidia-smi dmon calls that share pviol.",
        "nvmlDeviceGetViolationStatus, NVML_PERF_POLICY_POWER (else NVML_FI_DEV_PERF_POLICY_POWER), once a "
        "second",
        "rising under full load is normal",
    ),
    "thermal_violation_s": Meaning(
        "held by heat", "s", "Clocks", "time below the clocks asked",
        "For how long heat has held the clocks down since the driver was loaded. The share of the last ten "
        "seconds is shown beside it; nvidia-smi dmon has a flag for it, tviol.",
        "nvmlDeviceGetViolationStatus, NVML_PERF_POLICY_THERMAL (else NVML_FI_DEV_PERF_POLICY_THERMAL), once "
        "a second",
        "does not rise: heat should hold back no GPU",
    ),
    "temperature_c": Meaning(
        "temperature", "°C", "Clocks", "of the GPU chip",
        "The temperature of the chip. The clocks are lowered near 85 to 90 °C, depending on the board.",
        "nvmlDeviceGetTemperatureV, NVML_TEMPERATURE_GPU",
        "below about 80 °C",
    ),
    "temperature_margin_c": Meaning(
        "thermal margin", "°C", "Clocks", "left to the thermal limit",
        "How many degrees are left until the GPU reaches the temperature from which on it is held back: what "
        "nvidia-smi calls T.Limit. It falls as the GPU gets hotter, and below 0 it slows down.",
        "nvmlDeviceGetMarginTemperature, once a second",
        "above 10 °C",
    ),
    "pcie_rx_bytes_per_s": Meaning(
        "PCIe in", "B/s", "Links", "from the host",
        "Bytes received over PCIe: batches, parameters that were offloaded, other GPUs without NVLink.",
        "NVML GPM metric 21, PCIE_RX_PER_SEC; without GPM nvmlDeviceGetPcieThroughput, 20 ms of every 2 s",
        "near the link's rate the run waits for copies: pin memory, copy ahead, keep data on the GPU",
        _GPM,
    ),
    "pcie_tx_bytes_per_s": Meaning(
        "PCIe out", "B/s", "Links", "to the host",
        "Bytes sent over PCIe: results, checkpoints, parameters that are being offloaded.",
        "NVML GPM metric 20, PCIE_TX_PER_SEC; without GPM nvmlDeviceGetPcieThroughput, 20 ms of every 2 s",
        needs=_GPM,
    ),
    "nvlink_rx_bytes_per_s": Meaning(
        "NVLink in", "B/s", "Links", "from other GPUs, all links",
        "Bytes received over all NVLinks together: gradients, activations, experts of other GPUs.",
        "NVML GPM metric 60, NVLINK_TOTAL_RX_PER_SEC",
        "high beside a low tensor active: the run is bound by communication",
        _LINKS,
    ),
    "nvlink_tx_bytes_per_s": Meaning(
        "NVLink out", "B/s", "Links", "to other GPUs, all links",
        "Bytes sent over all NVLinks together; collectives send about as much as they receive.",
        "NVML GPM metric 61, NVLINK_TOTAL_TX_PER_SEC",
        needs=_LINKS,
    ),
    "ecc_corrected": Meaning(
        "ECC corrected", "count", "Health", "bit errors repaired",
        "Memory errors that were repaired since the driver was loaded. No data were lost.",
        "NVML_FI_DEV_ECC_SBE_VOL_TOTAL",
        "few; a number that keeps rising is a sign of a failing memory",
        ("ecc",),
    ),
    "ecc_uncorrected": Meaning(
        "ECC uncorrected", "count", "Health", "bit errors left: data lost",
        "Memory errors that could not be repaired since the driver was loaded. The process that met one is "
        "ended.",
        "NVML_FI_DEV_ECC_DBE_VOL_TOTAL",
        "0: anything else asks for a reset, or for another GPU",
        ("ecc",),
    ),
    "remapped_rows": Meaning(
        "remapped rows", "count", "Health", "of memory, out of use",
        "Rows of memory that were replaced by spare ones, for good, because they made errors.",
        "nvmlDeviceGetRemappedRows",
        "0, or a small number that does not grow",
        ("ecc",),
    ),
    "pcie_replays": Meaning(
        "PCIe replays", "count", "Health", "packets sent again",
        "PCIe packets that had to be sent again since the driver was loaded.",
        "NVML_FI_DEV_PCIE_REPLAY_COUNTER",
        "0 or nearly: a rising number is a bad contact or riser",
    ),
    "nvlink_errors": Meaning(
        "NVLink errors", "count", "Health", "on all links together",
        "Errors on all NVLinks together: checksums that failed, packets sent again, links that were "
        "recovered.",
        "NVML_NVLINK_ERROR_DL_REPLAY, _RECOVERY and _CRC_FLIT of every link",
        "0; a rising number is a bad link or switch",
        ("nvlink",),
    ),
    "xid": Meaning(
        "last Xid", "count", "Health", "error the driver reported",
        "The last Xid error that the driver reported for this GPU while hoptui was looking. Some are a "
        "program's own fault (13, 31, 43), some a failing GPU (48, 79, 94, 95); the event names it.",
        "NVML events, XidCriticalError",
        "none",
        ("xid",),
    ),
    "encoder_busy": Meaning(
        "encoder", "%", "Other", "time encoding video",
        "The share of time in which the video encoder was busy. Training leaves it at 0.",
        "nvmlDeviceGetEncoderUtilization, once a second",
    ),
    "decoder_busy": Meaning(
        "decoder", "%", "Other", "time decoding video",
        "The share of time in which the video decoder was busy, as by a loader that decodes on the GPU.",
        "nvmlDeviceGetDecoderUtilization, once a second",
    ),
    "jpeg_busy": Meaning(
        "JPEG decoder", "%", "Other", "time decoding JPEG",
        "The share of time in which the JPEG decoder was busy, as by a loader that uses nvJPEG.",
        "nvmlDeviceGetJpgUtilization, once a second",
    ),
    "ofa_busy": Meaning(
        "optical flow", "%", "Other", "time in optical flow",
        "The share of time in which the optical flow accelerator was busy.",
        "nvmlDeviceGetOfaUtilization, once a second",
    ),
    "bar1_used_bytes": Meaning(
        "BAR1 used", "B", "Other", "mapped for the host, peers",
        "The part of the GPU's memory that is mapped into the address space of the PCIe bus, so that the "
        "host, network cards and other GPUs can reach it.",
        "nvmlDeviceGetBAR1MemoryInfo, bar1Used, once a second",
    ),
    "protected_memory_used_bytes": Meaning(
        "CC protected", "B", "Other", "of confidential computing",
        "Memory that is in use inside the protected region of confidential computing. 0 where that is off.",
        "nvmlDeviceGetConfComputeProtectedMemoryUsage, used",
    ),
    "processes": Meaning(
        "processes", "count", "Sampler", "with a CUDA context on it",
        "Processes that hold a CUDA context on this GPU.",
        "nvmlDeviceGetComputeRunningProcesses_v3",
    ),
    "window_s": Meaning(
        "averaged over", "s", "Sampler", "SM, tensor, DRAM, links",
        "The stretch of time over which the GPM readings (SM, tensor, DRAM, pipes, links) are means: from "
        "one tick to the next.",
        "time between two GPM samples",
        needs=_GPM,
    ),
}  # fmt: skip
