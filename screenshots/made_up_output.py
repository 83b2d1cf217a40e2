"""The made-up output of a run: no recording has any.

The lines are those that `hoptui train lm` prints, with numbers that are made up.
"""

from __future__ import annotations

from collections.abc import Iterator

from hoptui.domain.outputs import OutputPart
from hoptui.model.outputs import FoundOutput, OutputText
from hoptui.protocol.messages import RunOutput

ITERATIONS, LAST, EVERY = 100_000, 148, 2
PATH = "/home/ana/runs/lm.log"


def output(run: str, rank: int) -> FoundOutput:
    """Return what the run has written to a file."""
    data = "".join(f"{line}\n" for line in lines()).encode()
    part = OutputPart(stream="output", origin="file", source="1:1", path=PATH, end=len(data), data=data)
    found, _ = OutputText().add(RunOutput(id=1, run=run, rank=rank, parts=(part,), ranks=(rank,)))
    return found


def lines() -> Iterator[str]:
    """The lines, oldest first."""
    yield "hoptui: lm is shown by hoptui attach lm"
    yield "\x1b[33mno held-out documents: nothing is evaluated\x1b[0m"
    for iteration in range(EVERY, LAST + 1, EVERY):
        learned = iteration / LAST
        yield " · ".join(
            (
                f"iteration {iteration:,}/{ITERATIONS:,}",
                f"loss {10.9 - 5.6 * learned**0.6:.4f}",
                f"gradient {2.7 + 6 * (1 - learned) ** 4 + iteration % 7 / 10:.3g}",
                f"{187_000 + 211 * (iteration % 31):,} tokens/s",
            )
        )
        if iteration % 50 == 0:
            yield f"\x1b[32mcheckpoint written: /home/ana/runs/lm/{iteration}\x1b[0m"
