"""`hoptui run` on real training: results are bit-identical, the run is shown and takes commands."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import pytest

from hoptui.injection import launch
from hoptui.injection.injected_run import script_name
from hoptui.protocol.messages import FetchOutput, RunOutput
from tests.conftest import TestNode, until
from tests.injection.scripts import finished, live_run, run_command, script

pytest.importorskip("torch")

PYTHON = sys.executable
QUIET = {"OMP_NUM_THREADS": "1", "TORCHELASTIC_ERROR_FILE": ""}
TORCHRUN = (PYTHON, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port=0", "--standalone")


@pytest.mark.slow
def test_a_script_is_shown_and_steered_and_its_results_stay_bit_identical(
    node: TestNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = script(tmp_path)
    monkeypatch.setenv("HOPTUI_IDLE_S", "300")
    plain = finished(node.spawn([PYTHON, str(path), "each"], **QUIET))
    node.daemon()
    viewer = node.viewer()
    child = node.spawn(run_command("--", PYTHON, str(path), "each", "long"), **QUIET)
    run = live_run(viewer, "train", child.pid)
    until(lambda: viewer.vital(run.run).step > 140, seconds=60, what="the long loop")
    assert {each.spec.name: each.value for each in run.knobs}["lr"] == 0.01, "the base of the schedule"
    assert "weight_decay" in {each.spec.name for each in run.knobs}
    for verb, value in (("stop", None), ("checkpoint", None), ("profile", 3)):
        refused = viewer.outcome(viewer.command(run, verb, value=value))
        assert (refused.stage, refused.code, refused.fields["verb"]) == ("rejected", "declined", verb)
        assert "add hoptui.connect" in refused.fields["reason"]
    assert "run.bind(loader, num_workers=" in run.declined["num_workers"]
    applied = viewer.outcome(viewer.command(run, knob="lr", value=0.02))
    assert (applied.stage, applied.before, applied.effective) == ("applied", 0.01, 0.02)
    assert viewer.outcome(viewer.command(run, "pause", hold_s=60.0)).stage == "applied"
    until(lambda: viewer.vital(run.run).state == "paused")
    assert viewer.outcome(viewer.command(run, "resume")).stage == "applied"
    status = json.loads(node.hoptui("status", run.run, "--json").stdout)
    assert status["metrics"]["samples"] in (16, 4), "a batch, or the last one of a pass"
    Path(f"{path}.end").touch()
    code, out, err = finished(child)
    assert (code, err) == (0, "")
    *same, last = out.splitlines()
    assert sorted(same) == sorted(plain[1].splitlines())
    assert len(same) == 4
    assert last.count(", ") == 0, "the rate changed once"
    until(lambda: all(r.exit_reason for r in viewer.state().runs), what="the ends")
    assert sorted((r.name, r.world, r.exit_reason) for r in viewer.state().runs) == [
        ("train", 1, "finished"),
        ("train", 2, "finished"),
    ], "the workers are not runs"


@pytest.mark.slow
def test_ranks_of_torchrun_are_one_run_and_change_at_the_same_iteration(
    node: TestNode, tmp_path: Path
) -> None:
    path = script(tmp_path)
    child = node.spawn(run_command("--name", "ranks", "--", *TORCHRUN, str(path), "long"), **QUIET)
    daemon = until(node.daemon_pid, seconds=60, what="the daemon that the run starts")
    environment = Path(f"/proc/{daemon}/environ").read_text()
    assert launch.VARIABLE not in environment
    assert launch.SITE not in environment
    viewer = node.viewer()
    run = live_run(viewer, "ranks")
    applied = viewer.outcome(viewer.command(run, knob="lr", value=0.02))
    assert (applied.stage, applied.effective) == ("applied", 0.02)
    assert [(r.name, r.world) for r in viewer.state().runs] == [("ranks", 2)]
    Path(f"{path}.end").touch()
    code, out, err = finished(child)
    assert code == 0, err
    first, second = (line.partition(": ")[2].split(maxsplit=3) for line in sorted(out.splitlines()))
    assert first[0] == second[0], "the weights of both ranks"
    assert json.loads(first[3]) == json.loads(second[3]) != []


SCENARIOS = """
import os, sys, weakref, logging
import torch

def steps(count, kind=torch.optim.SGD, **options):
    model = torch.nn.Linear(2, 1)
    optimizer = kind(model.parameters(), lr=0.1, **options)
    for _ in range(count):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    return optimizer

def two_loops():
    first = weakref.ref(steps(20))
    assert first() is None, "its memory is that of the script"
    second = steps(20)
    from hoptui.injection import injected_run
    assert injected_run._injected._iteration.now is second
    return injected_run._injected._steps

def connects_later():
    steps(3)
    import hoptui
    run = hoptui.connect("own")
    optimizer = steps(3)
    from hoptui.injection import injected_run
    assert injected_run._injected._off and run._core.state.alive
    run.on_checkpoint(lambda: None)
    declared = run._core.state.declarations
    assert not declared.declined and "checkpoint" in declared.verbs()
    for i in run.iterations(2):
        pass
    run.close()

def connects_first():
    import hoptui
    run = hoptui.connect("own")
    steps(3)
    from hoptui.injection import injected_run
    assert injected_run._injected.run is None
    run.on_checkpoint(lambda: None)
    declared = run._core.state.declarations
    assert not declared.declined and "checkpoint" in declared.verbs()
    run.close()

def breaks():
    from hoptui.injection import injected_run
    def fails(*_):
        raise ValueError("planted")
    injected_run.InjectedRun._boundary = fails
    steps(5)

def breaks_in_a_loader():
    from hoptui.injection import batches
    def fails(*_):
        raise ValueError("planted")
    steps(2)
    batches.batch_size = batches.replicas = fails
    data = torch.utils.data.DataLoader(list(range(6)), batch_size=2)
    assert [len(each) for each in data] == [2, 2, 2]
    steps(9)

def lacks_msgspec():
    sys.modules["msgspec"] = None
    steps(5)

def kinds():
    for kind, options in ((torch.optim.AdamW, {"foreach": True}), (torch.optim.AdamW, {"fused": True}),
                          (torch.optim.Adagrad, {})):
        steps(10, kind, **options)
    model = torch.nn.Linear(2, 1)
    lbfgs = torch.optim.LBFGS(model.parameters())
    def closure():
        lbfgs.zero_grad()
        loss = model(torch.ones(1, 2)).sum() ** 2
        loss.backward()
        return loss
    for _ in range(10):
        lbfgs.step(closure)
    from hoptui.injection import injected_run
    return injected_run._injected._steps

def forks():
    steps(3)
    pid = os.fork()
    if not pid:
        steps(20)
        from hoptui.injection import injected_run
        os._exit(injected_run._injected._steps)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def threads():
    import threading
    steps(3)
    other = threading.Thread(target=steps, args=(30,))
    other.start()
    other.join()
    from hoptui.injection import injected_run
    return injected_run._injected._steps

def compiles_the_step():
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=torch.tensor(0.5), foreach=True)
    step = torch.compile(optimizer.step, backend="eager")
    for _ in range(3):
        weight.sum().backward()
        step()
        optimizer.zero_grad()
    from hoptui.injection import injected_run
    return weight.tolist(), injected_run._injected._steps

def multiprocesses():
    import multiprocessing
    child = multiprocessing.get_context("fork").Process(target=steps, args=(3,))
    child.start()
    child.join()
    return child.exitcode

torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])  # imports what each child would import
from torch.optim import optimizer
for register in (optimizer.register_optimizer_step_pre_hook, optimizer.register_optimizer_step_post_hook):
    register(lambda *_: None)  # behind those of hoptui: torch fails if a hook goes while it calls them
for scenario in (lacks_msgspec, two_loops, connects_later, connects_first, breaks, breaks_in_a_loader, kinds,
                 forks, threads, multiprocesses, compiles_the_step):
    if scenario is two_loops:
        import hoptui.sdk.daemon_link, hoptui.sdk.run
    sys.stdout.flush()
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.dup2(writing, 2)
        try:
            print(scenario.__name__, scenario(), flush=True)
        except BaseException as error:
            print(scenario.__name__, repr(error), flush=True)
        sys.stderr.flush()
        import hoptui
        sys.modules.get("hoptui.sdk.run_core") and sys.modules["hoptui.sdk.run_core"]._close_all()
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as said:
        lines = said.read().splitlines()
    os.waitpid(pid, 0)
    print(scenario.__name__, "printed", len(lines), lines[:3], flush=True)
1 / 0
"""
"""Each in a child that is forked before the first step. The parent does not train, and ends with an error."""


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["train.py", "--lr", "1"], "train"), (["/a/lm/__main__.py"], "lm"), (["-c"], "python"),
        (["-"], "python"), ([""], "python"), ([], "python"), (["/venv/bin/sweep"], "sweep"),
    ],
)  # fmt: skip
def test_a_run_has_the_name_of_what_python_runs(argv: list[str], name: str) -> None:
    assert script_name(argv) == name


def test_what_scripts_do(node: TestNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = script(tmp_path, SCENARIOS, "many.py")
    monkeypatch.setenv("HOPTUI_IDLE_S", "300")
    node.daemon()
    child = node.spawn(run_command("--name", "many", "--", PYTHON, str(path)), **QUIET)
    code, out, err = finished(child)
    assert (code, err.splitlines()[-1]) == (1, "ZeroDivisionError: division by zero")
    assert "hoptui" not in err
    found: dict[str, list[str]] = {}
    for line in out.splitlines():
        name, _, rest = line.partition(" ")
        found.setdefault(name, []).append(rest)
    quiet = "printed 0 []"
    assert found["two_loops"] == ["33", quiet], "the second optimizer takes over at its eighth step"
    assert found["connects_later"] == ["None", quiet]
    assert found["connects_first"] == ["None", quiet]
    assert found["breaks"][0] == "None"
    assert found["breaks"][1].startswith("printed 1 ")
    assert found["breaks_in_a_loader"] == ["None", quiet]
    assert found["lacks_msgspec"][0] == "None"
    assert found["lacks_msgspec"][1].startswith("printed 1 ")
    assert found["kinds"] == [str(10 + 3 * 3), quiet]
    assert found["forks"] == ["3", quiet]
    assert found["threads"] == ["3", quiet]
    assert found["multiprocesses"] == ["0", quiet]
    assert found["compiles_the_step"][0] == "([-0.5, -0.5], 0)", "it trains as before, and is not seen"
    viewer = node.viewer()
    runs = viewer.state().runs
    assert Counter(run.name for run in runs) == {"many": 8, "own": 2}, "also the shortest ones"
    assert child.pid not in {run.pid for run in runs}, "it does not train"


OWN_OPTIMIZERS = {
    "fastai/optimizer.py": """
import torch
class Optimizer:
    def __init__(self, params, lr):
        self.params, self.hypers, self.taken = list(params), [{"lr": lr}], 0
    @property
    def param_groups(self):  # copies: a change of one is lost
        return [{"params": self.params, **hyper} for hyper in self.hypers]
    def step(self, fails=False):
        if fails:
            raise ValueError("planted")
        self.taken += 1
        return self.taken
""",
    "keras/src/backend/torch/optimizers/torch_parallel_optimizer.py": """
import torch
class TorchParallelOptimizer:
    def __init__(self):
        self.applied = 0
    def apply(self, grads):
        self.applied += 1
        if self.applied % 2 == 0:  # it accumulates gradients of two micro-batches
            self._backend_update_step(grads, [], 0.1)
    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        pass
""",
    "train.py": """
import os, sys, time
if sys.argv[1] == "fastai":
    from fastai.optimizer import Optimizer
    optimizer = Optimizer([], 0.1)
    assert optimizer.step() == 1
    try:
        optimizer.step(fails=True)
    except ValueError:
        pass
    step = optimizer.step
else:
    from keras.src.backend.torch.optimizers.torch_parallel_optimizer import TorchParallelOptimizer
    optimizer = TorchParallelOptimizer()
    step = lambda: optimizer.apply([])
from hoptui.injection import injected_run
while not os.path.exists(sys.argv[2]):
    step()
    time.sleep(0.01)
print(injected_run._injected._steps, optimizer.taken if sys.argv[1] == "fastai" else optimizer.applied // 2)
""",
}
"""What fastai and Keras on torch do: their optimizers are not those of torch."""


@pytest.mark.parametrize("framework", ["fastai", "keras"])
def test_optimizers_that_are_not_of_torch_make_iterations(
    node: TestNode, tmp_path: Path, framework: str
) -> None:
    for name, text in OWN_OPTIMIZERS.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        for folder in path.relative_to(tmp_path).parents[:-1]:
            (tmp_path / folder / "__init__.py").touch()
    viewer, end = node.viewer(), tmp_path / "end"
    child = node.spawn(run_command("--", PYTHON, str(tmp_path / "train.py"), framework, str(end)), **QUIET)

    def shown() -> bool:
        return any(r.pid == child.pid and viewer.vital(r.run).step > 2 for r in viewer.state().runs)

    until(shown, seconds=60, what="its iterations")
    run = next(r for r in viewer.state().runs if r.pid == child.pid)
    assert (run.name, run.knobs) == ("train", ()), "what it reads is not known, so nothing can be changed"
    assert "not one of torch" in run.declined["lr"]
    end.touch()
    code, out, err = finished(child)
    assert (code, err) == (0, "")
    counted, taken = out.split()
    assert counted == taken, "a step that raised is none, and neither is a micro-batch"


COPIED = """
import torch
print("before the first step", flush=True)
parameter = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([parameter], lr=0.1)
import os, sys, time
while not os.path.exists(sys.argv[1]):
    parameter.grad = torch.ones(1)
    optimizer.step()
    time.sleep(0.01)
"""


@pytest.mark.slow
def test_output_is_copied_from_the_import_of_torch_on(node: TestNode, tmp_path: Path) -> None:
    path = tmp_path / "copied.py"
    path.write_text(COPIED)
    viewer = node.viewer()
    child = node.spawn(run_command("--output", "--", PYTHON, str(path), str(tmp_path / "end")), **QUIET)
    run = live_run(viewer, "copied", child.pid)

    def copied() -> list[bytes]:
        """Return the parts that the process has sent. Before that, it names two pipes without data."""
        parts = viewer.ask(FetchOutput(id=1, run=run.run), RunOutput).parts
        return [part.data for part in parts if part.origin == "copied"]

    assert until(copied, seconds=60, what="the copy") == [b"before the first step\n"]
    (tmp_path / "end").touch()
    assert finished(child)[0] == 0
