"""What test_lightning.py runs in two processes: small fits that rank 0 gets commands in.

Each fit has its own run. `fits` returns what happened in each, by name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import torch
from lightning.pytorch import strategies
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.utils.data import DataLoader, Dataset

from hoptui.integrations import compilation
from hoptui.integrations.lightning import HoptuiCallback
from tests.integrations.plain_changes import change_optimizer
from tests.run_state import queued_rows
from tests.sdk.two_ranks import command, meet_always, outcomes

SAMPLES, BATCH, EPOCHS = 96, 2, 2
"""Two ranks make 24 batches of an epoch."""


OPTIONS: dict[str, Any] = {
    "max_epochs": EPOCHS,
    "accelerator": "cpu",
    "devices": 2,
    "strategy": "ddp",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
    "limit_val_batches": 0,
}
"""Of a trainer."""
COEFFICIENTS = {"lr": 0.002, "weight_decay": 0.5, "beta1": 0.5, "beta2": 0.9, "gradient_clip_val": 0.01}
CHANGED = 6
"""The iteration at which a change of one that is asked for after five steps is applied."""


class Numbers(Dataset[tuple[torch.Tensor, torch.Tensor, int]]):
    """Samples that know their number."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        x = torch.sin(torch.arange(8.0) * (index + 1))
        return x, x.sum().reshape(1), index


class Line(L.LightningModule):  # type: ignore[misc]
    """A linear model with one optimizer, or with two that the training step drives itself."""

    def __init__(self, manual: bool = False, sharded: bool = False) -> None:
        super().__init__()
        self.sharded = sharded
        torch.manual_seed(1)
        self.layer = torch.nn.Linear(8, 1)
        self.automatic_optimization = not manual
        self.seen: list[int] = []

    def configure_model(self) -> None:
        if self.sharded:
            from torch.distributed.fsdp import fully_shard

            fully_shard(self.layer, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y, index = batch
        self.seen += index.tolist()
        loss: torch.Tensor = ((self.layer(x) - y) ** 2).mean()
        self.log("train_loss", loss)
        if not self.automatic_optimization:
            for optimizer in self.optimizers():
                optimizer.zero_grad()
                self.manual_backward(((self.layer(x) - y) ** 2).mean())
                optimizer.step()
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", ((self.layer(batch[0]) - batch[1]) ** 2).mean())

    def configure_optimizers(self) -> Any:
        if not self.automatic_optimization:
            return [torch.optim.SGD([p], lr=0.01) for p in self.layer.parameters()]
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)]


class Commands(L.Callback):  # type: ignore[misc]
    """Give rank 0 commands at some steps, and note the weights after each step."""

    def __init__(self, hoptui_callback: Any, due: Mapping[int, Sequence[dict[str, Any]]]) -> None:
        self.of = hoptui_callback
        self.due = dict(due)
        self.weights: list[list[float]] = []
        self.outcomes: list[Any] = []
        self.accumulated: list[int] = []

    def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        run = self.of.run
        if run is not None and trainer.global_rank == 0:
            for each in self.due.pop(int(trainer.global_step), ()):
                self.outcomes += [told for told in command(run, **each) if told.stage == "rejected"]
            self.outcomes += outcomes(run)
        self.weights.append(weights(trainer, module))
        self.accumulated.append(trainer.accumulate_grad_batches)


def weights(trainer: Any, module: Line) -> list[float]:
    """All parameters of the whole module, which ranks may share."""
    model = trainer.strategy.model
    if isinstance(model, FullyShardedDataParallel):
        with FullyShardedDataParallel.summon_full_params(model):
            return torch.cat([p.detach().reshape(-1) for p in module.parameters()]).tolist()
    parameters: list[Any] = [p.detach() for p in module.parameters()]
    whole = [p.full_tensor() if module.sharded else p for p in parameters]
    return torch.cat([p.reshape(-1) for p in whole]).tolist()


def fit(
    name: str,
    folder: Path,
    due: Mapping[int, Sequence[dict[str, Any]]],
    *,
    manual: bool = False,
    workers: int = 0,
    callbacks: Sequence[Any] = (),
    **trainer_options: Any,
) -> dict[str, Any]:
    """Run one fit. Return what happened in it."""
    of_hoptui = HoptuiCallback(name)
    commands = Commands(of_hoptui, due)
    rows: list[tuple[int, dict[str, float]]] = []
    plans: list[int | None] = []
    endings: list[tuple[Any, ...]] = []

    class Watch(L.Callback):  # type: ignore[misc]
        """The last word on the run, as it would be sent."""

        def on_train_start(self, trainer: Any, module: Any) -> None:
            run = of_hoptui.run
            assert run is not None
            close, plan, self.state = run.close, run.plan, run._core.state

            def note_plan(total: int | None) -> None:
                plans.append(total)
                plan(total)

            def note_end(reason: Any = None, detail: str = "") -> None:
                endings.append((reason, detail))
                close(reason, detail)

            plans.append(self.state.total)
            run.plan, run.close = note_plan, note_end  # type: ignore[method-assign]

    watch = Watch()
    options = OPTIONS | {"default_root_dir": folder} | trainer_options
    trainer = L.Trainer(callbacks=[of_hoptui, watch, commands, *callbacks], **options)
    module = Line(manual, sharded=type(trainer.strategy).__name__ == "ModelParallelStrategy")
    data = DataLoader(Numbers(), batch_size=BATCH, shuffle=True, num_workers=workers)
    torch.manual_seed(2)
    trainer.fit(module, data, DataLoader(Numbers(), batch_size=8) if trainer.limit_val_batches else None)
    rows += [(step, row) for _, step, row in queued_rows(watch.state)]
    done = [(o.stage, o.code, o.step, o.before, o.effective, o.fields) for o in commands.outcomes]
    return {
        "weights": commands.weights,
        "seen": len(module.seen),
        "outcomes": done,
        "accumulated": commands.accumulated,
        "step": int(trainer.global_step),
        "rows": rows,
        "plans": plans,
        "endings": endings,
        "knobs": {name: knob.value for name, knob in watch.state.declarations.knobs.items()},
    }


def plain_fit(folder: Path, knob: str, value: float) -> dict[str, Any]:
    """Run a fit without hoptui in which plain code changes a coefficient after `CHANGED` steps."""

    class Plain(L.Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.weights: list[list[float]] = []

        def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
            self.weights.append(weights(trainer, module))
            if trainer.global_step != CHANGED:
                return
            if knob == "gradient_clip_val":
                trainer.gradient_clip_val = value
            elif knob == "lr":
                trainer.optimizers[0].param_groups[0]["lr"] = value
                trainer.lr_scheduler_configs[0].scheduler.base_lrs = [value]
            else:
                change_optimizer(trainer.optimizers[0], knob, value)

    plain = Plain()
    trainer = L.Trainer(callbacks=[plain], **OPTIONS, default_root_dir=folder)
    torch.manual_seed(2)
    trainer.fit(Line(), DataLoader(Numbers(), batch_size=BATCH, shuffle=True))
    return {"weights": plain.weights}


def change(knob: str, value: object) -> list[dict[str, Any]]:
    """One command to set a knob."""
    return [{"knob": knob, "value": value}]


def fits(folder: Path) -> dict[str, dict[str, Any]]:
    """Run all fits of this process, one after another."""
    meet_always()
    compilation.BACKEND = "aot_eager"  # it makes no code
    found = {
        "unchanged": fit("unchanged", folder, {}),
        **{
            knob: fit(knob, folder, {CHANGED - 1: change(knob, value)})
            for knob, value in COEFFICIENTS.items()
        },
        **{f"plain {knob}": plain_fit(folder, knob, value) for knob, value in COEFFICIENTS.items()},
        "log_every_n_steps": fit("log", folder, {5: change("log_every_n_steps", 7)}),
        "compile": fit("compile", folder, {3: change("compile", True), 30: change("compile", False)}),
        "aligned": fit("aligned", folder, {6: change("accumulate_grad_batches", 3)}),
        "unaligned": fit("unaligned", folder, {7: change("accumulate_grad_batches", 4)}),
        "back": fit(
            "back",
            folder,
            {2: change("accumulate_grad_batches", 2), 9: change("accumulate_grad_batches", 1)},
            accumulate_grad_batches=4,
        ),
        "scheduled": fit(
            "scheduled",
            folder,
            {4: change("accumulate_grad_batches", 4)},
            callbacks=[GradientAccumulationScheduler({0: 2})],
        ),
        "never aligned": fit("never", folder, {1: change("accumulate_grad_batches", 23)}),
        "num_workers": fit("workers", folder, {3: change("num_workers", 1)}, workers=2),
        "no workers": fit("none", folder, {3: change("num_workers", 1)}),
        "prefetch_factor": fit("prefetch", folder, {3: change("prefetch_factor", 5)}, workers=2),
        "manual": fit("manual", folder, {8: change("optimizer1_lr", 0.5)}, manual=True),
        "checkpoint": fit("checkpoint", folder, {4: [{"verb": "checkpoint"}]}),
        "pause": fit("pause", folder, {4: [{"verb": "pause", "hold_s": 0.2}]}),
        "stop": fit("stop", folder, {4: [{"verb": "stop"}]}),
        "validation": fit(
            "validation", folder, {}, limit_val_batches=2, num_sanity_val_steps=1, val_check_interval=12
        ),
    }
    if hasattr(strategies, "ModelParallelStrategy"):
        for name, due in (
            ("lr", {5: change("lr", 0.002)}),
            ("aligned", {6: change("accumulate_grad_batches", 3)}),
        ):
            sharded = strategies.ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)
            found[f"sharded {name}"] = fit(f"sharded-{name}", folder, due, strategy=sharded)
    return found


def gpu_fits(folder: Path) -> dict[str, dict[str, Any]]:
    """The same on two GPUs, and under the strategies that need them."""
    meet_always()
    found = {}
    for kind in ("ddp", "fsdp"):
        for name, due in (
            ("unchanged", {}),
            ("lr", {5: change("lr", 0.002)}),
            ("weight_decay", {5: change("weight_decay", 0.5)}),
            ("beta1", {5: change("beta1", 0.5)}),
            ("beta2", {5: change("beta2", 0.9)}),
            ("aligned", {6: change("accumulate_grad_batches", 3)}),
            ("unaligned", {7: change("accumulate_grad_batches", 4)}),
            ("num_workers", {3: change("num_workers", 1)}),
            ("checkpoint", {4: [{"verb": "checkpoint"}]}),
            ("stop", {4: [{"verb": "stop"}]}),
        ):
            workers = 2 if name == "num_workers" else 0
            found[f"{kind} {name}"] = fit(
                f"{kind}-{name}", folder, due, workers=workers, accelerator="gpu", strategy=kind
            )
    return found


def deepspeed_fit(folder: Path) -> dict[str, dict[str, Any]]:
    """One fit under DeepSpeed, whose engine decides on most."""
    meet_always()
    due = {4: change("accumulate_grad_batches", 2)}
    strategy = strategies.DeepSpeedStrategy(stage=2)
    return {"deepspeed": fit("deepspeed", folder, due, accelerator="gpu", strategy=strategy)}


def main(run_all: Callable[[Path], dict[str, dict[str, Any]]] = fits) -> None:
    """Print what each fit gave, for `ranks.both`."""
    from tests.sdk.two_ranks import report

    report(**run_all(Path(sys.argv[2])))


def gpu_main() -> None:
    """The same for `gpu_fits`."""
    main(gpu_fits)


def deepspeed_main() -> None:
    """The same for `deepspeed_fit`."""
    main(deepspeed_fit)
