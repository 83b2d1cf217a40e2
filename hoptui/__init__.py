"""hoptui in a training script: `hoptui.connect`, `hoptui.Run`, `hoptui.Knob` and `hoptui.LATER`.

These names are the public API. The other packages are the daemon, the viewers and the protocol between
them. Types for annotations are in `hoptui.sdk`. Nothing here raises into a training loop, waits, or changes
its results.

Example:
    ```python
    run = hoptui.connect("my-run")
    accum = run.knob("grad_accum", 4, min=1, max=64, effect="speed")
    for step in run.iterations(3):
        run.log(loss=0.5, samples=64 * accum.value)
    ```
"""

from __future__ import annotations

from hoptui.protocol import VERSION

__version__ = VERSION
__all__ = ["LATER", "Knob", "Run", "__version__", "connect"]

TYPE_CHECKING = False  # to import it from typing takes longer than the rest of `hoptui run`
if TYPE_CHECKING:
    from hoptui.sdk.knob_declarations import Knob
    from hoptui.sdk.knobs import LATER
    from hoptui.sdk.run import Run, connect


def __getattr__(name: str) -> object:
    # Imported on first use: `hoptui --help` and the daemon need none of it.
    if name == "Knob":
        from hoptui.sdk.knob_declarations import Knob

        return Knob
    if name == "LATER":
        from hoptui.sdk.knobs import LATER

        return LATER
    if name in ("Run", "connect"):
        from hoptui.sdk import run

        return getattr(run, name)
    raise AttributeError(f"module 'hoptui' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
