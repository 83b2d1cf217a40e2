"""The children of the daemon that read GPUs and host, simulated. The daemon's watchdog over them is real.

What is read at a moment is kept. A child can be killed, suspended, or be late with what it has read. Its pipe
is bounded, so a daemon that does not read holds it up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hoptui.domain.columns import Columns, pack
from hoptui.domain.devices import Devices, FromSampler, GpuInfo, HostInfo, Sample, Watch
from hoptui.protocol import codec
from tests.simulation.kernel import Signal

if TYPE_CHECKING:
    from tests.simulation.node import Node

GPUS = ("GPU-a", "GPU-b")
MEMORY = 80 << 30
LEAST_USED, MOST_USED = 10 << 30, 20 << 30
SWEEP_S = 400.0
"""The memory in use rises from least to most in this time, and falls again. So an old reading is wrong."""
PIPE_BYTES = 64 << 10


class SimulatedSampler:
    """Stands for `SamplerProcess`."""

    node: Node
    asking = -1  # nothing hangs in a driver

    def __init__(self, command: Sequence[str], leave: Sequence[int] | None, now: float) -> None:
        node, self._what = self.node, command[-1]
        self.leave = tuple(leave or ())
        self.heard = now
        self.sampled = self.closed = False
        self.backlog: list[FromSampler] = []
        self.asked = self.asking
        self._watch = Watch(hz=1.0)
        self._framer = codec.Framer()
        self._end = node.system.pipe()
        self._room = Signal(node.kernel)
        self._free_at = 0
        self._parent = node.kernel.process
        self.process = node.kernel.spawn(f"sampler {self._what}", self._main, {})
        self._parent.at_end.append(lambda killed: self.hang_up())
        self.process.at_end.append(lambda killed: self._arrive(b""))
        node.samplers.append(self)

    # the daemon's side --------------------------------------------------------------------------------------

    @property
    def fd(self) -> int:
        return self._end.number

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def status(self) -> int | None:
        return None if self.process.alive else -9

    def say(self, watch: Watch) -> None:
        self._watch = watch

    def read(self, now: float) -> list[FromSampler]:
        parts, self._end.inbox = self._end.inbox, []
        self._room.set()
        said = [codec.from_sampler([frame]) for frame in self._framer.feed(b"".join(parts))]
        if said:
            self.heard = now
            self.sampled = self.sampled or any(isinstance(message, Sample) for message in said)
        self.closed = not said and b"" in parts
        self.node.services.handed(said, self.node.kernel.seconds)
        if said and b"" in parts:
            self._arrive(b"")  # the end is read next
        return said

    def complaints(self, *, last: bool = False) -> list[str]:
        return []

    def hang_up(self) -> None:
        self.node.kernel.after(0.01, self.process.exit)

    def kill(self) -> None:
        self.process.kill()

    def wait(self, seconds: float) -> bool:
        return self.node.kernel.wait(lambda: not self.process.alive, [self.process.over], seconds)

    # the child's side ---------------------------------------------------------------------------------------

    def _main(self) -> None:
        kernel = self.node.kernel
        kernel.sleep(kernel.random.uniform(0.05, 0.5))
        self._send(
            Devices(gpus=self._gpus())
            if self._what == "gpus"
            else HostInfo(cpus=8, memory_total_bytes=MEMORY)
        )
        while True:
            kernel.sleep(1.0 / self._watch.hz)
            parts = self._of_gpus() if self._what == "gpus" else self._of_host()
            for part in parts:
                self.node.services.read(part)
            self._send(Sample(parts=tuple(parts)))

    def _send(self, message: Devices | HostInfo | Sample) -> None:
        kernel, frame = self.node.kernel, codec.framed(message)
        kernel.wait(lambda: sum(map(len, self._end.inbox)) < PIPE_BYTES, [self._room])
        self._free_at = max(self._free_at, kernel.now_ns, self.node.samplers_late_until_ns)
        kernel.at(self._free_at, lambda: self._arrive(frame))

    def _arrive(self, frame: bytes) -> None:
        self._end.inbox.append(frame)
        self._end.signal.set()

    def _gpus(self) -> tuple[GpuInfo, ...]:
        return tuple(
            GpuInfo(uuid=uuid, index=i, name="H100", memory_total_bytes=MEMORY) for i, uuid in enumerate(GPUS)
        )

    def _of_gpus(self) -> list[Columns]:
        random = self.node.kernel.random
        now = self.node.kernel.tick()
        used = LEAST_USED + (MOST_USED - LEAST_USED) * abs(self.node.kernel.seconds / SWEEP_S % 2.0 - 1.0)
        return [
            pack(
                f"gpu/{uuid}",
                [
                    (
                        now,
                        -1,
                        {
                            "memory_used_bytes": float(int(used + random.uniform(0.0, 1e8))),
                            "memory_total_bytes": float(MEMORY),
                            "power_w": random.uniform(300.0, 500.0),
                        },
                    )
                ],
            )
            for uuid in GPUS
        ]

    def _of_host(self) -> list[Columns]:
        random = self.node.kernel.random
        now = self.node.kernel.tick()
        busy = {"cpu_percent": random.uniform(10.0, 60.0), "memory_used_bytes": float(MEMORY // 2)}
        parts = [pack("host", [(now, -1, busy | {"memory_total_bytes": float(MEMORY)})])]
        return parts + [
            pack(f"process/{run}", [(now, -1, {"memory_rss_bytes": random.uniform(1e9, 2e9)})])
            for run in self._watch.pids
        ]
