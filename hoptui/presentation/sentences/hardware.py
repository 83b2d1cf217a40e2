"""What happens to GPUs and their readings, and why there are none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hoptui.domain.facts import nested
from hoptui.presentation.sentences.template import Entry, Fields, Write, fill

XIDS: Mapping[int, str] = {
    13: "a kernel raised an exception, often an access out of bounds: a bug of the program, as a rule",
    31: "a program used memory that is not mapped: a bug of the program, as a rule",
    43: "a program's work was stopped after an error of its own; the GPU is not harmed",
    45: "a program ended while its kernels ran: it was killed, or another error came first",
    48: "a double-bit ECC error: data in memory was lost",
    61: "a breakpoint in the GPU's firmware; it may need a reset",
    62: "the GPU's firmware halted; it needs a reset",
    63: "a faulty memory row is being replaced; that takes effect when the GPU is reset",
    64: "a faulty memory row could not be replaced",
    69: "a program gave the GPU a command that it does not accept",
    74: "an NVLink connection to another GPU or a switch failed",
    79: "the GPU has fallen off the bus: the driver does not reach it over PCIe",
    92: "many single-bit ECC errors: the memory may be wearing out",
    94: "a memory error was contained: the program that met it has to start anew, others go on",
    95: "a memory error could not be contained: every program on the GPU is affected; it needs a reset",
    119: "the GPU's system processor (GSP) does not answer the driver; it needs a reset",
    120: "an error in the GPU's system processor (GSP); it may need a reset",
    121: "an error on the chip-to-chip link between GPU and CPU was corrected",
    140: "an ECC error was not recovered from; the GPU may need a reset",
}
"""By the number in NVIDIA's documentation."""
UNKNOWN_XID = "NVIDIA's page on Xid errors explains it: docs.nvidia.com/deploy/xid-errors"

THROTTLE: Mapping[str, tuple[str, str]] = {
    "hardware_slowdown": (
        "the hardware slows the clocks: heat, power supply or power brake",
        "full clocks again",
    ),
    "thermal_hardware": ("too hot: the hardware halves the clocks or worse", "no longer too hot"),
    "power_brake": ("power brake: the server asked the GPU to slow down", "power brake released"),
    "thermal_software": ("too hot: the driver lowers the clocks", "no longer too hot for the driver"),
    "power_cap": (
        "at its power limit: clocks give way, as is normal under full load",
        "no longer at its power limit",
    ),
    "sync_boost": ("clocks are held down to those of other GPUs (sync boost)", "sync boost lets go"),
}
"""The beginning and the end of a throttle reason, by its name."""
COUNTERS: Mapping[str, str] = {
    "ecc_uncorrected": "ECC error(s) not corrected: data in memory was lost",
    "ecc_corrected": "ECC error(s) corrected",
    "remapped_rows": "memory row(s) replaced after errors",
}


def _xid(fields: Fields, _: Write) -> str:
    return f"Xid {fields['number']}: {XIDS.get(fields['number'], UNKNOWN_XID)}"


def _throttle(fields: Fields, _: Write) -> str:
    begins, ends = THROTTLE[fields["reason"]]
    return begins if fields["active"] else ends


def _slow_clocks(fields: Fields, _: Write) -> str:
    clock, share = fields["clock_hz"] / 1e6, 100 * fields["share"]
    return f"slow under load: {clock:.0f} MHz, {share:.0f} % of the greatest, and the driver gives no reason"


SOURCES: Mapping[str, str] = {
    "declared": "the script declares",
    "visible": "CUDA_VISIBLE_DEVICES names",
    "slurm": "Slurm assigned",
}


def _contradicted(fields: Fields, _: Write) -> str:
    """`CUDA_VISIBLE_DEVICES names GPU 1, the driver lists the process on GPU 0`."""
    named, listed = (_numbered(fields[name]) for name in ("named", "listed"))
    return f"{SOURCES[fields['source']]} {named}, the driver lists the process on {listed}"


def _numbered(indices: Sequence[int]) -> str:
    if not indices:
        return "no GPU"
    return f"GPU{'s' if len(indices) > 1 else ''} {', '.join(map(str, indices))}"


def _repeated(fields: Fields, write: Write) -> str:
    what, times = nested(fields["what"]), fields["times"]
    if what is None:
        raise TypeError(fields)
    return f"{write(what)} ({'once more' if times == 1 else f'{times} times more'})"


SAMPLERS: Mapping[str, str] = {"gpus": "the GPU sampler", "host": "the host sampler"}


def _of_sampler(template: str) -> Entry:
    """Return the sentence of a fact with a field `sampler`, which the template names."""

    def text(fields: Fields, write: Write) -> str:
        return fill(template, {**fields, "sampler": SAMPLERS[fields["sampler"]]}, write)

    return text


def _gpus_left(fields: Fields, _: Write) -> str:
    which = ", ".join(map(str, fields["gpus"]))
    silent = f"GPU {which} does not answer" if len(fields["gpus"]) == 1 else f"GPUs {which} do not answer"
    return f"{silent}: left alone for a while, the others are read"


def _driver_hung(fields: Fields, _: Write) -> str:
    text = "the driver does not answer: a call into it hung"
    return f"{text}; it is asked again after {fields['again_s']:.0f} s" if "again_s" in fields else text


def _needs_hopper(fields: Fields, _: Write) -> str:
    this = fields["architecture"]
    return f"needs Hopper or newer; this is {this}" if this else "needs Hopper or newer"


SENTENCES: Mapping[str, Entry] = {
    # events
    "gpu.xid": _xid,
    "gpu.double_bit": "a double-bit ECC error: data in memory was lost",
    "gpu.throttle": _throttle,
    "gpu.slow_clocks": _slow_clocks,
    "gpu.ecc": lambda fields, _: f"{fields['count']} {COUNTERS[fields['counter']]}",
    "gpu.contradicted": _contradicted,
    "repeated": _repeated,
    "gpu.back": "back: it can be read again",
    # a GPU that cannot be read
    "gpu.fell_off_bus": "lost: fell off the bus (NVML: {error})",
    "gpu.needs_reset": "lost: it needs a reset (NVML: {error})",
    "gpu.gone": "lost: no longer there (NVML: {error})",
    "gpu.not_opened": "cannot be opened (NVML: {error})",
    "gpu.nothing_readable": "no reading succeeds (NVML: {error})",
    "gpu.not_listed": "no longer listed by the driver",
    "gpu.hung": "does not answer: a driver call hung; it is tried again after {again_s:.0f} s",
    "gpu.none_recorded": "no GPU readings were recorded",
    # the driver
    "driver.not_asked": "the NVIDIA driver has not answered yet",
    "driver.no_access": (
        "no access to the NVIDIA driver: permission denied (are /dev/nvidia* open to this user?)"
    ),
    "driver.not_loaded": "no NVIDIA driver: its kernel module is not loaded",
    "driver.not_found": "no NVIDIA driver: libnvidia-ml.so.1 was not found",
    "driver.mismatched": (
        "no working NVIDIA driver: its library and its kernel module have different versions"
        " (reload the module or reboot)"
    ),
    "driver.broken": "no working NVIDIA driver (NVML: {error})",
    "driver.amd_not_asked": "the AMD driver has not answered yet",
    "driver.amd_broken": "no AMD GPU can be read (amdsmi: {error})",
    "driver.no_amd_gpu": "no AMD GPU found: the library amdsmi is there and lists none",
    "driver.no_gpu": "no NVIDIA GPU found: the driver is there and lists none",
    "driver.hung": _driver_hung,
    # readings that a GPU does not have
    "reading.not_supported": "this GPU or its driver does not have it",
    "reading.refused": "the driver refuses it to this user or container (NVML: Insufficient Permissions)",
    "reading.failed": "NVML: {error}",
    "reading.amd_failed": "amdsmi: {error}",
    "reading.no_value": "the driver gives no value",
    "reading.not_in_mig_mode": "in MIG mode: the driver does not report it",
    "reading.whole_gpus_only": "NVML reports it of whole GPUs only",
    "nvlink.none_up": "no link is up",
    "gpm.in_mig_mode": "in MIG mode: its instances have their own",
    "gpm.needs_hopper": _needs_hopper,
    "gpm.needs_driver": "needs a newer NVIDIA driver",
    "gpm.failed": "it fails (NVML: {error})",
    # samplers
    "starting": "starting",
    "sampler.starting": _of_sampler("{sampler} is starting"),
    "sampler.not_answered": _of_sampler("{sampler} has not answered yet"),
    "sampler.ended": _of_sampler("{sampler} ended (exit code {exit_code})"),
    "sampler.closed": _of_sampler("{sampler} closed its pipe"),
    "sampler.bad_message": _of_sampler("{sampler} sends invalid messages: {error}"),
    "sampler.undead": _of_sampler(
        "no readings: {count} processes of {sampler} hang in the driver and cannot be killed"
    ),
    "sampler.not_started": _of_sampler("no readings: {sampler} could not be started: {error}"),
    "sampler.silent": _of_sampler("no readings: {sampler} has not answered for {silent_s:.0f} s"),
    "sampler.gpu_hung": ("GPU {gpu} does not answer: a driver call has not returned for {silent_s:.0f} s"),
    "sampler.driver_hung": "the driver does not answer: it is asked again after {again_s:.0f} s",
    "sampler.gpus_left": _gpus_left,
    # older recordings
    "recorded": "{text}",
}
