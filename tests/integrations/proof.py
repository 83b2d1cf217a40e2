"""What a test of a live-safe knob has to show: what docs/frameworks/live_safe.md claims of each."""

from __future__ import annotations

from collections.abc import Sequence


class Proof:
    """The facts that a test with the marker `live_safe` gives. The fixture fails a test that leaves one out.

    Weights are flat lists of floats, or texts such as digests, as the ranks printed them.
    """

    def __init__(self) -> None:
        self.given: set[str] = set()

    def ranks_equal(self, by_rank: Sequence[object], ranks: int = 2) -> None:
        """All ranks have the same weights at the end, bit for bit."""
        assert len(by_rank) == ranks
        assert all(weights for weights in by_rank), "no weights"
        assert all(weights == by_rank[0] for weights in by_rank), f"ranks differ: {_difference(by_rank)}"
        self.given.add("ranks_equal")

    def samples(self, *, seen: int, due: int) -> None:
        """All ranks together have trained on as many samples as were due."""
        assert due > 0
        assert seen == due, f"{seen} samples seen, {due} due"
        self.given.add("samples")

    def unchanged(self, weights: object, reference: object, *, tolerance: float = 0.0) -> None:
        """The weights equal those of a run that nobody changed.

        Args:
            weights: At the end of the run with the changes.
            reference: At the end of the same run without them.
            tolerance: The largest difference of a weight, for sums in another order. 0: bit for bit.
        """
        assert weights, "no weights"
        if tolerance:
            found = _difference([weights, reference])
            assert found is not None, "cannot be compared with a tolerance"
            assert found <= tolerance, f"differs from the unchanged run by {found:g}"
        else:
            assert weights == reference, (
                f"differs from the unchanged run: {_difference([weights, reference])}"
            )
        self.given.add("unchanged")


def required(effects: set[str], ranks: int) -> set[str]:
    """The facts that the markers of a test claim."""
    wanted = {"samples"}
    if ranks > 1:
        wanted.add("ranks_equal")
    if "speed" in effects:
        wanted.add("unchanged")
    return wanted


def _difference(several: Sequence[object]) -> float | None:
    """The largest difference from the first, None if they are not lists of as many numbers."""
    lists = [value for value in several if isinstance(value, list)]
    if len(lists) < len(several) or any(len(value) != len(lists[0]) for value in lists):
        return None
    return max((abs(a - b) for value in lists for a, b in zip(lists[0], value, strict=True)), default=0.0)
