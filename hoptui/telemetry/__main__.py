"""`python -m hoptui.telemetry host|gpus`: a sampler as the daemon's child, frames on stdout, Watch messages
on stdin.

It ends when stdin ends or stdout is closed (the daemon is gone), and on SIGTERM.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterable
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

    from hoptui.domain import devices
    from hoptui.telemetry.sampler import GpuSampler, HostSampler

GRACE_S = 0.5


def main() -> int:
    """Run until the daemon is gone; the exit status: 0, 1 for a broken stream, 2 when a person starts it by
    hand."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # before the slow imports: Ctrl-C is for the foreground
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if os.isatty(1):
        _report("it sends binary rows to the daemon, which starts it by itself; try `hoptui` instead")
        return 2
    options = _options()
    out = os.dup(1)
    os.dup2(2, 1)  # what a library prints must not get between the frames
    threading.Thread(target=_end_after, args=(0,), daemon=True).start()
    try:
        return _serve(_gpus(options) if options.what == "gpus" else _host(), 0, out)
    except BrokenPipeError:
        return 0


def _options() -> argparse.Namespace:
    import argparse

    parser = argparse.ArgumentParser(prog="python -m hoptui.telemetry", description=__doc__)
    parser.add_argument("what", choices=("host", "gpus"))
    parser.add_argument(
        "--probe",
        type=int,
        metavar="FD",
        help="an open file of at least 8 bytes, to say there which GPU is being read",
    )
    parser.add_argument(
        "--leave", type=int, action="append", default=[], metavar="INDEX", help="a GPU not to be touched"
    )
    return parser.parse_args()


def _host() -> HostSampler:
    from hoptui.telemetry.host import HostReader, Processes
    from hoptui.telemetry.sampler import HostSampler

    clock = time.monotonic_ns
    return HostSampler(HostReader(_report), Processes(clock), clock)


def _gpus(options: argparse.Namespace) -> GpuSampler:
    from hoptui.node.driver_probe import ProbeWriter, no_probe
    from hoptui.telemetry import amd
    from hoptui.telemetry.sampler import GpuSampler

    clock, leave = time.monotonic_ns, frozenset(options.leave)
    probe = no_probe if options.probe is None else ProbeWriter(options.probe)
    if amd.present():
        return GpuSampler(amd.AmdGpus(partial(import_module, "amdsmi"), clock, probe, leave), clock)
    import pynvml

    from hoptui.telemetry.nvml import Gpus

    return GpuSampler(Gpus(pynvml, clock, _report, probe, leave), clock)


def _serve(sampler: HostSampler | GpuSampler, commands: int, out: int) -> int:
    from hoptui.protocol import codec

    clock = time.monotonic_ns

    def send(batch: Iterable[devices.FromSampler]) -> None:
        """Write each message before the next is made: slow readings come after the rows of their tick."""
        for message in batch:
            frame = memoryview(codec.framed(message))
            if len(frame) > codec.MAX_BYTES:  # the daemon would end this process
                _report(f"a {type(message).__name__} of {len(frame)} bytes is too large to be sent")
                continue
            while frame:
                frame = frame[os.write(out, frame) :]

    framer = codec.Framer()
    send(sampler.start())
    gc.freeze()  # what is there stays: looking through it again and again would make ticks late
    while True:
        readable, _, _ = select.select([commands], [], [], max(0, sampler.due - clock()) / 1e9)
        if readable:
            data = os.read(commands, 1 << 16)
            if not data:
                return 0
            try:
                frames = framer.feed(data)
            except codec.WireError as error:  # the stream cannot be understood from here on
                _report(f"bad stream from the daemon: {error}")
                return 1
            for frame in frames:
                try:
                    sampler.watch(codec.to_sampler([frame]))
                except codec.WireError as error:
                    _report(f"bad message from the daemon: {error}")
        if clock() >= sampler.due:
            send(sampler.tick())


def _end_after(commands: int) -> None:
    """End the process when its stdin has ended, out of a driver call that does not return if need be."""
    hang_up = select.poll()
    hang_up.register(commands, 0)
    hang_up.poll()
    time.sleep(GRACE_S)  # the main thread has seen it too and ends in good order, unless it hangs
    os._exit(0)


def _report(line: str) -> None:
    """For the daemon's log."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
