"""The processes on the GPUs of a node as a recording keeps them.

A recording is shown to others. So of a command line it has the program and its script: arguments may have
secrets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec
from msgspec import structs

from hoptui.domain.devices import GpuProcess
from hoptui.protocol.record_bytes import RecordError, checked, compressed, decompressed

MOST_PROCESSES = 256
STORED_BYTES = 64 << 10
"""The largest record: compressed."""
_PYTHON = re.compile(r"(python|pypy)[\d.]*$")
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
"""Options of Python whose value is a word of its own."""


class RecordedProcesses(msgspec.Struct, frozen=True):
    """Processes on the GPUs of a node, at most `MOST_PROCESSES`, and how many more there were."""

    processes: tuple[GpuProcess, ...]
    left_out: int = 0


def encode_processes(processes: Sequence[GpuProcess]) -> bytes:
    """Encode processes with their programs instead of their command lines. Those with the least memory are
    left out.
    """
    ordered = sorted(processes, key=lambda one: -(one.memory_used_bytes or 0))
    kept = tuple(structs.replace(one, command=program(one.command)) for one in ordered[:MOST_PROCESSES])
    return compressed(RecordedProcesses(kept, len(processes) - len(kept)))


def decode_processes(body: bytes) -> RecordedProcesses:
    """Decode processes.

    Raises:
        RecordError: they are none, or too many.
    """
    found = checked(decompressed(body, STORED_BYTES), RecordedProcesses)
    if len(found.processes) > MOST_PROCESSES:
        raise RecordError("a record has too many processes")
    return found


def program(command: str) -> str:
    """Return the program of a command line, with the script or module that a Python runs, without folders."""
    words = iter(command.split())
    name = _file_name(next(words, ""))
    return " ".join((name, *_script(words))) if _PYTHON.match(name) else name


def _script(words: Iterator[str]) -> tuple[str, ...]:
    """What an interpreter of Python runs. Nothing is told of code on the command line."""
    for word in words:
        if word == "-m":
            return ("-m", next(words, ""))
        if word.startswith("-c"):
            return ("-c",)
        if word in _WITH_VALUE:
            next(words, "")
        elif not word.startswith("-"):
            return (_file_name(word),)
    return ()


def _file_name(path: str) -> str:
    return path.rpartition("/")[2]
