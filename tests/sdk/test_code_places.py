"""What is at a place in a code object: its line, and the name of what is called there."""

from __future__ import annotations

import dis
import time
from collections.abc import Callable
from types import CodeType
from typing import Any

from hoptui.sdk.code_places import innermost_frame_at


def calls_of(code: CodeType) -> list[str]:
    """What the calls and operators of some code are named, one name for each expression."""
    found = [innermost_frame_at(code, each.offset) for each in dis.get_instructions(code)]
    named = {(at.line, at.column, at.end_line, at.end_column): at.call for at in found if at.call}
    return sorted(named.values())


def method(x: dict[str, list[int]]) -> int:
    return x["a"].index(len(str(max(x["a"], key=abs)))) + (lambda y: y)(3)


def test_what_is_called_is_the_longest_expression_that_begins_with_the_call() -> None:
    assert calls_of(method.__code__) == ["+", "[]", "[]", "index", "len", "max", "str"]


def operations(a: dict[str, float], b: Callable[[], dict[str, float]], np: Any) -> Any:
    return (a.get("x", 1) @ np.a.b.rand(3)) if a else b().get("x")


def test_operators_truth_and_the_parts_of_a_name_are_known() -> None:
    found = set(calls_of(operations.__code__))
    assert found == {"a.get", "np.a.b.rand", "@", "bool", "b", "get"}


def test_a_function_that_begins_is_at_its_first_statement() -> None:
    code = method.__code__
    entry = next(each.offset for each in dis.get_instructions(code) if each.opname == "RESUME")
    assert innermost_frame_at(code, entry).line == code.co_firstlineno + 1


def nested_loops(rows: list[list[int]]) -> int:
    total = 0
    for row in rows:
        for value in row:
            if value > 3:
                total += value
    return total


def test_the_jump_at_the_end_of_a_loop_is_in_the_loop() -> None:
    code = nested_loops.__code__
    jumps = [each.offset for each in dis.get_instructions(code) if each.opname == "JUMP_BACKWARD"]
    assert len(jumps) >= 2
    first = code.co_firstlineno
    assert all(first + 2 <= innermost_frame_at(code, jump).line <= first + 5 for jump in jumps)


def test_a_call_far_down_in_long_code_is_named_in_little_time() -> None:
    lines = "\n".join(f"    f{n}(x)" for n in range(2000))
    space: dict[str, Callable[..., None]] = {}
    exec(f"def generated(x):\n{lines}", space)
    code = space["generated"].__code__
    last = max(each.offset for each in dis.get_instructions(code) if each.opname.startswith("CALL"))
    began = time.thread_time()
    assert innermost_frame_at(code, last).call == "f1999"
    assert time.thread_time() - began < 0.05


def conversions(x: Any, torch: Any, device: Any, y: Any) -> None:
    x.to(torch.float32)
    x.a.to(dtype=torch.half)
    x().to(y.dtype)
    x.b.to(device)
    x.c.to("cuda")
    x.d.to(device, torch.float32)
    x.e.to(torch.device("cpu"))
    x.f.to(y.dtype, True)


def test_a_conversion_is_no_copy_to_a_device() -> None:
    found = calls_of(conversions.__code__)
    converts = ["to(dtype)", "x.a.to(dtype)", "x.to(dtype)"]
    copies = [f"x.{name}.to" for name in "bcdef"]
    assert found == sorted([*converts, *copies, "torch.device", "x"])
