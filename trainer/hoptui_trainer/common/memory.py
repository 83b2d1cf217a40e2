"""How much memory a step really takes: measured, never guessed from a number of parameters."""

from __future__ import annotations

import contextlib
import gc
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, ParamSpec, TypeVar, cast

import torch

from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.common.ranks import RankGroup

P = ParamSpec("P")
R = TypeVar("R")

EXHAUSTED = ("can't allocate memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""Texts of plain RuntimeErrors: of the CPU's allocator, of CUDA itself (graphs, libraries), of cuBLAS."""
WORTH = 1.01
"""A larger micro-batch is taken only if it is faster by so much: beyond the knee memory buys nothing."""

_earlier: dict[torch.device, int] = {}


class SizeTrial(NamedTuple):
    """One measured step of `size` samples: its peak memory in bytes, and how long a steady step takes."""

    size: int
    peak_bytes: int
    seconds: float


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, on the GPU or on the CPU."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in EXHAUSTED)


def shortage(error: BaseException) -> str:
    """Why memory ran out, in a few words: without what an allocator says of its own sources and settings."""
    text = str(error).partition("\n")[0]
    if match := re.search(r"tried to allocate ([\d.]+ ?\w+)", text, re.IGNORECASE):
        amount = match[1]
        if amount.endswith("bytes"):
            amount = f"{int(amount.split()[0]) / 1e6:,.0f} MB"
        return f"memory ran out: there was no room for {amount} more"
    if not text or any(words in text for words in EXHAUSTED):
        return "memory ran out"
    return text


def release(device: torch.device) -> None:
    """Give back what nothing refers to any more. Outside of an `except` block: a traceback holds every
    frame."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def insist(device: torch.device, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """What `work` returns; where memory runs out in it, once more after all was given back that nothing
    refers to.

    Only for work that has all the memory it needs before it changes anything. While a CUDA graph is captured
    it is done once: nothing can be given back there.
    """
    try:
        return work(*args, **kwargs)
    except (RuntimeError, MemoryError) as error:
        capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        if capturing or not is_out_of_memory(error):
            raise
    release(device)
    return work(*args, **kwargs)


def on_all_ranks(
    ranks: RankGroup, device: torch.device, work: Callable[[], R], *, compiles: bool = False
) -> R:
    """What `work` returns on this rank, which waits for no other one in it; all ranks call this, taking turns
    if it compiles.

    Raises:
        MemoryError: memory ran out in it, on this rank or on another one.
        UsageError: it refused an option, on this rank or on another one.
        RuntimeError: it raised something else on another rank.
    """
    found, error = None, None
    try:
        with ranks.turn(compiles=compiles):
            found = work()
    except Exception as raised:
        # Without its traceback, which would keep the memory of what failed.
        short = is_out_of_memory(raised)
        error = _without_frames(raised) if short else raised
    if isinstance(error, MemoryError):
        release(device)
    everybodys: list[tuple[type[Exception], str] | None] = ranks.gather(_failure(error))
    if error is not None:
        raise error
    for kind, text in filter(None, everybodys):
        raise kind(f"on another rank: {text}")
    return cast(R, found)


def _failure(error: Exception | None) -> tuple[type[Exception], str] | None:
    """What other ranks are to raise for an error of this one, without "on another rank"."""
    match error:
        case None:
            return None
        case UsageError():
            return UsageError, str(error)
        case MemoryError():
            return MemoryError, repr(error)
    return RuntimeError, repr(error)


def _without_frames(error: Exception) -> MemoryError:
    """A lack of memory as a MemoryError, without the frames that it came through."""
    own = type(error).__module__.partition(".")[0] == __name__.partition(".")[0]
    if own and isinstance(error, MemoryError):  # its class says more
        error.__context__ = error.__cause__ = None
        return error.with_traceback(None)
    return MemoryError(shortage(error))


def prove_first_step(ranks: RankGroup, prove_sizes: Callable[[], None]) -> None:
    """Before the first iteration: where one rank can compile for others, it does so now, and not in the
    middle of sums.

    `prove_sizes` is what does that before a change while training goes on. What there is no memory for gives
    way in the iteration itself.
    """
    if ranks.takes_turns:
        with contextlib.suppress(MemoryError):
            prove_sizes()


def reset_peak(device: torch.device) -> None:
    """Measure the peak from here on."""
    _earlier.pop(device, None)
    _restart_peak(device)


def set_peak_aside(device: torch.device) -> None:
    """Measure the peak from here on, beside a run: `greatest_bytes` goes on knowing what came before."""
    _earlier[device] = greatest_bytes(device) or 0
    _restart_peak(device)


def greatest_bytes(device: torch.device) -> int | None:
    """The most memory in use since `reset_peak`, whatever was measured aside in between; None if it is not
    known."""
    now = peak_bytes(device)
    return None if now is None else max(now, _earlier.get(device, 0))


def _restart_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with contextlib.suppress(OSError):  # then the peak is that of the whole process
        Path("/proc/self/clear_refs").write_text("5")  # proc(5): resets VmHWM


def peak_bytes(device: torch.device) -> int | None:
    """The most memory in use since `reset_peak` or `set_peak_aside`: reserved by torch on a GPU, resident on
    a CPU; None if it is not known."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return None


def pressure(device: torch.device) -> dict[str, int]:
    """`alloc_retries`: how often torch has given cached memory back because there was no more; nothing where
    it has no such cache."""
    return (
        {"alloc_retries": torch.cuda.memory_stats(device)["num_alloc_retries"]}
        if device.type == "cuda"
        else {}
    )


def choose_micro_batch(
    measure: Callable[[int], SizeTrial | None], *, most: int, limit: int, start: int = 1
) -> tuple[int, list[SizeTrial]]:
    """The micro-batch to begin with, and what was tried: powers of two from `start`, as long as each is
    faster.

    `measure` takes real steps of so many samples, and returns None when they did not fit. A size is tried
    only if a straight line through the peaks so far predicts that it stays within `limit`.

    Raises:
        MemoryError: not even `start` fits.
    """
    trials: list[SizeTrial] = []
    size = start
    while size <= most and predicted_peak(trials, size) <= limit:
        trial = measure(size)
        if trial is None or trial.peak_bytes > limit:
            break
        trials.append(trial)
        if len(trials) > 1 and _rate(trial) < WORTH * _rate(trials[-2]):
            break
        size *= 2
    if not trials:
        raise MemoryError(f"a micro-batch of {start} does not fit into the {limit / 1e9:.1f} GB there are")
    return max(trials, key=_rate).size, trials


def predicted_peak(trials: list[SizeTrial], size: int) -> float:
    """Peak bytes of a step of `size` by least squares over the trials; 0 before there are two."""
    if len(trials) < 2:
        return 0.0
    mean_size = sum(trial.size for trial in trials) / len(trials)
    mean_peak = sum(trial.peak_bytes for trial in trials) / len(trials)
    spread = sum((trial.size - mean_size) ** 2 for trial in trials)
    slope = sum((trial.size - mean_size) * (trial.peak_bytes - mean_peak) for trial in trials) / spread
    return mean_peak + slope * (size - mean_size)


def _rate(trial: SizeTrial) -> float:
    return trial.size / trial.seconds
