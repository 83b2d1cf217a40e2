"""Why no adapter changes the size of the buckets in which DistributedDataParallel exchanges gradients.

The buckets are made together with the hooks of the gradients. A new size needs a new
`DistributedDataParallel`, and each framework keeps the one that it made in several places.
"""

from __future__ import annotations

import hoptui

NAME = "ddp_bucket_mb"


def decline_buckets(run: hoptui.Run, wrapped: object, setting: str) -> None:
    """Give the reason why the size of the buckets is no knob.

    Args:
        run: The run.
        wrapped: The model as the framework calls it.
        setting: Where a script sets the size before the training begins.
    """
    if any(kind.__name__ == "DistributedDataParallel" for kind in type(wrapped).__mro__):
        run.decline(NAME, f"DistributedDataParallel makes its buckets once: set {setting} and start again")
    else:
        run.decline(NAME, "the training does not use DistributedDataParallel")
