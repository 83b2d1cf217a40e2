"""`config.toml`, remembered choices and environment variables, as every process of hoptui reads them.

An input is a msgpack map: `file` and `choices` are the bytes of the two files, `environment` has variables.
Bytes that are no such map are `config.toml` themselves.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from unittest import mock

import msgspec
import zmq

from hoptui import settings
from hoptui.cli.doctor import gpus, machine
from hoptui.daemon import recordings
from hoptui.node.addresses import AddressError, addresses
from hoptui.protocol import codec
from hoptui.sdk.daemon_link import DaemonLink
from hoptui.sdk.run import Run
from hoptui.tui.preferences import Preferences
from tests import factories
from tests.fuzz.harness import Broken, Harness
from tests.fuzz.messages import Socket
from tests.fuzz.mutation import mutated_bytes
from tests.run_state import run_state

VARIABLES = (
    *(setting.variable for setting in settings.SETTINGS), "HOPTUI", "HOPTUI_DIR", "HOPTUI_STATE_DIR",
    "HOPTUI_KEEP_GB", "HOPTUI_KEEP_DAYS", "HOPTUI_RUN_GB", "HOPTUI_METRICS", "XDG_CONFIG_HOME",
    "XDG_STATE_HOME", "TERM", "NO_COLOR", "COLORTERM", "RANK", "WORLD_SIZE", "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "_HOPTUI_RESTART", "STY",
    "SSH_CONNECTION", "CUDA_DEVICE_ORDER",
)  # fmt: skip
VALUES = (
    b"", b"0", b"1", b"true", b"dark", b"none", b"off", b"-1", b"nan", b"1e999", b"inf",
    b"99999999999999999999", b"/tmp/x", b"relative", b"\xff\xfe", b"0,1", b"GPU-0", b"xterm-256color",
    b"vt100", b" ", b"127.0.0.1:9400", b"\xc2\x9b[2J", b"x" * 5000,
    b'{"pid":1,"run":"r","began":0,"waiting":[]}', b"MIG-", b"1_0", b"\xd9\xa1",
)  # fmt: skip
WORDS = (
    b"theme", b"ascii", b"mouse", b"read_only", b"keys", b"[keys]\n", b"run.pause", b'"run.stop"',
    b" = ", b"true", b'"dark"', b'"f5,p"', b'""', b"\n", b"#", b"[", b"]", b"{", b"}", b"'''",
    b"\\u0000", b"1e400", b"0x7fffffffffffffffff", b"1979-05-27T07:32:00Z", b"\xef\xbb\xbf", b"a.b.c",
    b"\r", b'"ctrl+c"', b"=" * 3,
)  # fmt: skip
SOUND = b'theme = "dark"\nascii = false\nread_only = false\n\n[keys]\n"run.pause" = "f5,p"\nrun.stop = ""\n'
CHOICES = b'{"theme":"light","hidden":["run.events"],"alone":"knobs","metric":"loss"}'
GPU = factories.gpu()
LONGEST_LINE = 1000


class Input(msgspec.Struct):
    """What a process finds."""

    file: bytes = SOUND
    choices: bytes = CHOICES
    environment: dict[str, bytes] = {}


class Configuration(Harness):
    """Files of settings and environments."""

    name, unit = "configuration", "configurations"

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="hoptui-fuzz-")
        self._home = Path(self._directory.name)
        for folder in (".config/hoptui", ".local/state/hoptui"):
            (self._home / folder).mkdir(parents=True)

    def close(self) -> None:
        self._directory.cleanup()

    def seeds(self) -> list[bytes]:
        found = [
            Input(),
            Input(file=b""),
            Input(choices=b""),
            Input(file="read_only = true\n".encode("utf-16")),
        ]
        found += [Input(environment={name: value}) for name in VARIABLES for value in (b"1", b"\xff")]
        return [SOUND, *map(msgspec.msgpack.encode, found)]

    def mutated(self, data: bytes, random: Random) -> bytes:
        found = _input(data)
        kind = random.random()
        if kind < 0.5:
            found.file = _mutated_file(found.file, random)
        elif kind < 0.6:
            found.choices = mutated_bytes(found.choices, random)
        else:
            value = random.choice(VALUES)
            value = mutated_bytes(value, random) if random.random() < 0.4 else value
            found.environment = {**found.environment, random.choice(VARIABLES): value}
            while len(found.environment) > 6:
                del found.environment[random.choice(list(found.environment))]
        return msgspec.msgpack.encode(found)

    def run(self, data: bytes) -> int:
        found = _input(data)
        files = self._home / ".config/hoptui/config.toml", self._home / ".local/state/hoptui/dashboard.json"
        for path, content in zip(files, (found.file, found.choices), strict=True):
            path.write_bytes(content)
        environment = {
            "HOME": str(self._home),
            "TERM": "xterm-256color",
            **dict(_variables(found.environment)),
        }
        with mock.patch.dict(os.environ, environment, clear=True):
            of_viewers(environment)
            of_daemons(environment)
            of_runs()
        return 1


def of_viewers(environment: Mapping[str, str]) -> None:
    """Read the settings as a dashboard and `hoptui doctor` do."""
    config = settings.read(environ=environment)
    preferences = Preferences(config)
    for problem in preferences.problems:
        if "\n" in problem or len(problem) > LONGEST_LINE:
            raise Broken(f"a problem is not one line: {problem[:200]!r}")
    settings.remember(config.choices, metric="loss")
    if config.choices is not None and config.choices.exists():
        remembered, problem = settings.remembered_choices(config.choices)
        if problem or remembered.metric != "loss":
            raise Broken(f"what was remembered is lost: {problem}")
    with contextlib.suppress(AddressError):
        addresses(create=False)
    gpus.cuda_visible((GPU,), environment)
    machine.container(environment)
    machine.metrics(factories.node(), environment, "daemon.log")
    machine.configuration(environment)
    machine.multiplexer(environment)


def of_daemons(environment: Mapping[str, str]) -> None:
    """Read the limits as a daemon does."""
    limits = recordings.limits(environment)
    if not (limits.keep_bytes >= 0 and limits.keep_s > 0 and limits.run_bytes >= 0):
        raise Broken(f"these limits delete everything: {limits}")
    recordings.refused(environment)


def of_runs() -> None:
    """Say hello as a run does. The daemon must understand it."""
    with mock.patch.dict(os.environ, {"HOPTUI": "off"}):
        run = Run("fuzz")
    link = DaemonLink(run_state(run), owner=run)
    try:
        link._hello(Socket(lambda sent: codec.from_run([sent])), zmq)
    finally:
        run_state(run).alive = False
        link._wake_in.close()
        link._wake_out.close()


def _variables(environment: Mapping[str, bytes]) -> Iterator[tuple[str, str]]:
    """Yield the variables that a process can have: without zero bytes."""
    for name, value in environment.items():
        if name in VARIABLES:
            yield name, os.fsdecode(value.replace(b"\0", b""))


def _input(data: bytes) -> Input:
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return msgspec.msgpack.decode(data, type=Input)
    return Input(file=data)


def _mutated_file(file: bytes, random: Random) -> bytes:
    if random.random() < 0.4:
        return mutated_bytes(file, random)
    words = [random.choice(WORDS) for _ in range(random.randint(1, 4))]
    at = random.randint(0, len(file))
    return file[:at] + b"".join(words) + file[at + random.choice((0, 0, 3)) :]
