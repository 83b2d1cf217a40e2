"""Profiler traces of a workload, for `hoptui profile RUN --steps 5` and `--profile-steps`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import hoptui
from hoptui.integrations.torch_trace import TorchTrace
from hoptui_trainer.common.report import silent
from hoptui_trainer.common.trace_plan import TracePlan


class Tracer(TorchTrace):
    """Traces iterations that users ask for, and the first ones if that is `planned`, on every rank.

    Args:
        workload: how the names of its files begin.
        folder: where traces go; None for `Run.trace_folder`.
        planned: a trace of the first iterations, after its `wait`; None without one.
        say: prints a line for users, also from another thread.
    """

    def __init__(
        self,
        run: hoptui.Run,
        workload: str,
        folder: Path | None,
        rank: int,
        planned: TracePlan | None = None,
        say: Callable[[str], None] = silent,
    ) -> None:
        super().__init__(run, workload, folder, rank, say=say)
        run.on_profile(self.start)
        if planned is not None:
            try:
                self.start(**asdict(planned))
            except RuntimeError as error:
                self.report(f"no trace: {error}", level="warning")
