"""What usually helps against what a line of the script does, where no knob is needed to see it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from hoptui.diagnosis.causes import Means
from hoptui.diagnosis.thread_causes import CLAIMS
from hoptui.diagnosis.window import ObservationWindow
from hoptui.domain.diagnosis import Verdict
from hoptui.domain.facts import Fact, fact
from hoptui.domain.kind_rules import Kind

Cure = Literal[
    "load_in_workers", "avoid_sync", "pin_memory", "pin_results", "save_in_background", "autocast",
    "fewer_kernels", "move_to_gpu", "log_less", "own_process",
]  # fmt: skip
"""A usual cure. `hoptui.presentation.sentences.diagnosis` has its words."""
OFTEN = 0.15
"""Share of the samples from which a line is worth its cure."""
NO_TENSOR, SOME_FP32 = 0.02, 0.3


def line_cures(verdict: Verdict, window: ObservationWindow, seen: Means) -> Iterator[Fact]:
    """Yield the cures that fit, the best first, each as a fact with the line that it is about."""
    sampled = window.sampled
    match verdict:
        case "data-bound" | "env-bound" | "save-bound" | "host-bound" if kept := [
            kind for kind in CLAIMS[verdict] if sampled.kept.get(kind, 0.0) >= OFTEN
        ]:
            yield from _at("own_process", window, *kept)
        case "data-bound" if sampled.own_loader >= OFTEN:
            yield from _at("load_in_workers", window, "input")
        case "launch-bound":
            yield from _at("avoid_sync", window, "wait", "copy")
            yield from _at("fewer_kernels", window, "compute")
        case "transfer-bound":
            if seen.download > seen.upload:
                yield from _at("pin_results", window, "copy", "wait")
            else:
                yield from _at("pin_memory", window, "copy")
        case "save-bound":
            yield from _at("save_in_background", window, "save")
        case "compute-bound" if seen.tensor < NO_TENSOR and seen.fp32 >= SOME_FP32:
            yield fact("advice.cure", cure="autocast")
        case "wrong-device":
            yield from _at("move_to_gpu", window, "compute")
        case "host-bound" if sampled.share("log") > sampled.share("script"):
            yield from _at("log_less", window, "log")
        case _:
            pass


def _at(cure: Cure, window: ObservationWindow, *kinds: Kind) -> Iterator[Fact]:
    line = window.sampled.line(*kinds)
    if line is not None and line.share >= OFTEN:
        place = {"file": line.place.file, "line": line.place.line, "function": line.place.function}
        yield fact("advice.cure", cure=cure, **place)
