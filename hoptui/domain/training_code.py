"""The functions of a script that train, found in its stack samples.

A function trains if a gradient is computed or weights are stepped in it, or in what it calls. Those in which
an iteration ends train too. Of the lines of a function, the first one that runs a model divides it: what runs
before that prepares the step.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Literal

from hoptui.domain.code_lines import CodeLine, enclosing_function, is_script, package_path
from hoptui.domain.stacks import Stack, StackFrame

MOST_FUNCTIONS = 64
"""Functions that are remembered. Scripts train in a handful."""
BACKWARD = ("torch/autograd/graph", "torch/autograd/__init__", "torch/_tensor")
OPTIMIZERS = "torch/optim"
HOOK = "profile_hook_step"
"""Torch calls the step of any optimizer in it, also of one in the script."""
MODULES = "torch/nn/modules/module"


class TrainingCode(frozenset[CodeLine]):
    """The functions of a script that train, each with its first line that runs a model, 0 if unknown."""

    __slots__ = ()

    def trains(self, frame: StackFrame) -> bool:
        """Whether the function of a frame trains, or that of its comprehension."""
        return self._first_line(frame) is not None

    def in_file(self, file: str) -> bool:
        """Whether a function of this file trains."""
        return any(each.file == file for each in self)

    def before_model(self, stack: Stack) -> bool:
        """Whether the innermost function that trains is at a line before its first one that runs a model."""
        for frame in reversed(stack):
            first = self._first_line(frame)
            if first is not None:
                return 0 < frame.line < first
        return False

    def _first_line(self, frame: StackFrame) -> int | None:
        """Return the first line of a frame's function that runs a model. None: it does not train."""
        function = enclosing_function(frame.function)
        found = (each.line for each in self if each.function == function and each.file == frame.file)
        return next(found, None)

    def with_loop(self, calls: Iterable[StackFrame]) -> TrainingCode:
        """Return this with the functions in which an iteration ended."""
        first = self._first_lines()
        _add(first, calls)
        return self._with(first)

    def learned(self, stacks: Iterable[Stack]) -> TrainingCode:
        """Return this with the functions that train in some stacks, and with earlier lines of models."""
        first = self._first_lines()
        at_work = [stack for stack in stacks if _role(stack)]
        for stack in at_work:
            if _role(stack) == "trains":
                _add(first, stack)
        for frame in (frame for stack in at_work for frame in _of_script(stack)):
            known = first.get(_function(frame))
            if known is not None and (known == 0 or 0 < frame.line < known):
                first[_function(frame)] = frame.line
        return self._with(first)

    def _first_lines(self) -> dict[tuple[str, str], int]:
        return {(each.file, each.function): each.line for each in self}

    def _with(self, first: dict[tuple[str, str], int]) -> TrainingCode:
        """Return these lines by file and function; this itself if nothing is new."""
        found = TrainingCode(CodeLine(file, line, function) for (file, function), line in first.items())
        return self if found == self else found


NOTHING_KNOWN = TrainingCode()


@lru_cache(maxsize=4096)
def _role(stack: Stack) -> Literal["trains", "runs a model", ""]:
    """Return whether gradients are computed or weights are stepped, or else whether a model runs."""
    for frame in stack:
        path, name = package_path(frame.file), frame.function.rpartition(".")[2]
        if path.startswith(BACKWARD) and name in ("backward", "grad", "_engine_run_backward"):
            return "trains"
        if path.startswith(OPTIMIZERS) and (name == "step" or HOOK in frame.function):
            return "trains"
    return "runs a model" if any(package_path(frame.file).startswith(MODULES) for frame in stack) else ""


def _add(first: dict[tuple[str, str], int], calls: Iterable[StackFrame]) -> None:
    """Add the functions of the script in these calls, as long as there is room."""
    for frame in _of_script(calls):
        if len(first) < MOST_FUNCTIONS:
            first.setdefault(_function(frame), 0)


def _function(frame: StackFrame) -> tuple[str, str]:
    """Return the file and the function of a frame."""
    return frame.file, enclosing_function(frame.function)


def _of_script(stack: Iterable[StackFrame]) -> Iterable[StackFrame]:
    """Return the frames of the script that are not part of a model."""
    found = []
    for frame in stack:
        path = package_path(frame.file)
        if path.startswith(MODULES):
            break
        if is_script(frame):
            found.append(frame)
    return found
