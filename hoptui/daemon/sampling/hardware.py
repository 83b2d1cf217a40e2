"""The node's GPUs and host, put together from what both samplers say and from what their parents find out. No
I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import structs

from hoptui.domain.devices import Devices, GpuInfo, HostInfo
from hoptui.node.driver_probe import DRIVER

NO_ANSWER = "does not answer: a driver call hung"
DRIVER_HANGS = "the driver does not answer: a call into it hung"
NOT_LISTED = "no longer listed by the driver"


class Hardware:
    """Facts about the GPUs, also of those that cannot be read now: these keep their place, with the reason.

    `gpus` are in the order of their indices, a MIG instance after its GPU; `reason` says in one line why
    there are no readings at all.
    """

    def __init__(self) -> None:
        self.host = HostInfo()
        self.gpus: tuple[GpuInfo, ...] = ()
        self.reason = "the GPU sampler has not answered yet"
        self._told = Devices(reason=self.reason)
        self._known: dict[str, GpuInfo] = {}
        self._left: Mapping[int, float] = {}

    def told(self, devices: Devices) -> None:
        """The sampler lists GPUs, or says why it cannot."""
        self._told = devices
        self._known.update((gpu.uuid, gpu) for gpu in devices.gpus)
        self._merge()

    def troubled(self, problem: str) -> bool:
        """The sampler died or hangs ("": it does not): the reason as long as no GPU is known, until it speaks
        again.

        Returns whether that is news.
        """
        if not problem or self._known or problem == self._told.reason:
            return False
        self._told = Devices(reason=problem)
        self._merge()
        return True

    def leave(self, left: Mapping[int, float]) -> bool:
        """These GPUs (by index, or `DRIVER` for all) are left alone, each tried again after so many seconds.

        Returns whether that is news.
        """
        if dict(left) == dict(self._left):
            return False
        self._left = dict(left)
        self._merge()
        return True

    def _merge(self) -> None:
        there = {gpu.uuid for gpu in self._told.gpus}
        merged = [self._told_of(gpu) for gpu in self._told.gpus]
        for uuid in [uuid for uuid in self._known if uuid not in there]:
            gpu = self._known[uuid]
            reason = self._absent(gpu)
            if reason:
                merged.append(structs.replace(gpu, reason=reason))
            else:
                del self._known[uuid]
        self.gpus = tuple(sorted(merged, key=lambda gpu: (gpu.index, bool(gpu.parent))))
        self.reason = DRIVER_HANGS if DRIVER in self._left else self._told.reason

    def _told_of(self, gpu: GpuInfo) -> GpuInfo:
        """A GPU of the newest list; that may be older than the hang."""
        reason = self._hang(gpu)
        return structs.replace(gpu, reason=reason) if reason else gpu

    def _absent(self, gpu: GpuInfo) -> str:
        """Why a known GPU is not in the newest list; "" for a MIG instance that was taken apart."""
        return self._hang(gpu) or self._told.reason or ("" if gpu.parent else NOT_LISTED)

    def _hang(self, gpu: GpuInfo) -> str:
        if DRIVER in self._left:
            return f"{DRIVER_HANGS}; it is asked again after {self._left[DRIVER]:.0f} s"
        parent = self._known.get(gpu.parent)
        index = parent.index if parent is not None else gpu.index
        if index in self._left:
            return f"{NO_ANSWER}; it is tried again after {self._left[index]:.0f} s"
        return ""


def changes(before: Iterable[GpuInfo], after: Iterable[GpuInfo]) -> list[tuple[GpuInfo, str]]:
    """The GPUs whose `reason` came, went or changed in kind, with what to tell of each in a few words."""
    known = {gpu.uuid: gpu for gpu in before}
    found = []
    for gpu in after:
        was = known.get(gpu.uuid)
        if was is None or gpu.reason == was.reason:
            continue
        if gpu.reason and was.reason and gpu.reason.partition(";")[0] == was.reason.partition(";")[0]:
            continue  # tried again in vain: the pause alone is another
        found.append((gpu, gpu.reason or "back: it can be read again"))
    return found
