"""V1: images a second of ViT-B/16 at 224² on one GPU, synthetic images in its memory; ViT-S and ViT-L beside
it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.measure import bench, tell
from benchmarks.training import finish, options, reached, trained

SYNTHETIC = ("vision", "--data", "synthetic", "--evaluate-every", "0")
CASES = {
    "vit-b": (*SYNTHETIC, "--preset", "vit-b", "--iterations", "60"),
    "vit-s": (*SYNTHETIC, "--preset", "vit-s", "--iterations", "100"),
    "vit-l": (*SYNTHETIC, "--preset", "vit-l", "--iterations", "40"),
}
QUICK = {"tiny": (*SYNTHETIC, "--preset", "tiny", "--iterations", "150", "--batch-size", "64")}
TARGETS = {"vit-b": 2_000.0}
STRETCH = {"vit-b": 3_000.0}


def main(arguments: Sequence[str] = ()) -> dict[str, Any]:
    """Measure and report."""
    given = options(arguments)
    with bench() as node:
        figures = {
            name: tell(name, trained(node, (*case, *given.device), "samples").figures())
            for name, case in (QUICK if given.quick else CASES).items()
        }
    met = {} if given.quick else reached(figures, TARGETS)
    stretch = {} if given.quick else reached(figures, STRETCH)
    return finish(
        "vision_speed", given, {"unit": "images/s", "cases": figures, "met": met, "stretch": stretch}
    )


if __name__ == "__main__":
    main(sys.argv[1:])
