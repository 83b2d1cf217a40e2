"""What limits a run, as the daemon sends it to viewers and recordings."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec
from msgspec import structs

from hoptui.domain.facts import Fact, fact
from hoptui.domain.knobs import KnobValue

Verdict = Literal[
    "launch-bound",  # the GPU waits for kernels to be launched
    "data-bound",  # it waits for input data
    "env-bound",  # it waits for environments that run on the CPU
    "memory-bandwidth-bound",
    "compute-bound",  # it is near the peak of its arithmetic units
    "power-limited",
    "heat-limited",
    "host-bound",  # it waits for Python of the script
    "transfer-bound",  # it waits for copies between it and the host
    "save-bound",  # it waits for a checkpoint to be written
    "compiling",  # it waits for a compiler
    "wrong-device",  # it has nothing to do: the CPU computes the model
    "memory-latency-bound",  # its SMs wait for memory, and neither their pipes nor the bus are full
    "communication-bound",  # it waits for other ranks
    "straggler",  # the other ranks wait for one
    "memory-unused",  # the work is split smaller than memory requires
    "healthy",  # nothing stands out
    "unknown",  # too little is known; the facts name what is missing
]
VERDICTS: frozenset[str] = frozenset(get_args(Verdict))


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """A change that might help: which knob, which direction, which cost.

    `value` is the value to set, None if only the direction is known. `knob` is empty if no knob of the run
    helps. `fact` has the fields for a sentence, None in an older recording.
    """

    knob: str = ""
    direction: Literal["up", "down", "to", ""] = ""
    value: KnobValue | None = None
    fact: Fact | None = None


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """What limits a run, over the `seconds` before `t`.

    `verdict` is one of `VERDICTS`. The verdict of a newer hoptui becomes `unknown`, and the first fact has
    its name. `confidence` is 0 to 1, and 0 if unknown. `facts` are the evidence, the strongest first. `stale`
    means that a knob has changed since, and its effect has not been seen yet.
    """

    verdict: str = "unknown"
    confidence: float = 0.0
    facts: tuple[Fact, ...] = ()
    advice: tuple[Advice, ...] = ()
    seconds: float = 0.0
    t: int = 0
    stale: bool = False

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            newer = fact("diagnosis.newer_verdict", verdict=self.verdict)
            structs.force_setattr(self, "facts", (newer, *self.facts))
            structs.force_setattr(self, "verdict", "unknown")
            structs.force_setattr(self, "confidence", 0.0)
