"""Recomputed activations train the same weights. One process, without viewers."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path
from typing import Any, NamedTuple, cast

import lightning as L  # noqa: N812
import pytest
import torch
from accelerate import Accelerator
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from hoptui.integrations.accelerate import HoptuiTracker
from hoptui.integrations.activation_recomputation import FLAG, ActivationCheckpointing, model_obstacle
from hoptui.integrations.lightning import HoptuiCallback as LightningCallback
from hoptui.integrations.micro_batch_split import MicroBatchSplit
from hoptui.integrations.recomputation import GradientCheckpointing, obstacle
from hoptui.integrations.transformers import HoptuiCallback
from tests.integrations.proof import Proof
from tests.integrations.test_micro_batch_split import Regression
from tests.integrations.transformers_rank import LENGTH, WORDS, sequences

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(120)]
STEPS = 8


@pytest.fixture(autouse=True)
def without_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPTUI", "off")


class Switch(TrainerCallback):  # type: ignore[misc]
    """Switches recomputation after some steps, as a command would, and counts recomputed layers."""

    def __init__(self, hoptui: HoptuiCallback, switches: dict[int, bool]) -> None:
        self._hoptui, self._switches = hoptui, switches
        self.calls = 0
        self.counts: list[int] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        layer = model.transformer.h[0].mlp.act  # no module of hoptui's: a forward hook would be an obstacle
        forward = layer.forward

        def counted(*args: Any) -> Any:
            self.calls += 1
            return forward(*args)

        layer.forward = counted

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.counts.append(self.calls)
        self.calls = 0
        if state.global_step in self._switches:
            assert self._hoptui._recomputing is not None
            self._hoptui._recomputing.set(self._switches[state.global_step])


def model(dropout: float = 0.0) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(
            n_layer=3, n_head=2, n_embd=16, vocab_size=WORDS, n_positions=LENGTH, bos_token_id=0,
            eos_token_id=0, use_cache=False, resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout,
        )
    )  # fmt: skip


def trainer_of(folder: Path, trained: Any, callbacks: list[Any] | None = None, **options: Any) -> Trainer:
    defaults: dict[str, Any] = {
        "output_dir": str(folder), "per_device_train_batch_size": 4, "max_steps": STEPS, "learning_rate": 0.1,
        "report_to": [], "save_strategy": "no", "logging_steps": 1, "disable_tqdm": True, "use_cpu": True,
        "remove_unused_columns": False,
    }  # fmt: skip
    return Trainer(
        model=trained,
        args=TrainingArguments(**(defaults | options)),
        train_dataset=sequences(32),
        callbacks=callbacks,
    )


def losses_and_weights(trainer: Trainer) -> tuple[list[float], list[torch.Tensor]]:
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == STEPS
    return losses, [parameter.detach().clone() for parameter in trainer.model.parameters()]


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("began_on", [False, True])
def test_recomputation_changes_no_loss_and_no_weight(tmp_path: Path, dropout: float, began_on: bool) -> None:
    options: dict[str, Any] = {"gradient_accumulation_steps": 2} if dropout else {}
    expected = losses_and_weights(trainer_of(tmp_path, model(dropout), **options))
    if began_on:
        options |= {
            "gradient_checkpointing": True,
            "gradient_checkpointing_kwargs": {"use_reentrant": False},
        }
    callback = HoptuiCallback("recomputed")
    switch = Switch(callback, {2: not began_on, 5: began_on})
    trainer = trainer_of(tmp_path, model(dropout), [callback, switch], **options)
    losses, weights = losses_and_weights(trainer)
    assert losses == expected[0]
    assert all(torch.equal(a, b) for a, b in zip(weights, expected[1], strict=True))
    once = 2 if dropout else 1
    before, between = (2 * once, once) if began_on else (once, 2 * once)
    assert switch.counts == [before] * 2 + [between] * 3 + [before] * 3
    assert any(getattr(m, FLAG, False) for m in trainer.model.modules()) == began_on  # as it was


def test_recomputation_of_a_frozen_model_gives_the_same_gradients(tmp_path: Path) -> None:
    found = []
    cases: list[dict[int, bool]] = [{}, {1: True}]
    for switches in cases:
        trained = model()
        for name, parameter in trained.named_parameters():
            parameter.requires_grad = ".mlp." in name
        callback = HoptuiCallback("frozen")
        found.append(
            losses_and_weights(trainer_of(tmp_path, trained, [callback, Switch(callback, switches)]))
        )
    assert found[0][0] == found[1][0]
    assert all(torch.equal(a, b) for a, b in zip(found[0][1], found[1][1], strict=True))


def test_layers_that_the_script_left_out_stay_out(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, model())
    layers = [module for module in trainer.model.modules() if hasattr(module, FLAG)]
    for layer in layers:
        setattr(layer, FLAG, layer is layers[-1])
    recomputing = GradientCheckpointing(trainer, MicroBatchSplit(trainer))
    for on in (False, True):
        recomputing.set(on)
        assert [getattr(layer, FLAG) for layer in layers] == [False] * (len(layers) - 1) + [on]
        assert recomputing.on is on


GIB = 1 << 30


class Gpu:
    """Memory of 80 GiB, of which a forward pass keeps some per row. It stands for that of torch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, trained: Any, per_row: int) -> None:
        self.allocated = 10 * GIB
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: self.allocated)
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: 20 * GIB)
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 20 * GIB)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (50 * GIB, 80 * GIB))
        monkeypatch.setattr(torch.random, "fork_rng", lambda _: contextlib.nullcontext())
        self.rows: list[int] = []
        forward = trained.forward

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.rows.append(len(kwargs["input_ids"]))
            self.allocated += per_row
            return forward(*args, **kwargs)

        trained.forward = counted


@pytest.mark.parametrize(
    ("per_row", "longest", "fits"), [(5, LENGTH, True), (13, LENGTH, False), (5, 32, False)]
)
def test_activations_that_would_not_fit_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, per_row: int, longest: int, fits: bool
) -> None:
    trained = model()
    trainer = trainer_of(tmp_path, trained, gradient_checkpointing=True)
    trained.gradient_checkpointing_enable({"use_reentrant": False})
    split = MicroBatchSplit(trainer)
    rows = {name: torch.stack([row[name] for row in sequences(4)]) for name in ("input_ids", "labels")}
    split._seen, split.largest, split.longest = (rows, None), 4, longest
    gpu = Gpu(monkeypatch, trained, per_row * GIB)
    monkeypatch.setattr(type(trainer.args), "device", property(lambda _: torch.device("cuda")))
    monkeypatch.setattr(trainer, "_prepare_inputs", lambda inputs: inputs)
    recomputing = GradientCheckpointing(trainer, split)
    if fits:
        recomputing.set(False)
        with pytest.raises(ValueError, match="no step has shown"):
            split._check_memory(1, 8)
    else:
        with pytest.raises(ValueError, match=r"would need about \d+\.\d GiB, and 66\.5 GiB"):
            recomputing.set(False)
    assert recomputing.on is not fits
    assert gpu.rows == [1]


def hooked() -> Any:
    found = model()
    found.transformer.h[0].register_forward_hook(lambda *_: None)
    return found


def reentrant() -> Any:
    found = model()
    found.transformer.wte.weight.requires_grad = False
    for module in found.modules():
        if hasattr(module, FLAG):
            setattr(module, FLAG, True)
            module._gradient_checkpointing_func = functools.partial(checkpoint, use_reentrant=True)
    return found


def normed() -> Any:
    found = model()
    found.transformer.ln_f = torch.nn.BatchNorm1d(16)
    return found


def unsupported() -> Any:
    found = model()
    found.supports_gradient_checkpointing = False
    return found


@pytest.mark.parametrize(
    ("trained", "reason"),
    [
        (hooked, "forward hooks"),
        (reentrant, "partly frozen"),
        (normed, "BatchNorm"),
        (unsupported, "does not support"),
        (Regression, "does not support"),
    ],
)
def test_a_model_whose_result_would_change_is_an_obstacle(tmp_path: Path, trained: Any, reason: str) -> None:
    assert reason in obstacle(trainer_of(tmp_path, trained()))


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ({"is_deepspeed_enabled": True}, "DeepSpeed"),
        ({"is_fsdp_xla_enabled": True}, "XLA"),
        ({"get_tp_size": lambda: 2}, "spread over ranks"),
    ],
)
def test_a_way_of_training_that_is_not_tested_is_an_obstacle(
    tmp_path: Path, what: dict[str, Any], reason: str
) -> None:
    trainer = trainer_of(tmp_path, model())
    assert obstacle(trainer) == ""
    for name, value in what.items():
        setattr(trainer, name, value)
    assert reason in obstacle(trainer)


def test_a_compiled_model_is_an_obstacle(tmp_path: Path) -> None:
    trained = model()
    trained.transformer.h[1]._compiled_call_impl = print
    assert "compiled" in obstacle(trainer_of(tmp_path, trained))


# in Lightning and in a loop with accelerate -----------------------------------------------------------------


def count_calls(trained: GPT2LMHeadModel) -> list[int]:
    """Count the calls of a layer in a list of one number. Recomputation adds one for each batch."""
    calls, layer = [0], trained.transformer.h[0].mlp.act
    forward = layer.forward

    def counted(*args: Any) -> Any:
        calls[0] += 1
        return forward(*args)

    layer.forward = counted
    return calls


class Language(L.LightningModule):  # type: ignore[misc]
    """A model of transformers in a LightningModule."""

    def __init__(self) -> None:
        super().__init__()
        self.model = model(0.3)
        self.rows = 0

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.rows += len(batch["input_ids"])
        return self.model(**batch).loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class SwitchInFit(L.Callback):  # type: ignore[misc]
    """Switches recomputation after some batches."""

    def __init__(self, of_hoptui: Any, switches: dict[int, bool]) -> None:
        self._hoptui, self._switches = of_hoptui, switches

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step in self._switches:
            self._hoptui._knobs._recomputing.set(self._switches[trainer.global_step])


class Found(NamedTuple):
    """The weights, the rows of all batches, and the calls of a layer."""

    weights: list[float]
    rows: int
    calls: int


def found_in(trained: torch.nn.Module, rows: int, calls: list[int]) -> Found:
    assert not any(getattr(part, FLAG, False) for part in trained.modules()), "the model is not as it was"
    weights = torch.cat([parameter.detach().flatten() for parameter in trained.parameters()])
    return Found(weights.tolist(), rows, calls[0])


def prove(proof: Proof, expected: Found, found: Found) -> None:
    """Three of the steps were recomputed, with the same weights."""
    assert (expected.calls, found.calls) == (STEPS, STEPS + 3)
    proof.unchanged(found.weights, expected.weights)
    proof.samples(seen=found.rows, due=32)


def fit(folder: Path, switches: dict[int, bool]) -> Found:
    """What became of a fit in which recomputation is switched after some steps."""
    of_hoptui, module = LightningCallback("recomputed"), Language()
    module.model.train()
    calls = count_calls(module.model)
    trainer = L.Trainer(
        max_epochs=1, accelerator="cpu", devices=1, callbacks=[of_hoptui, SwitchInFit(of_hoptui, switches)],
        default_root_dir=folder, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    torch.manual_seed(3)
    trainer.fit(module, DataLoader(cast(Any, sequences(32)), batch_size=4))
    return found_in(module, module.rows, calls)


@pytest.mark.live_safe(
    framework="Lightning", knob="gradient_checkpointing", effect="speed", when="next step", ranks=1
)
def test_recomputation_in_lightning_changes_no_weight(tmp_path: Path, proof: Proof) -> None:
    prove(proof, fit(tmp_path, {}), fit(tmp_path, {2: True, 5: False}))


def loop(switches: dict[int, bool]) -> Found:
    """What became of a loop in which recomputation is switched in some steps."""
    rows = 0
    torch.manual_seed(3)
    tracker, trained = HoptuiTracker("recomputed"), model(0.3)
    trained.train()
    calls = count_calls(trained)
    accelerator = Accelerator(cpu=True, log_with=tracker)
    prepared, optimizer, loader = accelerator.prepare(
        trained,
        torch.optim.SGD(trained.parameters(), lr=0.1),
        DataLoader(cast(Any, sequences(32)), batch_size=4),
    )
    accelerator.init_trackers("recomputed")
    for step, batch in enumerate(loader):
        if step in switches:
            assert tracker._recomputing is not None
            tracker._recomputing.set(switches[step])
        rows += len(batch["input_ids"])
        accelerator.backward(prepared(**batch).loss)
        optimizer.step()
        optimizer.zero_grad()
    tracker.finish()
    return found_in(trained, rows, calls)


@pytest.mark.live_safe(
    framework="accelerate", knob="gradient_checkpointing", effect="speed", when="next step", ranks=1
)
def test_recomputation_with_accelerate_changes_no_weight(proof: Proof) -> None:
    prove(proof, loop({}), loop({2: True, 5: False}))


def test_a_gpu_keeps_activations_again_only_as_it_began() -> None:
    trained = model()
    recomputing = ActivationCheckpointing(trained, on_gpu=True)
    for layer in recomputing._layers:
        setattr(layer, FLAG, True)
    assert ActivationCheckpointing(model(), on_gpu=True).on is False
    began_on = ActivationCheckpointing(trained, on_gpu=True)
    with pytest.raises(ValueError, match="is not known"):
        began_on.set(False)
    assert began_on.on
    recomputing.switch(False)
    recomputing._flags = [True] * len(recomputing._layers)  # as `offer` does
    recomputing.set(True)
    recomputing.set(False)
    assert not recomputing.on


def test_a_module_without_a_model_of_transformers_is_an_obstacle() -> None:
    assert "the model does not support it" in model_obstacle(torch.nn.Linear(1, 1))
    assert model_obstacle(Language()) == ""
