"""What the environment says of this process: is hoptui switched off, which rank is it, which GPUs was it given."""

from __future__ import annotations

from collections.abc import Mapping

OFF = ("off", "0", "no", "false")
SLURM_GPUS = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")


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
