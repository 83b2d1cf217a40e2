"""`hoptui.wandb`: what scripts for wandb do, without viewers."""

from __future__ import annotations

import argparse
import logging
import math
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import hoptui.wandb
from hoptui.sdk.details import shown_values
from hoptui.wandb import placeholders
from tests.golden import Golden
from tests.run_state import queued_rows, run_state

wandb: Any = hoptui.wandb
Rows = list[tuple[int, dict[str, float]]]


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No run, no environment of wandb, and nothing warned of yet."""
    monkeypatch.setenv("HOPTUI", "off")
    for name in ("PROJECT", "NAME", "RUN_ID", "RUN_GROUP", "JOB_TYPE", "NOTES", "TAGS", "MODE"):
        monkeypatch.delenv(f"WANDB_{name}", raising=False)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    names = sys.modules["hoptui.wandb"].__dict__
    for name, value in (("_current", None), ("_last", None), ("_names", {})):
        monkeypatch.setitem(names, name, value)
    monkeypatch.setattr(placeholders, "_warned", set())
    names["_before"].clear()
    yield
    wandb.finish()


def rows(run: Any) -> Rows:
    """What was logged: the step and the values of each row."""
    return [(step, row) for _, step, row in queued_rows(run_state(run.hoptui))]


def test_nanogpt(caplog: pytest.LogCaptureFixture) -> None:
    """As its train.py does: a dict of globals, one log per evaluation."""
    config = {"batch_size": 12, "learning_rate": 6e-4, "dtype": "bfloat16", "compile": True}
    with caplog.at_level(logging.WARNING, "hoptui"):
        run = wandb.init(project="owt", name="gpt2", config=config)
        for iter_num in range(0, 30, 10):
            wandb.log(
                {
                    "iter": iter_num,
                    "train/loss": 2.0 / (iter_num + 1),
                    "val/loss": 2.1,
                    "lr": 6e-4,
                    "mfu": 0.3 * 100,
                }
            )
    assert not caplog.records
    assert [step for step, _ in rows(run)] == [0, 1, 2]
    assert rows(run)[1][1] == {"iter": 10, "train/loss": 2.0 / 11, "val/loss": 2.1, "lr": 6e-4, "mfu": 30.0}
    assert run_state(run.hoptui).name == "gpt2"
    assert shown_values(run.config) == config
    assert run_state(run.hoptui).details.tags == ("project:owt",)


def test_cleanrl(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """As its ppo.py does: everything through a SummaryWriter."""
    written = []

    class SummaryWriter:
        def add_scalar(self, tag: str, value: Any, step: Any = None, walltime: Any = None) -> None:
            written.append((tag, value, step))

    module = type(sys)("torch.utils.tensorboard.writer")
    module.SummaryWriter = SummaryWriter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard.writer", module)
    args = argparse.Namespace(env_id="CartPole-v1", learning_rate=2.5e-4, wandb_entity=None, seed=1)
    own = SummaryWriter.add_scalar
    with caplog.at_level(logging.WARNING, "hoptui"):
        run = wandb.init(
            project="cleanRL",
            entity=args.wandb_entity,
            sync_tensorboard=True,
            config=vars(args),
            name="CartPole-v1__ppo__1__0",
            monitor_gym=True,
            save_code=True,
        )
        writer = SummaryWriter()
        for global_step in (512, 1024):
            writer.add_scalar("losses/value_loss", 3.0, global_step)
            writer.add_scalar("charts/SPS", global_step / 2, global_step)
        wandb.finish()
    assert not caplog.records
    assert SummaryWriter.add_scalar is own
    assert len(written) == 4
    assert rows(run) == [
        (512, {"losses/value_loss": 3.0, "charts/SPS": 256.0}),
        (1024, {"losses/value_loss": 3.0, "charts/SPS": 512.0}),
    ]


def test_steps_and_commits() -> None:
    run = wandb.init()
    wandb.log({"a": 1}, commit=False)
    wandb.log({"b": 2})
    wandb.log({"c": 3}, step=10)
    wandb.log({"d": 4}, step=10)
    wandb.log({"old": 5}, step=3)
    wandb.log({"e": 6}, step=20, commit=False)
    wandb.log({"f": 7}, step=21)
    wandb.log({"last": 8}, commit=False)
    assert run.step == 22
    wandb.finish()
    assert rows(run) == [
        (0, {"a": 1, "b": 2}),
        (10, {"c": 3}),
        (10, {"d": 4}),
        (20, {"e": 6}),
        (21, {"f": 7}),
        (22, {"last": 8}),
    ]
    wandb.log({"late": 1})
    assert len(rows(run)) == 6


def test_nested_values_are_flattened_and_others_are_counted() -> None:
    run = wandb.init()
    wandb.log({"val": {"loss": 0.6, "by": {"task": 1}}, "image": wandb.Image([[0]]), "text": "no number"})
    assert rows(run) == [(0, {"val.loss": 0.6, "val.by.task": 1.0})]
    assert run_state(run.hoptui).converter.bad == 2


def test_config_is_live_before_and_after_init() -> None:
    wandb.config.lr = 1.0
    wandb.config.seed = 3
    run = wandb.init(config=argparse.Namespace(lr=3e-4, model={"layers": 12}))
    assert (wandb.config.lr, wandb.config["seed"], wandb.config.model["layers"]) == (3e-4, 3, 12)
    wandb.config.update({"lr": 1e-3}, allow_val_change=True)
    wandb.config.setdefaults({"lr": 5, "new": 6})
    wandb.config = {"assigned": 7}
    assert run.config.as_dict() == {
        "lr": 1e-3, "seed": 3, "model": {"layers": 12}, "new": 6, "assigned": 7,
    }  # fmt: skip
    assert "lr" in wandb.config
    assert wandb.config.get("nothing", 9) == 9
    with pytest.raises(AttributeError):
        _ = wandb.config.nothing


def test_summary_is_what_was_set_or_else_logged_last() -> None:
    run = wandb.init()
    wandb.log({"loss": 2.0, "acc": 0.1})
    wandb.log({"loss": 1.0})
    wandb.summary["acc"] = 0.9
    run.summary.best = 0.95
    wandb.run.summary.update({"done": True})
    assert dict(wandb.summary) == {"loss": 1.0, "acc": 0.9, "best": 0.95, "done": True}
    assert (run.summary.loss, run.summary["acc"]) == (1.0, 0.9)
    assert shown_values(run.hoptui.summary) == {"acc": 0.9, "best": 0.95, "done": True}


def test_the_life_of_a_run() -> None:
    with wandb.init(project="p", id="abc-1", resume="allow", group="g", tags=["t"], notes="n") as run:
        assert run is wandb.run
        assert run is wandb.init(config={"more": 1})
        assert (run.id, run.name, run.project, run.url, run.path) == ("abc-1", "p", "p", "", "p/abc-1")
        assert run.config.more == 1
        state = run_state(run.hoptui)
        assert (state.details.tags, state.details.notes) == (("t", "project:p", "group:g"), "n")
        second = wandb.init(project="p", reinit=True)
        assert (second.name, second.id == run.id, wandb.run is second) == ("p-2", False, True)
        assert not state.alive
    assert wandb.run is second
    wandb.finish(exit_code=1)
    assert wandb.run is None


def test_an_exception_in_the_block_is_the_scripts_own() -> None:
    run = wandb.init()

    def body() -> None:
        with run:
            wandb.log({"a": 1}, commit=False)
            raise RuntimeError("the script's")

    with pytest.raises(RuntimeError):
        body()
    assert wandb.run is None
    assert rows(run) == [(0, {"a": 1})]


def test_the_environment_of_wandb_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("PROJECT", "p"), ("NAME", "n"), ("RUN_GROUP", "g"), ("TAGS", "a,b"), ("NOTES", "x")):
        monkeypatch.setenv(f"WANDB_{name}", value)
    run = wandb.init()
    assert (run.project, run.name, run.group, run.notes) == ("p", "n", "g", "x")
    assert run.tags == ("a", "b", "project:p", "group:g")


@pytest.mark.parametrize("by", ["argument", "environment"])
def test_disabled_records_nothing(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled" if by == "environment" else "online")
    run = wandb.init(config={"lr": 1}, mode="disabled" if by == "argument" else None)
    wandb.log({"loss": 1.0})
    run.summary["best"] = 1
    assert run.hoptui is None
    assert (run.config.lr, run.summary["loss"], run.step) == (1, 1.0, 1)
    wandb.alert("nothing")
    wandb.finish()


def test_what_it_lacks_is_one_warning_each(caplog: pytest.LogCaptureFixture, golden: Golden) -> None:
    with caplog.at_level(logging.WARNING, "hoptui"):
        run = wandb.init(config="config.yaml", settings=wandb.Settings(console="off"))
        for _ in range(2):
            wandb.watch(object(), log="all", log_freq=10)
            table = wandb.Table(columns=["a"], data=[[1]])
            table.add_data(2)
            artifact = wandb.Artifact("model", type="model")
            artifact.add_file("model.pt")
            with artifact.new_file("x") as file:
                file.write("text")
            run.log_artifact(artifact).wait()
            assert isinstance(wandb.Image(0), wandb.Image)
            assert not isinstance(3, wandb.Image)
            for _key in wandb.Api().runs("p"):
                raise AssertionError
            wandb.save("model.pt")
            wandb.log(5)
            wandb.log({"a": 1}, step="x")
            wandb.log({"a": 1}, step=5)
            wandb.log({"a": 1}, step=1)
        wandb.define_metric("val/*", step_metric="epoch")
        run.define_metric("x")
        wandb.finish()
        wandb.log({"a": 1})
        run.log({"a": 1})
    golden(record.getMessage() for record in caplog.records)


def test_what_needs_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "hoptui"):
        assert wandb.login(key="x") is True
        assert len(wandb.util.generate_id()) == 8
        wandb.init()
        wandb.alert(title="slow", text="very", level=wandb.AlertLevel.WARN)
        try:
            raise ValueError
        except (wandb.errors.CommError, wandb.Error):
            raise AssertionError from None
        except ValueError:
            pass
    assert not caplog.records
    note = run_state(wandb.run.hoptui).notes[-1]
    assert (note.text, note.level) == ("slow: very", "warning")


def test_nan_is_logged_and_nothing_raises_for_odd_values() -> None:
    class Odd:
        def __float__(self) -> float:
            raise RuntimeError

    run = wandb.init(config={"odd": Odd(), "nan": math.nan, 5: "five"})
    wandb.log({"loss": math.nan, "odd": Odd(), 7: 1.0})
    ((_, row),) = rows(run)
    assert math.isnan(row["loss"])
    assert shown_values(run.config)["odd"] == f"<{Odd.__qualname__}>"
