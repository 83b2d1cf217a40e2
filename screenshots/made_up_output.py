"""The made-up output of a run: no recording has any.

The lines are those that `hoptui train ppo` prints, with numbers that are made up.
"""

from __future__ import annotations

from collections.abc import Iterator

from hoptui.domain.outputs import OutputPart
from hoptui.model.outputs import FoundOutput, OutputText
from hoptui.protocol.messages import RunOutput

ITERATIONS, EVERY, STEPS = 5_000, 20, 262_144
PATH = "/home/ana/runs/ppo-h100.log"


def output(run: str, rank: int) -> FoundOutput:
    """Return what the run has written to a file."""
    data = "".join(f"{line}\n" for line in lines()).encode()
    part = OutputPart(stream="output", origin="file", source="1:1", path=PATH, end=len(data), data=data)
    found, _ = OutputText().add(RunOutput(id=1, run=run, rank=rank, parts=(part,), ranks=(rank,)))
    return found


def lines() -> Iterator[str]:
    """The lines, oldest first."""
    yield "hoptui: ppo-h100 is shown by hoptui attach ppo-h100"
    yield "\x1b[33mcompile: default, the first iterations take longer\x1b[0m"
    for iteration in range(EVERY, 1_160, EVERY):
        learned = iteration / 1_160
        yield " · ".join(
            (
                f"iteration {iteration:,}/{ITERATIONS:,}",
                f"env steps {iteration * STEPS:,}",
                f"return {60 + 440 * learned:.1f} ({400 + iteration % 37} episodes)",
                f"policy loss {-0.012 + 0.01 * learned:.4f}",
                f"value loss {90 / (1 + iteration / 40):.3g}",
                f"entropy {0.69 - 0.3 * learned:.3f}",
                f"{5_600_000 + 8_191 * (iteration % 61):,} steps/s",
            )
        )
        if iteration % 500 == 0:
            yield f"\x1b[32mcheckpoint of iteration {iteration:,} written in 0.21 s\x1b[0m"
