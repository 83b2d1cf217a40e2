"""Stack samples: where the training thread of a run was, sampled a few times a second.

Source text is never part of them: a frame is a file, a function and a place in the file. Viewers read the
source where they may. The phases that the script has declared around its code are the outermost frames.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter
from typing import NamedTuple

import msgspec

KEPT_S = 60.0
"""How long the samples of a process are kept."""
MOST_DEPTH = 128
"""Frames of a stack that are kept: the innermost ones."""
PHASE_FILE = "<phase>"
"""The file of a frame that is a declared phase. Its function is the name of the phase."""
MOST_BYTES = 8 << 10
"""Estimated size of the samples of one message. Stacks that do not fit are left out, rare ones first."""


ENGINE = "_engine_run_backward"
"""The function of torch in which a backward pass runs. Inside of it is C++, unless a hook runs Python."""


THREAD_START, THREADING = "Thread._bootstrap", "/threading.py"
"""The outermost function of a thread, and its file."""
THREAD_WAITS = frozenset(("wait", "_wait_for_tstate_lock"))
"""Functions of `threading` in which a thread waits for another one: in a queue, a future, an event, or for
its end."""


class StackFrame(NamedTuple):
    """A call in a stack: its file, function, and the place that was being executed.

    `line` is 0 if unknown. `end_line`, `column` and `end_column` enclose the expression; columns are offsets
    in UTF-8 bytes, and -1 if unknown. `call` is the name of what the expression calls, such as `item`: the
    stack has no frame of functions that are written in C. Only the innermost frame has it.

    `package_at` is where the path of an installed package begins in `file`: 10 in `/opt/libs/torch/hub.py`.
    Only the process itself knows that. It is 0 for code of the user, and where nobody has looked.
    """

    file: str
    function: str
    line: int
    end_line: int = 0
    column: int = -1
    end_column: int = -1
    call: str = ""
    package_at: int = 0


Stack = tuple[StackFrame, ...]
"""The frames of one sample, the outermost first."""


def phase_frames(path: str) -> Stack:
    """Return the frames of a phase, such as `rollout/env`: one for each part of its path."""
    return tuple(StackFrame(PHASE_FILE, name, 0) for name in path.split("/") if name)


def without_phases(stack: Stack) -> Stack:
    """Return the calls of a stack, without the phases around them."""
    return tuple(frame for frame in stack if frame.file != PHASE_FILE)


class StackSamples(msgspec.Struct, frozen=True, kw_only=True):
    """The samples of one process over a while, with each name and each frame once.

    `began` and `ended` are monotonic nanoseconds. `names` are files, functions and calls. A frame is the
    indices of its file, function and call, and line, end line, column and end column. A stack is the indices
    of its frames, the outermost first, and `counts` says how often it was found. `left_out` samples did not
    fit. `cost` is the share of the sampling thread in the time. `asleep` says how often the thread slept in
    each stack that is in a backward pass: then it waited, as it computes alone. It is empty if that is
    unknown. `packages` has the index of the name of each file of an installed package, and where the path of
    the package begins in it. Packages that the names of folders show, such as `site-packages`, are left out.
    `on_cpu` is the share of the time for which the thread had a processor, and `queued` that for which it
    could have run and waited for one. None: unknown.
    """

    began: int
    ended: int
    names: tuple[str, ...] = ()
    frames: tuple[tuple[int, int, int, int, int, int, int], ...] = ()
    stacks: tuple[tuple[int, ...], ...] = ()
    counts: tuple[int, ...] = ()
    left_out: int = 0
    cost: float = 0.0
    asleep: tuple[int, ...] = ()
    packages: tuple[tuple[int, int], ...] = ()
    on_cpu: float | None = None
    queued: float | None = None


def pack(
    counts: Mapping[Stack, int],
    began: int,
    ended: int,
    *,
    left_out: int = 0,
    cost: float = 0.0,
    asleep: Mapping[Stack, int] | None = None,
    on_cpu: float | None = None,
    queued: float | None = None,
    most_bytes: int = MOST_BYTES,
) -> StackSamples:
    """Pack samples, the most frequent stacks first, as many as about `most_bytes` hold.

    Args:
        counts: How often each stack was found.
        began: Monotonic nanoseconds.
        ended: Monotonic nanoseconds.
        left_out: How many samples are not in `counts`.
        cost: The share of the sampling thread in the time.
        asleep: How often the thread slept in stacks that are in a backward pass. None: unknown.
        on_cpu: The share of the time for which the thread had a processor. None: unknown.
        queued: The share of the time for which it waited for one. None: unknown.
        most_bytes: The estimated size.
    """
    names: dict[str, int] = {}
    frames: dict[StackFrame, int] = {}
    known: dict[int, int] = {}  # the same by the `id` of the frame
    stacks: list[tuple[int, ...]] = []
    found: list[int] = []
    slept: list[int] = []
    size = 0
    for whole, count in sorted(counts.items(), key=lambda item: -item[1]):
        stack = whole[-MOST_DEPTH:]
        places = [*map(known.get, map(id, stack))]  # a frame is hashed once: that takes longer than all else
        more = 2 * len(stack)
        if None in places:
            fresh = {
                frame: None
                for frame, place in zip(stack, places, strict=True)
                if place is None and frame not in frames
            }
            spelled = {name for frame in fresh for name in _named(frame)} - names.keys()
            more += 14 * len(fresh) + 2 * len(spelled) + len("".join(spelled).encode())
            if any(frame[7] for frame in fresh):
                more += 5 * len({frame.file for frame in fresh if frame.package_at and frame.file in spelled})
        if size + more > most_bytes:
            left_out += count
            continue
        size += more
        for at, place in enumerate(places):
            if place is None:
                frame = stack[at]
                places[at] = known[id(frame)] = frames.setdefault(frame, len(frames))
                for name in _named(frame):
                    names.setdefault(name, len(names))
        stacks.append(tuple(places))  # type: ignore[arg-type]
        found.append(count)
        if asleep is not None:
            slept.append(asleep.get(whole, 0))
    return StackSamples(
        began=began,
        ended=ended,
        names=tuple(names),
        frames=tuple(
            (names[file], names[function], names[call], line, end_line, column, end_column)
            for file, function, line, end_line, column, end_column, call, _ in frames
        ),
        stacks=tuple(stacks),
        counts=tuple(found),
        left_out=left_out,
        cost=cost,
        asleep=tuple(slept),
        packages=tuple({names[f.file]: f.package_at for f in frames if f.package_at}.items()),
        on_cpu=on_cpu,
        queued=queued,
    )


def check(samples: StackSamples) -> None:
    """Check samples that another process has sent.

    Raises:
        ValueError: an index or a share is out of range, or a count is not positive.
    """
    if len(samples.counts) != len(samples.stacks) or any(count < 1 for count in samples.counts):
        raise ValueError("each stack has a positive count")
    if samples.asleep and len(samples.asleep) != len(samples.counts):
        raise ValueError("not each stack has a count of its sleeping samples")
    if any(not 0 <= slept <= count for slept, count in zip(samples.asleep, samples.counts, strict=False)):
        raise ValueError("a stack has more sleeping samples than samples")
    if any(not 0 <= name < len(samples.names) for frame in samples.frames for name in frame[:3]):
        raise ValueError("a frame has the index of no name")
    if any(not 0 <= frame < len(samples.frames) for stack in samples.stacks for frame in stack):
        raise ValueError("a stack has the index of no frame")
    if any(not 0 <= name < len(samples.names) for name, _ in samples.packages):
        raise ValueError("a package has the index of no name")
    if any(not 0 < at < len(samples.names[name]) for name, at in samples.packages):
        raise ValueError("the path of a package has no place in the name of its file")
    if samples.ended < samples.began or samples.left_out < 0:
        raise ValueError("samples end before they begin")
    if not all(0 <= share <= 1 for share in (samples.on_cpu, samples.queued) if share is not None):
        raise ValueError("a thread has a share of the time that is not from 0 to 1")


def unpack(samples: StackSamples) -> Counter[Stack]:
    """Return how often each stack was found."""
    return _of_each(samples, samples.counts)


def unpack_asleep(samples: StackSamples) -> Counter[Stack] | None:
    """Return how often the thread slept in each stack that is in a backward pass, None if that is unknown."""
    return _of_each(samples, samples.asleep) if samples.asleep else None


def in_backward(stack: Stack) -> bool:
    """Whether a stack is in a backward pass, outside of hooks in Python."""
    return stack[-1].function == ENGINE if stack else False


def other_thread_at(stack: Stack) -> int:
    """Return where the frames of another thread begin, for which the training thread waits. 0: nowhere.

    They follow those of the training thread, which may itself have been started by `threading`.
    """
    for at in range(len(stack) - 1, 0, -1):
        frame = stack[at]
        if frame.function == THREAD_START and frame.file.endswith(THREADING):
            return at if stack[at - 1].file != PHASE_FILE else 0
    return 0


def _of_each(samples: StackSamples, counts: tuple[int, ...]) -> Counter[Stack]:
    names, packages = samples.names, dict(samples.packages)
    frames = [
        StackFrame(
            names[file],
            names[function],
            line,
            end_line,
            column,
            end_column,
            names[call],
            packages.get(file, 0),
        )
        for file, function, call, line, end_line, column, end_column in samples.frames
    ]
    found: Counter[Stack] = Counter()
    for stack, count in zip(samples.stacks, counts, strict=True):
        found[tuple(frames[index] for index in stack)] += count
    return found


def merged(parts: Iterable[StackSamples], most_bytes: int = MOST_BYTES) -> StackSamples:
    """Return the samples of several spans of time as those of one."""
    parts = list(parts)
    counts: Counter[Stack] = Counter()
    for part in parts:
        counts.update(unpack(part))
    whole = sum(part.ended - part.began for part in parts)
    spent = sum(part.cost * (part.ended - part.began) for part in parts)
    return pack(
        counts,
        min((part.began for part in parts), default=0),
        max((part.ended for part in parts), default=0),
        left_out=sum(part.left_out for part in parts),
        cost=spent / whole if whole else 0.0,
        most_bytes=most_bytes,
    )


_named: Callable[[StackFrame], tuple[str, str, str]] = itemgetter(0, 1, 6)
"""Returns the file, the function and the call of a frame, quickly."""
