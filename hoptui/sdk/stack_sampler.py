"""A thread that samples the stack of the training thread, within a budget that it measures itself.

A sample needs the interpreter, so it costs the training thread as long as it takes. The sampler measures its
own CPU time, and samples more rarely where that would be more than `BUDGET` of the time.

A thread that runs Python keeps the interpreter for the switch interval of Python, 5 ms, unless it lets go of
it before. It nearly always does, in a call of C code, so samples would find such calls alone. While all other
threads of the process wait, the switch interval is therefore `SWITCH_S`.
"""

from __future__ import annotations

import dis
import itertools
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType

from hoptui.domain.facts import clean_text
from hoptui.domain.stacks import MOST_DEPTH, Stack, StackFrame, StackSamples, pack

EVERY_S, RAREST_S = 0.1, 5.0
"""The time between two samples where the budget allows it, and where a sample is very expensive."""
BUDGET = 0.001
"""The share of the time that the thread may use."""
NAMING = 0.0003
"""The share of the time for naming places that have not been named before. The rest of them waits."""
SMOOTHING = 0.2
MOST_STACKS = 512
"""Different stacks between two messages. More are counted as left out."""
MOST_PLACES = 4096
"""Places in code whose line and columns are remembered."""
MOST_CODE = 32 << 10
"""Bytes of code whose calls are looked for: that takes milliseconds, once."""
LONGEST_NAME = 300
"""Characters of a file, function or call. Generated code may have names of any length."""
OPERATIONS = {
    "BINARY_OP": "", "BINARY_SUBSCR": "[]", "STORE_SUBSCR": "[]", "COMPARE_OP": "", "TO_BOOL": "bool",
    "UNARY_NEGATIVE": "-", "UNARY_NOT": "not", "POP_JUMP_FORWARD_IF_FALSE": "bool",
    "POP_JUMP_FORWARD_IF_TRUE": "bool", "POP_JUMP_IF_FALSE": "bool", "POP_JUMP_IF_TRUE": "bool",
}  # fmt: skip
"""Instructions that run the code of an object without a call, and their names: an operator is its own."""
Position = tuple[int, int]
"""A line, and a column."""
Place = tuple[int, int]
"""The `id` of a code object, and the offset of the instruction in execution. To hash the code object itself
takes longer than all else."""

JITTER = 0.25
"""A period differs from the mean by up to this part of it, so that it does not beat with the iterations."""
SWITCH_S = 20e-6
"""The switch interval while no thread of the script competes for the interpreter."""
WAITING = (
    "threading.py", "queue.py", "selectors.py", "connection.py", "poll.py", "socket.py",
    "concurrent/futures/thread.py",
)  # fmt: skip
"""Files of the functions in which a thread waits, without the interpreter."""
SDK = str(Path(__file__).parent) + os.sep
"""The folder of this package. Its own threads need the interpreter for moments only."""


class _Interval:
    """The samples since `began` (monotonic ns), and the code objects in them by `id`, which keeps them alive.

    `spent_ns` is the CPU time that they took. `left_out` of them are not in `counts`.
    """

    def __init__(self, began: int) -> None:
        self.began = began
        self.counts: Counter[tuple[Place, ...]] = Counter()
        self.codes: dict[int, CodeType] = {}
        self.left_out = 0
        self.spent_ns = 0


class StackSampler:
    """Samples the thread whose identifier `thread` returns, 0 while there is none.

    An error ends it. `failed` is then called with the error, in its thread.
    """

    def __init__(self, thread: Callable[[], int], failed: Callable[[Exception], None]) -> None:
        self._thread = thread
        self._failed = failed
        self._interval = _Interval(time.monotonic_ns())
        self._each_s = 0.0  # the cost of a sample, smoothed
        self._names = _Names()
        self._end = threading.Event()
        self._own = threading.Thread(target=self._main, name="hoptui-stacks", daemon=True)

    def start(self) -> None:
        """Begin to sample."""
        self._own.start()

    def stop(self) -> None:
        """End sampling. It does not wait for the thread."""
        self._end.set()

    @property
    def period_s(self) -> float:
        """The time between two samples that keeps the cost within the budget, with that of naming."""
        return min(RAREST_S, max(EVERY_S, self._each_s / (BUDGET - NAMING)))

    def take(self) -> StackSamples | None:
        """Return the samples since the last call, None if there are none. Only one thread may call it.

        Samples whose places have no name yet may come with a later call: naming takes longer than sampling.
        """
        began = time.thread_time_ns()
        taken, self._interval = self._interval, _Interval(time.monotonic_ns())
        ended = self._interval.began
        passed = max(1, ended - taken.began)
        names = self._names
        names.add(taken)
        stacks, left_out = names.stacks(until=began + int(NAMING * passed))
        if not stacks:
            return None
        spent = taken.spent_ns + time.thread_time_ns() - began
        return pack(stacks, taken.began, ended, left_out=left_out + taken.left_out, cost=spent / passed)

    def sample(self) -> bool:
        """Take one sample.

        Returns:
            Whether all threads but the sampled one and that of the sampler wait.
        """
        interval = self._interval
        threads = sys._current_frames()
        frame = threads.pop(self._thread(), None)
        threads.pop(self._own.ident or 0, None)
        found: list[Place] = []
        while frame is not None and len(found) < MOST_DEPTH:
            code = frame.f_code
            interval.codes[id(code)] = code
            found.append((id(code), frame.f_lasti))
            frame = frame.f_back
        places = tuple(found[::-1])
        if places in interval.counts or (places and len(interval.counts) < MOST_STACKS):
            interval.counts[places] += 1
        elif places:
            interval.left_out += 1
        return all(map(_waits, threads.values()))

    def _main(self) -> None:
        dice = random.Random()
        try:
            _wake_in_time()
            while not self._end.wait(self.period_s * dice.uniform(1 - JITTER, 1 + JITTER)):
                began = time.thread_time_ns()
                if self.sample():
                    _switch_interval.shorten()
                else:
                    _switch_interval.restore()
                spent = time.thread_time_ns() - began
                self._interval.spent_ns += spent
                self._each_s += SMOOTHING * (spent / 1e9 - self._each_s)
        except Exception as error:
            self._failed(error)
        finally:
            _switch_interval.restore()


def _waits(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return file.endswith(WAITING) or file.startswith(SDK)


def _wake_in_time() -> None:
    """Have the kernel wake this thread when it is due. Otherwise it may do so 50 µs later."""
    with suppress(OSError):
        Path(f"/proc/{threading.get_native_id()}/timerslack_ns").write_text("1", "ascii")


class _SwitchInterval:
    """The switch interval of the interpreter. Once the script sets one of its own, it is left alone."""

    def __init__(self) -> None:
        self._before = 0.0
        self._own = 0.0  # as the interpreter rounds it; 0 while the interval is that of the script
        self._set_by_script = False

    def shorten(self) -> None:
        """Make it `SWITCH_S`, if it is longer."""
        now = sys.getswitchinterval()
        if self._own:
            self._set_by_script = now != self._own
        elif now > SWITCH_S and not self._set_by_script:
            self._before = now
            sys.setswitchinterval(SWITCH_S)
            self._own = sys.getswitchinterval()

    def restore(self) -> None:
        """Make it what it was before."""
        if self._own and sys.getswitchinterval() == self._own:
            sys.setswitchinterval(self._before)
        self._own = 0.0


_switch_interval = _SwitchInterval()
os.register_at_fork(after_in_child=_switch_interval.restore)  # the sampler stays in the parent


class _Names:
    """Names the places of samples. Only the thread that takes them uses it."""

    def __init__(self) -> None:
        self._codes: dict[int, CodeType] = {}
        self._unnamed: Counter[tuple[Place, ...]] = Counter()
        self._frames: dict[tuple[Place, bool], StackFrame] = {}
        self._calls: dict[int, dict[int, str]] = {}

    def add(self, interval: _Interval) -> None:
        """Add samples. The sampling thread may just add its last one."""
        for places, count in list(interval.counts.items()):
            self._unnamed[places] += count
        self._codes.update(interval.codes)

    def stacks(self, until: int) -> tuple[Counter[Stack], int]:
        """Return samples, those with a frequent stack first, at least one, and how many are left out.

        Args:
            until: The CPU time of this thread, in ns, at which the rest waits for the next call.
        """
        found: Counter[Stack] = Counter()
        for places, count in self._unnamed.most_common():
            if found and time.thread_time_ns() > until:
                break
            found[self._stack(places)] += count
            del self._unnamed[places]
        left_out = self._forget()
        return found, left_out

    def _forget(self) -> int:
        """Keep what is in memory bounded. Return how many samples get no name by that."""
        rare = self._unnamed.most_common()[MOST_STACKS:]
        if len(self._frames) >= MOST_PLACES or len(self._codes) >= MOST_PLACES:
            rare = self._unnamed.most_common()
            self._codes, self._frames, self._calls = {}, {}, {}
        for places, _ in rare:
            del self._unnamed[places]
        return sum(count for _, count in rare)

    def _stack(self, places: tuple[Place, ...]) -> Stack:
        return tuple(self._frame(place, innermost=place is places[-1]) for place in places)

    def _frame(self, place: Place, *, innermost: bool) -> StackFrame:
        found = self._frames.get((place, innermost))
        if found is None:
            identity, offset = place
            code = self._codes[identity]
            found = frame_at(code, offset)
            if innermost:
                if identity not in self._calls:
                    self._calls[identity] = calls_of(code)
                found = found._replace(call=self._calls[identity].get(offset, ""))
            self._frames[place, innermost] = found
        return found


def frame_at(code: CodeType, offset: int) -> StackFrame:
    """Return what is known of an instruction: `offset` is that of `frame.f_lasti`."""
    line, end_line, column, end_column = next(
        itertools.islice(code.co_positions(), max(0, offset) // 2, None), (None, None, None, None)
    )
    return StackFrame(
        clean_text(code.co_filename, LONGEST_NAME),
        clean_text(code.co_qualname, LONGEST_NAME),
        line or code.co_firstlineno,
        end_line or 0,
        -1 if column is None else column,
        -1 if end_column is None else end_column,
    )


def calls_of(code: CodeType) -> dict[int, str]:
    """Return what the instructions of some code call, by their offset, if it has a name.

    The callee is the longest expression that begins where the call begins: `x.to` in `x.to(device)`. An
    operator is called by its symbol, and the truth of a value, as in `if loss`, is `bool`. Nothing is known
    of generated code that is very long.
    """
    found: dict[int, str] = {}
    if len(code.co_code) > MOST_CODE:
        return found
    names: dict[Position, list[tuple[Position, str]]] = {}
    for each in dis.get_instructions(code):
        place = each.positions
        operator = OPERATIONS.get(each.opname)
        if operator is not None:
            found[each.offset] = operator or each.argrepr
        if place is None or place.lineno is None or place.end_lineno is None:
            continue
        parts = names.setdefault((place.lineno, place.col_offset or 0), [])
        end = (place.end_lineno, place.end_col_offset or 0)
        if each.opname.startswith("LOAD"):
            parts.append((end, clean_text(each.argval, LONGEST_NAME)))
        elif each.opname.startswith("CALL"):
            found[each.offset] = _dotted(part for part in parts if part[0] < end)
            parts.append((end, ""))
        elif operator is not None:
            parts.append((end, ""))
    return {offset: name for offset, name in found.items() if name}


def _dotted(names: Iterable[tuple[Position, str]]) -> str:
    """Return `np.random.rand` for the loads of its parts, `item` for those of `loss().item`.

    A part without a name is the value of a call or an operator.
    """
    parts: list[str] = []
    for _, name in sorted(set(names)):
        parts = [*parts, name] if name else []
    return clean_text(".".join(parts), LONGEST_NAME)
