"""What `hoptui run` adds to the processes of a command that nobody edited.

`launch` starts the command with `site/sitecustomize.py` in front of its path. That file calls `imported`.
Nothing here, in `site` or in `launch` imports `hoptui.sdk` before an optimizer of torch takes its first step,
but for the copy of the output if `hoptui run --output` asks for one.

An error in these modules is one line in the log and ends what they do. It never reaches the script.
"""

from __future__ import annotations

import os


def imported(module: str, adapter: str | None) -> None:
    """A watched module has been imported.

    Args:
        module: Its name: `torch`, the module of a framework, or one with optimizers of its own.
        adapter: The module in `hoptui.integrations` for a framework, None for the others.
    """
    if os.environ.get("HOPTUI_OUTPUT") == "copy":
        from hoptui.injection import output

        output.copy()
    if adapter is not None:
        from hoptui.injection import adapters

        adapters.install(module, adapter)
        return
    from hoptui.injection import injected_run

    if module == "torch":
        injected_run.watch()
    else:
        injected_run.follow(module)
