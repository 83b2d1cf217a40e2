"""The benchmarks of the trainer: their arithmetic, their commands, and every one of them against a stand-in
for the trainer."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import (
    guides,
    lm_speed,
    plain_lm,
    ppo_learn,
    ppo_resize,
    ppo_speed,
    ranks_speed,
    trainer,
    training,
    tuner_guides,
    vision_speed,
)
from benchmarks.measure import Bench
from benchmarks.training import Iteration, Trained, options
from hoptui.domain.columns import pack
from hoptui.node import processes
from hoptui_trainer.__main__ import app
from hoptui_trainer.lm.config import PRESETS as LM_PRESETS
from hoptui_trainer.ppo.config import PRESETS as PPO_PRESETS
from hoptui_trainer.vision.config import PRESETS as VISION_PRESETS
from tests.impatient import daemon_child

PRESETS = {"ppo": PPO_PRESETS, "lm": LM_PRESETS, "vision": VISION_PRESETS}

STAND_IN = """
import hashlib, json, os, sys, time
import hoptui
given = dict(zip(sys.argv[2:], sys.argv[3:]))
if os.environ.get("RANK", "0") != "0":
    sys.exit()
work = {"ppo": "env_steps", "lm": "tokens", "vision": "samples"}[sys.argv[1]]
count = min(int(given["--iterations"]), 40) if sys.argv[1] != "ppo" or "--num-envs" not in given else 10**9
run = hoptui.connect(given["--name"])
run.knob("num_envs", 8, min=1, max=1 << 20)
recording = os.path.join(os.environ["HOPTUI_STATE_DIR"], run.id + ".hoptui")
done, latest = 0, time.monotonic() + 30
while not os.path.exists(recording):  # it must be seen: some benchmarks are over in no time
    if time.monotonic() > latest:
        sys.exit("nobody records this run")
    time.sleep(0.001)
for i in run.iterations(count):
    hashlib.sha256(bytes(1 << 20)).digest()  # work of about a millisecond
    run.log(**{work: 64})
    done += 1
run.close()
print(json.dumps({"iterations": done, "ending": "finished", "mfu": None}))
"""
ANCHOR = """
import json, os, sys
print("as it goes")
with open(sys.argv[1], "a") as file:
    file.write(json.dumps({"N": os.environ["NS"], "full": {"med": 2e6, "p5": 1e6, "p95": 3e6}}) + "\\n")
    if os.environ["LEARN"] == "1":
        file.write(json.dumps({"learn": "eager", "curve": [[5, 0.1, 300.0], [10, 0.2, 480.5]]}) + "\\n")
"""


def case(rates: list[float], *, warm: float = 1.0, aside: float = 0.0) -> Trained:
    """A run of iterations of 0.1 s, the first tenth of them slower."""
    iterations, end = [], 0.0
    for i, rate in enumerate(rates):
        seconds = warm if i < len(rates) / 10 else 0.1 + aside
        end += seconds
        iterations.append(Iteration(end, seconds, rate * 0.1, aside if seconds < warm else 0.0))
    return Trained(("vision",), {"iterations": len(rates)}, 0, -2.0, iterations, [])


def test_the_first_tenth_does_not_count_and_the_rest_is_cut_into_five_windows() -> None:
    found = case([100.0] * 10 + [100.0] * 18 + [200.0] * 18 + [300.0] * 18 + [400.0] * 18 + [500.0] * 18)
    assert found.rates() == pytest.approx([100, 200, 300, 400, 500])
    figures = found.figures()
    assert figures["rate"] == {"median": 300.0, "min": 100.0, "max": 500.0, "n": 5}
    assert figures["start_s"] == 3.0  # from the start of the process to the end of the first iteration
    assert figures["warm_up_s"] == pytest.approx(10 * 0.9)


def test_time_for_evaluations_is_left_out() -> None:
    assert case([70.0] * 30, aside=0.4, warm=9.0).rates() == pytest.approx([70] * 5)


def test_few_iterations_make_few_windows() -> None:
    assert case([5.0, 5.0, 5.0]).rates() == pytest.approx([5, 5])


def test_what_a_gpu_showed_while_it_was_steady_is_told_and_what_is_unknown_is_none() -> None:
    found = case([1.0] * 20)
    first, last = found.steady[0].end_s, found.steady[-1].end_s
    rows = [(1, 0.0), (round(1e9 * first), 40.0), (round(1e9 * last), 60.0), (round(1e9 * last) + 1, 0.0)]
    columns = pack("gpu/GPU-1", [(t, -1, {"busy": 100.0, "sm_active": value}) for t, value in rows])
    shown = Trained(found.arguments, {}, 0, 0.0, found.iterations, [columns]).figures()["gpus"][0]
    assert shown["busy"] == 100.0
    assert shown["sm_active"] == 50.0
    assert shown["power_w"] is None


def test_what_a_change_costs() -> None:
    def took(i: int) -> float:
        return 0.61 if i == 3 else 0.03 if 3 < i <= 200 else 0.05 if i == 700 else 0.01

    later, end = [], 10.0
    for i in range(1000):
        end += took(i)
        later.append(Iteration(end, took(i), 1.0, 0.0))
    cost = ppo_resize._cost(later, asked=10.0)
    assert cost["steady_iteration_s"] == 0.01
    assert cost["stands_still_s"] == pytest.approx(0.6)
    assert cost["at_full_speed_after_s"] == pytest.approx(later[200].end_s - 10, abs=ppo_resize.SLICE_S)


def test_a_change_that_costs_nothing() -> None:
    later = [Iteration(1 + i / 100, 0.01, 1.0, 0.0) for i in range(500)]
    cost = ppo_resize._cost(later, asked=1.0)
    assert cost["stands_still_s"] == 0
    assert cost["at_full_speed_after_s"] == 0


def commands() -> Iterator[tuple[str, ...]]:
    """Every command that a benchmark starts."""
    for module in (vision_speed, lm_speed, ppo_speed):
        yield from (*module.CASES.values(), *module.QUICK.values())
    yield from (ppo_learn.CASE, ppo_learn.QUICK, ppo_resize.CASE, ppo_resize.QUICK)
    for _, before, after in (*guides.PAIRS.values(), *guides.OWN.values(), *guides.QUICK.values()):
        yield from (before, after, tuner_guides.endless(before))
    for _, command, option, amount in (*ranks_speed.CASES.values(), *ranks_speed.QUICK.values()):
        yield (*command, option, str(amount))


@pytest.mark.parametrize("command", list(commands()), ids=" ".join)
def test_the_trainer_takes_every_command(command: tuple[str, ...]) -> None:
    for device in (options(["--quick"]).device, options([]).device):
        function, _, _ = app.parse_args([*command, *device], exit_on_error=False, print_error=False)
        assert function.__name__ == command[0]
    if "--preset" in command:
        assert command[command.index("--preset") + 1] in PRESETS[command[0]]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Daemons that write at once what they hear, and have ended with all their children before their node is
    cleared away."""
    started: list[subprocess.Popen[bytes]] = []
    close = Bench.close

    def ended(node: Bench) -> None:
        while started:
            daemon = started.pop()
            daemon.terminate()
            daemon.wait(10)
        close(node)

    monkeypatch.setattr(
        processes, "start_daemon", lambda where: started.append(daemon_child(where, flush_s=0.1))
    )
    monkeypatch.setattr(Bench, "close", ended)


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_all_of_them_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in, anchor = tmp_path / "trainer.py", tmp_path / "anchor.py"
    stand_in.write_text(STAND_IN)
    anchor.write_text(ANCHOR)
    monkeypatch.setattr(training, "TRAINER", (str(stand_in),))
    monkeypatch.setattr(
        training,
        "TORCHRUN",
        ("-c", "import os, sys; os.execv(sys.executable, [sys.executable, *sys.argv[3:]])"),
    )
    monkeypatch.setattr(lm_speed, "PLAIN", ())
    monkeypatch.setattr(training, "report", lambda *_: pytest.fail("a quick try must not keep results"))
    assert trainer.main(["--quick", "--anchor", str(anchor)]) == 0
    results = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert [result["benchmark"] for result in results] == list(trainer.ALL)
    found: dict[str, dict[str, Any]] = {result["benchmark"]: result for result in results}
    [speed] = found["ppo_speed"]["cases"].values()
    assert speed["rate"]["n"] == 5
    assert speed["anchor"] == {"variant": "eager", "median": 2_000_000, "p5": 1_000_000, "p95": 3_000_000}
    [changed] = found["ppo_resize"]["changes"]
    assert changed["applied"]["effective"] == 16
    learnt = found["ppo_learn"]
    assert learnt["training_s"]["median"] > 0
    assert learnt["anchor"] == {"training_s": 0.2, "iterations": 10, "evaluation_return": 480.5}


def test_a_trainer_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "trainer.py"
    broken.write_text("import sys; sys.exit('out of luck')")
    monkeypatch.setattr(training, "TRAINER", (str(broken),))
    with pytest.raises(RuntimeError, match=r"(?s)vision .* exit status 1.*out of luck"):
        trainer.main(["vision_speed", "--quick"])


def test_the_plain_loop_learns_nothing_but_runs() -> None:
    found = plain_lm.run(plain_lm.TINY, compiled=False, device=torch.device("cpu"))
    assert isinstance(found["rates"], list)
    assert len(found["rates"]) == 2
    assert min(found["rates"]) > 0


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        trainer.main(["vision_spede"])
    assert "vision_spede" in capsys.readouterr().err
