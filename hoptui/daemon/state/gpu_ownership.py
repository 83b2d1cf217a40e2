"""Assigns GPUs and processes to runs, from declarations, environments and the driver. No I/O, no guesses.

CUDA_VISIBLE_DEVICES is read as by CUDA (CUDA C++ Programming Guide, "Environment Variables"): indices or
UUIDs, which may be shortened while they stay unique. The list ends at the first invalid entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec import structs

from hoptui.domain.devices import GpuInfo, GpuProcess
from hoptui.node.processes import whose_pids

MOST_ANCESTORS = 64


class Ancestry:
    """Chains of ancestors by pid. A worker whose parent has died still counts as its descendant.

    `contained` means that pids are a container's, so the driver's pids, which are the machine's, cannot be
    looked up. Outside a container, an unknown pid belongs to another user, or is gone.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self.contained = whose_pids(proc) == "container"
        self._chains: dict[int, tuple[int, ...] | None] = {}

    def of(self, pids: Iterable[int]) -> Mapping[int, tuple[int, ...] | None]:
        """Return each process and its ancestors, nearest first; None for a pid outside this namespace."""
        known = self._chains
        self._chains = {pid: known[pid] if pid in known else self._climb(pid) for pid in pids}
        return self._chains

    def _climb(self, pid: int) -> tuple[int, ...] | None:
        chain: list[int] = []
        parent = self._parent(pid)
        if parent is None:
            return None
        while pid > 0 and len(chain) < MOST_ANCESTORS:
            chain.append(pid)
            if not parent:
                break
            pid, parent = parent, self._parent(parent)
        return tuple(chain)

    def _parent(self, pid: int) -> int | None:
        try:
            stat = (self._proc / str(pid) / "stat").read_text(errors="replace")
            return int(stat.rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return None


NO_DEVICES = ("", "-1", "NoDevFiles")


@dataclass(frozen=True)
class Claim:
    """A run's GPUs by its declaration and environment.

    They are declared UUIDs (or prefixes), CUDA_VISIBLE_DEVICES (None: not set), and Slurm's indices.
    """

    declared: tuple[str, ...] = ()
    visible: str | None = None
    slurm: str = ""


@dataclass(frozen=True)
class Contradiction:
    """The driver lists a process on none of the GPUs that it is said to have.

    `source` says it: `declared`, `visible` (CUDA_VISIBLE_DEVICES) or `slurm`. `named` and `listed` are UUIDs.
    """

    source: str
    named: tuple[str, ...]
    listed: tuple[str, ...]


@dataclass(frozen=True)
class Resolved:
    """A run's GPUs. `said` is False if they are known only from its processes, or unknown."""

    gpus: tuple[str, ...] = ()
    said: bool = False
    contradiction: Contradiction | None = None


def resolve(
    claim: Claim, gpus: Sequence[GpuInfo], seen: Iterable[str], listed: Iterable[str] = ()
) -> Resolved:
    """Return the UUIDs of a run's GPUs on this node.

    The first available source wins: declared UUIDs; UUIDs in CUDA_VISIBLE_DEVICES; Slurm's indices, if this
    node shows all of them; indices in CUDA_VISIBLE_DEVICES; the driver's view. Indices are used only if all
    GPUs are of one kind: else CUDA sorts the fastest first, and the driver sorts by bus.

    An environment that was changed after CUDA had been initialized says nothing true. So one that names none
    of the GPUs in `listed` loses against the driver. A declaration does not: it may be for other processes.

    Args:
        seen: GPUs with processes of the run, also with those that it has started.
        listed: GPUs with the very process that claims.
    """
    own = _of(gpus, list(listed))
    found = _of(gpus, list(seen))
    contradiction = None
    for source, named in _named(claim, gpus):
        if not elsewhere(named, own, gpus):
            return Resolved(named, said=True)
        found = own
        if contradiction is None and (named or _hides_all(claim)):  # not one of a GPU that nobody knows
            contradiction = Contradiction(source, named, own)
        if source == "declared":
            return Resolved(named, said=True, contradiction=contradiction)
    return Resolved(found, contradiction=contradiction)


def _named(claim: Claim, gpus: Sequence[GpuInfo]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each source that says which GPUs are the process's, the first one first."""
    if claim.declared:
        yield "declared", _of(gpus, [_by_uuid(entry, gpus) for entry in claim.declared])
    visible = claim.visible
    if _hides_all(claim):
        yield "visible", ()
        return
    entries = [entry.strip() for entry in visible.split(",")] if visible is not None else []
    if entries and entries[0].startswith(("GPU-", "MIG-")):
        yield "visible", _of(gpus, _until_none(_by_uuid(entry, gpus) for entry in entries))
        return
    whole = [gpu for gpu in gpus if not gpu.parent]
    if len({gpu.name for gpu in whole}) == 1:
        given = [_by_index(entry.strip(), whole) for entry in claim.slurm.split(",") if entry.strip()]
        if given and None not in given:
            yield "slurm", _of(gpus, given)
        if entries:
            yield "visible", _of(gpus, _until_none(_entry(entry, gpus, whole) for entry in entries))


def _hides_all(claim: Claim) -> bool:
    return claim.visible is not None and claim.visible.strip() in NO_DEVICES


def _overlap(one: str, other: str, gpus: Sequence[GpuInfo]) -> bool:
    """Whether two devices are the same, or one is an instance of the other."""
    parents = {gpu.uuid: gpu.parent for gpu in gpus}
    return one == other or parents.get(one) == other or parents.get(other) == one


def elsewhere(own: Iterable[str], listed: Iterable[str], gpus: Sequence[GpuInfo]) -> bool:
    """Whether the driver lists processes, and none of them on one of these GPUs."""
    own, listed = list(own), list(listed)
    return bool(listed) and not any(_overlap(one, other, gpus) for one in own for other in listed)


def together(ranks: Sequence[Resolved], gpus: Sequence[GpuInfo]) -> Resolved:
    """Return the GPUs of all ranks of a run, in the node's order."""
    own = {uuid for rank in ranks for uuid in rank.gpus}
    said = any(rank.said for rank in ranks)
    contradiction = next((rank.contradiction for rank in ranks if rank.contradiction is not None), None)
    return Resolved(tuple(gpu.uuid for gpu in gpus if gpu.uuid in own), said, contradiction)


def assign(
    processes: Sequence[GpuProcess],
    chains: Mapping[int, tuple[int, ...] | None],
    runs: Mapping[int, str],
    said: Mapping[str, Iterable[str]],
) -> tuple[GpuProcess, ...]:
    """Return the processes with their run filled in, if it is certain.

    Args:
        chains: a process and its ancestors, nearest first; None for a pid of another namespace.
        runs: the pid of each live run's process, and the run.
        said: a GPU, and the live runs that claim it by declaration or environment. Only for a container
            with its own pids: elsewhere an unknown process may belong to any user.
    """
    own = [_nearest(chains.get(process.pid), runs) for process in processes]
    seen = {(process.gpu, run) for process, run in zip(processes, own, strict=True)}
    hidden = [process.gpu for process in processes if chains.get(process.pid) is None]
    found = []
    for process, run in zip(processes, own, strict=True):
        if chains.get(process.pid) is None and hidden.count(process.gpu) == 1:
            # In a container: a single unknown process, and a single run that claims the GPU.
            claimed = tuple(said.get(process.gpu, ()))
            run = claimed[0] if len(claimed) == 1 and (process.gpu, claimed[0]) not in seen else ""
        found.append(structs.replace(process, run=run) if run != process.run else process)
    return tuple(found)


def _nearest(chain: tuple[int, ...] | None, runs: Mapping[int, str]) -> str:
    return next((runs[pid] for pid in chain or () if pid in runs), "")


def _of(gpus: Sequence[GpuInfo], uuids: Sequence[str | None]) -> tuple[str, ...]:
    """Return known UUIDs in the node's order, without duplicates."""
    wanted = set(uuids)
    return tuple(gpu.uuid for gpu in gpus if gpu.uuid in wanted)


def _until_none(found: Iterable[str | None]) -> list[str]:
    kept = []
    for uuid in found:
        if uuid is None:
            break
        kept.append(uuid)
    return kept


def _entry(entry: str, gpus: Sequence[GpuInfo], whole: Sequence[GpuInfo]) -> str | None:
    return _by_uuid(entry, gpus) if entry.startswith(("GPU-", "MIG-")) else _by_index(entry, whole)


def _by_uuid(entry: str, gpus: Sequence[GpuInfo]) -> str | None:
    """Return the only GPU or MIG instance whose UUID has this prefix. PyTorch omits `GPU-`."""
    wanted = entry if entry.startswith(("GPU-", "MIG-")) else f"GPU-{entry}"
    fitting = [gpu.uuid for gpu in gpus if gpu.uuid.lower().startswith(wanted.lower())]
    return fitting[0] if len(fitting) == 1 and len(wanted) > len("GPU-") else None


def _by_index(entry: str, whole: Sequence[GpuInfo]) -> str | None:
    if not entry.isascii() or not entry.isdigit():
        return None
    return next((gpu.uuid for gpu in whole if str(gpu.index) == (entry.lstrip("0") or "0")), None)
