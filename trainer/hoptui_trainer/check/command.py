"""The command `hoptui train check`."""

from __future__ import annotations

import json as json_format
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from hoptui_trainer.common.job import Flag
from hoptui_trainer.common.modes import DeviceName

if TYPE_CHECKING:
    from hoptui_trainer.check.outcome import Outcome

OK, SLOW, FAILED = 0, 1, 2
PATIENCE_S = 45.0
"""Seconds after which a check counts as hanging. A driver in trouble answers never, and takes no signal."""


def check(
    *,
    device: DeviceName = "auto",
    folder: Annotated[Path, Parameter(name="--dir")] = Path(),
    json: Flag = False,
) -> int:
    """Test this machine for training, in under a minute: torch and the GPU, torch.compile, products in bf16
    and FP8, attention, memory, disk, and NCCL between GPUs. Measured values stand beside expected ones.

    Exit codes: 0 all is as expected, 1 something is slow, 2 something failed.

    Parameters
    ----------
    device
        What to test; auto takes the GPU if there is one, and refuses if torch cannot use it.
    folder
        Folder whose disk is tested: that of your data [default: the working folder].
    json
        Print nothing but the outcomes, as one line of JSON.
    """
    # Here and not above, because it imports torch, which takes seconds.
    outcomes = []
    for outcome in outcomes_of(device, folder):
        outcomes.append(outcome)
        if not json:
            print("\n".join(outcome.lines()), flush=True)
    if json:
        print(json_format.dumps({"checks": [asdict(outcome) for outcome in outcomes]}))
    found = {outcome.status for outcome in outcomes}
    return FAILED if "failed" in found else SLOW if "slow" in found else OK


def outcomes_of(device_name: str, folder: Path) -> Iterator[Outcome]:
    """Run all checks. Where torch cannot use the GPU, the others of the GPU are left out."""
    from hoptui_trainer.check import compute, transfer

    device, outcome = compute.torch_device(device_name)
    yield outcome
    checks: tuple[tuple[str, Callable[[], Outcome]], ...] = ()
    if device is not None:
        chosen = device
        checks = (
            ("compile", lambda: compute.compilation(chosen)),
            ("bf16 product", lambda: compute.product(chosen, "bf16")),
            ("fp8 product", lambda: compute.product(chosen, "fp8")),
            ("attention", lambda: compute.attention(chosen)),
            ("device memory", lambda: compute.device_memory(chosen)),
            ("host to GPU", lambda: transfer.host_to_device(chosen)),
            ("between GPUs", lambda: transfer.between_gpus(chosen)),
        )
    for name, run in (*checks, ("disk", lambda: transfer.disk(folder))):
        with _watched(name):
            yield _guarded(name, run)


def _guarded(name: str, run: Callable[[], Outcome]) -> Outcome:
    from hoptui_trainer.check.outcome import failed

    try:
        return run()
    except Exception as error:
        return failed(name, error, "this is not expected: `hoptui doctor` may show more")


@contextmanager
def _watched(name: str) -> Iterator[None]:
    """End the process with a sentence if the check in here hangs."""
    timer = threading.Timer(PATIENCE_S, _give_up, (name,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _give_up(name: str) -> None:
    sys.stdout.flush()
    print(
        f"hoptui train: check: {name}: no answer for {PATIENCE_S:.0f} s. A driver or a disk hangs: see "
        "`dmesg` and `hoptui doctor`",
        file=sys.stderr,
        flush=True,
    )
    os._exit(FAILED)
