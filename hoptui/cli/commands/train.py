"""`hoptui train`: start a training workload of the hoptui-trainer distribution."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Annotated, NoReturn

from cyclopts import Parameter

from hoptui.cli.support.terminal import REJECTED, Fail

PACKAGE = "hoptui_trainer"
INSTALL = "pip install 'hoptui[trainer]'"


def train(
    *arguments: Annotated[
        str, Parameter(allow_leading_hyphen=True, help="ppo, lm, vision or slurm, and its options.")
    ],
) -> NoReturn:
    """Replace this process by `python -m hoptui_trainer` with the same arguments.

    Signals then reach the trainer itself, and the exit code is its own.

    Raises:
        Fail: the trainer is not installed.
    """
    if not installed(PACKAGE):
        raise Fail(f"hoptui train needs hoptui-trainer, which is not installed: {INSTALL}", REJECTED)
    sys.stdout.flush()
    sys.stderr.flush()
    # -P: a file in the working directory never hides a module that the trainer imports.
    os.execv(sys.executable, [sys.executable, "-P", "-m", PACKAGE, *arguments])


def installed(package: str) -> bool:
    """Whether `package` can be imported; this does not import it."""
    return importlib.util.find_spec(package) is not None


def missing() -> str | None:
    """The name of a distribution that training here needs and that is not installed."""
    wanted = {"torch": "torch", PACKAGE: "hoptui-trainer"}
    return next((name for package, name in wanted.items() if not installed(package)), None)
