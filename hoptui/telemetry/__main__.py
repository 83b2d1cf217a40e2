"""`python -m hoptui.telemetry`: the sampler as the daemon's child, frames on stdout, Watch messages on stdin.

It ends when stdin does or nobody reads stdout (the daemon is gone), and on SIGTERM.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterable

GRACE_S = 0.5


def main() -> int:
    """Run until the daemon is gone; the exit status: 0, 1 for a broken stream, 2 when a person starts it by hand."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # before the slow imports: Ctrl-C is for the foreground
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if os.isatty(1):
        _report("it sends binary rows to the daemon, which starts it by itself; try `hoptui` instead")
        return 2
    out = os.dup(1)
    os.dup2(2, 1)  # what a library prints must not get between the frames
    threading.Thread(target=_end_after, args=(0,), daemon=True).start()
    try:
        return _serve(0, out)
    except BrokenPipeError:
        return 0


def _serve(commands: int, out: int) -> int:
    import pynvml

    from hoptui.telemetry.host import Host
    from hoptui.telemetry.nvml import Gpus
    from hoptui.telemetry.processes import Processes
    from hoptui.telemetry.sampler import Sampler
    from hoptui.wire import codec, devices

    clock = time.monotonic_ns

    def send(batch: Iterable[devices.Devices | devices.Sample]) -> None:
        for message in batch:
            frame = memoryview(codec.framed(message))
            while frame:
                frame = frame[os.write(out, frame) :]

    sampler = Sampler(Host(_report), Processes(clock), Gpus(pynvml, clock, _report), clock)
    framer = codec.Framer()
    send(sampler.start())
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
    print(f"hoptui sampler: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
