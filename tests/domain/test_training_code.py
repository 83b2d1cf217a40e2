"""Which functions of a script train, and where in them a model runs first."""

from __future__ import annotations

import pytest

from hoptui.domain.code_lines import CodeLine, enclosing_function
from hoptui.domain.stacks import Stack, StackFrame
from hoptui.domain.training_code import MOST_FUNCTIONS, NOTHING_KNOWN

TORCH = "/opt/env/lib/python3.12/site-packages/torch/"
FILE = "/job/train.py"
BACKWARD = StackFrame(f"{TORCH}autograd/graph.py", "_engine_run_backward", 824)
STEP = StackFrame(f"{TORCH}optim/adamw.py", "AdamW.step", 220)
HOOK = StackFrame(f"{TORCH}optim/optimizer.py", "Optimizer.profile_hook_step.<locals>.wrapper", 500)
NEW = StackFrame(f"{TORCH}optim/adamw.py", "AdamW.__init__", 40)
NO_GRAD = StackFrame(f"{TORCH}autograd/grad_mode.py", "no_grad.__enter__", 80)
MODEL = StackFrame(f"{TORCH}nn/modules/module.py", "Module._call_impl", 1700)


def at(line: int, function: str = "fit", file: str = FILE) -> StackFrame:
    return StackFrame(file, function, line)


@pytest.mark.parametrize("inner", [BACKWARD, STEP, HOOK])
def test_a_function_that_computes_gradients_or_steps_weights_trains(inner: StackFrame) -> None:
    code = NOTHING_KNOWN.learned([(at(9, "main"), at(30), inner)])
    assert set(code) == {CodeLine(FILE, 9, "main"), CodeLine(FILE, 30, "fit")}
    assert code.trains(at(1))
    assert code.trains(at(1, "fit.<locals>.<listcomp>"))
    assert not code.trains(at(1, "rows"))
    assert not code.trains(at(30, file="/job/other.py"))
    assert code.in_file(FILE)


@pytest.mark.parametrize("inner", [NEW, NO_GRAD, MODEL])
def test_one_that_only_builds_or_evaluates_does_not_train(inner: StackFrame) -> None:
    assert NOTHING_KNOWN.learned([(at(30), inner)]) is NOTHING_KNOWN


def test_what_runs_before_the_model_prepares_the_step() -> None:
    code = NOTHING_KNOWN.learned([(at(30), BACKWARD), (at(26), MODEL), (at(12, "act"), MODEL)])
    assert set(code) == {CodeLine(FILE, 26, "fit")}
    rows = at(3, "rows", "/job/rows.py")
    assert code.before_model((at(25), rows))
    assert code.before_model((at(25, "fit.<locals>.<genexpr>"), rows))
    assert not code.before_model((at(26), rows))
    assert not code.before_model((at(0), rows))
    assert not code.before_model((rows,))


def test_the_innermost_function_that_trains_decides() -> None:
    code = NOTHING_KNOWN.learned([(at(9, "main"), at(30), BACKWARD)])
    assert not code.before_model((at(8, "main"), at(31), at(3, "rows")))
    assert code.before_model((at(9, "main"), at(29), at(3, "rows")))


def test_a_function_whose_iterations_end_trains_before_a_sample_shows_it() -> None:
    calls = [at(9, "main"), at(40, "fit_dataset")]
    code = NOTHING_KNOWN.with_loop(calls)
    assert code.trains(at(30, "fit_dataset"))
    assert not code.before_model((at(30, "fit_dataset"),)), "the line of the model is unknown"
    assert code.with_loop(calls) is code
    learned = code.learned([(at(9, "main"), at(35, "fit_dataset"), MODEL)])
    assert learned.before_model((at(30, "fit_dataset"),))
    assert learned.with_loop(calls) is learned


def test_code_of_a_model_does_not_train() -> None:
    stack: Stack = (at(20), MODEL, at(5, "Net.forward", "/job/net.py"), BACKWARD)
    assert set(NOTHING_KNOWN.learned([stack])) == {CodeLine(FILE, 20, "fit")}


def test_functions_are_bounded() -> None:
    stacks = [(at(1, f"f{number}"), BACKWARD) for number in range(2 * MOST_FUNCTIONS)]
    code = NOTHING_KNOWN.learned(stacks)
    assert len(code) == MOST_FUNCTIONS
    assert len(code.with_loop([at(1, "more")])) == MOST_FUNCTIONS


@pytest.mark.parametrize(
    ("function", "around"),
    [
        ("fit.<locals>.<listcomp>", "fit"),
        ("A.fit.<locals>.<genexpr>.<locals>.<lambda>", "A.fit"),
        ("fit.<locals>.rows", "fit.<locals>.rows"),
        ("<lambda>", "<lambda>"),
        ("<module>", "<module>"),
    ],
)
def test_a_comprehension_belongs_to_its_function(function: str, around: str) -> None:
    assert enclosing_function(function) == around
