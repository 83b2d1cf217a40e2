"""The functions of a script that train, found in its stack samples.

A function trains if a gradient is computed or weights are stepped in it, or in what it calls. Those in which
an iteration ends train too. Of the lines of a function, the first one that runs a model divides it: what runs
before that prepares the step.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from hoptui.domain.code_lines import CodeLine, enclosing_function, is_script, package_path
from hoptui.domain.stacks import Stack, StackFrame

MOST_FUNCTIONS = 64
"""Functions that are remembered. Scripts train in a handful."""
BACKWARD = ("torch/autograd/graph", "torch/autograd/__init__", "torch/_tensor")
OPTIMIZERS = "torch/optim"
HOOK = "profile_hook_step"
"""Torch calls the step of any optimizer in it, also of one in the script."""
MODULES = "torch/nn/modules/module"
LOGS = re.compile(r"(?:^|[._])(?:log|report)(?:$|_)")
"""Names of functions that tell how training goes, and do not train."""


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

    def with_loop(self, calls: Iterable[CodeLine]) -> TrainingCode:
        """Return this with the functions in which an iteration ended, but not one that only logs it."""
        frames = [StackFrame(each.file, each.function, each.line) for each in calls]
        known = {(each.file, each.function) for each in self}
        new = [_function(each) for each in _of_script(frames) if not LOGS.search(each.function)]
        fresh = [at for at in dict.fromkeys(new) if at not in known]
        more = [CodeLine(file, 0, function) for file, function in fresh[: MOST_FUNCTIONS - len(self)]]
        return TrainingCode((*self, *more)) if more else self

    def learned(self, stacks: Iterable[Stack]) -> TrainingCode:
        """Return this with the functions that train in some stacks, and with earlier lines of models."""
        first = {(each.file, each.function): each.line for each in self}
        stacks = list(stacks)
        for stack in stacks:
            if _trains(stack):
                for frame in _of_script(stack):
                    if len(first) < MOST_FUNCTIONS:
                        first.setdefault(_function(frame), 0)
        for stack in stacks:
            if _trains(stack) or any(package_path(frame.file).startswith(MODULES) for frame in stack):
                for frame in _of_script(stack):
                    known = first.get(_function(frame))
                    if known is not None and (known == 0 or 0 < frame.line < known):
                        first[_function(frame)] = frame.line
        found = TrainingCode(CodeLine(file, line, function) for (file, function), line in first.items())
        return self if found == self else found


NOTHING_KNOWN = TrainingCode()


def _trains(stack: Stack) -> bool:
    """Whether a gradient is computed or weights are stepped."""
    for frame in stack:
        path, name = package_path(frame.file), frame.function.rpartition(".")[2]
        if path.startswith(BACKWARD) and name in ("backward", "grad", "_engine_run_backward"):
            return True
        if path.startswith(OPTIMIZERS) and (name == "step" or HOOK in frame.function):
            return True
    return False


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
