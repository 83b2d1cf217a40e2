"""Where the training threads of a run were during a window, from samples of their stacks. Pure; no I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from hoptui.domain.activities import Activity, by_line, summed
from hoptui.domain.code_lines import CodeLine
from hoptui.domain.kind_rules import Kind
from hoptui.domain.stack_kinds import Basis

DOUBTFUL: tuple[Basis, ...] = ("before", "between", "process")
"""What a purpose rests on that may be another one: the place in the loop of Python of the script, or that the
thread waits for another process."""
FEW = 20
"""Fewer samples say nothing: at ten a second these are two seconds."""


class LineShare(NamedTuple):
    """A line, what the thread does there, what it calls most often, and its share of the samples."""

    kind: Kind
    place: CodeLine
    inside: str
    share: float


@dataclass(frozen=True)
class SampledTime:
    """The shares of the samples by kind, 0 to 1, over several ranks.

    `count` is the number of samples, of several ranks that of the one with the fewest. `lines` has the
    line with the most samples of each kind. `own_loader` is the share in which a DataLoader loads in the
    training process. `guessed` are the shares of Python of the script whose purpose only its place in the
    loop says, or nothing, and of waits for another process, by that basis. `guessed_lines` are the lines with
    the most samples of each; `lines` does not have them. `kept` are the shares in which another thread keeps
    the interpreter, by the kind of what it does. Samples while the run was paused are left out.
    """

    count: int = 0
    shares: Mapping[Kind, float] = field(default_factory=dict)
    lines: Mapping[Kind, LineShare] = field(default_factory=dict)
    own_loader: float = 0.0
    guessed: Mapping[Basis, float] = field(default_factory=dict)
    guessed_lines: Mapping[Basis, LineShare] = field(default_factory=dict)
    kept: Mapping[Kind, float] = field(default_factory=dict)

    @classmethod
    def of(cls, counts: Mapping[Activity, int], *, acts: bool = False) -> SampledTime:
        """Return the times of what was counted; of too few samples, nothing.

        Args:
            counts: What the thread was found to do.
            acts: The run acts in environments, by what it logs. Then what it calls after its model, and
                before it trains that, is taken for environments.
        """
        at_work = _resolved(_at_work(counts), acts)
        total = sum(at_work.values())
        if total < FEW:
            return cls()
        kinds, kept = Counter[Kind](), Counter[Kind]()
        for activity, count in at_work.items():
            kinds[activity.kind] += count
            kept[activity.kind] += count * activity.interpreter
        placed = {basis: _with_basis(at_work, basis) for basis in DOUBTFUL}
        elsewhere = {activity: n for activity, n in at_work.items() if activity.basis not in DOUBTFUL}
        lines: dict[Kind, LineShare] = {}
        for line in _lines(elsewhere, total):
            lines.setdefault(line.kind, line)
        guessed = placed | {"unknown": _with_basis(at_work, "unknown")}
        return cls(
            total,
            {kind: n / total for kind, n in kinds.items()},
            lines,
            own_loader=sum(n for activity, n in at_work.items() if activity.own_loader) / total,
            guessed={basis: sum(counts.values()) / total for basis, counts in guessed.items()},
            guessed_lines={basis: _lines(counts, total)[0] for basis, counts in placed.items() if counts},
            kept={kind: n / total for kind, n in kept.items() if n},
        )

    @classmethod
    def of_ranks(
        cls, counts: Mapping[int, Counter[Activity]], late: int | None = None, *, acts: bool = False
    ) -> SampledTime:
        """Return the times of ranks. What the rank does that the others wait for is not what limits these.

        Args:
            counts: What each rank was found to do, by rank.
            late: The rank that the others wait for, and whose samples are left out.
            acts: As in `of`.
        """
        found = cls.of(summed(part for rank, part in counts.items() if rank != late), acts=acts)
        numbers = [sum(_at_work(part).values()) for part in counts.values()]
        return replace(found, count=min([found.count, *filter(None, numbers)]))

    def share(self, *kinds: Kind) -> float:
        """Return the share of the samples of these kinds together."""
        return sum(self.shares.get(kind, 0.0) for kind in kinds)

    def line(self, *kinds: Kind) -> LineShare | None:
        """Return the line of these kinds with the most samples."""
        known = [self.lines[kind] for kind in kinds if kind in self.lines]
        return max(known, key=lambda line: line.share, default=None)


def _at_work(counts: Mapping[Activity, int]) -> dict[Activity, int]:
    return {activity: count for activity, count in counts.items() if activity.kind != "paused"}


def _resolved(counts: Mapping[Activity, int], acts: bool) -> dict[Activity, int]:
    """Return the same with what comes after a run of the model taken for what the run does there."""
    found: Counter[Activity] = Counter()
    for activity, count in counts.items():
        after = activity.basis == "after"
        found[activity._replace(basis="between" if acts else "unknown") if after else activity] += count
    return dict(found)


def _with_basis(counts: Mapping[Activity, int], basis: Basis) -> dict[Activity, int]:
    return {activity: count for activity, count in counts.items() if activity.basis == basis}


def _lines(counts: Mapping[Activity, int], total: int) -> list[LineShare]:
    """Return the lines, those with the most samples first."""
    return [
        LineShare(kind, place, names.most_common(1)[0][0], names.total() / total)
        for (kind, place), names in by_line(counts)
    ]
