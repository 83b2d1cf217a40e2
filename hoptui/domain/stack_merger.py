"""Stack samples of several processes and spans of time, with the names, frames and stacks of all once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from hoptui.domain.stacks import StackSamples

Frame = tuple[int, int, int, int, int, int, int]
"""As in `StackSamples.frames`."""
NumberedStack = tuple[int, ...]
MOST_FRAMES = 1 << 21
"""Frames of all different stacks of a merger. Samples of further stacks are left out."""
MOST_TEXT = 16 << 20
"""Characters of all names of a merger."""
_STACK, _FRAME, _NAME = 2, 14, 2
"""Estimated bytes of a frame in a stack, of a new frame, and of a new name besides its text."""
_ENTRY = 3
"""Estimated bytes of a count."""


class RankCounts(NamedTuple):
    """How often each stack of a process was found, by its index, and how many samples are left out."""

    stacks: tuple[int, ...]
    counts: tuple[int, ...]
    left_out: int


class SharedStacks(NamedTuple):
    """Samples of several processes. The tables are as in `StackSamples`, and common to all of them."""

    names: tuple[str, ...]
    frames: tuple[Frame, ...]
    stacks: tuple[NumberedStack, ...]
    ranks: dict[int, RankCounts]
    packages: tuple[tuple[int, int], ...] = ()


class SampleSpan:
    """The time of the samples of a process: first and last stamp in ns, and the mean cost."""

    def __init__(self) -> None:
        self.began, self.ended = 0, 0
        self._whole = self._spent = 0.0

    def add(self, samples: StackSamples) -> None:
        """Add the time of some samples."""
        self.began = samples.began if not self._whole else min(self.began, samples.began)
        self.ended = samples.ended if not self._whole else max(self.ended, samples.ended)
        self._whole += max(1, samples.ended - samples.began)
        self._spent += samples.cost * max(1, samples.ended - samples.began)

    @property
    def cost(self) -> float:
        """The share of the sampling thread in the time."""
        return self._spent / self._whole if self._whole else 0.0


class StackMerger:
    """Adds up samples by rank. Its memory is bounded: what does not fit is left out and counted."""

    def __init__(self) -> None:
        self.spans: dict[int, SampleSpan] = {}
        self._names: dict[str, int] = {}
        self._packages: dict[int, int] = {}  # the number of a file's name -> where the path of its package is
        self._frames: dict[Frame, int] = {}
        self._stacks: dict[NumberedStack, int] = {}
        self._counts: dict[int, Counter[int]] = {}
        self._left_out: Counter[int] = Counter()
        self._size = self._text = 0
        self._mapped: tuple[tuple[Frame, ...], list[int]] = ((), [])

    def add(self, rank: int, samples: StackSamples) -> None:
        """Add the samples of a process of one span of time. They have been checked."""
        self.spans.setdefault(rank, SampleSpan()).add(samples)
        self._left_out[rank] += samples.left_out
        counts = self._counts.setdefault(rank, Counter())
        if self._full:
            self._left_out[rank] += sum(samples.counts)
            return
        frames = self._frames_of(samples)
        for stack, count in zip(samples.stacks, samples.counts, strict=True):
            number = self._number(tuple([frames[index] for index in stack]))
            if number < 0:
                self._left_out[rank] += count
            else:
                counts[number] += count

    def shared(self, most_bytes: int) -> SharedStacks:
        """Return as many samples as about `most_bytes` hold, the most frequent stacks of each rank first."""
        names = list(self._names)
        frames = list(self._frames)
        stacks = list(self._stacks)
        kept_names: dict[int, int] = {}
        kept_frames: dict[int, int] = {}
        kept_stacks: dict[int, int] = {}
        found: dict[int, list[tuple[int, int]]] = {rank: [] for rank in sorted(self._counts)}
        left_out = Counter(self._left_out)
        size = 0
        for rank, number, count in _by_frequency(self._counts):
            more = _ENTRY
            if number not in kept_stacks:
                fresh = {index for index in stacks[number] if index not in kept_frames}
                spelled = {n for index in fresh for n in frames[index][:3] if n not in kept_names}
                text = sum(_NAME + len(names[n].encode("utf-8", "replace")) for n in spelled)
                more += _STACK * len(stacks[number]) + _FRAME * len(fresh) + text
            if size + more > most_bytes:
                left_out[rank] += count
                continue
            size += more
            if number not in kept_stacks:
                kept_stacks[number] = len(kept_stacks)
                for index in stacks[number]:
                    kept_frames.setdefault(index, len(kept_frames))
                    for n in frames[index][:3]:
                        kept_names.setdefault(n, len(kept_names))
            found[rank].append((kept_stacks[number], count))
        return SharedStacks(
            tuple(names[n] for n in kept_names),
            tuple(_renamed(frames[index], kept_names) for index in kept_frames),
            tuple(tuple(kept_frames[index] for index in stacks[number]) for number in kept_stacks),
            {
                rank: RankCounts(tuple(s for s, _ in each), tuple(c for _, c in each), left_out[rank])
                for rank, each in found.items()
            },
            tuple((kept_names[n], at) for n, at in self._packages.items() if n in kept_names),
        )

    def merged(self, rank: int, most_bytes: int) -> StackSamples:
        """Return the samples of one process, as many as about `most_bytes` hold."""
        one = StackMerger()
        one._names, one._packages = self._names, self._packages
        one._frames, one._stacks = self._frames, self._stacks
        one._counts = {rank: self._counts[rank]}
        one._left_out[rank] = self._left_out[rank]
        found = one.shared(most_bytes)
        whole = self.spans[rank]
        return samples_of(found, rank, whole.began, whole.ended, whole.cost)

    @property
    def _full(self) -> bool:
        return self._size >= MOST_FRAMES or self._text >= MOST_TEXT

    def _frames_of(self, samples: StackSamples) -> list[int]:
        """Return the number of each frame of some samples. Processes of one message have common tables."""
        if self._mapped[0] is not samples.frames:
            names = [self._name(name) for name in samples.names]
            self._packages.update((names[name], at) for name, at in samples.packages)
            self._mapped = (
                samples.frames,
                [
                    self._frames.setdefault(_renamed(frame, names), len(self._frames))
                    for frame in samples.frames
                ],
            )
        return self._mapped[1]

    def _name(self, name: str) -> int:
        if name not in self._names:
            self._text += len(name)
        return self._names.setdefault(name, len(self._names))

    def _number(self, stack: NumberedStack) -> int:
        """Return the number of a stack, -1 for a new one if there is no space."""
        number = self._stacks.get(stack, -1)
        if number < 0 and self._size + len(stack) <= MOST_FRAMES:
            number = self._stacks[stack] = len(self._stacks)
            self._size += len(stack) + 1
        return number


def samples_of(shared: SharedStacks, rank: int, began: int, ended: int, cost: float) -> StackSamples:
    """Return the samples of one process. It has the tables of all."""
    found = shared.ranks[rank]
    return StackSamples(
        began=began,
        ended=ended,
        names=shared.names,
        frames=shared.frames,
        stacks=tuple(shared.stacks[index] for index in found.stacks),
        counts=found.counts,
        left_out=found.left_out,
        cost=cost,
        packages=shared.packages,
    )


def _by_frequency(counts: Mapping[int, Counter[int]]) -> Iterator[tuple[int, int, int]]:
    """Yield rank, stack and count: the first stack of every rank, then the second ones, and so on."""
    ordered = {rank: each.most_common() for rank, each in sorted(counts.items())}
    for place in range(max(map(len, ordered.values()), default=0)):
        for rank, each in ordered.items():
            if place < len(each):
                yield rank, *each[place]


def _renamed(frame: Frame, names: Mapping[int, int] | list[int]) -> Frame:
    file, function, call, *place = frame
    return (names[file], names[function], names[call], *place)  # type: ignore[return-value]
