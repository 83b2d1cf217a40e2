"""What a stack is doing, by the packages and functions in it.

A kind is decided in this order:

1. A context: the outermost frame of a library that loads data, simulates an environment, saves, compiles,
   evaluates or logs. What it calls belongs to it: JSON in a data set is input. Then a phase or a function of
   the script that is named after saving or evaluation.
2. The innermost frame that copies to a GPU, or communicates between ranks.
3. A phase that is named after data, or a function of the script that prepares data. What it computes belongs
   to it, unless a model does.
4. The innermost frame that waits for a GPU, then one that computes. What a model or a backward pass calls of
   NumPy, or of Python itself, is Python of the script.
5. The innermost phase, function or file of the script that is named after environments or logs. A method
   `step` or `reset` of a class is one of an environment. Tensors that are computed in a phase of environments
   stay what they are: a rollout has a policy, too.
6. A general library, such as `json`, that writes or reads; functions of torch, and operators, which are those
   of tensors: numbers of Python take no time.
7. Otherwise the script's own Python.

While the training thread waits for another thread, the frames of that one follow its own. What it loads,
simulates or saves is what is waited for. A thread that keeps the interpreter while the training thread needs
it to compute holds the run up, whatever it does.

In an evaluation, only the work of the model and its waiting count as evaluation. Python that scores what the
model has said is Python of the script.

What writes pictures, tables or other results saves. In an evaluation, or in a function that is named after
logs, it logs: there people look at them. `tqdm` passes on what another iterator makes, and what that does is
not its own. A logger that calls the function that trains only wraps it.

A thread that waits for another process, by a pipe or a pool, waits for input or for environments. Its place
says which, or that the run logs what environments give.

A callback of a framework is seen alone: neither the phase in which the framework calls it nor what calls it
says what it does. The name of a hook, such as `on_rollout_end`, says when it is called. No name of a callback
says that it loads or simulates, and its operators are those of numbers.

A function that trains, and all that call it, are not known by their names: `fit_dataset` and `train_env` load
nothing and simulate nothing. `TrainingCode` knows these functions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import takewhile
from pathlib import PurePath
from typing import Literal, NamedTuple

from hoptui.domain.code_lines import (
    CodeLine,
    is_script,
    package_path,
)
from hoptui.domain.kind_rules import (
    CALLBACKS,
    CAUSES,
    COMPUTE,
    CONTEXTS,
    EVALUATES,
    EVENT_LOOP,
    FRAMEWORK_WAITS,
    GENERAL,
    HELPERS,
    HOOKS,
    HOST_CALLS,
    HOST_LIBRARIES,
    HOST_MODULES,
    MODELS,
    MOVES,
    NESTED,
    OPERATORS,
    PROCESSES,
    QUEUES,
    RUNNERS,
    STARTERS,
    WAITS,
    WRAPPERS,
    WRITERS,
    WRITES,
    Kind,
    Rule,
)
from hoptui.domain.name_kinds import (
    HOOK,
    NOT_FILES,
    NOT_NAMES,
    SCRIPT_CONTEXTS,
    SCRIPT_NAMES,
    frame_names,
    kind_of_phase,
    kinds_of_frame,
    kinds_of_names,
    names_host_work,
)
from hoptui.domain.stacks import PHASE_FILE, THREAD_WAITS, Stack, StackFrame, other_thread_at
from hoptui.domain.training_code import NOTHING_KNOWN, Place, TrainingCode

Basis = Literal["known", "process", "before", "between", "after", "unknown"]
"""What a kind rests on. `known`: a library, a name, or the line of the loop itself. `process`: the thread
waits for another process, of which nothing is known. The rest is Python of the script. `before`,
`between` and `after`: its place in the function that trains. `unknown`: nothing says what it is for."""


KEPT_FROM: tuple[Kind, ...] = ("compute", "evaluate", "script")
"""What the training thread does that needs the interpreter all the time."""


class Assessment(NamedTuple):
    """What a thread does, and what this rests on. `other`: the thread that it waits for does it."""

    kind: Kind
    basis: Basis = "known"
    other: bool = False

    def part(self, stack: Stack) -> Stack:
        """Return the frames of a stack that this is about: without those of a thread that says nothing."""
        at = 0 if self.other else other_thread_at(stack)
        return stack[:at] if at else stack


def kind_of(stack: Stack, code: TrainingCode = NOTHING_KNOWN) -> Kind:
    """Return what a thread with this stack is doing.

    Args:
        stack: The frames, the outermost first. Without any, the thread does the script's own.
        code: The functions of the script that train.
    """
    return assess(stack, code).kind


@lru_cache(maxsize=4096)
def assess(stack: Stack, code: TrainingCode = NOTHING_KNOWN) -> Assessment:
    """Return what a thread with this stack is doing, and what this rests on."""
    at = other_thread_at(stack)
    if at and _hands_over(stack[at:]):
        return assess(stack[:at], code)
    if at and waits_for_interpreter(stack):
        return _without_interpreter(assess(stack[:at], code), assess(stack[at:], code))
    if at:
        return _while_waiting(assess(stack[:at], code), assess(stack[at:], code))
    phases = [frame.function for frame in stack if frame.file == PHASE_FILE][::-1]
    frames = [(package_path(frame), frame) for frame in stack[len(phases) :]]
    calls = [i for i, called in enumerate(frames, 1) if _first(CALLBACKS, [called]) or _hooks(frames, i)]
    if calls:
        nested = [i for i, called in enumerate(frames, 1) if i > calls[0] and _first(NESTED, [called])]
        if nested:
            return _in_evaluation(tuple(frame for _, frame in frames[nested[0] :]), code)
        return Assessment(_in_callback(frames[calls[-1] :]))
    context, after = _context(frames, phases, code)
    if context == "evaluate":
        return _in_evaluation(tuple(frame for _, frame in frames[after:]), code)
    if context is not None:
        return Assessment(context)
    moves = _first(MOVES, frames[::-1])
    if moves is not None:
        return Assessment(moves)
    of_phase = kind_of_phase(phases)
    of_name = next((kind for frame in _own(frames, code) for kind in kinds_of_frame(frame, code)), None)
    named = of_phase or of_name
    works = _first(WAITS, frames[::-1]) or _first(COMPUTE, frames[::-1])
    if works == "compute" and computes_on_host(frames):
        return Assessment("script")
    if works is not None:
        prepares = (
            named == "input"
            and (of_phase or code)
            and not any(path.startswith(MODELS) for path, _ in frames)
            and _first(FRAMEWORK_WAITS, frames[-1:]) is None
        )
        return Assessment("input" if prepares else works)
    if named is not None and (named == of_name or named != "environment"):
        return Assessment(named)
    stems = [PurePath(frame.file).stem for frame in _own(frames, code) if not code.in_file(frame.file)]
    of_file = next(kinds_of_names(stems, SCRIPT_NAMES, (*NOT_NAMES, *NOT_FILES)), None)
    if of_file is not None and named is None:
        return Assessment(of_file)
    inner = frames[_training(frames, code) :]  # a worker of a pool may call the function that trains
    libraries = [(path, frame) for path, frame in inner if path]
    general = _first(GENERAL, frames[-1:]) or _first(GENERAL, libraries[::-1]) or "script"
    place = code.place(stack)
    if named is None and _waits_for_process(frames):
        return Assessment("script", place) if place == "between" else Assessment("input", "process")
    if (
        general == "wait"
        and code
        and not (code.trains(frames[-1][1]) or _first(FRAMEWORK_WAITS, frames[-1:]))
    ):
        general = "script"  # numbers of Python, as the result of a model is read where it is trained
    if general == "compute" and frames and frames[-1][1].call in OPERATORS and _of_host(frames, code):
        general = "script"
    if general == "script" and named is None and _in_event_loop(frames):
        return Assessment("script", "unknown" if place == "elsewhere" else place)
    if named is not None and general != "compute":
        return Assessment(named)  # the phase of a rollout: environments, and a policy that computes
    if general == "script" or (general == "compute" and place == "before" and named is None):
        return Assessment("script", _basis(frames, phases, code, place))
    return Assessment(general)


def assess_all(stacks: Mapping[Stack, int], code: TrainingCode = NOTHING_KNOWN) -> dict[Stack, Assessment]:
    """Return what a thread with each of these stacks is doing.

    While it waits for another thread, tensors and Python of that thread are part of what else that does: the
    policy of a thread that plays is part of playing.

    Args:
        stacks: How often each stack was found.
        code: The functions of the script that train.
    """
    found = {stack: assess(stack, code) for stack in stacks}
    causes: dict[_Function, Counter[Kind]] = {}
    unclear: dict[Stack, _Function] = {}
    for stack, count in stacks.items():
        if (at := other_thread_at(stack)) and not _hands_over(stack[at:]):
            work = _started(stack[at:])
            kind = assess(stack[at:], code).kind
            if waits_for_interpreter(stack):
                continue
            if kind in CAUSES:
                causes.setdefault(work, Counter())[kind] += count
            else:
                unclear[stack] = work
    for stack, work in unclear.items():
        if work in causes:
            found[stack] = Assessment(causes[work].most_common(1)[0][0], other=True)
    return found


def waits_for_interpreter(stack: Stack) -> bool:
    """Whether the frames of another thread follow because it keeps the interpreter, which this one needs.

    Otherwise this one has called what waits for a thread: an event, a queue, a future, or an event loop.
    """
    at = other_thread_at(stack)
    if not at:
        return False
    frames = [(package_path(frame), frame) for frame in stack[:at]]
    path, frame = frames[-1]
    waits = path.startswith("threading.") and frame.function.rpartition(".")[2] in THREAD_WAITS
    return not waits and not _in_event_loop(frames)


def place_of(stack: Stack) -> CodeLine:
    """Return the innermost line of the script; that of a library if there is none of the script."""
    frame = next((frame for frame in reversed(stack) if is_script(frame)), stack[-1])
    return CodeLine(frame.file, frame.line, frame.function)


_Function = tuple[str, str]
"""The file and the name of a function."""
_Frames = list[tuple[str, StackFrame]]
"""Frames with the path of their file below the folder of packages, "" for those of the script."""


def _context(frames: _Frames, phases: Iterable[str], code: TrainingCode) -> tuple[Kind | None, int]:
    """Return the kind of all that a library, a phase or a function of the script calls, if it has one.

    The number of frames up to this function comes with it.
    """
    trains = _training(frames, code)
    for i, (path, frame) in enumerate(frames, 1):
        around = None if _first(WRAPPERS, [(path, frame)]) else _first(CONTEXTS, [(path, frame)])
        if around == "log" and i < trains:
            around = None  # it calls the function that trains
        if around == "save" and _first(WRITERS, [(path, frame)]) and _shows(frames[:i], code):
            around = "log"
        of, _, name = frame.function.rpartition(".")
        if around is None and is_script(frame) and not code.trains(frame):
            around = next(kinds_of_names([of if HOOK.match(name) else name], SCRIPT_CONTEXTS), None)
        if around is not None:
            return around, i
    return next(kinds_of_names(phases, SCRIPT_CONTEXTS, ()), None), 0


def _training(frames: _Frames, code: TrainingCode) -> int:
    """Return the number of frames up to the innermost function that trains, 0 without one."""
    return max((i for i, (_, frame) in enumerate(frames, 1) if code.trains(frame)), default=0)


def _hooks(frames: _Frames, number: int) -> bool:
    """Whether the first frames, so many, end with what calls a hook, and the next one is the hook."""
    if number == len(frames) or _first(HOOKS, [frames[number - 1]]) is None:
        return False
    name = frames[number][1].function.rpartition(".")[2]
    return HOOK.match(name) is not None and not name.endswith("_batch_transfer")


def _shows(frames: _Frames, code: TrainingCode) -> bool:
    """Whether a function of the script is named after logs."""
    return any("log" in kinds_of_frame(frame, code) for frame in _own(frames, code))


def _hands_over(stack: Stack) -> bool:
    """Whether another thread hands over tasks or results of other processes."""
    paths = (package_path(frame) for frame in stack)
    return _below(next((path for path in paths if not _below(path, STARTERS)), ""), HELPERS)


def _waits_for_process(frames: _Frames) -> bool:
    """Whether a thread waits for what another process sends, or for the result of a pool."""
    inner = [path for path, _ in takewhile(lambda called: called[0], reversed(frames))]
    return any(_below(path, PROCESSES) for path in inner) and not any(_below(path, QUEUES) for path in inner)


def _in_event_loop(frames: _Frames) -> bool:
    """Whether an event loop waits. What a task of the script awaits comes before, if that is known."""
    innermost = frames[-1][0] if frames else ""
    waits = innermost.startswith("selectors.") and any(path.startswith(EVENT_LOOP) for path, _ in frames)
    return waits or innermost.startswith(RUNNERS)


def computes_on_host(frames: _Frames) -> bool:
    """Whether something that computes calls what computes with numbers of the host."""
    inner = list(takewhile(lambda called: _first(COMPUTE, [called]) is None, reversed(frames)))
    if any(_below(path, HOST_LIBRARIES) for path, _ in inner):
        return True
    return bool(inner) and calls_host(inner[0][1].call)


def calls_host(call: str) -> bool:
    """Whether a call is one of Python or of NumPy that knows no tensors."""
    module, _, function = call.partition(".")
    return (module if function else "") in HOST_MODULES or call in HOST_CALLS


def _below(path: str, folders: Iterable[str]) -> bool:
    return any(path.startswith((f"{folder}/", f"{folder}.")) for folder in folders)


def _started(stack: Stack) -> _Function:
    """Return the file and the function that another thread was started with."""
    frame = next((frame for frame in stack if is_script(frame)), stack[-1])
    return frame.file, frame.function


def _while_waiting(waiting: Assessment, other: Assessment) -> Assessment:
    """Return what a thread does that waits for another one. What the other one is known to do is the cause.

    Python of the script, or tensors, may make data as well as anything: then a queue says more.
    """
    if other.kind in CAUSES or waiting.kind == "script":
        return other._replace(other=True)
    return waiting


def _without_interpreter(own: Assessment, other: Assessment) -> Assessment:
    """Return what a thread does while another one keeps the interpreter that it needs.

    What the other one is known to do is the cause, else it is Python of the script.
    """
    if own.kind not in KEPT_FROM:
        return own
    return Assessment(other.kind if other.kind in CAUSES else "script", other=True)


def _in_callback(frames: _Frames) -> Kind:
    """Return what a callback does, by the frames inside of it."""
    kind = kind_of(tuple(frame for _, frame in frames))
    named = kind in ("input", "environment") and _first(CONTEXTS, frames) is None
    numbers = kind == "compute" and frames[-1][1].call in OPERATORS
    return "script" if named or numbers else kind


def _in_evaluation(stack: Stack, code: TrainingCode) -> Assessment:
    """Return what is done in an evaluation, by the frames inside of it."""
    inner = assess(stack, code) if stack else Assessment("evaluate")
    if inner.kind in EVALUATES:
        return Assessment("evaluate")
    frames = [(package_path(frame), frame) for frame in stack]
    if inner.kind == "save" and (_first(WRITERS, frames) or _first(WRITES, frames[-1:])):
        return Assessment("log")
    return Assessment(inner.kind, "known" if inner.basis == "known" else "unknown")


def _own(frames: _Frames, code: TrainingCode) -> Iterator[StackFrame]:
    """Yield the frames of the script that train nothing, the innermost first."""
    yield from (frame for _, frame in reversed(frames) if is_script(frame) and not code.trains(frame))


def _basis(frames: _Frames, phases: Iterable[str], code: TrainingCode, place: Place) -> Basis:
    """Return what is known of Python of the script that no name says anything about."""
    mine = [frame for _, frame in frames if is_script(frame)]
    if _of_host(frames, code) or any(map(names_host_work, phases)):
        return "known"
    if place in ("before", "between"):
        return place
    if mine and code.trains(mine[-1]):
        return "known"
    return "after" if place == "after" else "unknown"


def _of_host(frames: _Frames, code: TrainingCode) -> bool:
    """Whether a function of the script is named after work of the host."""
    return any(names_host_work(name) for frame in _own(frames, code) for name in frame_names(frame, code))


def _first(rules: Iterable[Rule], frames: Iterable[tuple[str, StackFrame]]) -> Kind | None:
    rules = tuple(rules)
    for path, frame in frames:
        for rule in rules:
            if rule.matches(path, frame):
                return rule.kind
    return None
