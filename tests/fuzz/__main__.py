"""`make fuzz MINUTES=n`: run each harness for its share of the time, or replay one input.

python -m tests.fuzz --minutes 10
python -m tests.fuzz messages --minutes 60
python -m tests.fuzz messages --replay build/fuzz/messages/crash-0123
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz import engines
from tests.fuzz.harness import Harness, checked, watched_log

NAMES = ("messages", "recordings", "configuration", "command_line", "ssh")
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Where recordings and the like are made. A disk would be the slowest part."""
ARTIFACTS = Path("build/fuzz").absolute()
LATE_S = 120.0
"""How long a harness may take beyond its time, to load and to end. Then it is killed."""


def load(name: str) -> Harness:
    """Import and make a harness."""
    from tests.fuzz import harnesses

    return harnesses.make(name)


def unit(name: str) -> str:
    """Return what a harness counts."""
    from tests.fuzz import harnesses

    return harnesses.HARNESSES[name].unit


def main() -> int:
    """Return 1 if an input broke a rule."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("names", nargs="*", metavar="HARNESS", help=f"default: all of {', '.join(NAMES)}")
    parser.add_argument("--minutes", type=float, default=10.0, help="in total")
    parser.add_argument("--seed", type=int, help="default: a new one for each harness")
    parser.add_argument(
        "--plain", action="store_true", help="mutate without atheris, also if it is installed"
    )
    parser.add_argument("--replay", type=Path, metavar="FILE", help="run one input and show what it breaks")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = options.names or list(NAMES)
    if wrong := set(names) - set(NAMES):
        parser.error(f"no harness is named {', '.join(wrong)}; there are {', '.join(NAMES)}")
    if options.replay is not None:
        if len(options.names) != 1:
            parser.error("--replay needs one HARNESS")
        return replay(names[0], options.replay)
    plain = options.plain or importlib.util.find_spec("atheris") is None
    if plain and not options.plain:
        print("atheris is not installed: inputs are mutated without looking at what code they reach")
    seconds = 60 * options.minutes / len(names)
    if options.alone:
        return alone(names[0], seconds, options.seed, plain=plain)
    return max([campaign(name, seconds, options.seed, plain=plain) for name in names])


def campaign(name: str, seconds: float, seed: int | None, *, plain: bool) -> int:
    """Run a harness in a process of its own. Return 1 if an input broke a rule."""
    directory = ARTIFACTS / name
    directory.mkdir(parents=True, exist_ok=True)
    seed = random.SystemRandom().randrange(1 << 31) if seed is None else seed
    (directory / "work.json").unlink(missing_ok=True)
    before = _broken(directory)
    words = [
        sys.executable,
        "-m",
        "tests.fuzz",
        name,
        "--alone",
        f"--minutes={seconds / 60}",
        f"--seed={seed}",
    ]
    words += ["--plain"] if plain else []
    began = time.monotonic()
    # libFuzzer ends the process without tidying up.
    with (
        tempfile.TemporaryDirectory(prefix="hoptui-fuzz-", dir=MEMORY) as home,
        (directory / "output.log").open("w+") as output,
    ):
        environment = {**os.environ, "TMPDIR": home}
        try:
            code = subprocess.run(
                words, stdout=output, stderr=output, env=environment, check=False, timeout=seconds + LATE_S
            ).returncode
        except subprocess.TimeoutExpired:
            code = 1
            print(f"{name}: the process did not end {LATE_S:g} s after its time", flush=True)
        output.seek(0)
        said = output.read()
    work, found = engines.read_work(directory), sorted(_broken(directory) - before)
    took = time.monotonic() - began
    print(f"{name}: {work.inputs} inputs, {work.units} {unit(name)}, {took:.0f} s, seed {seed}", flush=True)
    if not code and not found:
        return 0
    print("".join(said.splitlines(keepends=True)[-60:]))
    for path in found:
        shown = path.relative_to(Path.cwd())
        print(f"{shown} breaks a rule: python -m tests.fuzz {name} --replay {shown}", flush=True)
    return 1


def alone(name: str, seconds: float, seed: int, *, plain: bool) -> int:
    """Run a harness in this process."""
    directory = ARTIFACTS / name
    if not plain:
        engines.guided(lambda: load(name), directory, seconds, seed)
        return 0
    harness = load(name)
    try:
        return int(engines.plain(harness, directory, seconds, seed) is not None)
    finally:
        harness.close()


def replay(name: str, path: Path) -> int:
    """Run one input. What it breaks is a traceback."""
    harness = load(name)
    try:
        with watched_log() as faults:
            count = checked(harness, faults)(path.read_bytes())
    finally:
        harness.close()
    print(f"{path} holds: {count} {harness.unit}")
    return 0


def _broken(directory: Path) -> set[Path]:
    return {path for kind in ("crash", "timeout", "oom", "slow-unit") for path in directory.glob(f"{kind}-*")}


if __name__ == "__main__":
    sys.exit(main())
