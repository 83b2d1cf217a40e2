"""What is at a place in a code object: the file, the function, the line, and the name of what is called."""

from __future__ import annotations

import dis
import itertools
import sys
from collections.abc import Iterable, Sequence
from types import CodeType

from hoptui.domain.facts import clean_text
from hoptui.domain.stacks import StackFrame

LONGEST_NAME = 300
"""Characters of a file, function or call. Generated code may have names of any length."""
OPERATIONS = {
    "BINARY_OP": "", "BINARY_SUBSCR": "[]", "STORE_SUBSCR": "[]", "COMPARE_OP": "", "TO_BOOL": "bool",
    "UNARY_NEGATIVE": "-", "UNARY_NOT": "not", "POP_JUMP_FORWARD_IF_FALSE": "bool",
    "POP_JUMP_FORWARD_IF_TRUE": "bool", "POP_JUMP_IF_FALSE": "bool", "POP_JUMP_IF_TRUE": "bool",
}  # fmt: skip
"""Instructions that run the code of an object without a call, and their names: an operator is its own."""
CALLS = ("CALL", "PRECALL")
"""How instructions that call begin. Python 3.11 calls many functions of C in the first of two."""
BINARY = ("+", "&", "//", "<<", "@", "*", "%", "|", "**", ">>", "-", "/", "^")
"""The symbols of BINARY_OP by its argument. Those in place follow in the same order."""
RESUME = bytes((dis.opmap["RESUME"],))
NEWER = sys.version_info >= (3, 12)
SHIFTS = {"LOAD_GLOBAL": 1, "LOAD_ATTR": 1, "LOAD_SUPER_ATTR": 2} if NEWER else {"LOAD_GLOBAL": 1}
COMPARISON_SHIFT = 4 if NEWER else 0
"""Bits of an argument below the index of the name, or of the comparison."""
CONVERTS, DTYPE = "to", "dtype"
"""The method of a tensor that copies to a device, or converts. How the name of a type ends."""
DTYPES = frozenset((
    "float", "double", "half", "bfloat16", "float16", "float32", "float64", "bool", "uint8", "int8", "int16",
    "int32", "int64", "int", "long", "short", "cfloat", "complex64", "complex128",
))  # fmt: skip
"""The names of types in `torch`."""
MOST_ARGUMENT = 128
"""Instructions before the end of a call in which its only argument is looked for."""
Position = tuple[int, int]
"""A line, and a column."""


def frame_at(code: CodeType, offset: int) -> StackFrame:
    """Return the file, function and line of an instruction: `offset` is that of `frame.f_lasti`.

    An instruction without a line, as the jump at the end of a loop may be, has that of the one before it.
    """
    found = code.co_firstlineno
    for start, _, line in code.co_lines():
        if start > offset:
            break
        found = line or found
    return StackFrame(
        clean_text(code.co_filename, LONGEST_NAME), clean_text(code.co_qualname, LONGEST_NAME), found
    )


def innermost_frame_at(code: CodeType, offset: int) -> StackFrame:
    """Return what is known of an instruction that has no frame inside, with what it calls."""
    last = max(0, offset) // 2
    if code.co_code[2 * last : 2 * last + 1] == RESUME:  # a function that begins is at its first statement
        last += 1
    places = list(itertools.islice(code.co_positions(), last + 1))
    frame = frame_at(code, 2 * last)
    if len(places) <= last or places[last][0] is None:
        return frame
    line, end_line, column, end_column = places[last]
    return frame._replace(
        line=line or frame.line,
        end_line=end_line or 0,
        column=-1 if column is None else column,
        end_column=-1 if end_column is None else end_column,
        call=_called(code, places),
    )


def _called(code: CodeType, places: Sequence[tuple[int | None, int | None, int | None, int | None]]) -> str:
    """Return what the last of some instructions calls, by their places in the source; "" if it has no name.

    The callee is the longest expression that begins where the call begins: `x.to` in `x.to(device)`. An
    operator is called by its symbol, and the truth of a value, as in `if loss`, is `bool`. A conversion to a
    type, as in `x.to(torch.half)`, is `x.to(dtype)`: it copies to no device. Only instructions that begin
    there are looked at: to disassemble a whole function takes milliseconds.
    """
    line, end_line, column, end_column = places[-1]
    end = (end_line or 0, end_column or 0)
    raw, argument = code.co_code, 0
    loads: list[tuple[Position, str]] = []
    operation = ""
    for number in [n for n, place in enumerate(places) if place[0] == line and place[2] == column]:
        instruction, low = raw[2 * number], raw[2 * number + 1]
        operation = dis.opname[instruction]
        argument |= low
        if instruction == dis.EXTENDED_ARG:
            argument <<= 8
            continue
        part = (places[number][1] or 0, places[number][3] or 0)
        if operation.startswith("LOAD"):
            loads.append((part, clean_text(_loaded(code, instruction, argument), LONGEST_NAME)))
        elif part < end and (operation.startswith(CALLS) or operation in OPERATIONS):
            loads.append((part, ""))
        if number < len(places) - 1:
            argument = 0
    if operation in OPERATIONS:
        return OPERATIONS[operation] or _symbol(operation, argument)
    if not operation.startswith(CALLS):
        return ""
    if operation == "CALL_KW" and loads and not loads[-1][1]:
        loads.pop()  # the names of arguments, which Python 3.13 loads
    loads = [part for part in loads if part[0] < end]
    name = _dotted(loads)
    if name.rpartition(".")[2] == CONVERTS and argument == 1 and _is_type(code, places, max(loads)[0]):
        return clean_text(f"{name}({DTYPE})", LONGEST_NAME)
    return name


def _is_type(
    code: CodeType, places: Sequence[tuple[int | None, int | None, int | None, int | None]], after: Position
) -> bool:
    """Return whether the only argument of a call is a type by its name. It is loaded from `after` on."""
    inside = [(line or 0, column or 0) >= after for line, _, column, _ in places[-MOST_ARGUMENT:]]
    first = len(places) - len(inside)
    while inside and not inside[-1]:  # the call itself
        inside.pop()
    numbers = itertools.takewhile(lambda at: inside[at], reversed(range(len(inside))))
    raw, found, argument = code.co_code, "", 0
    for number in reversed([first + at for at in numbers]):
        argument |= raw[2 * number + 1]
        if raw[2 * number] == dis.EXTENDED_ARG:
            argument <<= 8
            continue
        if dis.opname[raw[2 * number]].startswith("LOAD"):
            found = _loaded(code, raw[2 * number], argument)
        argument = 0
    return found in DTYPES or found.endswith(DTYPE)


def _loaded(code: CodeType, instruction: int, argument: int) -> str:
    """Return the name that an instruction loads; "" for a constant."""
    names: Sequence[str] = ()
    if instruction in dis.hasname:
        names, argument = code.co_names, argument >> SHIFTS.get(dis.opname[instruction], 0)
    elif instruction in dis.haslocal or instruction in dis.hasfree:
        cells = (name for name in code.co_cellvars if name not in code.co_varnames)
        names = (*code.co_varnames, *cells, *code.co_freevars)
    return names[argument] if argument < len(names) else ""


def _symbol(operation: str, argument: int) -> str:
    """Return the symbol of an operator."""
    if operation == "COMPARE_OP":
        number = argument >> COMPARISON_SHIFT
        return dis.cmp_op[number] if number < len(dis.cmp_op) else ""
    in_place, number = divmod(argument, len(BINARY))
    return BINARY[number] + "=" * in_place if in_place < 2 else ""


def _dotted(names: Iterable[tuple[Position, str]]) -> str:
    """Return `np.random.rand` for the loads of its parts, `item` for those of `loss().item`.

    A part without a name is the value of a call or an operator.
    """
    parts: list[str] = []
    for _, name in sorted(set(names)):
        parts = [*parts, name] if name else []
    return clean_text(".".join(parts), LONGEST_NAME)
