"""A batch in parts trains the same weights, however the loss is normalised. One process, without viewers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

import hoptui
from hoptui.integrations.micro_batches import Rule, cut, even_sizes, find_rule, row_count, weighted_parts
from hoptui.integrations.trainer_internals import DecayGroups, obstacle
from hoptui.integrations.transformers import HoptuiCallback
from tests.integrations.transformers_rank import sequences, small_model

pytestmark = pytest.mark.filterwarnings("ignore")
ROWS, STEPS = 6, 9
"""The third batch of an epoch of 14 rows has 2 rows, fewer than the largest split."""


class Split(TrainerCallback):  # type: ignore[misc]
    """Sets the split after some steps, as a command would."""

    def __init__(self, hoptui: HoptuiCallback, parts: dict[int, int]) -> None:
        self._hoptui, self._parts = hoptui, parts

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step in self._parts:
            assert self._hoptui._split is not None
            self._hoptui._split.set_parts(self._parts[state.global_step])


class Regression(torch.nn.Module):
    """A model of no library, with a mean over rows."""

    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        if norm:
            self.layers.append(torch.nn.BatchNorm1d(1))

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        found = self.layers(input_ids.float() / 64).squeeze(1)
        return {"loss": torch.nn.functional.mse_loss(found, labels[:, 0].clamp(min=0) / 64), "logits": found}


class Contrast(Regression):
    """A loss over pairs of rows, which is no mean over rows."""

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        found = self.layers[0](input_ids.float() / 64)
        target = torch.arange(len(found))
        return {"loss": torch.nn.functional.cross_entropy(found @ found.T, target), "logits": found}


def classifier() -> Any:
    torch.manual_seed(0)
    return BertForSequenceClassification(
        BertConfig(
            hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=64,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=3,
        )
    )  # fmt: skip


def rows(kind: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [dict(row) for row in sequences(14)]
    if kind == "classes":
        found = [{"input_ids": row["input_ids"], "labels": index % 3} for index, row in enumerate(found)]
    if kind == "gaps":  # some rows have no label at all
        for index in (0, 3, 4, 9):
            found[index]["labels"] = torch.full_like(found[index]["labels"], -100)
    return found


def summed(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
    logits = outputs["logits"][:, :-1].flatten(0, 1)
    total = torch.nn.functional.cross_entropy(logits, labels[:, 1:].flatten(), reduction="sum")
    if num_items_in_batch is None:  # old versions count them for some models alone
        num_items_in_batch = labels[:, 1:].ne(-100).sum()
    return torch.div(total, num_items_in_batch)


def train(folder: Path, kind: str, parts: dict[int, int], **options: Any) -> list[float]:
    model = {"classes": classifier, "regression": Regression}.get(kind, small_model)()
    args = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=ROWS,
        max_steps=STEPS,
        learning_rate=0.3,
        optim="sgd",  # Adam makes much of the rounding of gradients that are almost 0
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        remove_unused_columns=False,
        use_cpu=True,
        **options,
    )
    callback = HoptuiCallback()
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=rows(kind),
        callbacks=[Split(callback, parts), callback],
        compute_loss_func=summed if kind == "own loss" else None,
    )
    if kind in ("mean", "gaps"):
        trainer.model_accepts_loss_kwargs = False
    trainer.train()
    return [weight for each in model.parameters() for weight in each.detach().flatten().tolist()]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("items", {}),
        ("mean", {}),
        ("gaps", {}),
        ("own loss", {}),
        ("classes", {}),
        ("regression", {}),
        ("items", {"label_smoothing_factor": 0.1}),
        ("items", {"gradient_accumulation_steps": 2}),
        ("mean", {"gradient_accumulation_steps": 2}),
        ("items", {"bf16": True}),
    ],
)
def test_parts_train_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, options: dict[str, Any]
) -> None:
    monkeypatch.setenv("HOPTUI", "off")
    whole = train(tmp_path, kind, {}, **options)
    split = train(tmp_path, kind, {1: 3, 4: 2, 6: 6}, **options)
    difference = max(abs(a - b) for a, b in zip(whole, split, strict=True))
    assert difference < (2e-2 if options.get("bf16") else 1e-6)
    assert difference > 0  # it was split


def trainer_of(folder: Path, model: Any, kind: type[Trainer] = Trainer) -> Trainer:
    return kind(model=model, args=TrainingArguments(output_dir=str(folder), report_to=[], use_cpu=True))


class OwnLoss(Trainer):  # type: ignore[misc]
    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        return super().compute_loss(*args, **kwargs)


def test_what_a_split_would_change_is_not_offered(tmp_path: Path) -> None:
    assert not obstacle(trainer_of(tmp_path, small_model()))
    assert obstacle(trainer_of(tmp_path, Regression(norm=True)))
    assert obstacle(trainer_of(tmp_path, small_model(), OwnLoss))


def test_a_loss_that_is_not_a_mean_is_found() -> None:
    model = Contrast()
    batch = {name: torch.stack([row[name] for row in sequences(ROWS)]) for name in ("input_ids", "labels")}
    with pytest.raises(ValueError, match="add up"):
        find_rule(lambda part: float(model(**part)["loss"]), batch, ROWS, ["labels", "rows"], 1e-4)
    other = Regression()
    rule = find_rule(lambda part: float(other(**part)["loss"]), batch, ROWS, ["labels", "rows"], 1e-4)
    assert rule == "rows"


def normalised(rule: Rule, part: Mapping[str, Any]) -> float:
    """A loss of about 4 for each label, with a spread of a percent, normalised by a rule."""
    labels, tokens = part["labels"], part["input_ids"]
    losses = (4 + 0.04 * torch.sin(tokens.double() * 1.7)) * labels.ne(-100)
    if rule == "sum":
        return float(losses.sum()) / 500
    if rule == "rows":
        return float((losses.sum(dim=1) / labels.ne(-100).sum(dim=1)).mean())
    counted = slice(1, None) if rule == "shifted labels" else slice(None)
    return float(losses[:, counted].sum() / labels[:, counted].ne(-100).sum())


@pytest.mark.parametrize("prompt", [0, 12])
@pytest.mark.parametrize("rule", ["sum", "shifted labels", "labels", "rows"])
def test_the_rule_is_found_where_the_losses_of_all_rows_are_alike(rule: Rule, prompt: int) -> None:
    """The loss of a prompt is often not counted: a row has few labels then, and the first half has none."""
    rules: list[Rule] = ["sum", "shifted labels", "labels", "rows"]
    data = sequences(40 * ROWS)
    for first in range(0, len(data), ROWS):
        batch = {
            name: torch.stack([row[name] for row in data[first : first + ROWS]])
            for name in ("input_ids", "labels")
        }
        batch["labels"] = batch["input_ids"].clone()
        batch["labels"][:, 1 : prompt + 1] = -100
        batch["labels"][1::2, -2:] = -100
        found = find_rule(lambda part: normalised(rule, part), batch, ROWS, rules, 1e-4)
        assert found == rule, first


def test_inputs_are_cut_by_rows() -> None:
    batch = {
        "labels": torch.arange(5),
        "nested": {"x": torch.zeros(5, 2), "scale": torch.tensor(2.0)},
        "positions": torch.arange(7)[None],
        "names": ["a", "b", "c", "d", "e"],
        "flag": True,
        "none": None,
    }
    assert row_count(batch) == 5
    first, second = cut(batch, even_sizes(5, 2))
    assert (len(first["labels"]), len(second["labels"])) == (3, 2)
    assert first["nested"]["x"].shape == (3, 2)
    assert second["names"] == ["d", "e"]
    assert second["positions"].shape == (1, 7)
    for name, value in (("x", torch.zeros(4)), ("y", object()), ("z", ["a"])):
        with pytest.raises(ValueError, match=f"input {name}"):
            cut(batch | {name: value}, [3, 2])


def test_all_ranks_compute_as_many_parts() -> None:
    labels = torch.tensor([[1, 1], [-100, -100], [1, -100], [-100, -100]])
    parts = weighted_parts({"labels": labels}, 4, "labels")
    assert [share for _, share in parts] == pytest.approx([0.0, 0.0, 2 / 3, 1 / 3])
    few = weighted_parts({"labels": labels[:1]}, 3, "rows")
    assert [share for _, share in few] == [0.0, 0.0, 1.0]


def test_biases_and_norms_stay_without_weight_decay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPTUI", "off")
    trainer = trainer_of(tmp_path, small_model())
    optimizer = trainer.create_optimizer()
    run = hoptui.connect("decay")
    handles = run.optimizer(DecayGroups(optimizer), None)
    assert set(handles) == {"lr", "weight_decay", "beta1", "beta2"}
    handles["weight_decay"].revert(0.1, "a test")
    handles["lr"].revert(0.5, "a test")
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.5]
    assert DecayGroups(optimizer).state is optimizer.state, "its memory is read"
