"""Recordings of runs that differ in their configuration and in what they learned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec import structs

from hoptui.domain.columns import pack
from hoptui.domain.details import RunDetails
from hoptui.domain.diagnosis import Diagnosis
from tests import factories
from tests.model.recorded_run import WALL, at, write


def record(folder: Path, number: int, **details: Any) -> Path:
    """Write the recording `lm-<number>` of a run that ended after two minutes."""
    run = f"{number:08d}"
    state = factories.run(
        run, f"lm-{number}", exit_reason="finished", exited_wall=WALL + 120 + number, started_wall=WALL,
        units={"tokens_per_s": "tokens/s"}, headline="tokens_per_s",
    )  # fmt: skip
    state = structs.replace(
        state,
        tags=details.get("tags", ()),
        diagnosis=Diagnosis(verdict="launch-bound", confidence=0.9, t=at(60)),
    )
    rows = [
        (
            at(i),
            i,
            {
                "tokens_per_s": 1e5 + 1e4 * number,
                "loss": 4.0 / (1 + i / 20) + 0.1 * number,
                "env_steps_per_s": 4e5 + 2e4 * number,
                "episode_return": 50.0 * number * (1 - 0.98**i),
            },
        )
        for i in range(120)
    ]
    return write(
        folder / f"{run}.hoptui", state=state, details=RunDetails(**details), events=(), commands=(),
        rows=(pack(f"run/{run}", rows),), node=None,
    )  # fmt: skip
