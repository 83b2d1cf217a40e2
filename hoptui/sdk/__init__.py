"""The part of hoptui that runs inside the training process.

Training scripts use `import hoptui`. This package holds the types that a script may need for annotations:

- `KnobHandle`: what `run.knob` returns.
- `DescribedValues`: `run.config` and `run.summary`.
- `RankStore`: the protocol of the `ranks` argument of `hoptui.connect`.
- `TorchStore`: a `RankStore` over a store of torch.distributed.

Nothing here raises into the training loop or makes it wait. Nothing here touches the random numbers, signals
or devices of the training. In a forked child and with `HOPTUI=off` it does nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["DescribedValues", "KnobHandle", "RankStore", "TorchStore"]

if TYPE_CHECKING:
    from hoptui.sdk.details import DescribedValues
    from hoptui.sdk.knobs import KnobHandle
    from hoptui.sdk.rank_store import RankStore, TorchStore


def __getattr__(name: str) -> object:
    # Imported on first use, so that reading `hoptui.Knob` stays cheap.
    if name == "DescribedValues":
        from hoptui.sdk.details import DescribedValues

        return DescribedValues
    if name == "KnobHandle":
        from hoptui.sdk.knobs import KnobHandle

        return KnobHandle
    if name in ("RankStore", "TorchStore"):
        from hoptui.sdk import rank_store

        return getattr(rank_store, name)
    raise AttributeError(f"module 'hoptui.sdk' has no attribute {name!r}")
