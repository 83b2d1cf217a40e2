"""What a training thread does at a line, where only its surroundings say it."""

from __future__ import annotations

from collections import Counter

import pytest

from hoptui.domain.activities import activities
from hoptui.domain.kind_rules import Kind
from hoptui.domain.stacks import Stack, StackFrame

MODULE = StackFrame("/opt/env/lib/python3.12/site-packages/torch/nn/modules/module.py", "_call_impl", 1700)


def in_model(line: int, call: str, function: str = "Loss.forward") -> Stack:
    """Return the stack of a function of the script that a model calls."""
    return (
        StackFrame("/job/train.py", "main", 3),
        MODULE,
        StackFrame("/job/loss.py", function, line, call=call),
    )


@pytest.mark.parametrize(
    ("around", "kind"),
    [
        ({in_model(20, "np.exp"): 3, in_model(9, "torch.stack"): 1}, "script"),
        ({in_model(9, "np.exp"): 3, in_model(12, "F.relu"): 2}, "script"),
        ({in_model(9, "np.exp"): 2, in_model(12, "F.relu"): 3}, "compute"),
        ({in_model(20, "np.exp"): 3, in_model(20, "F.relu"): 4, in_model(9, "max"): 9}, "compute"),
        ({in_model(9, "np.exp"): 3, in_model(12, ""): 5, in_model(13, "[]"): 5}, "script"),
        ({in_model(9, "np.exp", "Other.forward"): 9}, "compute"),
        ({}, "compute"),
    ],
    ids=[
        "line",
        "function",
        "torch in the function",
        "torch in the line",
        "Python",
        "another function",
        "alone",
    ],
)
def test_operators_are_those_of_numbers_where_numpy_is_called(around: dict[Stack, int], kind: Kind) -> None:
    found = activities({in_model(20, "*"): 5, **around})
    assert sum(found.values()) == 5 + sum(around.values())
    kinds = Counter[Kind]()
    for activity, count in found.items():
        if activity.inside == "*":
            kinds[activity.kind] += count
    assert kinds == {kind: 5}


@pytest.mark.parametrize("adapter", [False, True], ids=["of the script", "of Keras"])
def test_only_a_loader_of_the_script_could_have_workers(adapter: bool) -> None:
    """Keras makes a DataLoader around arrays and around its own datasets."""
    site = "/opt/env/lib/python3.12/site-packages"
    within = (
        StackFrame(
            f"{site}/keras/src/trainers/data_adapters/py_dataset_adapter.py",
            "PyDatasetAdapter._finite_generator",
            249,
        ),
    )
    loads = (
        StackFrame("/job/train.py", "main", 3),
        StackFrame(f"{site}/torch/utils/data/dataloader.py", "_SingleProcessDataLoaderIter._next_data", 790),
        *within * adapter,
        StackFrame("/job/data.py", "Rows.__getitem__", 12, call="np.sort"),
    )
    (found,) = activities({loads: 5})
    assert (found.kind, found.own_loader) == ("input", not adapter)
