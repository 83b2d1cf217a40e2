"""The run as the training script sees it: no daemon, no link, `HOPTUI=off`, so that every call is exact."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import pytest

import hoptui
from hoptui.protocol.messages import Flops
from hoptui.sdk.metric_values import QueuedRow
from hoptui.sdk.run import Run
from tests.run_state import queued_rows, run_state
from tests.sdk.unit_run import rows, send

pytestmark = pytest.mark.usefixtures("off")


def test_an_iteration_is_one_row_with_its_time_phases_and_rates(run: Run) -> None:
    for _ in run.iterations(2):
        with run.phase("rollout"), run.phase("env"):
            time.sleep(0.002)
        run.log(samples=100, loss=0.5)
        run.log({"odd name": 1})
    first, second = rows(run)
    assert first["loss"] == 0.5
    assert first["odd name"] == 1
    assert 0.002 <= first["phase/rollout/env"] <= first["phase/rollout"] <= first["iteration_s"]
    assert first["samples_per_s"] == pytest.approx(100 / first["iteration_s"], rel=1e-3)  # each is rounded
    assert second.keys() == first.keys()
    assert [step for _, step, _ in queued_rows(run_state(run))] == [0, 1]
    stamps = [t for t, _, _ in queued_rows(run_state(run))]
    assert stamps == sorted(set(stamps))


def test_long_stretches_of_phases_are_kept_with_their_times(run: Run) -> None:
    began = time.monotonic()
    for _ in run.iterations(1):
        with run.phase("update"):
            with run.phase("short"):
                pass
            time.sleep(0.06)
        now = time.monotonic()
        run.phase_seconds("gpu", 0.5, ended=now)
        for ended in (math.nan, math.inf, 0.1, 1e300):  # no times of this machine
            run.phase_seconds("odd", 0.5, ended=ended)
        run.phase_seconds("odd", math.nan, ended=now)
        run.phase_seconds("unplaced", 0.5)
    (first, start, end), (second, *stretch) = run_state(run).phases.spans
    assert (first, second) == ("update", "gpu")
    assert began <= start < start + 0.06 <= end <= now
    assert stretch == [now - 0.5, now]


def test_without_a_loop_every_log_is_a_row(run: Run) -> None:
    run.log(loss=1.0)
    run.log(loss=2.0)
    assert rows(run) == [{"loss": 1.0}, {"loss": 2.0}]


def test_rows_are_bounded(run: Run) -> None:
    for i in range(10_000):
        run.log(i=i)
    assert len(run_state(run).rows) == 4096
    assert run_state(run).rows[-1][2] == {"i": 9999.0}


class Odd:
    def __float__(self) -> float:
        raise RuntimeError("no")


def test_no_value_can_raise(run: Run) -> None:
    numpy = pytest.importorskip("numpy")
    torch = pytest.importorskip("torch")
    values = {
        "np": numpy.float32(0.25),
        "int64": numpy.int64(3),
        "tensor": torch.tensor(2.0),
        "nan": math.nan,
        "huge": 10**400,
        "bool": True,
        "text": "no number",
        "none": None,
        "matrix": torch.zeros(2, 2),
        "raises": Odd(),
    }
    run.log(values)
    run.log({"\udcff": 1.0, 3: 4.0})  # type: ignore[dict-item]
    (first, _) = rows(run)
    assert first.pop("nan") != first.get("nan")
    assert first == {"np": 0.25, "int64": 3.0, "tensor": 2.0, "huge": math.inf, "bool": 1.0}
    assert run_state(run).converter.bad == 5


@pytest.mark.parametrize("step", [1 << 53, -(1 << 53)])
def test_an_iteration_that_no_message_can_carry_is_counted_instead(run: Run, step: int) -> None:
    run.boundary(step)
    assert run.step == step
    run.boundary(2 * step)
    assert run.step == step + 1


def test_stop_ends_the_loop_between_two_iterations(run: Run) -> None:
    done = []
    for i in run.iterations(100):
        if i == 3:
            send(run, "stop")
        done.append(i)
    assert done == [0, 1, 2, 3]
    assert run.stopping


def test_pause_ends_by_itself(run: Run) -> None:
    send(run, "pause", hold_s=0.05)
    began = time.monotonic()
    assert run.boundary(0)
    assert 0.05 <= time.monotonic() - began < 2
    assert run_state(run).notes[-1].code == "pause.expired"


def test_a_pause_is_no_iteration_time(run: Run) -> None:
    for i in run.iterations(2):
        if i == 0:
            send(run, "pause", hold_s=0.2)
    assert all(row["iteration_s"] < 0.1 for row in rows(run))


@dataclass
class Config:
    num_envs: Annotated[int, hoptui.Knob(1, 64, scale="pow2", cost="shape")] = 8
    lr: Annotated[float, hoptui.Knob(1e-6, 1.0, scale="log")] = 1
    mode: Annotated[Literal["eager", "graph"], hoptui.Knob(choices=("eager", "graph"), cost="rebuild")] = (
        "eager"
    )
    seed: int = 0


def test_a_dataclass_declares_its_knobs(run: Run) -> None:
    config = Config()
    applied: list[int] = []
    handles = run.knobs(config, apply={"num_envs": applied.append})
    assert set(handles) == {"num_envs", "lr", "mode"}
    assert run_state(run).declarations.knobs["lr"].spec.kind == "float"
    for field in (
        {"knob": "num_envs", "value": 16},
        {"knob": "mode", "value": "graph"},
        {"knob": "lr", "value": 0.5},
    ):
        assert send(run, **field)[0].stage == "accepted", field
    assert send(run, knob="num_envs", value=12)[0].code == "bad_type"
    run.boundary(0)
    assert (config.num_envs, config.mode, config.lr, applied) == (16, "graph", 0.5, [16])


def test_a_bad_declaration_is_one_warning(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "hoptui"):
        handle = run.knob("n", 5, min=10, max=1)
    assert handle.value == 5
    assert "n" not in run_state(run).declarations.knobs
    assert len(caplog.records) == 1


def test_check_names_the_knob() -> None:
    with pytest.raises(ValueError, match="num_envs = 0 is out of bounds"):
        hoptui.Knob(1, 64).check("num_envs", 0)


def test_state_dict_makes_the_next_epoch(run: Run) -> None:
    run.knob("n", 3, min=0, max=9)
    send(run, knob="n", value=7)
    run.boundary(0)
    state = run.state_dict()
    assert state == {"run": run.id, "epoch": 1, "knobs": {"n": 7}, "commands": 1}
    after = hoptui.connect("unit", resume=state)
    assert (after.id, run_state(after).epoch) == (run.id, 2)


def test_an_exception_in_the_loop_is_the_reason_of_the_end(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    said: list[tuple[str, str]] = []

    class Link:
        def close(self, reason: str, detail: str, *, at_exit: bool = False) -> None:
            said.append((reason, detail))

        def wake(self) -> None: ...

    monkeypatch.setattr(run_state(run), "link", Link())

    def train() -> None:
        with run:
            for i in run.iterations(3):
                run.log(x=1 / i)

    with pytest.raises(ZeroDivisionError):
        train()
    assert said == [("exception", "ZeroDivisionError: division by zero")]


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), SystemExit(1)])
def test_an_interrupted_iteration_does_not_count(run: Run, error: BaseException) -> None:
    def train() -> None:
        with run:
            for step in run.iterations(3):
                run.log(x=step, samples=8)
                if step == 1:
                    raise error

    with pytest.raises(type(error)):
        train()
    first, second = rows(run)
    assert {"iteration_s", "samples_per_s"} <= first.keys()
    assert second == {"x": 1.0, "samples": 8.0}


def test_an_iteration_that_the_loop_breaks_off_after_counts(run: Run) -> None:
    with run:
        for step in run.iterations(3):
            run.log(x=step)
            break
    [row] = rows(run)
    assert row.keys() == {"x", "iteration_s"}


def test_a_fault_of_ours_stays_ours(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Rows(deque[QueuedRow]):
        def append(self, row: QueuedRow) -> None:
            raise RuntimeError("planted")

    monkeypatch.setattr(run_state(run), "rows", Rows())
    with caplog.at_level(logging.WARNING, "hoptui"):
        done = []
        for i in run.iterations(5):
            run.log(i=i)
            done.append(i)
    assert done == [0, 1, 2, 3, 4]
    assert [r.getMessage().count("planted") for r in caplog.records] == [1]


def test_stop_from_the_script_itself(run: Run) -> None:
    done = []
    for i in run.iterations(10):
        if i == 2:
            run.stop("SIGTERM")
        done.append(i)
    assert done == [0, 1, 2]


def test_a_trace_is_begun_by_the_script(run: Run) -> None:
    assert send(run, "profile", value=3)[0].code == "unsupported"
    asked: list[int] = []
    run.on_profile(asked.append)
    for nonsense in (None, 0, 1.5, True, 100_000):
        assert send(run, "profile", value=nonsense)[0].code == "out_of_range"
    send(run, "profile", value=3)
    run.boundary(0)
    (done,) = run_state(run).inbox.collect_outcomes()
    assert (asked, done.stage, done.code, done.fields) == ([3], "applied", "tracing", {"iterations": 3})


def test_the_parameters_of_a_trace_handler_are_its_options(run: Run) -> None:
    asked: list[dict[str, object]] = []

    def trace(steps: int, *, warmup: int = 0, stacks: bool = False) -> None:
        asked.append({"steps": steps, "warmup": warmup, "stacks": stacks})

    run.on_profile(trace)
    verbs = run_state(run).declarations.verbs()
    assert [verb for verb in verbs if verb.startswith("profile")] == [
        "profile",
        "profile.warmup",
        "profile.stacks",
    ]
    refused = send(run, "profile", value=3, options={"memory": True})[0]
    assert (refused.code, refused.fields["option"]) == ("unsupported", "memory")
    for nonsense in (-1, 1001, True, 1.0):
        assert send(run, "profile", value=3, options={"warmup": nonsense})[0].code == "out_of_range"
    send(run, "profile", value=3, options={"stacks": True})
    run.boundary(0)
    assert asked == [{"steps": 3, "warmup": 0, "stacks": True}]


@pytest.mark.parametrize("handler", [min, print, lambda steps: None, lambda *a, **options: None])
def test_any_handler_of_traces_is_taken(run: Run, handler: Callable[..., object]) -> None:
    run.on_profile(handler)
    assert "profile" in run_state(run).declarations.verbs()


def test_flops_are_told_and_nonsense_is_not(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    before = run_state(run).declarations.revision
    run.flops(6e9, metric="tokens_per_s", precision="fp8")
    assert run_state(run).declarations.flops == Flops(per_unit=6e9, metric="tokens_per_s", precision="fp8")
    assert run_state(run).declarations.revision == before + 1
    for nothing in (0, -1.0, math.nan, math.inf):
        run.flops(nothing)
        assert run_state(run).declarations.flops is None
    with caplog.at_level(logging.WARNING, "hoptui"):
        run.flops("many")  # type: ignore[arg-type]
    assert len(caplog.records) == 1
    assert [found.fields["call"] for found in run_state(run).declarations.refused] == ["flops"]
