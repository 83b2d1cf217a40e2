"""Trial passes with the sizes of the next step: memory and time are measured, the gradient is dropped."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple, TypeVar

from hoptui_trainer.common.compilation import Shapes
from hoptui_trainer.common.device import wait_for
from hoptui_trainer.common.flat_gradient import FlatGradient
from hoptui_trainer.common.gradient import Pieces
from hoptui_trainer.common.memory import (
    SizeTrial,
    choose_micro_batch,
    is_out_of_memory,
    on_all_ranks,
    peak_bytes,
    predicted_peak,
    release,
    set_peak_aside,
)
from hoptui_trainer.common.memory_budget import limit_bytes
from hoptui_trainer.common.ranks import RankGroup

R = TypeVar("R")

STRIDE = 4
"""A CPU's next trial is so many times as large as the one before."""


class Sizes(NamedTuple):
    """The micro-batches that a workload considers, and its words for them.

    On a GPU sizes from `first` to `most` are measured. On a CPU it is `rule`, because no choice may depend on
    a timing there: one seed gives one result. A sample counts `each` `unit`, and many are called `samples`.
    """

    rule: int
    first: int
    most: int
    each: int
    unit: str
    samples: str


class DryRun:
    """Tries micro-batches before they are used. All ranks call a method together; it raises on all of them or
    on none.

    Args:
        passes: forward and backward over so many samples.
        gradient: what `passes` adds to; cleared afterwards.
        shapes: what `passes` calls its compiled functions with.
        pieces: learns the sizes that are to be used, and those that are too much.
        notes: takes a line on how a size was chosen.
    """

    def __init__(
        self,
        passes: Callable[[int], None],
        gradient: FlatGradient,
        shapes: Shapes,
        pieces: Pieces,
        ranks: RankGroup,
        notes: list[str],
    ) -> None:
        self._passes, self._gradient, self._shapes = passes, gradient, shapes
        self._pieces, self._ranks, self._notes = pieces, ranks, notes
        self._device = gradient.flat.device
        self._reached = 0

    def choose(self, wanted: int, share: int, sizes: Sizes, *, give_way: bool = False) -> int:
        """Cut batches into pieces of `wanted` samples, or with 0 of the best size, but never of more than
        `share`.

        Returns the size. With `give_way` it is smaller than `wanted` if so many do not fit, and a note
        reports that. A size that is asked for is tried out on a CPU alone: memory that is not there is an
        error on a GPU, and the end of the process on a CPU.

        Raises:
            MemoryError: so many do not fit, or with `give_way` not even one; nothing has changed.
        """
        if self._device.type != "cpu":
            size = min(wanted, share) or self.fastest(share, sizes)
            self._pieces.resize(size)
            return size
        before = self._pieces.micro_batch
        size = min(wanted, share) or min(sizes.rule, self._most(share))
        self._pieces.resize(size)
        if self._pieces.meets:
            return size
        limit = self._limit()
        if size > self._reached:
            self._ranks.all(True)  # have looked, before one takes memory of the machine that they share
            climb = partial(self._climb, size, limit, all_or_nothing=bool(wanted) and not give_way)
            reached = on_all_ranks(self._ranks, self._device, climb)
            self._reached = int(min(self._ranks.gather(reached)))
        if size > self._reached:
            self._pieces.too_much(size)
            self._pieces.micro_batch = before
            if not self._reached and (give_way or not wanted):
                raise MemoryError(
                    f"not even one of the {sizes.samples} fits into the memory: {limit / 1e9:.1f} GB may be "
                    "used"
                )
            if wanted and not give_way:
                raise MemoryError(f"{_too_many(size, sizes.samples)}: {limit / 1e9:.1f} GB may be used")
            if wanted:
                self._notes.append(f"{_too_many(size, sizes.samples)}: pieces of {self._reached} instead")
            self._pieces.micro_batch = size = self._reached
        return size

    def most(self, share: int) -> int:
        """How many samples, up to `share`, each rank has the memory for at once; 0 if not for one.

        Found by passes that are not compiled, which take more memory than compiled ones, over four times as
        many samples each time.
        """
        limit = self._limit()
        self._ranks.all(True)  # have looked, before one takes memory of the machine that they share
        if self._pieces.meets:
            limit = min(self._ranks.gather(limit))
        climb = partial(self._climb, share, limit, all_or_nothing=False, start=1)
        reached = climb() if self._pieces.meets else on_all_ranks(self._ranks, self._device, climb)
        found = int(min(self._ranks.gather(reached)))
        self._reached = max(self._reached, found)
        return found

    def fastest(self, share: int, sizes: Sizes) -> int:
        """The fastest micro-batch that fits, by passes of real sizes; of several ranks' findings the
        smallest.

        Raises:
            MemoryError: not even one sample fits.
        """
        most = min(sizes.most, self._most(share))
        first, limit = min(most, sizes.first), self._limit()
        measure = self.measure
        if self._pieces.meets:
            measure, limit = self._measure_together, min(self._ranks.gather(limit))

        def choose() -> tuple[int, list[SizeTrial], str]:
            try:
                try:
                    return *choose_micro_batch(measure, start=first, most=most, limit=limit), ""
                except MemoryError:
                    return *choose_micro_batch(measure, start=1, most=first, limit=limit), ""
            except MemoryError as error:
                return 0, [], str(error)

        size, trials, problem = self._compiled(choose)
        found: list[tuple[int, str]] = self._ranks.gather((size, problem))
        if reason := next((text for _, text in found if text), ""):
            raise MemoryError(reason)
        tried = ", ".join(
            f"{trial.size}: {trial.size * sizes.each / trial.seconds:,.0f} {sizes.unit}/s" for trial in trials
        )
        self._notes.append(f"micro-batch chosen by measurement: {size} ({tried})")
        return min(own for own, _ in found)

    def prove(self, sizes: Iterable[int], samples: str) -> None:
        """Compute pieces of these sizes once: this compiles, and shows whether they fit. `samples` is a word
        for an error.

        Raises:
            MemoryError: one of them does not.
        """
        largest = sorted(sizes, reverse=True)
        own = self._compiled(lambda: next((size for size in largest if not self._fits(size)), 0))
        if short := max(self._ranks.gather(own)):
            self._pieces.too_much(short)
            raise MemoryError(_too_many(short, samples))

    def forget(self) -> None:
        """What a sample takes has changed: nothing is known any more of what fits."""
        self._reached = 0
        self._pieces.forget()

    def measure(self, size: int) -> SizeTrial | None:
        """Two steady passes over `size` samples, after one that compiles; None if they do not fit."""
        set_peak_aside(self._device)
        fits, began = self._fits(size), time.monotonic()
        fits = fits and self._fits(size) and self._fits(size)
        seconds, peak = (time.monotonic() - began) / 2, peak_bytes(self._device)
        release(self._device)
        return SizeTrial(size, peak or 0, seconds) if fits else None

    def _measure_together(self, size: int) -> SizeTrial | None:
        """`measure`, with the most memory and the longest time of all ranks: each goes on with the same."""
        trials: list[SizeTrial] = self._ranks.gather(self.measure(size))
        return SizeTrial(size, max(t.peak_bytes for t in trials), max(t.seconds for t in trials))

    def _compiled(self, work: Callable[[], R]) -> R:
        """What `work`, which may compile, returns here; where it raises on one rank, the others do not wait
        for that one. If the ranks meet in it, they compile at the same time, and an error ends the run."""
        if self._pieces.meets:
            return work()
        return on_all_ranks(self._ranks, self._device, work, compiles=self._shapes.mode != "off")

    def _fits(self, size: int) -> bool:
        """Whether a pass over `size` samples finds the memory. Waits for the device."""
        fits = True
        try:
            self._passes(size)
            wait_for(self._device)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            self._pieces.end_if_met(size)
            fits = False
        self._gradient.clear()
        if not fits:
            release(self._device)
        return fits

    def _most(self, share: int) -> int:
        """The most samples that may be tried: less than what was too much before."""
        ceiling = self._pieces.ceiling
        return share if ceiling is None else max(1, min(share, ceiling - 1))

    def _limit(self) -> int:
        """What this process may use in all, in bytes."""
        return limit_bytes(self._device, self._ranks.local_world)

    def _climb(self, size: int, limit: int, *, all_or_nothing: bool, start: int = 0) -> int:
        """The largest of a few sizes up to `size` that fits into `limit` bytes.

        It begins with `start`, or near what fitted before. A size is tried if a straight line through the
        peaks so far predicts that it fits. With `all_or_nothing` the search gives up as soon as that line
        leads far beyond the limit.
        """
        trials: list[SizeTrial] = []
        reached, following = 0, start or max(1, self._reached // STRIDE)
        while reached < size:
            following = min(size, following)
            hopeless = all_or_nothing and len(trials) > 2 and predicted_peak(trials, size) > STRIDE * limit
            if hopeless or not self._tried(following, trials, limit):
                break
            reached, following = following, following * STRIDE
        # The stride is coarse, and a micro-batch half as large may fit.
        finer = 2 * reached
        if not all_or_nothing and 0 < finer < min(size, following) and self._tried(finer, trials, limit):
            reached = finer
        return reached

    def _tried(self, size: int, trials: list[SizeTrial], limit: int) -> bool:
        """Whether `size` samples stay within `limit` bytes; their trial is added to `trials`. They are not
        computed if the earlier trials predict that they do not."""
        if predicted_peak(trials, size) > limit:
            return False
        if self._device.type == "cuda":
            release(self._device)  # else the peak counts what torch keeps of earlier work
        set_peak_aside(self._device)
        with self._shapes.plainly():
            fits = self._fits(size)
        peak = peak_bytes(self._device) or 0
        if self._pieces.meets:  # all ranks try the same sizes
            peak = max(self._ranks.gather(peak))
        if self._device.type == "cuda":
            release(self._device)
        if not fits or peak > limit:
            return False
        trials.append(SizeTrial(size, peak, 0.0))
        return True


def _too_many(size: int, samples: str) -> str:
    return f"{size} {samples} do not fit into the memory at once"
