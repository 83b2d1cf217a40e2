"""hoptui in a training script: `run = hoptui.connect("ppo")`, `run.knob(...)`, `for i in run.iterations(n)`, `run.log(...)`.

This is the whole public API; the other packages are the daemon, the viewers and the wire between them. Nothing here
raises into a training loop, waits, or changes its results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hoptui.protocol.version import VERSION

__version__ = VERSION
__all__ = ["Knob", "KnobHandle", "Run", "__version__", "connect", "peak_flops"]

if TYPE_CHECKING:
    from hoptui.sdk.knobs import Knob, KnobHandle
    from hoptui.sdk.run import Run, connect
    from hoptui.telemetry.gpu_specs import peak_flops


def __getattr__(name: str) -> object:
    if name in ("Knob", "KnobHandle"):
        from hoptui.sdk import knobs

        return getattr(knobs, name)
    if name in ("Run", "connect"):
        from hoptui.sdk import run

        return getattr(run, name)
    if name == "peak_flops":
        from hoptui.telemetry.gpu_specs import peak_flops

        return peak_flops
    raise AttributeError(f"module 'hoptui' has no attribute {name!r}")
