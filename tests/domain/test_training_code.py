"""Which functions of a script train, and where in them a model runs first."""

from __future__ import annotations

import pytest

from hoptui.domain.code_lines import enclosing_function
from hoptui.domain.stacks import Stack, StackFrame
from hoptui.domain.training_code import MOST_FUNCTIONS, MOST_LINES, NOTHING_KNOWN, Place, TrainingFunction

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
    assert set(code) == {
        TrainingFunction(FILE, "main", training=(9,)),
        TrainingFunction(FILE, "fit", training=(30,)),
    }
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
    assert set(code) == {TrainingFunction(FILE, "fit", (26,), (30,))}
    rows = at(3, "rows", "/job/rows.py")
    assert code.place((at(25), rows)) == "before"
    assert code.place((at(25, "fit.<locals>.<genexpr>"), rows)) == "before"
    assert code.place((at(26), rows)) == "after"
    assert code.place((at(0), rows)) == "elsewhere"
    assert code.place((rows,)) == "elsewhere"


@pytest.mark.parametrize(
    ("line", "place"),
    [
        (9, "before"),
        (10, "between"),  # calls a function that acts: the model runs in it, and an environment
        (15, "between"),
        (19, "between"),
        (20, "elsewhere"),  # trains from here on
        (25, "elsewhere"),
        (30, "elsewhere"),
        (35, "elsewhere"),
    ],
)
def test_python_between_two_runs_of_the_model_acts(line: int, place: Place) -> None:
    acts, learns = [(at(10), MODEL)], [(at(20), MODEL), (at(20), BACKWARD), (at(30), STEP), (at(40), MODEL)]
    code = NOTHING_KNOWN.learned([*acts, *learns])
    assert code.place((at(line), at(3, "rows"))) == place


def test_python_between_a_model_and_its_gradients_does_not_act() -> None:
    code = NOTHING_KNOWN.learned([(at(10), MODEL), (at(20), BACKWARD), (at(21), STEP), (at(30), MODEL)])
    assert code.place((at(15), at(3, "match_boxes"))) == "after"
    assert code.place((at(25),)) == "elsewhere", "a model that runs after the training evaluates"


def test_the_second_network_of_a_step_does_not_act() -> None:
    lines = [(at(10), MODEL), (at(12), BACKWARD), (at(20), MODEL), (at(22), BACKWARD)]
    code = NOTHING_KNOWN.learned(lines)
    assert code.place((at(16), at(3, "rows"))) == "elsewhere"


def test_lines_of_a_function_are_bounded() -> None:
    stacks = [(at(1 + number), BACKWARD) for number in range(2 * MOST_LINES)]
    (only,) = NOTHING_KNOWN.learned(stacks)
    assert len(only.training) == MOST_LINES


def test_the_innermost_function_that_trains_decides() -> None:
    code = NOTHING_KNOWN.learned([(at(9, "main"), at(30), inner) for inner in (MODEL, BACKWARD)])
    assert code.place((at(8, "main"), at(31), at(3, "rows"))) == "elsewhere"
    assert code.place((at(9, "main"), at(29), at(3, "rows"))) == "before"


def test_where_no_model_has_been_seen_nothing_is_before_it() -> None:
    code = NOTHING_KNOWN.learned([(at(30), BACKWARD)])
    assert code.place((at(29), at(3, "hardest_pairs"))) == "elsewhere"


def test_a_function_whose_iterations_end_trains_before_a_sample_shows_it() -> None:
    calls = [at(9, "main"), at(40, "fit_dataset")]
    code = NOTHING_KNOWN.with_loop(calls)
    assert code.trains(at(30, "fit_dataset"))
    assert code.place((at(30, "fit_dataset"),)) == "elsewhere", "the line of the model is unknown"
    assert code.with_loop(calls) is code
    learned = code.learned([(at(9, "main"), at(35, "fit_dataset"), MODEL)])
    assert learned.place((at(30, "fit_dataset"),)) == "before"
    assert learned.with_loop(calls) is learned


def test_code_of_a_model_does_not_train() -> None:
    stack: Stack = (at(20), MODEL, at(5, "Net.forward", "/job/net.py"), BACKWARD)
    assert set(NOTHING_KNOWN.learned([stack])) == {TrainingFunction(FILE, "fit", training=(20,))}


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
