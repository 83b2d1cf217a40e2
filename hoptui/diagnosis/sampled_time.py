"""Where the training threads of a run were during a window, from samples of their stacks. Pure; no I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hoptui.domain.hot_lines import HotLine, hot_lines
from hoptui.domain.stack_kinds import Kind, kind_of
from hoptui.domain.stacks import HELD, Stack, StackSamples, merged, unpack

FEW = 20
"""Fewer samples say nothing: at ten a second these are two seconds."""
EXACT = 0.3
"""A line that was seen itself is named, if it has this part of the samples of one that is only known to come
later."""
OWN_LOADER = "_SingleProcessDataLoaderIter._next_data"
"""The function of torch.utils.data that loads in the training process."""
MOST_BYTES = 256 << 10
"""Estimated size of the samples of all ranks together."""


@dataclass(frozen=True)
class SampledTime:
    """The shares of the samples by kind, 0 to 1, over all ranks.

    `lines` has the line with the most samples of each kind. `own_loader` is the share in which a DataLoader
    loads in the training process. Samples while the run was paused are left out.
    """

    count: int = 0
    shares: Mapping[Kind, float] = field(default_factory=dict)
    lines: Mapping[Kind, HotLine] = field(default_factory=dict)
    own_loader: float = 0.0

    @classmethod
    def of(cls, ranks: Iterable[StackSamples]) -> SampledTime:
        """Return the times of the samples of several processes; of too few samples, nothing."""
        samples = merged(ranks, MOST_BYTES)
        stacks = Counter({s: n for s, n in unpack(samples).items() if s and kind_of(s) != "paused"})
        total = stacks.total()
        if total < FEW:
            return cls()
        kinds: Counter[Kind] = Counter()
        for stack, count in stacks.items():
            kinds[kind_of(stack)] += count
        lines: dict[Kind, HotLine] = {}
        for line in hot_lines(samples):
            known = lines.setdefault(line.kind, line)
            if known.inside == HELD and line.inside != HELD and line.share >= EXACT * known.share:
                lines[line.kind] = line
        own = sum(count for stack, count in stacks.items() if _calls(stack, OWN_LOADER))
        return cls(total, {kind: n / total for kind, n in kinds.items()}, lines, own / total)

    def share(self, *kinds: Kind) -> float:
        """Return the share of the samples of these kinds together."""
        return sum(self.shares.get(kind, 0.0) for kind in kinds)

    def line(self, *kinds: Kind) -> HotLine | None:
        """Return the line of these kinds with the most samples."""
        known = [self.lines[kind] for kind in kinds if kind in self.lines]
        return max(known, key=lambda line: line.share, default=None)


def _calls(stack: Stack, function: str) -> bool:
    return any(frame.function == function for frame in stack)
