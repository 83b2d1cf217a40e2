"""The processes that train together: one object for "how many of us", which is there without
torch.distributed too.

Tensors that decide the training are added up on a group of their own (NCCL on GPUs, gloo on CPUs); what the
ranks agree on beside that goes over a gloo group in host memory and never waits for a GPU.
"""

from __future__ import annotations

import functools
import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

import hoptui
import hoptui.sdk
from hoptui.sdk import TorchStore
from hoptui_trainer.common.compile_cache import followers, kernel_cache
from hoptui_trainer.common.device import gpu_uuid, take_gpu
from hoptui_trainer.common.errors import LostRankError, UsageError
from hoptui_trainer.common.heartbeat import SILENT_S, Heartbeat
from hoptui_trainer.common.modes import DeviceName

JOIN_LIMIT = timedelta(minutes=5)
TRAINING_LIMIT, CONTROL_LIMIT = timedelta(minutes=10), timedelta(minutes=30)
"""How long a rank may keep the others waiting in a sum, and elsewhere (it compiles for them, evaluates,
writes a checkpoint). One that is gone is known within seconds by its heartbeat."""
STORE_LIMIT = timedelta(seconds=10)
GRACE_S = 3.0
"""So long a rank may take to end by itself after another one was lost."""
REASON_S = SILENT_S + 4.0
RESTARTS = "TRAINER_RESTARTS"
"""In the environment: how often this process has replaced itself by a new one, which meets the others
anew."""
VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT")


@dataclass(frozen=True)
class RankGroup:
    """This process among `world` that train together; alone, every operation returns at once.

    `local_rank` of `local_world` are on this machine. All ranks call an operation, and in the same order. As
    a context manager it ends the group, and sends the other ranks the exception that leaves it.
    """

    rank: int
    world: int
    local_rank: int
    local_world: int

    _turns = _follows = False  # whether some compile for others, and whether another does for this one

    @property
    def core_sharers(self) -> int:
        """How many ranks of this machine use this one's CPU cores, itself included."""
        return self.local_world

    @property
    def store(self) -> hoptui.sdk.RankStore | None:
        """What the ranks agree on commands with; alone there is none."""
        return None

    def add(self, tensor: Tensor) -> None:
        """Replace `tensor` by its sum over all ranks, in place. On a GPU it is queued, and nothing waits."""

    def all(self, ok: bool) -> bool:
        """Whether it is so on every rank."""
        return ok

    def share(self, payload: bytes | None) -> bytes:
        """Rank 0's bytes, on every rank; what others pass is not looked at."""
        return payload or b""

    def gather(self, value: object) -> list[Any]:
        """The values of all ranks, in order of rank."""
        return [value]

    @property
    def takes_turns(self) -> bool:
        """Whether some of the ranks compile for others."""
        return self._turns

    @contextmanager
    def turn(self, *, compiles: bool) -> Iterator[None]:
        """In here a rank compiles, and waits for no other one; all ranks enter, and `compiles` is the same on
        all.

        Those that compile for others go first. The others come in when these have left, and find on disk what
        was compiled and measured: so they all run the same. No rank waits if none compiles, or each compiles
        for itself.
        """
        waits = compiles and self._turns
        if waits and self._follows:
            self.all(True)
        try:
            yield
        except Exception:
            # The others are let in too. What is no Exception ends this process, and the heartbeat reports
            # that to them.
            if waits and not self._follows:
                self.all(True)
            raise
        if waits and not self._follows:
            self.all(True)

    @contextmanager
    def guard(self, run: hoptui.Run) -> Iterator[None]:
        """While entered: `run` is closed when another rank is gone, and errors of collectives name the rank
        and the reason.

        Raises:
            LostRankError: in place of an error that a lost rank led to.
        """
        yield

    def close(self) -> None:
        """Wait for the other ranks to come here, and end the group."""

    def outlast(self) -> None:
        """After `close`: wait until the store of these ranks has gone, if rank 0's process hosts it."""

    def __enter__(self) -> RankGroup:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


ALONE = RankGroup(rank=0, world=1, local_rank=0, local_world=1)


def join(device: DeviceName) -> RankGroup:
    """Meet the other ranks, as torchrun's environment names them; ALONE without it. Makes the local rank's
    GPU the current one.

    Raises:
        UsageError: the environment contradicts itself, there are not enough GPUs, or the others did not come
            in time.
    """
    place = _place(os.environ)
    if place.world == 1:
        return ALONE
    if dist.is_initialized():
        raise UsageError("the ranks' last job in these processes ended by an error: start them anew")
    on_gpu = device != "cpu" and take_gpu(place.local_rank, place.local_world)
    try:
        ranks = _Joined(place, on_gpu=on_gpu)
    except (RuntimeError, ValueError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise UsageError(
            f"rank {place.rank} of {place.world} did not meet the others at {where}: {first}"
        ) from None
    ranks.compare(torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu"))
    return ranks


def _place(environ: Mapping[str, str]) -> RankGroup:
    """This process's place by the environment; no other rank has been met yet."""
    if "RANK" not in environ and "WORLD_SIZE" not in environ:
        return ALONE
    if environ.get("WORLD_SIZE") == "1":
        return ALONE
    missing = [name for name in (*VARIABLES, "MASTER_ADDR") if not environ.get(name)]
    if missing:
        raise UsageError(
            f"RANK and WORLD_SIZE are set, but not {', '.join(missing)}: start ranks with torchrun, or "
            "unset them"
        )
    numbers = {}
    for name in VARIABLES:
        try:
            numbers[name] = int(environ[name])
        except ValueError:
            raise UsageError(f"{name}={environ[name]}: this is no whole number") from None
    rank, world = numbers["RANK"], numbers["WORLD_SIZE"]
    local_rank, local_world = numbers["LOCAL_RANK"], numbers["LOCAL_WORLD_SIZE"]
    if not 0 <= rank < world:
        raise UsageError(f"RANK={rank}: with WORLD_SIZE={world} there is no such rank")
    if not 0 <= local_rank < local_world <= world:
        raise UsageError(
            f"LOCAL_RANK={local_rank}: with LOCAL_WORLD_SIZE={local_world} there is no such rank"
        )
    if not 0 < numbers["MASTER_PORT"] < 1 << 16:
        raise UsageError(f"MASTER_PORT={numbers['MASTER_PORT']}: this is no port")
    return RankGroup(rank, world, local_rank, local_world)


class _Joined(RankGroup):
    """Ranks that have met."""

    def __init__(self, place: RankGroup, *, on_gpu: bool) -> None:
        super().__init__(place.rank, place.world, place.local_rank, place.local_world)
        of_torchrun = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        self._hosted = not of_torchrun  # by rank 0
        meeting = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), self.world)
        store = _store(*meeting, hosts=self._hosted and self.rank == 0)
        # Torchrun's store outlives processes and jobs: what earlier ones wrote there must not be read again.
        job = f"{restarts(os.environ)}.{next(_jobs)}"
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            store=PrefixStore(f"trainer/{job}", store),
            rank=self.rank,
            world_size=self.world,
            timeout=TRAINING_LIMIT,
            device_id=torch.device("cuda", torch.cuda.current_device()) if on_gpu else None,
        )
        # A connection of its own: a call that waits holds a store's lock.
        self._own = TCPStore(*meeting, is_master=False, timeout=STORE_LIMIT)
        host = "torchrun of the first machine" if of_torchrun else "rank 0"
        self._control = dist.new_group(backend="gloo", timeout=CONTROL_LIMIT)
        self._tell: Callable[[str], None] = _nobody
        self._closed = False
        self._core_sharers = self.local_world
        commands = TCPStore(*meeting, is_master=False, timeout=STORE_LIMIT)
        self._commands = TorchStore(PrefixStore(f"commands/{job}", commands), self.rank, self.world)
        beats = PrefixStore(f"heartbeat/{job}", self._own)
        self._heartbeat = Heartbeat(beats, self.rank, self.world, host, self._lost)
        self._heartbeat.start()

    @property
    def core_sharers(self) -> int:
        return self._core_sharers

    @property
    def store(self) -> hoptui.sdk.RankStore | None:
        return self._commands

    def add(self, tensor: Tensor) -> None:
        with self._explained():
            dist.all_reduce(tensor)

    def all(self, ok: bool) -> bool:
        flag = torch.tensor(int(ok), dtype=torch.int32)
        with self._explained():
            dist.all_reduce(flag, dist.ReduceOp.MIN, group=self._control)
        return bool(flag)

    def share(self, payload: bytes | None) -> bytes:
        mine = payload or b""
        length = torch.tensor(len(mine))
        with self._explained():
            dist.broadcast(length, 0, group=self._control)
            count = int(length)
            if not count:
                return b""
            content = torch.empty(count, dtype=torch.uint8)
            if self.rank == 0:
                content = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
            dist.broadcast(content, 0, group=self._control)
        return content.numpy().tobytes()

    def gather(self, value: object) -> list[Any]:
        found: list[Any] = [None] * self.world
        with self._explained():
            dist.all_gather_object(found, value, group=self._control)
        return found

    @contextmanager
    def guard(self, run: hoptui.Run) -> Iterator[None]:
        self._tell = lambda reason: run.close("exception", reason)
        try:
            with self._explained():
                yield
        except LostRankError:
            raise
        except BaseException as error:
            self._heartbeat.post(self._words(error))
            raise
        finally:
            self._tell = _nobody

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._heartbeat.leave()
        with self._explained():
            dist.barrier(group=self._control)
        self._heartbeat.stop()
        dist.destroy_process_group()

    def outlast(self) -> None:
        end = time.monotonic() + STORE_LIMIT.total_seconds()
        while self._hosted and self.rank and time.monotonic() < end:
            try:
                self._own.check([""])
            except RuntimeError:
                return
            time.sleep(0.05)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        elif not isinstance(error, LostRankError):
            # The groups are left as they are: to end them may wait for the very rank that is gone.
            self._heartbeat.post(self._words(error))

    def compare(self, device: torch.device) -> None:
        """Learn which ranks compile the same and which use the same cores, and refuse two on one GPU, for
        which NCCL's own words are hard to read."""
        own = gpu_uuid(device), kernel_cache(device), os.sched_getaffinity(0)
        uuids, caches, cores = zip(*self.gather(own), strict=True)
        first = self.rank - self.local_rank
        self._core_sharers = sharers(cores[first : first + self.local_world], self.local_rank)
        if device.type == "cuda" and len(set(uuids)) < self.world:
            raise UsageError(f"{self.world} ranks on {len(set(uuids))} GPUs: start one a GPU")
        follow = followers(caches)
        self._turns, self._follows = any(follow), follow[self.rank]

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn the error of a collective into the reason behind it, which the heartbeat learns a little
        later."""
        try:
            yield
        except RuntimeError as error:
            if not _of_a_collective(error):
                raise
            reason = self._heartbeat.wait(REASON_S) or self._heartbeat.post(self._words(error))
            raise LostRankError(reason) from error

    def _words(self, error: BaseException) -> str:
        text = str(error).strip()
        return f"rank {self.rank}: {type(error).__name__}" + (f": {text}" if text else "")

    def _lost(self, reason: str) -> None:
        """A rank is gone (in the heartbeat's thread): print the reason, and end even if the main thread waits
        without a limit."""
        with suppress(OSError):  # its reader may have gone as well
            # In one piece: the main thread may be writing a traceback.
            os.write(2, f"hoptui train: {reason}\n".encode())
        if self._heartbeat.stopped(GRACE_S):
            return
        self._tell(reason)
        os._exit(1)


_jobs = itertools.count()


@functools.cache
def _store(address: str, port: int, world: int, *, hosts: bool) -> TCPStore:
    """Where ranks meet; it stays for the next job of this process, which others may begin sooner."""
    return TCPStore(address, port, world, is_master=hosts, timeout=JOIN_LIMIT, multi_tenant=True)


def sharers(cores: Sequence[Set[int]], local_rank: int) -> int:
    """How many ranks of a machine may use a core of that local rank's. torchrun leaves all cores to each,
    Slurm gives each its own."""
    return sum(not own.isdisjoint(cores[local_rank]) for own in cores)


def restarts(environ: Mapping[str, str]) -> int:
    """How often this process has replaced itself."""
    return int(environ.get(RESTARTS, "0"))


def _nobody(_: str) -> None:
    pass


def _of_a_collective(error: RuntimeError) -> bool:
    """gloo raises plain errors, which name its source files."""
    text = str(error)
    return isinstance(error, dist.DistError) or "gloo" in text or "NCCL" in text
