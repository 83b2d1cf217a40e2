"""`run.bind`: settings of a script as knobs."""

from __future__ import annotations

import types
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

import hoptui
from hoptui.sdk.run import Run
from tests.run_state import run_state
from tests.sdk.unit_run import send

pytestmark = pytest.mark.usefixtures("off")


@dataclass
class Config:
    batch_size: int = 32


@dataclass(frozen=True)
class Frozen:
    batch_size: int = 32


def module() -> types.ModuleType:
    made = types.ModuleType("settings")
    vars(made)["batch_size"] = 32
    return made


def read(target: Any) -> object:
    return target["batch_size"] if isinstance(target, dict) else target.batch_size


@pytest.mark.parametrize(
    "make",
    [
        lambda: Namespace(batch_size=32),
        lambda: {"batch_size": 32},
        Config,
        module,
        lambda: vars(module()),
        lambda: types.SimpleNamespace(batch_size=32),
    ],
)
def test_a_command_sets_the_setting_itself(run: Run, make: Callable[[], Any]) -> None:
    target = make()
    handle = run.bind(target, batch_size=(1, 512))["batch_size"]
    send(run, knob="batch_size", value=64)
    run.boundary(0)
    assert read(target) == handle.value == 64
    (done,) = run_state(run).inbox.collect_outcomes()
    assert (done.stage, done.before, done.effective) == ("applied", 32, 64)


def test_the_forms_of_bounds(run: Run) -> None:
    args = Namespace(n=4, lr=3e-4, fused=True, loader="fast", depth=2, whole=1, any=0.5)
    run.bind(
        args,
        n=(1, 9),
        lr=(1e-6, 1e-1, "log"),
        fused=True,
        loader=["fast", "slow"],
        depth=hoptui.Knob(1, 8, cost="rebuild", effect="speed"),
        whole=(0.5, 2.0),
        any=True,
    )
    specs = {name: knob.spec for name, knob in run_state(run).declarations.knobs.items()}
    assert (specs["n"].kind, specs["n"].min, specs["n"].max) == ("int", 1, 9)
    assert (specs["lr"].kind, specs["lr"].scale) == ("float", "log")
    assert (specs["fused"].kind, specs["fused"].choices) == ("bool", ())
    assert (specs["loader"].kind, specs["loader"].choices) == ("str", ("fast", "slow"))
    assert (specs["depth"].cost, specs["depth"].effect) == ("rebuild", "speed")
    assert specs["whole"].kind == "float", "a whole number within bounds that are none"
    assert (specs["any"].min, specs["any"].max) == (None, None)
    assert args == Namespace(n=4, lr=3e-4, fused=True, loader="fast", depth=2, whole=1, any=0.5)


def test_apply_is_called_after_the_setting_has_changed(run: Run) -> None:
    args, seen = Namespace(n=4), []

    def check(value: int) -> None:
        seen.append((value, args.n))
        if value == 5:
            raise ValueError("five is right out")

    run.bind(args, apply={"n": check}, n=(1, 9))
    for value in (6, 5):
        send(run, knob="n", value=value)
        run.boundary()
    assert seen == [(6, 6), (5, 5), (6, 6)]
    assert [o.stage for o in run_state(run).inbox.collect_outcomes()] == ["applied", "failed"]
    assert args.n == 6


@pytest.mark.parametrize(
    ("target", "bounds"),
    [
        ({"n": 4}, {"missing": True}),
        ({"n": 4}, {"n": 5}),
        ({"n": 4}, {"n": (1, 2, 3, 4)}),
        ({"n": 4}, {"n": (5, 9)}),
        ({"n": 4}, {"n": False}),
        ({"n": None}, {"n": True}),
        ({"n": [1]}, {"n": True}),
        (Frozen(), {"batch_size": True}),
        (types.MappingProxyType({"n": 4}), {"n": True}),
        (None, {"n": True}),
    ],
)
def test_what_is_not_accepted_is_left_out_alone(
    run: Run, caplog: pytest.LogCaptureFixture, target: object, bounds: dict[str, Any]
) -> None:
    assert run.bind(target, **bounds) == {}
    assert len(caplog.records) == 1
    assert run.bind({"good": 1}, good=(1, 2))["good"].value == 1


def test_a_change_by_the_script_itself_is_shown(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    args = Namespace(n=4)
    handle = run.bind(args, n=(1, 9))["n"]
    args.n = 7
    run._core.execution.next_follow = 0  # a second has passed
    run.boundary()
    assert (handle.value, handle.in_effect) == (7, True)
