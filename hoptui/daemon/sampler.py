"""The parent of the sampler: a child process that reads GPUs and host, because an NVML call can hang for ever.

The daemon reads what the child writes and never waits for it. A child that is silent for too long is killed and replaced;
one that cannot even be killed (a driver call in uninterruptible sleep) is left behind and counted.
"""

from __future__ import annotations

import fcntl
import logging
import os
import subprocess
import sys
from contextlib import suppress

from hoptui.wire import codec
from hoptui.wire.devices import FromSampler, Watch

log = logging.getLogger("hoptui.daemon")

START_S = 10.0
MISSED_TICKS = 3
AGAIN_S = (1.0, 2.0, 5.0, 15.0, 60.0)
UNDEAD = 3


class Sampler:
    """The child and its watchdog. Times are monotonic seconds, passed in."""

    def __init__(self, command: list[str] | None = None) -> None:
        self._command = command or [sys.executable, "-m", "hoptui.telemetry"]
        self._child: subprocess.Popen[bytes] | None = None
        self._framer = codec.Framer()
        self._watch = Watch(hz=1.0)
        self._heard = 0.0
        self._spoke = False
        self._next_start = 0.0
        self._starts = 0
        self._undead: list[subprocess.Popen[bytes]] = []
        self.problem = "starting"

    @property
    def fd(self) -> int | None:
        """The pipe to poll for reading, None while there is no child."""
        child = self._child
        return child.stdout.fileno() if child and child.stdout else None

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    def tend(self, now: float) -> bool:
        """Start, watch, replace; call it a few times a second. True if the child (and so `fd`) changed."""
        self._undead = [child for child in self._undead if child.poll() is None]
        if self._child is None:
            return self._start(now) if now >= self._next_start else False
        if self._child.poll() is not None:
            self._lose(now, f"the sampler ended (exit code {self._child.returncode})")
            return True
        allowed = max(2.0, MISSED_TICKS / self._watch.hz) if self._spoke else START_S
        if now - self._heard > allowed:
            self._lose(now, f"no readings: the sampler has not answered for {now - self._heard:.0f} s")
            return True
        return False

    def watch(self, watch: Watch) -> None:
        """Tell the child how often to sample and whose processes."""
        if watch != self._watch:
            self._watch = watch
            self._say()

    def read(self, now: float) -> list[FromSampler]:
        """What the child has said; call it when `fd` is readable."""
        child = self._child
        if child is None or child.stdout is None:
            return []
        try:
            data = os.read(child.stdout.fileno(), 1 << 18)
            messages = [codec.from_sampler([frame]) for frame in self._framer.feed(data)]
        except BlockingIOError:
            return []
        except (OSError, codec.WireError) as error:
            self._lose(now, f"the sampler speaks nonsense: {error}")
            return []
        if messages:
            self._heard = now
            self._spoke = True
            self._starts = 0
            self.problem = ""
        return messages

    def close(self) -> None:
        """End the child; it ends by itself when its stdin closes."""
        child, self._child = self._child, None
        if child is None:
            return
        _close_pipes(child)
        try:
            child.wait(0.5)
        except subprocess.TimeoutExpired:
            child.kill()
            with suppress(subprocess.TimeoutExpired):
                child.wait(0.5)

    def _start(self, now: float) -> bool:
        if len(self._undead) >= UNDEAD:
            self.problem = f"no readings: {UNDEAD} samplers hang in the driver and cannot be killed"
            return False
        try:
            child = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/", close_fds=True
            )
        except OSError as error:
            self._again(now)
            self.problem = f"no readings: the sampler could not be started: {error.strerror}"
            return False
        assert child.stdin is not None
        assert child.stdout is not None
        for pipe in (child.stdin, child.stdout):
            flags = fcntl.fcntl(pipe, fcntl.F_GETFL)
            fcntl.fcntl(pipe, fcntl.F_SETFL, flags | os.O_NONBLOCK)
        self._child = child
        self._framer = codec.Framer()
        self._heard = now
        self._spoke = False
        self._say()
        return True

    def _say(self) -> None:
        child = self._child
        if child is None or child.stdin is None:
            return
        with suppress(OSError):  # a child that does not read is found by its silence
            os.write(child.stdin.fileno(), codec.framed(self._watch))

    def _lose(self, now: float, why: str) -> None:
        child, self._child = self._child, None
        log.warning("%s", why)
        self.problem = why
        self._again(now)
        if child is None:
            return
        _close_pipes(child)
        if child.poll() is None:
            child.kill()
            self._undead.append(child)

    def _again(self, now: float) -> None:
        self._next_start = now + AGAIN_S[min(self._starts, len(AGAIN_S) - 1)]
        self._starts += 1


def _close_pipes(child: subprocess.Popen[bytes]) -> None:
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
