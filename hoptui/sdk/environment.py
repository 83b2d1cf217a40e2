"""What the environment says of this process: is hoptui switched off, which rank is it, which GPUs was it given, on what it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from hoptui.sdk.values import travelling

OFF = ("off", "0", "no", "false")
LIBRARIES = ("torch",)
SLURM_GPUS = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
LONGEST_COMMAND = 1000


def switched_off(environ: Mapping[str, str]) -> bool:
    """Whether `HOPTUI` says that this process is to be left alone."""
    return environ.get("HOPTUI", "").lower() in OFF


def ranks(environ: Mapping[str, str]) -> tuple[int, int]:
    """(rank, world size) as torchrun sets them; (0, 1) without them. Slurm's srun alone sets neither."""
    try:
        return int(environ.get("RANK", "0")), int(environ.get("WORLD_SIZE", "1"))
    except ValueError:
        return 0, 1


def visible_devices(environ: Mapping[str, str]) -> str | None:
    """`CUDA_VISIBLE_DEVICES` as it is: indices or UUIDs; None where it is not set, which means all."""
    return environ.get("CUDA_VISIBLE_DEVICES")


def slurm_gpus(environ: Mapping[str, str]) -> str:
    """The node's indices of the GPUs that Slurm gave to this step or job, whatever a device cgroup calls them; "" without."""
    return next((environ[name] for name in SLURM_GPUS if environ.get(name)), "")


def command_line(argv: Sequence[str]) -> str:
    """How the process was started, for people and to tell runs of one kind; one that is too long ends with `…`.

    `python -m trainer` is told as `trainer`, as where it was started by that name.
    """
    if not argv:
        return ""
    file = Path(argv[0])
    name = file.parent.name if file.name == "__main__.py" and file.parent.name else file.name
    told = travelling(" ".join([name, *argv[1:]]), LONGEST_COMMAND + 1)
    return told if len(told) <= LONGEST_COMMAND else f"{told[: LONGEST_COMMAND - 1]}…"


def versions(imported: Mapping[str, object]) -> dict[str, str]:
    """The versions of the libraries that decide how fast it is, of those that are imported: nothing is imported for it."""
    found = {name: getattr(imported.get(name), "__version__", None) for name in LIBRARIES}
    return {name: str(version) for name, version in found.items() if version}
