"""What a harness is, and the rules that hold for every input: no other error, no hang, no large memory."""

from __future__ import annotations

import abc
import logging
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

CORPUS = Path(__file__).with_name("corpus")
"""Inputs that once broke a rule, in a folder for each harness."""
MOST_S = 1.0
"""CPU time of one input."""
MOST_GROWTH = 256 << 20
"""Bytes that the memory of the process may grow by during one input."""


class Broken(AssertionError):  # noqa: N818 - says what is the case
    """An input broke a rule."""


class Harness(abc.ABC):
    """One surface. An input is bytes; the same bytes do the same each time.

    `unit` names what `run` counts.
    """

    name: str
    unit: str

    @abc.abstractmethod
    def seeds(self) -> list[bytes]:
        """Return sound inputs to begin with."""

    @abc.abstractmethod
    def mutated(self, data: bytes, random: Random) -> bytes:
        """Return another input that is close to this one, or to the structure that it has."""

    @abc.abstractmethod
    def run(self, data: bytes) -> int:
        """Use an input as production code would. Return how many units it held.

        Raises:
            Exception: any that the surface does not document. That is a finding.
        """

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Release what the harness holds."""

    def corpus(self) -> list[Path]:
        """Return the files of inputs that once broke a rule."""
        return sorted((CORPUS / self.name).glob("*.bin"))


class Faults(logging.Handler):
    """Keeps exceptions that production code caught and logged, though nobody expected them."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            self.found.append(record.exc_info[1])


@contextmanager
def watched_log() -> Iterator[Faults]:
    """Collect logged exceptions of hoptui, and keep its log lines off the terminal."""
    logger, faults = logging.getLogger("hoptui"), Faults()
    before = logger.propagate
    logger.addHandler(faults)
    logger.propagate = False
    try:
        yield faults
    finally:
        logger.removeHandler(faults)
        logger.propagate = before


def checked(harness: Harness, faults: Faults) -> Callable[[bytes], int]:
    """Return `harness.run` with the rules that hold for all harnesses."""

    def run(data: bytes) -> int:
        faults.found.clear()
        memory, began = _peak(), time.thread_time()
        count = harness.run(data)
        took, grown = time.thread_time() - began, _peak() - memory
        if faults.found:
            raise faults.found[0]
        if took > MOST_S:
            raise Broken(f"it took {took:.1f} s")
        if grown > MOST_GROWTH:
            raise Broken(f"the memory grew by {grown >> 20} MiB")
        return count

    return run


def _peak() -> int:
    """Return the largest resident memory of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
