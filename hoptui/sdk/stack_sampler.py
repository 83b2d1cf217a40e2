"""A thread that samples the stack of the training thread, within a budget that it measures itself.

A sample needs the interpreter, so it costs the training thread as long as it takes. The sampler measures its
own CPU time, and makes a pause after each sample that keeps it within `BUDGET`.

A thread that runs Python keeps the interpreter for the switch interval of Python, 5 ms, unless it lets go of
it before. It nearly always does, in a call of C code, so samples would find such calls alone. The switch
interval is therefore shorter while it samples. It stays as it is while another thread of the script runs. One
that sleeps or is blocked in C code may look as if it ran, and is known by its CPU time.

Python 3.11 may collect garbage while it makes the object of a frame. A finalizer can then let the other
thread go on, and the object is made of a frame that has ended: the process crashes. So nothing is collected
while a stack is read. Later versions collect between two instructions only.
"""

from __future__ import annotations

import gc
import math
import os
import random
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from types import CodeType, FrameType

from hoptui.domain.stacks import ENGINE, MOST_DEPTH, StackSamples, pack
from hoptui.sdk.gradient_thread import GradientThread
from hoptui.sdk.installed_packages import InstalledPackages
from hoptui.sdk.interpreter_holders import InterpreterHolders, ProcessorTimes
from hoptui.sdk.stack_names import Chain, StackNames
from hoptui.sdk.suspended_task import TaskRef, in_event_loop, suspended
from hoptui.sdk.thread_sleep import FUTEX, RUNNING, EngineThreads, ThreadCall, ThreadSleep
from hoptui.sdk.thread_use import UNKNOWN, ThreadUse, thread_use
from hoptui.sdk.waited_thread import WaitedThread, waits_for_thread

EVERY_S, RAREST_S = 0.1, 5.0
"""The time between two samples where the budget allows it, and where a sample is very expensive."""
BUDGET = 0.001
"""The share of the time that the thread may use."""
AHEAD_S = 0.01
"""CPU time that samples may take ahead of it, once: at the start of a run its verdict is not known yet. Rare
samples find cold caches, so each takes several times as long as one of ten a second."""
NAMING = 0.0003
"""The share of the time for naming places. The rest of them waits."""
NAMING_AHEAD_S = 0.01
"""So much of it may be used ahead: at the start of a run all places are new."""
WAITING_BUDGET = 0.005
"""The share of the time that the thread may use to wait for the interpreter, without having it."""
SMOOTHING = 0.1
"""The weight of a new sample in the means of waiting."""
LAST = 9
"""So many samples give the median of taking one."""
SWITCH_S, LONGER_S = 20e-6, 1e-3
"""Switch intervals while a sample waits. With the first it sees code that runs for microseconds, and takes
CPU time while C code keeps the interpreter. With the other, where it is let go of often, for moments."""
EXPENSIVE_S = 0.5e-3
"""The CPU time of waiting after which the other switch interval is used."""
LONGER = 20
"""For so many samples the longer one is used then."""
MOST_WAITING_S = 5e-3
"""A longer wait counts as this in the mean: the import of a library keeps the interpreter for long, once."""
MOST_SAMPLES = 512
"""Samples between two messages. More are counted as left out."""
MOST_FUNCTIONS = 4096
"""Functions of which it is remembered whether a thread waits in them."""
NO_COLLECTION = 2_000_000_011
"""The threshold of the collector while a stack is read. No script has chosen this number."""
USED, PROCESSOR = slice(11, 13), 36
"""The places of the CPU times of a thread and of its last processor in its `stat` of proc(5), counted after
its name."""
TICKS = os.sysconf("SC_CLK_TCK")
"""Units of the CPU times in a second."""
SPREAD_S = 1.25
"""In a longer period a sample is at most half of this away from the middle, so that none is much older."""
WAITS = frozenset((
    "threading.py wait", "threading.py _wait_for_tstate_lock", "thread.py _worker", "selectors.py select",
    "connection.py _recv", "poll.py poll",
))  # fmt: skip
"""Functions of the standard library and of zmq in which a thread waits, without the interpreter."""
TORCH_WAITS = "/torch/distributed/", "/torch/cuda/"
"""Folders of functions whose C code waits for other ranks, or for a GPU."""
SDK = str(Path(__file__).parent) + os.sep
"""The folder of this package. Its own threads need the interpreter for moments only."""


class _Interval:
    """The samples since `began` (monotonic ns).

    `spent_ns` is the CPU time that they took. `left_out` samples are not in `chains`.
    """

    def __init__(self, began: int) -> None:
        self.began = began
        self.chains: list[Chain] = []
        self.left_out = 0
        self.spent_ns = 0


class _Use:
    """What the sampled thread has had of the processors between two readings."""

    def __init__(self) -> None:
        self._thread = self._read_t = 0
        self._before = self._since = UNKNOWN
        self._passed_s = 0.0

    def read(self, thread: int, use: ThreadUse) -> None:
        """Take what it has had until now. `thread` is the kernel's number of it."""
        now = time.monotonic_ns()
        self._since = use.since(self._before) if thread == self._thread else UNKNOWN
        self._passed_s = (now - self._read_t) / 1e9
        self._thread, self._before, self._read_t = thread, use, now

    def shares(self) -> tuple[float | None, float | None]:
        """Return the shares of the time for which it ran, and waited for a processor. None: unknown."""
        if self._passed_s <= 0:
            return None, None
        ran, queued = self._since.share(self._passed_s)
        return None if math.isnan(ran) else ran, None if math.isnan(queued) else queued


class StackSampler:
    """Samples the thread whose identifier `thread` returns, 0 while there is none.

    `phase` returns the path of the phase that this thread is in, "" outside of any. An error ends the
    sampler. `failed` is then called with the error, in its thread. `alone` returns the kernel's number of the
    thread if torch computes on the CPU in it alone, otherwise 0. `task` returns the task of asyncio that
    trains, None without one. What it awaits comes before the function in which its event loop waits.
    """

    def __init__(
        self,
        thread: Callable[[], int],
        phase: Callable[[], str],
        failed: Callable[[Exception], None],
        alone: Callable[[], int] = lambda: 0,
        task: Callable[[], TaskRef | None] = lambda: None,
    ) -> None:
        self._thread, self._alone, self._task = thread, alone, task
        self._phase = phase
        self._failed = failed
        self._interval = _Interval(time.monotonic_ns())
        self._known_waits: dict[int, tuple[CodeType, bool]] = {}  # by `id`, with the code that keeps it
        self._reading: AbstractContextManager[None] = _reading()
        self._sleep, self._engine_threads = ThreadSleep(), EngineThreads()
        self._gradients = GradientThread()
        self._waited = WaitedThread(self._waits, SDK)
        self._packages = InstalledPackages()
        self._names = StackNames(self._packages)
        self._naming_ns = NAMING_AHEAD_S * 1e9
        self._use = _Use()
        self._holders = InterpreterHolders(random.Random())
        self._late_s = 0.0
        self._crowded = False  # another thread ran beside the sampled one at the last sample
        self._native, self._call = 0, ThreadCall()
        self._over = threading.Lock()  # returns to this code sooner than an event
        self._over.acquire()
        self._own = threading.Thread(target=self._main, name="hoptui-stacks", daemon=True)

    def start(self) -> None:
        """Begin to sample."""
        self._own.start()

    def stop(self) -> None:
        """End sampling. It does not wait for the thread."""
        with suppress(RuntimeError):  # it has ended
            self._over.release()

    def follow(self, thread: int) -> None:
        """Keep the thread of the sampler on the processor that another thread was on last.

        Threads that hand the interpreter to each other do not run at once. On two processors each waits
        until the other one is awake, with cold caches. On a busy node that takes a turn of the scheduler.

        Args:
            thread: The kernel's number of the sampled thread.
        """
        own = self._own.native_id
        if own is None or not self._own.is_alive():
            return
        try:
            known = Path(f"/proc/self/task/{thread}/stat").read_bytes().rpartition(b")")[2].split()
        except OSError:  # it has ended
            self._use.read(0, UNKNOWN)
            return
        self._native = thread
        training = thread_use(thread)
        if training is UNKNOWN:
            training = ThreadUse(ran_s=sum(map(int, known[USED])) / TICKS)
        self._use.read(thread, training)
        times = ProcessorTimes(time.monotonic(), training, thread_use(own), time.process_time())
        self._holders.measure(times)
        with suppress(OSError):  # the sampler has ended, or may not run there
            os.sched_setaffinity(own, {int(known[PROCESSOR])})

    def take(self) -> StackSamples | None:
        """Return the samples since the last call, None if there are none. Only one thread may call it.

        Samples whose places have no name yet may come with a later call: naming takes longer than sampling.
        """
        began = time.thread_time_ns()
        taken, self._interval = self._interval, _Interval(time.monotonic_ns())
        ended = self._interval.began
        passed = max(1, ended - taken.began)
        names = self._names
        names.add(taken.chains.copy())  # the sampling thread may just add its last one
        self._naming_ns = min(self._naming_ns + NAMING * passed, NAMING_AHEAD_S * 1e9)
        stacks, asleep, left_out = names.stacks(until=began + int(self._naming_ns))
        naming_ns = time.thread_time_ns() - began
        self._naming_ns -= naming_ns
        if not stacks:
            return None
        if asleep is not None and self._engine_threads.look():
            asleep = None
        cost = (taken.spent_ns + naming_ns) / passed
        on_cpu, queued = self._use.shares()
        return pack(
            stacks,
            taken.began,
            ended,
            left_out=left_out + taken.left_out,
            cost=cost,
            asleep=asleep,
            on_cpu=on_cpu,
            queued=queued,
        )

    def of_script(self, calls: Iterable[tuple[str, int, str]]) -> tuple[tuple[str, int, str], ...] | None:
        """Return those of some calls, as file, line and function, that are in no installed package which
        only this process knows. None: not known yet. Only the thread that takes samples may call it."""
        found = [(self._packages.place(call[0]), call) for call in calls]
        if any(place is None for place, _ in found):
            return None
        return tuple(call for place, call in found if not place)

    def sample(self, call: int | None = None) -> bool:
        """Take one sample.

        Where other threads keep the interpreter, a sample that finds the thread at work may stand for the
        time in which it waits for one of them.

        Args:
            call: The system call that the thread has just slept in, `RUNNING` if in none. None: unknown.

        Returns:
            Whether no thread runs beside the sampled one, or the one that computes gradients in its place. A
            thread that has hardly run lately does not count.
        """
        with self._reading:
            threads = sys._current_frames()
            threads.pop(self._own.ident or 0, None)
            innermost = threads.pop(self._thread(), None)
            in_engine = innermost is not None and innermost.f_code.co_name == ENGINE
            gradients = self._gradients.pop(threads) if in_engine else None
            other, in_loop = gradients, innermost is not None and in_event_loop(innermost)
            at_work = innermost is not None and not in_loop and self._at_work(innermost.f_code, call)
            if innermost is not None and (in_loop or waits_for_thread(innermost.f_code)):
                other = self._waited.find(threads)
            elif at_work and (holder := self._holders.pick(threads, self._waits)) is not None:
                now = sys._current_frames()  # to find it may have let others go on
                innermost, other = now.get(self._thread()), now.get(holder)
                if innermost is not None and self._waits(innermost.f_code):
                    other = None
            inside = _chain(other)  # first: it may run, while the other one waits for it
            chain = _chain(innermost)
            if in_loop:
                chain[2:2] = suspended(self._task(), MOST_DEPTH)
            if not in_engine:
                self._gradients.see_outside(threads)
        if innermost is not None:
            chain.append(self._phase())
            interval = self._interval
            went_on = innermost.f_lasti != chain[1] or (other and other.f_lasti != inside[1])
            if not went_on and len(interval.chains) < MOST_SAMPLES:
                chain.append(self._sleep.look(self._alone()) if in_engine and not other else False)
                chain.append(dict.get((other or innermost).f_globals, "__name__"))
                interval.chains.append(inside + chain if inside else chain)
            else:  # the thread went on meanwhile, or nobody takes the samples
                interval.left_out += 1
        running = [one for one, other in threads.items() if not self._waits(other.f_code)]
        self._holders.see(running, self._late_s, at_work=at_work)
        running = [one for one in running if not self._holders.idle(one)]
        self._crowded = bool(running) and innermost is not None
        # torch may call Python in a thread of its own meanwhile
        in_torch = in_engine and not gradients and len(running) == 1 and self._gradients.may_be(running[0])
        return not running or in_torch

    def _at_work(self, code: CodeType, call: int | None) -> bool:
        """Whether the sampled thread computes in this function, or waits for the interpreter to go on.

        Args:
            code: The innermost function.
            call: The system call that the thread sleeps in.
        """
        if call == RUNNING:
            return not self._waits(code)
        if call is None or call != FUTEX or code.co_name == ENGINE:
            return False
        return not self._waits(code) and not any(part in code.co_filename for part in TORCH_WAITS)

    def _waits(self, code: CodeType) -> bool:
        """Whether a thread in this function waits, without the interpreter."""
        known = self._known_waits.get(id(code))  # to hash the code object itself takes longer than all else
        if known is None:
            if len(self._known_waits) >= MOST_FUNCTIONS:
                self._known_waits.clear()
            file = code.co_filename
            waits = f"{file.rpartition('/')[2]} {code.co_name}" in WAITS or file.startswith(SDK)
            known = self._known_waits[id(code)] = (code, waits)
        return known[1]

    def _main(self) -> None:
        switch, costs = _SwitchInterval(), _Costs()
        used = time.thread_time_ns()
        try:
            _wake_in_time()
            pause_s, times = EVERY_S, SampleTimes(random.Random())
            while True:
                wait_s = times.pause_s(pause_s)
                due = time.monotonic() + wait_s
                if self._over.acquire(timeout=wait_s):
                    return
                self._late_s = time.monotonic() - due
                # before the sample: to read a file lets others have the interpreter
                call = self._call.look(self._native) if self._crowded else None
                began = time.thread_time_ns()
                waiting_s = (began - used) / 1e9
                if self.sample(call):
                    switch.shorten(waiting_s)
                else:
                    switch.restore()
                used = time.thread_time_ns()
                self._interval.spent_ns += used - began
                pause_s = costs.add(waiting_s, (used - began) / 1e9)
        except Exception as error:
            self._failed(error)
        finally:
            switch.restore()
            self._sleep.close()
            self._call.close()
            self._holders.close()


def _chain(frame: FrameType | None) -> Chain:
    """Return the code and the offset of each frame, the innermost first."""
    found: Chain = []
    while frame is not None and len(found) < 2 * MOST_DEPTH:  # quickly: the thread may go on
        found.append(frame.f_code)
        found.append(frame.f_lasti)
        frame = frame.f_back
    return found


class SampleTimes:
    """The times of samples: one in each period, anywhere in it.

    At nearly equal distances, samples beat with iterations that take as long. A rank is then found at the
    same place many times in a row, and even ranks seem to differ.
    """

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._rest_s = 0.0

    def pause_s(self, period_s: float) -> float:
        """Return the seconds from a sample, or the start, to the next one, in a period of this length."""
        spread = min(1.0, SPREAD_S / period_s)
        at = 0.5 + spread * (self._dice.random() - 0.5)
        pause = self._rest_s + at * period_s
        self._rest_s = (1 - at) * period_s
        return pause


def _reading() -> AbstractContextManager[None]:
    """Return the context in which stacks are read."""
    return nullcontext() if sys.version_info >= (3, 12) else _LaterCollection()


class _LaterCollection(AbstractContextManager[None]):
    """Keeps the garbage collector from running inside, by its threshold.

    `gc.disable` would not do: another thread may go on meanwhile, and that the script has called it as well
    could not be seen. A threshold that the script sets meanwhile stays.
    """

    def __enter__(self) -> None:
        self._before = gc.get_threshold()
        _without_collection.add(self)
        gc.set_threshold(NO_COLLECTION, *self._before[1:])

    def __exit__(self, *_: object) -> None:
        self.restore()
        _without_collection.discard(self)

    def restore(self) -> None:
        """Let garbage be collected as before, unless the script has set the threshold meanwhile."""
        if gc.get_threshold()[0] == NO_COLLECTION:
            gc.set_threshold(*self._before)


_without_collection: set[_LaterCollection] = set()
"""Those that are inside now: one for each sampler at most."""


def _wake_in_time() -> None:
    """Have the kernel wake this thread when it is due. Otherwise it may do so 50 µs later."""
    with suppress(OSError):
        Path(f"/proc/{threading.get_native_id()}/timerslack_ns").write_text("1", "ascii")


class _Costs:
    """The CPU times of a sample, in seconds: the mean to wait for the interpreter, and the median to take it.

    A collection of garbage may begin in this thread and take a hundred times as long as a sample. The next
    samples are not rarer for it: the script has made the garbage. The cost that is reported has it.
    """

    def __init__(self) -> None:
        self._ahead_s = AHEAD_S
        self._waiting_s = 0.0
        self._taking_s = deque([0.0], LAST)

    def add(self, waiting_s: float, taking_s: float) -> float:
        """Add those of a new sample. Return the pause that keeps the cost, with that of naming, within the
        budgets."""
        self._waiting_s += SMOOTHING * (min(waiting_s, MOST_WAITING_S) - self._waiting_s)
        self._taking_s.append(taking_s)
        taking_s = sorted(self._taking_s)[len(self._taking_s) // 2]
        pause_s = min(RAREST_S, max(EVERY_S, self._waiting_s / WAITING_BUDGET))
        over_s = taking_s - pause_s * (BUDGET - NAMING)
        if 0 < over_s <= self._ahead_s:
            self._ahead_s -= over_s
        elif over_s > 0:
            pause_s = min(RAREST_S, taking_s / (BUDGET - NAMING))
        return pause_s


class _SwitchInterval:
    """The switch interval of the interpreter, which belongs to the script, while a sample waits."""

    def __init__(self) -> None:
        self._longer = 0  # for how many samples
        self._means_s = [0.0, 0.0]  # CPU time of waiting, with the short and with the longer interval
        self._before = self._wanted = 0.0
        self._short = 0.0  # as the interpreter rounds it; 0 while the interval is that of the script
        _switch_intervals.add(self)

    def shorten(self, waiting_s: float) -> None:
        """Make it short until the next sample, if that of the script is longer.

        Args:
            waiting_s: The CPU time that it took to wait for the last sample.
        """
        longer = bool(self._longer)
        self._means_s[longer] += SMOOTHING * (waiting_s - self._means_s[longer])
        short_s, longer_s = self._means_s
        if longer:
            self._longer = self._longer - 1 if longer_s <= short_s else 0
        elif waiting_s > EXPENSIVE_S and longer_s <= short_s:
            self._longer = LONGER
        wanted = LONGER_S if self._longer else SWITCH_S
        if self._short and wanted == self._wanted and sys.getswitchinterval() == self._short:
            return  # since the last sample
        self.restore()
        now = sys.getswitchinterval()
        if now > wanted:
            self._before, self._wanted = now, wanted
            sys.setswitchinterval(wanted)
            self._short = sys.getswitchinterval()

    def restore(self) -> None:
        """Make it what it was before, unless the script has set it meanwhile."""
        if self._short and sys.getswitchinterval() == self._short:
            sys.setswitchinterval(self._before)
        self._short = 0.0


_switch_intervals: weakref.WeakSet[_SwitchInterval] = weakref.WeakSet()


def _restore_in_child() -> None:
    """Give the child what the script has set: the samplers stay in the parent."""
    for interval in _switch_intervals:
        interval.restore()
    for collection in _without_collection:
        collection.restore()
    _without_collection.clear()


os.register_at_fork(after_in_child=_restore_in_child)
