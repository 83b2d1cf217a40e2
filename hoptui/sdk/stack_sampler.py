"""A thread that samples the stack of the training thread, within a budget that it measures itself.

A sample needs the interpreter, so it costs the training thread as long as it takes. The sampler measures its
own CPU time, and samples more rarely where that would be more than `BUDGET` of the time.
"""

from __future__ import annotations

import dis
import itertools
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
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
Place = tuple[CodeType, int]
"""A code object, and the offset of the instruction in execution."""


class StackSampler:
    """Samples the thread whose identifier `thread` returns, 0 while there is none.

    An error ends it. `failed` is then called with the error, in its thread.
    """

    def __init__(self, thread: Callable[[], int], failed: Callable[[Exception], None]) -> None:
        self._thread = thread
        self._failed = failed
        self._counts: Counter[tuple[Place, ...]] = Counter()
        self._unnamed: Counter[tuple[Place, ...]] = Counter()  # of earlier calls of `take`
        self._left_out = 0
        self._places: dict[tuple[Place, bool], StackFrame] = {}
        self._began = time.monotonic_ns()
        self._spent_ns = 0
        self._each_s = self._named_s = 0.0  # the cost of a sample, and of naming its frames, smoothed
        self._calls: dict[CodeType, dict[int, str]] = {}
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
        """The time between two samples that keeps the cost within the budget."""
        return min(RAREST_S, max(EVERY_S, (self._each_s + self._named_s) / BUDGET))

    def take(self) -> StackSamples | None:
        """Return the samples since the last call, None if there are none. Only one thread may call it.

        Samples whose places have no name yet may come with a later call: naming takes longer than sampling.
        """
        began = time.thread_time_ns()
        counts, self._counts = self._counts, Counter()
        left_out, self._left_out = self._left_out, 0
        since, self._began = self._began, time.monotonic_ns()
        spent, self._spent_ns = self._spent_ns, 0
        for places, count in list(counts.items()):  # the other thread may just add its last sample to it
            self._unnamed[places] += count
        passed = max(1, self._began - since)
        stacks: Counter[Stack] = Counter()
        for places, count in self._unnamed.most_common():
            if stacks and time.thread_time_ns() - began > NAMING * passed:
                break
            stack = [self._frame(place, innermost=place is places[-1]) for place in places]
            stacks[tuple(stack)] += count
            del self._unnamed[places]
        for places, count in self._unnamed.most_common()[MOST_STACKS:]:
            left_out += count
            del self._unnamed[places]
        if not stacks:
            return None
        named = time.thread_time_ns() - began
        spent += named
        self._named_s += SMOOTHING * (named / 1e9 / sum(stacks.values()) - self._named_s)
        return pack(stacks, since, self._began, left_out=left_out, cost=spent / passed)

    def sample(self) -> None:
        """Take one sample."""
        frame = sys._current_frames().get(self._thread())
        places = tuple(_places(frame))[::-1]
        if not places:
            return
        if places in self._counts or len(self._counts) < MOST_STACKS:
            self._counts[places] += 1
        else:
            self._left_out += 1

    def _main(self) -> None:
        try:
            while not self._end.wait(self.period_s):
                began = time.thread_time_ns()
                self.sample()
                spent = time.thread_time_ns() - began
                self._spent_ns += spent
                self._each_s += SMOOTHING * (spent / 1e9 - self._each_s)
        except Exception as error:
            self._failed(error)

    def _frame(self, place: Place, *, innermost: bool) -> StackFrame:
        found = self._places.get((place, innermost))
        if found is None:
            if len(self._places) >= MOST_PLACES:
                self._places.clear()
                self._calls.clear()
            code, offset = place
            found = frame_at(code, offset)
            if innermost:
                if code not in self._calls:
                    self._calls[code] = calls_of(code)
                found = found._replace(call=self._calls[code].get(offset, ""))
            self._places[place, innermost] = found
        return found


def _places(frame: FrameType | None) -> Iterator[Place]:
    """Yield the places of a stack, the innermost first."""
    depth = 0
    while frame is not None and depth < MOST_DEPTH:
        yield frame.f_code, frame.f_lasti
        frame = frame.f_back
        depth += 1


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
