"""The functions of a script that train, found in its stack samples.

A function trains if a gradient is computed or weights are stepped in it, or in what it calls. Those in which
an iteration ends train too. The lines of such a function that run a model, and those that train it, divide
it. What runs before all of them prepares the step. What runs after one that runs a model, and before another
one, uses what the model chose and makes what it sees next: that is how loops act in an environment. A loop
may also run its model again at a line before. Only what the run logs says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Literal, NamedTuple

from hoptui.domain.code_lines import enclosing_function, is_script, package_path
from hoptui.domain.stacks import Stack, StackFrame

MOST_FUNCTIONS = 64
"""Functions that are remembered. Scripts train in a handful."""
MOST_LINES = 32
"""Lines of each role that are remembered of a function."""
Place = Literal["before", "between", "after", "elsewhere"]
"""Where a line is: before the model runs, between two of its runs with no training in between, after one of
its runs and before it trains, or nowhere of these."""
BACKWARD = ("torch/autograd/graph", "torch/autograd/__init__", "torch/_tensor")
OPTIMIZERS = "torch/optim"
HOOK = "profile_hook_step"
"""Torch calls the step of any optimizer in it, also of one in the script."""
MODULES = "torch/nn/modules/module"


class TrainingFunction(NamedTuple):
    """A function that trains, its lines that run a model, and those that compute gradients or step weights.

    Lines rise. A line that calls both is in both.
    """

    file: str
    function: str
    running: tuple[int, ...] = ()
    training: tuple[int, ...] = ()

    def with_line(self, line: int, *, trains: bool) -> TrainingFunction:
        """Return this with one more line, as long as there is room."""
        lines = self.training if trains else self.running
        if line <= 0 or line in lines or len(lines) == MOST_LINES:
            return self
        more = tuple(sorted((*lines, line)))
        return self._replace(training=more) if trains else self._replace(running=more)

    def place(self, line: int) -> Place:
        """Return where a line is, seen from those of the model."""
        if not self.running or line <= 0:  # it may compute a loss, if nobody has seen the model run
            return "elsewhere"
        known = (*self.running, *self.training)
        if line < min(known):
            return "before"
        last = max(self.training, default=0)
        nearest = max((each for each in known if each <= line), default=0)
        runs_again = any(line < each <= last for each in self.running)
        if nearest in self.training:
            return "elsewhere"
        return "between" if runs_again else "after" if line < last else "elsewhere"


class TrainingCode(frozenset[TrainingFunction]):
    """The functions of a script that train."""

    __slots__ = ()

    def trains(self, frame: StackFrame) -> bool:
        """Whether the function of a frame trains, or that of its comprehension."""
        return self._function(frame) is not None

    def in_file(self, file: str) -> bool:
        """Whether a function of this file trains."""
        return any(each.file == file for each in self)

    def place(self, stack: Stack) -> Place:
        """Return where the innermost function that trains is, seen from its lines of the model."""
        for frame in reversed(stack):
            function = self._function(frame)
            if function is not None:
                return function.place(frame.line)
        return "elsewhere"

    def _function(self, frame: StackFrame) -> TrainingFunction | None:
        """Return the function of a frame. None: it does not train."""
        name = enclosing_function(frame.function)
        return next((each for each in self if each.function == name and each.file == frame.file), None)

    def with_loop(self, calls: Iterable[StackFrame]) -> TrainingCode:
        """Return this with the functions in which an iteration ended."""
        known = self._by_name()
        _add(known, calls)
        return self._with(known)

    def learned(self, stacks: Iterable[Stack]) -> TrainingCode:
        """Return this with the functions that train in some stacks, and with their lines of models."""
        known = self._by_name()
        at_work = [stack for stack in stacks if _role(stack)]
        for stack in at_work:
            if _role(stack) == "trains":
                _add(known, stack)
        for stack in at_work:
            for frame in _of_script(stack):
                name = _name(frame)
                if name in known:
                    known[name] = known[name].with_line(frame.line, trains=_role(stack) == "trains")
        return self._with(known)

    def _by_name(self) -> dict[tuple[str, str], TrainingFunction]:
        return {(each.file, each.function): each for each in self}

    def _with(self, known: Mapping[tuple[str, str], TrainingFunction]) -> TrainingCode:
        """Return these functions; this itself if nothing is new."""
        found = TrainingCode(known.values())
        return self if found == self else found


NOTHING_KNOWN = TrainingCode()


@lru_cache(maxsize=4096)
def _role(stack: Stack) -> Literal["trains", "runs a model", ""]:
    """Return whether gradients are computed or weights are stepped, or else whether a model runs."""
    for frame in stack:
        path, name = package_path(frame), frame.function.rpartition(".")[2]
        if path.startswith(BACKWARD) and name in ("backward", "grad", "_engine_run_backward"):
            return "trains"
        if path.startswith(OPTIMIZERS) and (name == "step" or HOOK in frame.function):
            return "trains"
    return "runs a model" if any(package_path(frame).startswith(MODULES) for frame in stack) else ""


def _add(known: dict[tuple[str, str], TrainingFunction], calls: Iterable[StackFrame]) -> None:
    """Add the functions of the script in these calls, as long as there is room."""
    for frame in _of_script(calls):
        if len(known) < MOST_FUNCTIONS:
            known.setdefault(_name(frame), TrainingFunction(*_name(frame)))


def _name(frame: StackFrame) -> tuple[str, str]:
    """Return the file and the function of a frame."""
    return frame.file, enclosing_function(frame.function)


def _of_script(stack: Iterable[StackFrame]) -> Iterable[StackFrame]:
    """Return the frames of the script that are not part of a model."""
    found = []
    for frame in stack:
        path = package_path(frame)
        if path.startswith(MODULES):
            break
        if is_script(frame):
            found.append(frame)
    return found
