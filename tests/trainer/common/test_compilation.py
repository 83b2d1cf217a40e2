from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hoptui_trainer.common.compilation import Shapes, choose_mode, compiled, steady


def _double(x: Tensor) -> Tensor:
    return (x * 2).relu()


def test_off_is_the_function_itself() -> None:
    assert compiled(_double, "off") is _double


@pytest.mark.slow
def test_a_new_shape_in_the_steady_state_raises_instead_of_compiling() -> None:
    torch.compiler.reset()
    fast = compiled(_double, "default")
    known = torch.arange(-4.0, 4.0)
    assert torch.equal(fast(known), _double(known))
    with steady("default"):
        assert torch.equal(fast(known), _double(known))
        with pytest.raises(RuntimeError, match="fail_on_recompile"):
            fast(torch.ones(3, 5))
    assert torch.equal(fast(torch.ones(3, 5)), torch.full((3, 5), 2.0))


def test_what_cannot_be_one_graph_raises_instead_of_running_in_pieces() -> None:
    torch.compiler.reset()

    def branches(x: Tensor) -> Tensor:
        return x + 1 if x.sum() > 0 else x

    with pytest.raises((torch._dynamo.exc.Unsupported, torch._dynamo.exc.UserError)):
        compiled(branches, "default")(torch.ones(2))


def test_auto_compiles_on_a_gpu_alone() -> None:
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert (choose_mode("auto", gpu), choose_mode("auto", cpu)) == ("default", "off")
    assert choose_mode("max-autotune", cpu) == "max-autotune"


def test_a_shape_is_compiled_once_and_never_for_what_is_done_plainly() -> None:
    torch.compiler.reset()
    built: list[int] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        built.append(1)
        return graph

    fast = torch.compile(_double, backend=backend, dynamic=False)
    shapes = Shapes()
    shapes.reset("default")
    with shapes.plainly(), shapes.meet(3):
        assert torch.equal(fast(torch.ones(3)), torch.full((3,), 2.0))
    assert not built
    for _ in range(2):
        with shapes.meet(3):
            fast(torch.ones(3))
    assert len(built) == 1
    with pytest.raises(RuntimeError, match="fail_on_recompile"), shapes.meet(3):
        fast(torch.ones(4))
    with shapes.meet(4):
        fast(torch.ones(4))
    assert len(built) == 2
    torch.compiler.reset()
