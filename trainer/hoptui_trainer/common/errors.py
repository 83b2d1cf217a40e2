"""What ends a run that is not a fault of the program: a wish that cannot be met, a rank that is gone."""

from __future__ import annotations

import re


class UsageError(Exception):
    """One sentence that names the offending option; the command prints it and exits with 2."""


class ShortMemoryError(Exception):
    """Memory ran out in the middle of a run, and nothing makes room; the text says what helps. The command
    prints it and exits with 1."""


class ShardMemoryError(BaseException):
    """Memory ran out on this rank in the middle of a pass, in which the others wait for it. The command
    prints it and exits with 1.

    It is no `Exception`, because a knob that ran into it must not go on as if it had been refused.
    """


class LostRankError(Exception):
    """Another rank is gone; the text says which one and why."""


class TornStepError(Exception):
    """Some weights have taken a step that others have not: they are of no use, and must not be written to a
    checkpoint."""


def in_terms_of_knobs(text: str) -> str:
    """A sentence on options as one on knobs: `--micro-batch 4` as `micro_batch 4`."""
    return re.sub(r"--([a-z][a-z0-9-]*)", lambda found: found[1].replace("-", "_"), text)
