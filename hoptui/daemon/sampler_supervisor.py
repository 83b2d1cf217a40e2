"""The parent of a sampler: a child process that reads GPUs or the host.

It is a process because an NVML call can hang for ever. The daemon reads what the child writes to a pipe, and
never waits for it. A child that is silent for too long is killed and replaced; one that cannot be killed (a
driver call in uninterruptible sleep) is left behind and counted. A GPU in which a call hung is left alone by
the next child, and tried again later by a second child beside the one that reads the others.
"""

from __future__ import annotations

import fcntl
import logging
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from hoptui.domain.devices import Devices, FromSampler, Sample, Tenants, Watch
from hoptui.domain.facts import Fact, fact
from hoptui.domain.pacing import DEFAULT
from hoptui.node.driver_probe import DRIVER, IDLE, DriverProbe
from hoptui.protocol import codec
from hoptui.protocol.codec import WireError

LARGEST_READ = 1 << 16  # what a pipe holds; a larger buffer would be mapped anew for each read
LONGEST_LINE = 500


class SamplerProcess:
    """A running sampler. `heard` is the time of its last message, `sampled` whether it has sent readings yet.
    `closed` is whether it has closed its end of the pipe: it has ended, or is about to.

    With `leave` (GPUs to avoid, by index) it is a sampler of GPUs and gets a `DriverProbe`.

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
        """Its messages that must not be used yet."""
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
        """Send it what to sample. A sampler that does not read is detected by its silence."""
        with suppress(OSError):
            os.write(self._in.fileno(), codec.framed(watch))

    def read(self, now: float) -> list[FromSampler]:
        """Its messages since the last call, without waiting.

        Raises:
            OSError, codec.WireError: the data are not usable.
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


PAUSES_S = (60.0, 120.0, 300.0)
FORGIVEN_S = 900.0
"""A GPU that has answered for so long is trusted like any other."""


@dataclass
class _Suspect:
    hangs: int
    again: float
    answered: float | None = None

    @property
    def pause_s(self) -> float:
        return PAUSES_S[min(self.hangs, len(PAUSES_S)) - 1]


class Suspects:
    """By the index of the GPU, or `DRIVER` for the whole driver. Times are monotonic seconds, passed in."""

    def __init__(self) -> None:
        self._known: dict[int, _Suspect] = {}

    def hung(self, what: int, now: float) -> None:
        """A call did not return."""
        known = self._known.get(what)
        if known is None or (known.answered is not None and now - known.answered > FORGIVEN_S):
            known = _Suspect(0, 0.0)
        self._known[what] = known = _Suspect(known.hangs + 1, 0.0)
        known.again = now + known.pause_s

    def answered(self, what: int, now: float) -> None:
        """It was tried again and answered."""
        known = self._known.get(what)
        if known is not None and known.answered is None:
            known.answered = now

    def left(self) -> tuple[int, ...]:
        """What is left alone now, in order."""
        return tuple(sorted(what for what, known in self._known.items() if known.answered is None))

    def due(self, now: float, blocked: Iterable[int] = ()) -> int | None:
        """What to try again now, None for nothing; never what is in `blocked`."""
        waiting = (what for what in self.left() if what not in blocked)
        return next((what for what in waiting if now >= self._known[what].again), None)

    def pause_s(self, what: int) -> float:
        """How long it is left alone between two tries, seconds."""
        return self._known[what].pause_s


log = logging.getLogger("hoptui.daemon")

START_S = 30.0
"""For the first readings: a driver without persistence mode needs seconds for each GPU."""
MISSED_TICKS = 3
AGAIN_S = (1.0, 2.0, 5.0, 15.0, 60.0)
UNDEAD = 3
"""So many children that cannot be killed are enough; the last of them is not spent on trying a GPU again."""
CLOSE_S = 0.5
MOST_COMPLAINTS = 100
"""Lines of a child's stderr that are logged at once: a traceback, and no flood."""


class Sampler:
    """The children of one kind and their watchdog. Times are monotonic seconds, passed in.

    `problem` is why there are no readings, or not all of them; None if there are.
    """

    def __init__(
        self,
        what: Literal["host", "gpus"],
        command: Sequence[str] | None = None,
        *,
        silence_s: float = DEFAULT.sampler_silence_s,
    ) -> None:
        self._silence_s = silence_s
        self._what = what
        self._gpus = what == "gpus"
        self._name = "the GPU sampler" if self._gpus else "the host sampler"
        self._command = command or [sys.executable, "-m", "hoptui.telemetry", what]
        self._watch = Watch(hz=1.0)
        self._child: SamplerProcess | None = None
        self._trial: SamplerProcess | None = None  # tries again a GPU that hung, beside the child
        self._trying = DRIVER
        self._undead: list[SamplerProcess] = []
        self._next_start = 0.0
        self._starts = 0
        self._listed = False
        self._trouble: Fact | None = fact("sampler.starting", sampler=what)
        self.suspects = Suspects()

    @property
    def fds(self) -> tuple[int, ...]:
        """The pipes to poll for reading."""
        there = (child for child in (self._child, self._trial) if child is not None)
        return tuple(child.fd for child in there if not child.closed)

    @property
    def pids(self) -> tuple[int, ...]:
        """The children, the one whose readings are used first."""
        return tuple(child.pid for child in (self._child, self._trial) if child is not None)

    @property
    def left(self) -> tuple[int, ...]:
        """Indices of GPUs that are left alone because a call hung in them, `DRIVER` for the whole driver."""
        return self.suspects.left()

    @property
    def problem(self) -> Fact | None:
        if self._trouble:
            return self._trouble
        silent = [index for index in self.left if index != DRIVER]
        return fact("sampler.gpus_left", gpus=silent) if silent else None

    def tend(self, now: float) -> None:
        """Start, watch, replace, try again; call it a few times a second. `fds` may be others afterwards."""
        self._undead = [child for child in self._undead if child.status is None]
        for alive in (self._child, self._trial):
            if alive is not None:
                self._note(alive.complaints())
        self._tend_trial(now)
        child = self._child
        if child is None:
            if now >= self._next_start:
                self._start(now)
        elif child.status is not None:
            self._lose(now, fact("sampler.ended", sampler=self._what, exit_code=child.status))
        elif child.closed:
            self._lose(now, fact("sampler.closed", sampler=self._what))
        elif now - child.heard > self._patience(child):
            self._silenced(child, now)
        elif self._trial is None and child.sampled and len(self._undead) < UNDEAD - 1:
            hung = {undead.asked for undead in self._undead}
            again = self.suspects.due(now, blocked=hung)
            if again is not None:
                self._try(again, now)

    def watch(self, watch: Watch) -> None:
        """What to sample from now on, and how often."""
        if watch != self._watch:
            self._watch = watch
            for child in (self._child, self._trial):
                if child is not None:
                    child.say(watch)

    def read(self, fd: int, now: float) -> list[FromSampler]:
        """What came through one of `fds`; `fds` may be others afterwards."""
        if self._trial is not None and fd == self._trial.fd:
            return self._read_trial(self._trial, now)
        child = self._child
        if child is None or fd != child.fd:
            return []
        try:
            said = child.read(now)
        except (OSError, WireError) as error:
            self._lose(now, fact("sampler.bad_message", sampler=self._what, error=str(error)))
            return []
        if said:
            self._trouble = None
        return self._settled(child, said)

    def close(self) -> None:
        """End the children; each ends by itself when its stdin closes."""
        children = [child for child in (self._child, self._trial) if child is not None]
        self._child = self._trial = None
        for child in children:
            child.hang_up()
        for child in children:
            if not child.wait(CLOSE_S):
                self._bury(child)
        for child in self._undead:
            child.wait(CLOSE_S)

    # the child ----------------------------------------------------------------------------------------------

    def _start(self, now: float) -> None:
        if len(self._undead) >= UNDEAD:
            self._trouble = fact("sampler.undead", sampler=self._what, count=UNDEAD)
            return
        self._child = self._spawn([index for index in self.left if index != DRIVER], now)
        if self._child is None:
            self._again(now)

    def _spawn(self, leave: Sequence[int], now: float) -> SamplerProcess | None:
        try:
            child = SamplerProcess(self._command, leave if self._gpus else None, now)
        except OSError as error:
            self._trouble = fact("sampler.not_started", sampler=self._what, error=error.strerror)
            return None
        child.say(self._watch)
        return child

    def _patience(self, child: SamplerProcess) -> float:
        return max(self._silence_s, MISSED_TICKS / self._watch.hz) if child.sampled else START_S

    def _settled(self, child: SamplerProcess, said: list[FromSampler]) -> list[FromSampler]:
        """The messages of the child to pass on.

        A child that takes over knows no GPU before the driver has answered. Its empty list is held back until
        its first readings, so that the GPUs do not vanish for a moment.
        """
        passed: list[FromSampler] = []
        for message in said:
            match message:
                case Devices(gpus=()) if self._listed and self._starts:
                    child.backlog = [message]
                    continue
                case Devices():
                    child.backlog = []
                    self._listed = True
                case Sample():
                    passed += child.backlog
                    child.backlog = []
                    self._starts = 0
                    self.suspects.answered(DRIVER, child.heard)
            passed.append(message)
        return passed

    def _silenced(self, child: SamplerProcess, now: float) -> None:
        """The child hangs: find out where, and do without it."""
        asking, silent_s = child.asking, now - child.heard
        if asking >= 0:
            self._lose(now, fact("sampler.gpu_hung", gpu=asking, silent_s=silent_s))
            self.suspects.hung(asking, now)
            self._next_start = now
        elif asking == DRIVER:
            self.suspects.hung(DRIVER, now)
            pause = self.suspects.pause_s(DRIVER)
            self._lose(now, fact("sampler.driver_hung", again_s=pause))
            self._next_start = now + pause
        else:
            self._lose(now, fact("sampler.silent", sampler=self._what, silent_s=silent_s))

    def _lose(self, now: float, why: Fact) -> None:
        child, self._child = self._child, None
        fields = ", ".join(f"{name} {value}" for name, value in why.fields.items())
        log.warning("no readings from %s: %s (%s)", self._name, why.code, fields)
        self._trouble = why
        self._again(now)
        if child is not None:
            self._bury(child)

    def _note(self, complaints: Sequence[str]) -> None:
        for line in complaints[:MOST_COMPLAINTS]:
            log.warning("%s: %s", self._name, line)
        if len(complaints) > MOST_COMPLAINTS:
            log.warning("%s: and %d lines more", self._name, len(complaints) - MOST_COMPLAINTS)

    def _bury(self, child: SamplerProcess) -> None:
        self._note(child.complaints(last=True))
        child.kill()
        if child.status is None:
            self._undead.append(child)

    def _again(self, now: float) -> None:
        self._next_start = now + AGAIN_S[min(self._starts, len(AGAIN_S) - 1)]
        self._starts += 1

    # the trial ----------------------------------------------------------------------------------------------

    def _try(self, index: int, now: float) -> None:
        log.info("GPU %d is tried again", index)
        self._trying = index
        self._trial = self._spawn([i for i in self.left if i not in (index, DRIVER)], now)
        if self._trial is None:
            self.suspects.hung(index, now)

    def _tend_trial(self, now: float) -> None:
        trial = self._trial
        if trial is not None:
            over = trial.closed or trial.status is not None
            if over or now - trial.heard > self._patience(trial):
                self._end_trial(trial, now)

    def _read_trial(self, trial: SamplerProcess, now: float) -> list[FromSampler]:
        """Return nothing until the trial process has sent readings. Then it replaces the child, and all its
        messages count."""
        try:
            trial.backlog += trial.read(now)
        except (OSError, WireError):
            self._end_trial(trial, now)
            return []
        if not trial.sampled:
            return []
        log.info("GPU %d answers again", self._trying)
        self.suspects.answered(self._trying, now)
        if self._child is not None:
            self._bury(self._child)
        self._child, self._trial = trial, None
        said, trial.backlog = [Tenants(), *trial.backlog], []  # it reports processes only if it has seen any
        self._trouble = None
        newest = max((i for i, message in enumerate(said) if isinstance(message, Devices)), default=0)
        return [m for i, m in enumerate(said) if i >= newest or not isinstance(m, Devices)]

    def _end_trial(self, trial: SamplerProcess, now: float) -> None:
        self._trial = None
        self._bury(trial)
        self.suspects.hung(self._trying, now)
        log.warning("GPU %d still does not answer", self._trying)
