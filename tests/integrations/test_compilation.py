"""A model that is compiled while it trains learns the same weights. One process, without viewers."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import pytest
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
from transformers import TrainerCallback

import hoptui
from hoptui.integrations import compilation
from hoptui.integrations.accelerate import HoptuiTracker
from hoptui.integrations.compilation import Compilation, obstacle, platform_obstacle, wrapper_obstacle
from hoptui.integrations.lightning import HoptuiCallback as LightningCallback
from hoptui.integrations.lightning_internals import compiled_parts
from hoptui.integrations.trainer_settings import compilation_obstacle
from hoptui.integrations.transformers import HoptuiCallback
from tests.integrations.test_recomputation import losses_and_weights, model, trainer_of
from tests.sdk.two_ranks import pair

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]
ROUNDED = 1e-4
"""A compiled model adds in another order."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No daemon, and a compiler that makes no code."""
    monkeypatch.setenv("HOPTUI", "off")
    monkeypatch.setattr(compilation, "BACKEND", "aot_eager")


class CompileKnob:
    """Takes what became of a command."""

    def __init__(self, apply: Callable[[bool], object]) -> None:
        self._apply, self.held, self.reverted = apply, 0, ""

    def holds(self) -> None:
        self.held += 1

    def revert(self, value: bool, reason: str) -> None:
        self.reverted = reason
        self._apply(value)


class Offered:
    """Takes the declaration of the knob."""

    def __init__(self) -> None:
        self.declared: dict[str, Any] = {}
        self.declined: dict[str, str] = {}
        self.made: Any = None

    def knob(self, name: str, value: bool, **declared: Any) -> Any:
        self.declared = {"name": name, "value": value} | declared
        self.made = CompileKnob(declared["apply"])
        return self.made

    def decline(self, name: str, reason: str) -> None:
        self.declined[name] = reason


def offered(*modules: torch.nn.Module, **options: Any) -> tuple[Compilation, Offered]:
    run, found = Offered(), Compilation(modules, **options)
    found.offer(run, "")  # type: ignore[arg-type]
    return found, run


def net(*more: torch.nn.Module) -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), *more, torch.nn.ReLU(), torch.nn.Linear(8, 1))


def set_on(compiling: Compilation, trained: torch.nn.Module) -> None:
    """Set the knob, and make the eager iteration after it."""
    assert compiling.set(True) is hoptui.LATER
    trained(torch.randn(4, 8)).sum().backward()
    trained.zero_grad()
    compiling.end_step()


# the knob ---------------------------------------------------------------------------------------------------


def test_the_knob_is_a_mode_for_speed() -> None:
    _, run = offered(net())
    declared = run.declared
    assert (declared["name"], declared["value"], declared["effect"], declared["cost"]) == (
        "compile", False, "speed", "rebuild",
    )  # fmt: skip


def test_a_compiled_module_keeps_its_keys_and_is_left_as_it_was() -> None:
    trained = net()
    before = {name: value.clone() for name, value in trained.state_dict().items()}
    compiling, run = offered(trained)
    x = torch.randn(4, 8)
    expected = trained(x)
    set_on(compiling, trained)
    assert compiling.set(True) is hoptui.LATER
    assert compiling._graphs == 0
    assert torch.allclose(trained(x), expected)
    assert compiling._graphs == 1
    assert run.declared["read"]() is True
    compiling.end_step()
    assert (run.made.held, run.made.reverted) == (1, "")
    assert compiling.set(True) is None
    found = trained.state_dict()
    assert list(found) == list(before)
    assert all(torch.equal(found[name], before[name]) for name in before)
    assert copy.deepcopy(trained)._compiled_call_impl is None
    assert compiling.set(False) is None
    assert trained._compiled_call_impl is None
    assert run.declared["read"]() is False


def broken_graph(graph: Any, inputs: Any) -> Any:
    raise RuntimeError("no compiler here\nand more lines")


def broken_backward(graph: Any, inputs: Any) -> Any:
    from torch._dynamo.backends.common import aot_autograd

    return aot_autograd(fw_compiler=lambda graph, _: graph.forward, bw_compiler=broken_graph)(graph, inputs)


def broken_tracing(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo.symbolic_convert import InstructionTranslator

    def run(self: Any) -> None:
        raise KeyError("no compiler here")

    monkeypatch.setattr(InstructionTranslator, "run", run)


@pytest.mark.parametrize("fault", [broken_graph, broken_backward, None])
def test_a_failing_compilation_is_eager_and_fails_the_change(
    monkeypatch: pytest.MonkeyPatch, fault: Any
) -> None:
    if fault is None:
        broken_tracing(monkeypatch)
    else:
        monkeypatch.setattr(torch._dynamo, "lookup_backend", lambda name: fault)
    trained = net(torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5))
    compiling, run = offered(trained)
    set_on(compiling, trained)
    reference = copy.deepcopy(trained)
    x = torch.randn(4, 8)
    found = []
    for each in (trained, reference):
        torch.manual_seed(1)
        output = each(x)
        output.sum().backward()
        found.append((output, torch.rand(1), [p.grad for p in each.parameters()], list(each.buffers())))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
    for index in (2, 3):  # the statistics of BatchNorm count the batch once
        assert all(torch.equal(a, b) for a, b in zip(found[0][index], found[1][index], strict=True))
    compiling.end_step()
    assert run.made.held == 0
    assert run.made.reverted.startswith("torch.compile failed: ")
    assert "no compiler here" in run.made.reverted
    assert "more lines" not in run.made.reverted
    assert not compiling.on
    assert trained._compiled_call_impl is None


def test_a_later_failure_reverts_the_knob(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = net()
    compiling, run = offered(trained)
    set_on(compiling, trained)
    trained(torch.randn(4, 8))
    compiling.end_step()
    assert run.made.held == 1
    compiling._inner = broken_graph
    assert trained(torch.randn(5, 8)).shape == (5, 1)
    compiling.end_step()
    assert "no compiler here" in run.made.reverted
    assert trained._compiled_call_impl is None


def test_parameters_without_a_gradient_exclude_a_compiled_module() -> None:
    """The compiler gives them zeros, with which weight decay changes them."""
    trained = net()
    first, *_ = trained.children()
    first.register_parameter("unused", torch.nn.Parameter(torch.ones(1)))
    compiling, run = offered(trained)
    set_on(compiling, trained)
    assert run.made.reverted.startswith("0.unused got no gradient in the last step")
    assert not compiling.on
    assert trained._compiled_call_impl is None
    assert not first.unused._post_accumulate_grad_hooks


def test_evaluation_is_eager() -> None:
    trained = net()
    compiling, _ = offered(trained)
    set_on(compiling, trained)
    trained(torch.randn(4, 8))
    trained.eval()
    assert trained(torch.randn(9, 8)).shape == (9, 1)
    assert (compiling._called, compiling._graphs) == (1, 1)
    compiling.restore()


def test_an_error_of_the_model_stays_that_of_the_model() -> None:
    trained = net()
    compiling, _ = offered(trained)
    set_on(compiling, trained)
    with pytest.raises(RuntimeError, match="shapes"):
        trained(torch.randn(4, 7))
    assert trained(torch.randn(4, 8)).shape == (4, 1)


def test_a_module_that_is_not_called_is_not_compiled() -> None:
    trained = net()
    compiling, run = offered(trained)
    set_on(compiling, trained)
    compiling.end_step()
    assert "has called no module" in run.made.reverted


def test_a_part_of_a_compiled_module_is_compiled_with_it() -> None:
    inner = net()
    outer = torch.nn.Sequential(inner, torch.nn.Linear(1, 1))
    compiling, run = offered(outer, inner)
    set_on(compiling, outer)
    outer(torch.randn(4, 8))
    compiling.end_step()
    assert (compiling._called, compiling._graphs, run.made.held) == (1, 1, 1)


def compiled() -> torch.nn.Module:
    found = net()
    found[0].compile()
    return found


def dispatched() -> Any:
    found: Any = net()
    found._hf_hook = object()
    return found


def quantized() -> Any:
    found: Any = net()
    found.is_quantized = True
    return found


@pytest.mark.parametrize(
    ("trained", "reason"),
    [
        (compiled, "compiles already"),
        (lambda: torch.compile(net()), "compiles already"),
        (dispatched, "over devices"),
        (quantized, "quantized"),
        (torch.nn.ReLU, "no module with parameters"),
    ],
)
def test_a_model_that_is_not_to_be_compiled_is_declined(trained: Any, reason: str) -> None:
    _, run = offered(trained())
    assert not run.declared
    assert reason in run.declined["compile"]


def test_a_platform_without_a_compiler_is_an_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    assert obstacle([net()]) == ""
    monkeypatch.setenv("CXX", "/no/compiler")
    assert "C++ compiler" in obstacle([net()])
    assert "not tested on mps" in platform_obstacle(torch.device("mps"))


def wrapper(kind: Any, **attributes: Any) -> Any:
    found = kind.__new__(kind)
    torch.nn.Module.__init__(found)
    for name, value in attributes.items():
        found.__dict__[name] = value
    return found


DDP = torch.nn.parallel.DistributedDataParallel


@pytest.mark.parametrize(
    ("wrapped", "reason"),
    [
        (lambda: wrapper(DDP, static_graph=False), ""),
        (lambda: wrapper(DDP, static_graph=True), "static graph"),
        (lambda: wrapper(torch.nn.DataParallel), "DataParallel"),
        (lambda: wrapper(torch.distributed.fsdp.FullyShardedDataParallel), "FSDP"),
    ],
)
def test_a_wrapper_may_be_an_obstacle(wrapped: Any, reason: str) -> None:
    found = wrapper_obstacle(wrapped())
    assert reason in found
    assert bool(found) is bool(reason)


# in the frameworks ------------------------------------------------------------------------------------------


class CompileAt(TrainerCallback):  # type: ignore[misc]
    """Sets the knob after some steps, as a command would, and notes whether it was compiled."""

    def __init__(self, of_hoptui: HoptuiCallback, changes: dict[int, bool]) -> None:
        self._hoptui, self._changes = of_hoptui, changes
        self.graphs: list[int] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        compiling = self._hoptui._compilation
        assert compiling is not None
        self.graphs.append(compiling._graphs if compiling.on else -1)
        if state.global_step in self._changes:
            compiling.set(self._changes[state.global_step])


@pytest.mark.timeout(900)  # it makes code with the C++ compiler
@pytest.mark.parametrize(
    ("backend", "options"),
    [
        ("inductor", {}),
        ("aot_eager", {}),
        ("aot_eager", {"bf16": True, "gradient_accumulation_steps": 2}),
    ],
)
def test_a_trainer_learns_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, options: dict[str, Any]
) -> None:
    monkeypatch.setattr(compilation, "BACKEND", backend)
    options |= {"optim": "sgd"}  # Adam makes much of the rounding of gradients that are almost 0
    expected = losses_and_weights(trainer_of(tmp_path, model(), **options))
    callback = HoptuiCallback("compiled")
    compile_ = CompileAt(callback, {2: True, 6: False})
    trained = model()
    losses, weights = losses_and_weights(trainer_of(tmp_path, trained, [callback, compile_], **options))
    assert compile_.graphs[:2] == compile_.graphs[6:] == [-1, -1]
    assert compile_.graphs[2] == 0, "it is observed"
    assert min(compile_.graphs[3:6]) >= 1
    tolerance = 1e-2 if "bf16" in options else ROUNDED
    assert losses == pytest.approx(expected[0], rel=tolerance)
    assert all(torch.allclose(a, b, atol=tolerance) for a, b in zip(weights, expected[1], strict=True))
    assert trained._compiled_call_impl is None


def test_a_failing_compilation_does_not_end_a_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = losses_and_weights(trainer_of(tmp_path, model(0.3)))
    monkeypatch.setattr(torch._dynamo, "lookup_backend", lambda name: broken_backward)
    callback = HoptuiCallback("compiled")
    compile_ = CompileAt(callback, {2: True})
    found = losses_and_weights(trainer_of(tmp_path, model(0.3), [callback, compile_]))
    assert compile_.graphs == [-1, -1, 0, *[-1] * 5]
    assert found[0] == expected[0]
    assert all(torch.equal(a, b) for a, b in zip(found[1], expected[1], strict=True))


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ({"is_deepspeed_enabled": True}, "DeepSpeed"),
        ({"is_fsdp_xla_enabled": True}, "XLA"),
        ({"get_tp_size": lambda: 2}, "spread over ranks"),
        ({"model_wrapped": wrapper(torch.nn.DataParallel)}, "DataParallel"),
    ],
)
def test_a_way_of_training_that_is_not_tested_is_an_obstacle(
    tmp_path: Path, what: dict[str, Any], reason: str
) -> None:
    trainer = trainer_of(tmp_path, model())
    assert compilation_obstacle(trainer) == ""
    for name, value in what.items():
        setattr(trainer, name, value)
    assert reason in compilation_obstacle(trainer)


class Plain(L.LightningModule):  # type: ignore[misc]
    """A module whose training step calls its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()
        self.heads = torch.nn.ModuleList([torch.nn.Linear(1, 1)])

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch[0])
        self.log("train_loss", loss)
        return loss

    def loss(self, x: torch.Tensor) -> Any:
        return (self.heads[0](self.net(x)) - x.sum(1, keepdim=True)).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class WithForward(Plain):
    """A module whose training step calls its `forward`."""

    def forward(self, x: torch.Tensor) -> Any:
        return self.heads[0](self.net(x)).relu()

    def loss(self, x: torch.Tensor) -> Any:
        return (self(x) - x.sum(1, keepdim=True)).square().mean()


class SetCompile(L.Callback):  # type: ignore[misc]
    """Sets the knob after some batches."""

    def __init__(self, of_hoptui: Any, changes: dict[int, bool]) -> None:
        self._hoptui, self._changes = of_hoptui, changes
        self.graphs: list[int] = []

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        compiling = self._hoptui._knobs._compilation
        self.graphs.append(compiling._graphs if compiling.on else -1)
        if trainer.global_step in self._changes:
            compiling.set(self._changes[trainer.global_step])


def fit(folder: Path, module: Any, changes: dict[int, bool]) -> tuple[list[int], list[torch.Tensor]]:
    of_hoptui = LightningCallback("compiled")
    setting = SetCompile(of_hoptui, changes)
    trainer = L.Trainer(
        max_epochs=2, accelerator="cpu", devices=1, callbacks=[of_hoptui, setting], default_root_dir=folder,
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    torch.manual_seed(3)
    trainer.fit(module, DataLoader(TensorDataset(torch.randn(18, 8)), batch_size=4))
    return setting.graphs, [parameter.detach().clone() for parameter in module.parameters()]


@pytest.mark.parametrize(("kind", "graphs"), [(Plain, 2), (WithForward, 1)])
def test_lightning_learns_the_same_weights(tmp_path: Path, kind: type, graphs: int) -> None:
    _, expected = fit(tmp_path, kind(), {})
    module = kind()
    found, weights = fit(tmp_path, module, {2: True, 8: False})
    assert found[:2] == found[8:] == [-1, -1]
    assert found[2:4] == [0, graphs]
    assert all(torch.allclose(a, b, atol=ROUNDED) for a, b in zip(weights, expected, strict=True))
    assert all(part._compiled_call_impl is None for part in module.modules())
    assert list(module.state_dict()) == list(kind().state_dict())


def test_a_forward_that_a_strategy_replaces_is_eager() -> None:
    module = WithForward()
    parts, own = compiled_parts(module)
    assert parts[0] is own is module
    compiling, _ = offered(*parts, redirected=own)
    set_on(compiling, module)
    forward = module.forward
    module.forward = lambda x: "redirected"
    assert module(torch.randn(4, 8)) == "redirected"
    module.forward = forward  # as the strategy does: now it is an attribute of the instance
    assert module(torch.randn(4, 8)).shape == (4, 1)
    assert compiling._called == 1
    compiling.restore()


def loop(compiled_at: int | None) -> tuple[list[torch.Tensor], Any]:
    torch.manual_seed(0)
    tracker = HoptuiTracker("compiled")
    accelerator = Accelerator(cpu=True, log_with=tracker)
    trained = net()
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.randn(40, 8)), batch_size=4)
    prepared, optimizer, loader = accelerator.prepare(trained, optimizer, loader)
    accelerator.init_trackers("compiled")
    for step, (x,) in enumerate(loader):
        found = tracker._compilation
        if step == compiled_at:
            assert found is not None
            found.set(True)
        accelerator.backward((prepared(x) - x.sum(1, keepdim=True)).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    found = tracker._compilation
    assert found is not None
    graphs = found._graphs if found.on else -1
    tracker.finish()
    assert trained._compiled_call_impl is None
    return [parameter.detach().clone() for parameter in trained.parameters()], graphs


def test_a_loop_with_accelerate_learns_the_same_weights() -> None:
    expected, without = loop(None)
    weights, graphs = loop(2)
    assert (without, graphs) == (-1, 1)
    assert all(torch.allclose(a, b, atol=ROUNDED) for a, b in zip(weights, expected, strict=True))


# several ranks ----------------------------------------------------------------------------------------------

RANKS_S = 200.0
COMPILED = """
import torch
from hoptui.integrations import compilation
from hoptui.integrations.compilation import Compilation

net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
found = Compilation([net])
found.offer(run, "")

def broken(graph, inputs, **options):
    raise RuntimeError("no compiler here")

if rank == FAILS:
    torch._dynamo.lookup_backend = lambda name: broken
else:
    compilation.BACKEND = "aot_eager"  # it makes no code

def step():
    net(torch.ones(4, 8)).sum().backward()
    net.zero_grad()
    found.end_step()

if rank == 0:
    command(run, knob="compile", value=True)
joint(run)
stages = [[o.stage, o.code] for o in outcomes(run)]
step()
compiles = net._compiled_call_impl is not None
step()
joint(run)
ended = outcomes(run)
report(stages=stages + [[o.stage, o.code] for o in ended], compiles=compiles, on=found.on,
       eager=net._compiled_call_impl is None, value=found._knob.value,
       problems=[[p["rank"], p["problem"]["fields"]["reason"]] for o in ended for p in o.fields["problems"]])
"""


@pytest.mark.parametrize("fails", [0, 1])
def test_all_ranks_run_eagerly_if_one_cannot_compile(fails: int) -> None:
    results = []
    with pair(COMPILED.replace("FAILS", str(fails)), {**os.environ, "HOPTUI": "off"}) as children:
        for child in children:
            out, err = child.communicate(timeout=RANKS_S)
            assert child.returncode == 0, err[-3000:]
            results.append(json.loads(out.splitlines()[-1]))
    for each in results:
        assert each["compiles"], "both had begun to"
        assert (each["eager"], each["on"], each["value"]) == (True, False, False)
    assert results[0]["stages"] == [["scheduled", "later"], ["failed", "on_ranks"]]
    ((rank, reason),) = results[0]["problems"]
    assert rank == fails
    assert "no compiler here" in reason
