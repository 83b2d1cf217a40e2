"""The part of hoptui that runs inside the training process.

Training scripts use `import hoptui`. This package holds the types that a script may need for annotations:

- `KnobHandle`: what `run.knob` returns.
- `RankGroup`: the protocol of the `ranks` argument of `hoptui.connect`.

Nothing here raises into the training loop or makes it wait. Nothing here touches the random numbers, signals or devices
of the training. In a forked child and with `HOPTUI=off` it does nothing.
"""

from hoptui.sdk.knobs import KnobHandle
from hoptui.sdk.ranks import RankGroup

__all__ = ["KnobHandle", "RankGroup"]
