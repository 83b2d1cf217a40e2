"""Each harness for a moment, without atheris: its seeds, what once broke a rule, and some mutations."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.fuzz import engines
from tests.fuzz.__main__ import NAMES
from tests.fuzz.harness import Broken, Harness, checked, watched_log
from tests.fuzz.harnesses import HARNESSES, make

ROUNDS = {"messages": 800, "recordings": 60, "configuration": 60, "command_line": 40, "ssh": 1500}
MOST_SEEDS = 60


@pytest.fixture
def harness(request: pytest.FixtureRequest) -> Iterator[Harness]:
    found = make(request.param)
    yield found
    found.close()


def test_every_harness_is_fuzzed() -> None:
    assert set(NAMES) == set(HARNESSES) == set(ROUNDS)


@pytest.mark.parametrize("harness", NAMES, indirect=True)
@pytest.mark.guarantee("any-input")
def test_a_harness_holds(harness: Harness) -> None:
    random = Random(harness.name)
    seeds = harness.seeds()
    chosen = random.sample(seeds, min(len(seeds), MOST_SEEDS))
    mutated = [harness.mutated(random.choice(seeds), random) for _ in range(ROUNDS[harness.name])]
    with watched_log() as faults:
        run = checked(harness, faults)
        count = sum(map(run, [*(path.read_bytes() for path in harness.corpus()), *chosen, *mutated]))
    assert count > ROUNDS[harness.name] / 2


@pytest.mark.parametrize("harness", NAMES, indirect=True)
def test_any_bytes_are_an_input(harness: Harness) -> None:
    with watched_log() as faults:
        run = checked(harness, faults)
        for data in (b"", b"\0", b"\xff" * 40, Random(1).randbytes(300)):
            run(data)


class Fragile(Harness):
    """Breaks one rule for each digit in an input."""

    name, unit = "fragile", "inputs"

    def seeds(self) -> list[bytes]:
        return [b"ab", b"cd"]

    def mutated(self, data: bytes, random: Random) -> bytes:
        return data + random.choice((b"x", b"1"))

    def run(self, data: bytes) -> int:
        if b"1" in data:
            raise KeyError(1)
        if b"2" in data:
            end = time.thread_time() + 1.1
            while time.thread_time() < end:
                pass
        if b"4" in data:
            threading.Event().wait()
        if b"3" in data:
            try:
                raise KeyError(3)
            except KeyError:
                logging.getLogger("hoptui.daemon").exception("an unexpected fault")
        return 1


def test_an_input_that_breaks_a_rule_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = engines.plain(Fragile(), tmp_path, seconds=20.0, seed=1)
    assert found is not None
    assert b"1" in found.read_bytes()
    assert "KeyError" in capsys.readouterr().err
    assert engines.read_work(tmp_path).inputs >= 2


def test_an_input_that_waits_for_ever_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Waiting(Fragile):
        def seeds(self) -> list[bytes]:
            return [b"4"]

    found = engines.plain(Waiting(), tmp_path, seconds=20.0, seed=1, most_s=0.1)
    assert found is not None
    assert found.read_bytes() == b"4"
    assert "it did not end within 0.1 s" in capsys.readouterr().err


@pytest.mark.parametrize(("data", "error"), [(b"2", Broken), (b"3", KeyError)])
def test_a_hang_and_a_logged_fault_break_a_rule(data: bytes, error: type[Exception]) -> None:
    with watched_log() as faults:
        run = checked(Fragile(), faults)
        assert run(b"a") == 1
        with pytest.raises(error):
            run(data)
