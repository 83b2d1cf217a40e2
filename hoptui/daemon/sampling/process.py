"""One sampler process at the two ends of a pipe. Nothing here ever waits for it."""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress

from hoptui.domain.devices import FromSampler, Sample, Watch
from hoptui.node.driver_probe import IDLE, DriverProbe
from hoptui.protocol import codec

LARGEST_READ = 1 << 16  # what a pipe holds; a larger buffer would be mapped anew for each read
LONGEST_LINE = 500


class SamplerProcess:
    """A running sampler. `heard` is when it said anything last, `sampled` whether it has sent readings yet,
    `closed` whether it has closed its end of the pipe: it has ended, or is about to.

    With `leave` (GPUs not to be touched, by index) it is a sampler of GPUs and gets a `DriverProbe`.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, command: Sequence[str], leave: Sequence[int] | None, now: float) -> None:
        self._probe = DriverProbe() if leave is not None else None
        options: list[str] = []
        if self._probe is not None:
            options += ["--probe", str(self._probe.fd)]
        for index in leave or ():
            options += ["--leave", str(index)]
        try:
            self._process = subprocess.Popen(
                [*command, *options],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd="/",
                pass_fds=(self._probe.fd,) if self._probe else (),
            )
        except BaseException:
            self._close_probe()
            raise
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._in, self._out, self._err = self._process.stdin, self._process.stdout, self._process.stderr
        for pipe in (self._in, self._out, self._err):
            flags = fcntl.fcntl(pipe, fcntl.F_GETFL)
            fcntl.fcntl(pipe, fcntl.F_SETFL, flags | os.O_NONBLOCK)
        self._framer = codec.Framer()
        self._unfinished = b""
        self.leave = tuple(leave or ())
        self.heard = now
        self.sampled = False
        self.closed = False
        self.backlog: list[FromSampler] = []
        """What it has said that is not to be used yet."""
        self.asked = IDLE
        """What it was asking the driver for when it was killed."""

    @property
    def fd(self) -> int:
        """The pipe to poll for reading."""
        return self._out.fileno()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def asking(self) -> int:
        """What it is asking the driver for: the index of a GPU, `DRIVER` or `IDLE`."""
        return self._probe.read() if self._probe is not None else IDLE

    @property
    def status(self) -> int | None:
        """Its exit status, None while it lives (or cannot be killed)."""
        return self._process.poll()

    def say(self, watch: Watch) -> None:
        """Tell it what to sample; one that does not read is found by its silence."""
        with suppress(OSError):
            os.write(self._in.fileno(), codec.framed(watch))

    def read(self, now: float) -> list[FromSampler]:
        """What it has said since the last call, without waiting.

        Raises:
            OSError, codec.WireError: what comes is of no use.
        """
        try:
            data = os.read(self._out.fileno(), LARGEST_READ)
        except BlockingIOError:
            return []
        if not data:
            self.closed = True
            return []
        said = [codec.from_sampler([frame]) for frame in self._framer.feed(data)]
        if said:
            self.heard = now
            self.sampled = self.sampled or any(isinstance(message, Sample) for message in said)
        return said

    def complaints(self, *, last: bool = False) -> list[str]:
        """The lines that it has written on stderr since the last call, without waiting; with `last` what is
        left of one."""
        try:
            data = os.read(self._err.fileno(), LARGEST_READ)
        except (OSError, ValueError):  # there is nothing, or the pipe is closed
            data = b""
        *lines, rest = (self._unfinished + data).split(b"\n")
        if last or len(rest) > LONGEST_LINE:
            lines, rest = [*lines, rest], b""
        self._unfinished = rest
        texts = (line[:LONGEST_LINE].decode(errors="replace").rstrip() for line in lines)
        return [text for text in texts if text]

    def hang_up(self) -> None:
        """Close the pipes: it ends by itself as soon as it notices."""
        for pipe in (self._in, self._out, self._err):
            with suppress(OSError):
                pipe.close()

    def kill(self) -> None:
        """Close the pipes and kill it, without waiting for its death: in the driver that may never come."""
        self.asked = self.asking
        self._close_probe()
        self.hang_up()
        if self._process.poll() is None:
            self._process.kill()

    def wait(self, seconds: float) -> bool:
        """Whether it has ended within `seconds`."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self._process.returncode is not None

    def _close_probe(self) -> None:
        if self._probe is not None:
            self._probe.close()
            self._probe = None
