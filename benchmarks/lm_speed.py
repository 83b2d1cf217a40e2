"""L1–L3: tokens a second and MFU of language models of 124M, 350M and 760M parameters on one GPU.

The shortest loop around torch's own modules, eager and compiled, runs beside them on the same machine.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.measure import Bench, bench, spread, tell
from benchmarks.training import finish, last_line, options, reached, spawn, trained

LM = ("lm", "--evaluate-every", "0")
CASES = {
    "124m": (*LM, "--preset", "124m", "--iterations", "40"),
    "350m": (*LM, "--preset", "350m", "--iterations", "20"),
    "760m": (*LM, "--preset", "760m", "--iterations", "12"),
}
QUICK = {"tiny": (*LM, "--preset", "tiny", "--iterations", "150")}
PLAIN = ("eager", "compiled")
TARGETS = {"124m": 480_000.0}
STRETCH = {"124m": 550_000.0}
MFU = {"350m": (0.42, 0.46), "760m": (0.45, 0.50)}
"""What passes, and what would be better still."""


def plain(node: Bench, variant: str, *, quick: bool) -> dict[str, Any]:
    """Run the plain loop in a separate process."""
    command = [sys.executable, "-m", "benchmarks.plain_lm", variant, *(("--quick",) if quick else ())]
    found: dict[str, Any] = json.loads(last_line(spawn(node, command), f"the plain loop, {variant}"))
    return {"rate": spread(found.pop("rates"), 1), **found}


def main(arguments: Sequence[str] = ()) -> dict[str, Any]:
    """Measure and report."""
    given = options(arguments)
    with bench() as node:
        beside = {
            variant: tell(f"plain, {variant}", plain(node, variant, quick=given.quick))
            for variant in PLAIN[: 1 if given.quick else None]
        }
        figures = {
            name: tell(name, trained(node, (*case, *given.device), "tokens").figures())
            for name, case in (QUICK if given.quick else CASES).items()
        }
    met, stretch = {}, {}
    if not given.quick:
        met, stretch = reached(figures, TARGETS), reached(figures, STRETCH)
        for name, bounds in MFU.items():
            for words, least in zip((met, stretch), bounds, strict=True):
                words[f"{name}: MFU at least {least:.0%}"] = (figures[name]["result"]["mfu"] or 0.0) >= least
        fastest = max(case["rate"]["median"] for case in beside.values())
        met["124m: faster than the plain loops"] = figures["124m"]["rate"]["median"] > fastest
    return finish(
        "lm_speed",
        given,
        {"unit": "tokens/s", "cases": figures, "plain 124m": beside, "met": met, "stretch": stretch},
    )


if __name__ == "__main__":
    main(sys.argv[1:])
