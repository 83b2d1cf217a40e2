"""`make chaos`: real processes under random faults. See docs/internals/chaos.md.

python -m tests.chaos --minutes 20            a fresh seed
python -m tests.chaos --seed 7                the same plan of faults again
python -m tests.chaos --acts processes disk   some parts alone
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.chaos import kernel
from tests.chaos.acts import Result
from tests.chaos.program import ACTS

MINUTES = 20.0


def main() -> int:
    """Return 1 if something did not hold."""
    options = _parser().parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}, {options.minutes:g} minutes, acts: {' '.join(options.acts)}", flush=True)
    with tempfile.TemporaryDirectory(prefix="hoptui-chaos-") as base:
        denied = kernel.denied(Path(base))
    for right, why in denied.items():
        print(f"this machine does not allow: {right} ({why})", flush=True)
    shares = sum(ACTS[name].share for name in options.acts)
    failed = 0
    for name in options.acts:
        began = time.monotonic()
        seconds = 60 * options.minutes * ACTS[name].share / shares
        try:
            found = ACTS[name].run(seconds, seed, denied)
        except Exception:
            found = Result([traceback.format_exc()])
        passed = time.monotonic() - began
        print(
            f"{name}: {passed:.0f} s, {len(found.violations)} violations {json.dumps(found.figures)}",
            flush=True,
        )
        for violation in found.violations[:20]:
            print(f"  {violation}", flush=True)
        if found.log:
            print(f"  the end of daemon.log:\n{found.log}", flush=True)
        failed += bool(found.violations)
    if failed:
        print(f"replay: make chaos SEED={seed} MINUTES={options.minutes:g}")
    return int(bool(failed))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="Real processes under faults.")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="how long, about")
    parser.add_argument("--seed", type=int, help="decides the plan of faults (default: a random one)")
    parser.add_argument("--acts", nargs="+", choices=list(ACTS), default=list(ACTS), help="parts")
    return parser


if __name__ == "__main__":
    os.environ.pop("HOPTUI", None)
    sys.exit(main())
