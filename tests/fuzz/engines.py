"""Two engines that run a harness until the time is up or an input breaks a rule.

`guided` is libFuzzer through atheris: inputs that reach new code are kept and mutated further. `plain` needs
no other package: it mutates seeds and what it made of them. Both use the mutations of the harness.
"""

from __future__ import annotations

import hashlib
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import NamedTuple

from tests.fuzz.harness import Broken, Harness, checked, watched_log

MOST_LENGTH = 1 << 16
HANG_S = 20
"""Time of one input, waiting included, after which it is interrupted."""
MOST_RSS_MB = 2048
KEPT = 512
"""Mutated inputs that the plain engine mutates further."""


class Work(NamedTuple):
    """What was executed: inputs, the units in them, and the seconds that it took."""

    inputs: int
    units: int
    seconds: float


class Counter:
    """Counts, and writes the counts to a file, because libFuzzer ends the process itself."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._began = self._written = time.monotonic()
        self.work = Work(0, 0, 0.0)

    def add(self, units: int) -> None:
        now = time.monotonic()
        self.work = Work(self.work.inputs + 1, self.work.units + units, now - self._began)
        if now > self._written + 0.5:
            self.write(now)

    def write(self, now: float) -> None:
        self._written = now
        self._path.write_text(json.dumps(self.work))


def read_work(directory: Path) -> Work:
    """Return the last counts of a process that ran in this directory."""
    path = directory / "work.json"
    return Work(*json.loads(path.read_text())) if path.exists() else Work(0, 0, 0.0)


@contextmanager
def interrupted(seconds: float) -> Iterator[None]:
    """Raise `Broken` in the main thread if what is inside takes longer."""

    def hung(*_: object) -> None:
        raise Broken(f"it did not end within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, hung)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def plain(
    harness: Harness, directory: Path, seconds: float, seed: int, most_s: float = HANG_S
) -> Path | None:
    """Run mutated seeds. Return the file of the input that broke a rule, None if all held.

    An input that does not end within `most_s` seconds breaks one.
    """
    random, counter = Random(seed), Counter(directory / "work.json")
    seeds = beginnings(harness)
    pool = list(seeds)
    end = time.monotonic() + seconds
    with watched_log() as faults:
        run = checked(harness, faults)
        waiting = iter(seeds)
        while time.monotonic() < end:
            data = next(waiting, None)
            if data is None:
                data = harness.mutated(random.choice(pool), random)[:MOST_LENGTH]
                if random.random() < 0.05:
                    pool[len(seeds) :] = [*pool[len(seeds) :][-KEPT:], data]
            try:
                with interrupted(most_s):
                    counter.add(run(data))
            except Exception:
                counter.write(time.monotonic())
                _print_traceback()
                return _kept(directory, data)
    counter.write(time.monotonic())
    return None


def guided(load: Callable[[], Harness], directory: Path, seconds: float, seed: int) -> None:
    """Run libFuzzer, which ends the process. It leaves a file `crash-…` if an input broke a rule.

    `load` imports the harness: only what is imported inside is instrumented.
    """
    import atheris

    with atheris.instrument_imports(include=["hoptui"]):
        harness = load()
    corpus = directory / "inputs"
    corpus.mkdir(exist_ok=True)
    for data in beginnings(harness):
        (corpus / hashlib.sha1(data).hexdigest()).write_bytes(data)
    counter = Counter(directory / "work.json")
    own = Random(seed)

    def mutated(data: bytes, size: int, number: int) -> bytes:
        random = Random(number)
        if random.random() < 0.2:
            return bytes(atheris.Mutate(data, size))
        return harness.mutated(data, random)[:size]

    with watched_log() as faults:
        run = checked(harness, faults)
        options = [
            f"-max_total_time={max(1, round(seconds))}",
            f"-timeout={HANG_S}",
            f"-rss_limit_mb={MOST_RSS_MB}",
            f"-max_len={MOST_LENGTH}",
            f"-seed={own.randrange(1, 1 << 31)}",
            f"-artifact_prefix={directory}/",
            "-len_control=0",
            "-print_final_stats=0",
            "-verbosity=0",
        ]
        atheris.Setup(
            [sys.argv[0], *options, str(corpus)], lambda data: counter.add(run(data)), custom_mutator=mutated
        )
        atheris.Fuzz()


def beginnings(harness: Harness) -> list[bytes]:
    """Return the seeds of a harness and the inputs that once broke a rule."""
    return [*harness.seeds(), *(path.read_bytes() for path in harness.corpus())]


def _kept(directory: Path, data: bytes) -> Path:
    path = directory / f"crash-{hashlib.sha1(data).hexdigest()}"
    path.write_bytes(data)
    return path


def _print_traceback() -> None:
    import traceback

    traceback.print_exc()
