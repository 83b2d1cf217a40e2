"""The processes on the GPUs in a recording: all but the arguments of their commands."""

from __future__ import annotations

import pytest
from msgspec import structs

from hoptui.domain.devices import GpuProcess
from hoptui.protocol.record_bytes import RecordError, compressed
from hoptui.protocol.recorded_processes import (
    MOST_PROCESSES,
    STORED_BYTES,
    RecordedProcesses,
    decode_processes,
    encode_processes,
    program,
)

ONE = GpuProcess(
    gpu="GPU-0",
    pid=4711,
    memory_used_bytes=3 << 30,
    sm_percent=41.5,
    user="ana",
    command="/home/ana/env/bin/python3.12 -u jobs/train.py --token=s3cret --lr 1e-3",
    run="abcd2345",
)


def test_all_is_kept_but_the_arguments() -> None:
    bare = GpuProcess(gpu="GPU-1", pid=9)
    found = decode_processes(encode_processes([bare, ONE]))
    assert found == RecordedProcesses((structs.replace(ONE, command="python3.12 train.py"), bare))


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("", ""),
        ("python", "python"),
        ("/usr/bin/python3 /srv/jobs/train.py --key abc", "python3 train.py"),
        ("python -u -X dev -Wignore train.py s3cret", "python train.py"),
        (
            "python -W ignore -m torch.distributed.run --rdzv s3cret train.py",
            "python -m torch.distributed.run",
        ),
        ("python -c import os; os.environ['KEY'] = 's3cret'", "python -c"),
        ("python -cprint('s3cret')", "python -c"),
        ("pypy3.10 loop.py", "pypy3.10 loop.py"),
        ("python-config --s3cret", "python-config"),
        ("/opt/serve/bin/server --password s3cret", "server"),
        ("ray::TrainWorker.train", "ray::TrainWorker.train"),
        ("python -m", "python -m "),
    ],
)
def test_a_command_is_its_program_and_its_script(command: str, shown: str) -> None:
    assert program(command) == shown


def test_of_very_many_those_with_the_least_memory_are_left_out_and_counted() -> None:
    many = [structs.replace(ONE, pid=pid, memory_used_bytes=pid << 20) for pid in range(MOST_PROCESSES + 7)]
    body = encode_processes(many)
    found = decode_processes(body)
    assert len(body) < STORED_BYTES
    assert (len(found.processes), found.left_out) == (MOST_PROCESSES, 7)
    assert {one.pid for one in found.processes} == set(range(7, MOST_PROCESSES + 7))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        encode_processes([ONE])[:-3],
        compressed([{"gpu": "GPU-0"}]),
        compressed(RecordedProcesses((ONE,) * (MOST_PROCESSES + 1))),
        bytes(STORED_BYTES + 1),
    ],
)
def test_what_is_no_record_is_refused(body: bytes) -> None:
    with pytest.raises(RecordError):
        decode_processes(body)
