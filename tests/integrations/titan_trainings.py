"""What test_torchtitan.py runs in two processes: small trainings that rank 0 gets commands in.

`trainings` returns what happened in each, by name.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import hoptui
from tests.integrations.titan_cpu import LENGTH, Trainer, configuration
from tests.run_state import queued_rows
from tests.sdk.two_ranks import command, meet_always, outcomes

STEPS, DUE = 6, 2
"""Of a training, and after which one a command is given."""


class Steered(Trainer):  # type: ignore[misc]
    """Gives rank 0 commands after some steps, and notes what holds in each step.

    Args:
        config: Of TorchTitan.
        due: The commands, by step.
    """

    def __init__(self, config: Any, due: Mapping[int, Sequence[dict[str, Any]]]) -> None:
        super().__init__(config)
        self.due = dict(due)
        self.weights: list[str] = []
        self.settings: list[dict[str, Any]] = []
        self.saved: list[list[str]] = []
        self.logged: list[int] = []
        self.outcomes: list[Any] = []
        self.state: Any = None

    def train_step(self, data_iterator: Any) -> None:
        self.settings.append(self._settings())
        self.saved.append(complete(Path(self.checkpointer.folder)))
        super().train_step(data_iterator)
        self.weights.append(digest(self.model_parts[0]))
        if self.metrics_processor.should_log(self.step):
            self.logged.append(self.step)
        run = self.run
        if run is not None and dist.get_rank() == 0:
            self.state = run._core.state
            self.outcomes += outcomes(run)
            for each in self.due.pop(self.step, ()):
                command(run, **each)

    @property
    def run(self) -> hoptui.Run | None:
        """The run that the adapter made, if there is one."""
        made = getattr(self, "_hoptui_run", None)
        return None if made is None else made._run

    def _settings(self) -> dict[str, Any]:
        (optimizer,) = self.optimizers
        (group,), (schedule,) = optimizer.param_groups, self.lr_schedulers
        return {
            "lr": schedule.base_lrs[0],
            "rate": group["lr"],
            "weight_decay": group["weight_decay"],
            "beta1": group["betas"][0],
            "beta2": group["betas"][1],
            "max_norm": self.config.training.max_norm,
            "log_freq": self.metrics_processor.config.log_freq,
            "interval": self.checkpointer.interval,
        }


def complete(folder: Path) -> list[str]:
    """The checkpoints to which nothing is missing."""
    return sorted(path.parent.name for path in folder.glob("*/.metadata"))


def digest(model: Any) -> str:
    """A text that differs if one bit of the whole weights does."""
    found = hashlib.sha256()
    for parameter in model.parameters():
        whole = parameter.detach()
        found.update((whole.full_tensor() if hasattr(whole, "full_tensor") else whole).numpy().tobytes())
    return found.hexdigest()


def train(
    folder: Path, due: Mapping[int, Sequence[dict[str, Any]]], *, steps: int = STEPS, **settings: Any
) -> dict[str, Any]:
    """Run one training. Return what happened in it."""
    trainer = Steered(configuration(folder, steps, **settings), due)
    trainer.train()
    trainer.close()
    state = trainer.state
    done = trainer.outcomes + (state.inbox.collect_outcomes() if state is not None else [])
    return {
        "weights": trainer.weights,
        "settings": trainer.settings,
        "logged": trainer.logged,
        "step": trainer.step,
        "seen": trainer.ntokens_seen // LENGTH,
        "outcomes": [(o.stage, o.code, o.step, o.before, o.effective, o.fields) for o in done],
        "rows": [(step, row) for _, step, row in queued_rows(state)] if state is not None else [],
        "total": state.total if state is not None else None,
        "knobs": sorted(state.declarations.knobs) if state is not None else [],
        "saved": [*trainer.saved, complete(Path(trainer.checkpointer.folder))],
    }


def change(knob: str, value: object) -> dict[str, Any]:
    """A command to set a knob."""
    return {"knob": knob, "value": value}


def trainings(folder: Path) -> dict[str, dict[str, Any]]:
    """Run all trainings of this process, one after another."""
    from hoptui.integrations import torchtitan as adapter  # after what `titan_cpu` puts in place

    meet_always()
    found = {"without hoptui": train(folder / "without", {})}
    adapter.install()
    adapter.install()
    found["unchanged"] = train(folder / "unchanged", {})
    for knob, value in (
        ("lr", 0.002),
        ("weight_decay", 0.5),
        ("beta1", 0.5),
        ("beta2", 0.8),
        ("max_norm", 0.01),
    ):
        found[knob] = train(folder / knob, {DUE: [change(knob, value)]})
    speed = [change("log_freq", 2), change("interval", 3), {"verb": "pause", "hold_s": 0.2}]
    found["speed"] = train(folder / "speed", {DUE: speed})
    found["checkpoint"] = train(folder / "checkpoint", {DUE: [{"verb": "checkpoint"}]}, async_mode="async")
    found["stop"] = train(folder / "stop", {DUE: [{"verb": "checkpoint"}, {"verb": "stop"}]})
    found["resumed"] = train(folder / "stop", {}, load_step=DUE)
    later = {
        DUE + 2: [change("weight_decay", 0.5), change("lr", 0.002)],
        DUE + 3: [{"verb": "checkpoint"}, {"verb": "stop"}],
    }
    found["resumed and changed"] = train(folder / "stop", later, load_step=DUE)
    found["resumed after a change"] = train(folder / "stop", {}, load_step=DUE + 3)
    return found | {"faulty": faulty(folder)}


def faulty(folder: Path) -> dict[str, Any]:
    """Run a training in which a rank cannot pass its boundaries any more."""
    boundary = hoptui.Run.boundary

    def broken(self: hoptui.Run, step: int | None = None) -> bool:
        if dist.get_rank() == 1 and step == DUE:
            raise RuntimeError("an error of hoptui")
        return boundary(self, step)

    hoptui.Run.boundary = broken  # type: ignore[method-assign]
    try:
        return train(folder / "faulty", {})
    finally:
        hoptui.Run.boundary = boundary  # type: ignore[method-assign]


def main() -> None:
    """Print what each training gave, for `two_ranks.both`."""
    from tests.sdk.two_ranks import report

    torch.set_num_threads(1)
    report(**trainings(Path(sys.argv[2])))
