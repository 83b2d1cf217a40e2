"""Virtual time, processes and threads. One thread runs at a time, and only the kernel decides which.

A thread of the code under test is a `Task`. It runs until it blocks in a substitute: a poll, a wait, a sleep.
Then the kernel takes the next event in order of virtual time. Everything follows from the seed.

Tasks switch with `greenlet` if it is installed, else with threads of the system, which is several times
slower. The order of events is the same.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

try:
    import greenlet
except ImportError:  # threads of the system do the same
    greenlet = None

T = TypeVar("T")
TICK_NS = 400
"""How much virtual time a reading of the clock takes."""
FIRST_PID = 1 << 22
"""Linux gives no process a higher pid. So nothing that is read of a simulated process in /proc is there."""
MOST_EVENTS_PER_S = 40_000
"""More events in a second of virtual time mean that some thread polls without a pause."""


class Killed(BaseException):
    """The process of this thread was killed. No code under test catches it."""


class Livelock(AssertionError):  # noqa: N818
    """A thread never rests."""


class _Greenlets:
    """Switches with greenlets."""

    def __init__(self, body: Callable[[], None]) -> None:
        self._own = greenlet.greenlet(body)

    def resume(self) -> None:
        self._own.parent = greenlet.getcurrent()  # the kernel's, whichever task began this one
        self._own.switch()

    def pause(self) -> None:
        self._own.parent.switch()


class _Threads:
    """Switches with threads of the system that hand over a baton."""

    def __init__(self, body: Callable[[], None]) -> None:
        self._mine, self._kernels = threading.Lock(), threading.Lock()
        self._mine.acquire()
        self._kernels.acquire()
        self._body = body
        self._thread = threading.Thread(target=self._main, daemon=True)
        self._thread.start()

    def resume(self) -> None:
        self._mine.release()
        self._kernels.acquire()

    def pause(self) -> None:
        self._kernels.release()
        self._mine.acquire()

    def _main(self) -> None:
        self._mine.acquire()
        try:
            self._body()
        finally:
            self._kernels.release()


class Task:
    """A thread of a simulated process."""

    def __init__(self, kernel: Kernel, process: Process, name: str, body: Callable[[], object]) -> None:
        self.kernel, self.process, self.name = kernel, process, name
        self.done = False
        self.error: BaseException | None = None
        self.joined = Signal(kernel)
        self.turn = 0  # counts blocks, so that an old timer wakes nobody
        self.woken = -1  # the turn for which it has been woken
        self._body = body
        self._where = f"{process.name}/{name}"
        self._switch: Any = (_Greenlets if greenlet is not None else _Threads)(self._main)
        process.tasks.append(self)

    def _main(self) -> None:
        try:
            if self.process.alive:
                self._body()
        except Killed:
            pass
        except Exception as error:
            self.error = error
            self.kernel.failed(self, error)
        finally:
            self.done = True
            self.joined.set()

    def resume(self) -> None:
        """Run until it blocks or ends."""
        kernel = self.kernel
        kernel.resumed[self._where] += 1
        before, kernel.current = kernel.current, self
        try:
            self._switch.resume()
        finally:
            kernel.current = before

    def pause(self) -> None:
        self._switch.pause()
        if not self.process.alive:
            raise Killed


class Signal:
    """What tasks can wait for: each `set` wakes all that wait."""

    __slots__ = ("_kernel", "waiters")

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.waiters: list[Task] = []

    def set(self) -> None:
        for task in self.waiters:
            self._kernel.wake(task)


class Process:
    """A simulated process: its threads, its environment, and what is called when it ends."""

    def __init__(self, kernel: Kernel, pid: int, name: str) -> None:
        self.kernel, self.pid, self.name = kernel, pid, name
        self.alive = True
        self.stopped = False
        self.environ: dict[str, str] = {}
        self.tasks: list[Task] = []
        self.at_end: list[Callable[[bool], None]] = []  # called with whether it was killed
        self.over = Signal(kernel)
        self.operations = 0
        self.dies_at = 0
        self._late: list[tuple[Task, int]] = []

    def operate(self) -> None:
        """Count an operation that others can see. A process can be killed before each of them."""
        if not self.alive:
            raise Killed
        self.operations += 1
        if self.operations == self.dies_at:
            self.kill()

    def kill(self) -> None:
        """End it at once, in the middle of whatever its threads do."""
        self._end(killed=True)

    def exit(self) -> None:
        """End it in good order: its main thread has returned."""
        self._end(killed=False)

    def stop(self) -> None:
        """As SIGSTOP does."""
        self.stopped = True

    def resume(self) -> None:
        """As SIGCONT does."""
        self.stopped = False
        late, self._late = self._late, []
        for task, turn in late:
            self.kernel.resume_at(self.kernel.now_ns, task, turn)

    def postpone(self, task: Task, turn: int) -> None:
        self._late.append((task, turn))

    def _end(self, *, killed: bool) -> None:
        if not self.alive:
            return
        self.alive = False
        for call in self.at_end:
            call(killed)
        self.over.set()
        here = self.kernel.current
        for task in self.tasks:
            if not task.done and task is not here:
                self.kernel.after(0, lambda task=task: self.kernel.unwind(task))  # type: ignore[misc]
        if here is not None and here.process is self and killed:
            raise Killed


class Kernel:
    """The clock, the queue of events and the random numbers of one simulated node."""

    def __init__(self, seed: int | str) -> None:
        self.random = random.Random(seed)
        self.now_ns = 10_000_000_000_000  # of the monotonic clock
        self.wall_offset_ns = 1_700_000_000_000_000_000 - self.now_ns
        self.current: Task | None = None
        self.processes: dict[int, Process] = {}
        self.failures: list[str] = []
        self.began_ns = self.now_ns
        self.events = 0
        self.resumed: Counter[str] = Counter()
        """How often each thread ran, by the names of process and thread."""
        self.preempts = 0.0
        """Chance that a thread loses its turn when it reads the clock."""
        self._heap: list[tuple[int, int, Task | None, Any]] = []  # time, number, task and turn or a call
        self._numbers = itertools.count()
        self._pids = itertools.count(FIRST_PID)
        self._second_ends, self._second_events = 0, 0

    # time ---------------------------------------------------------------------------------------------------

    @property
    def seconds(self) -> float:
        """Virtual seconds since the start."""
        return (self.now_ns - self.began_ns) / 1e9

    def tick(self) -> int:
        """Read the clock, which takes a little time."""
        self.now_ns += TICK_NS
        if self.preempts and self.current is not None and self.random.random() < self.preempts:
            self.sleep(self.random.choice((0.0, 1e-5, 1e-3)))
        return self.now_ns

    def at(self, t_ns: int, call: Callable[[], object]) -> None:
        """Call at this time, after everything that was asked for before."""
        heapq.heappush(self._heap, (max(t_ns, self.now_ns), next(self._numbers), None, call))

    def after(self, seconds: float, call: Callable[[], object]) -> None:
        self.at(self.now_ns + int(seconds * 1e9), call)

    def resume_at(self, t_ns: int, task: Task, turn: int) -> None:
        """Let a task go on at this time if it still waits for this turn."""
        heapq.heappush(self._heap, (t_ns, next(self._numbers), task, turn))

    def run(self, seconds: float) -> None:
        """Let this much virtual time pass."""
        end = self.now_ns + int(seconds * 1e9)
        heap, pop = self._heap, heapq.heappop
        while heap and heap[0][0] <= end:
            t, _, task, what = pop(heap)
            if t > self.now_ns:
                self.now_ns = t
            if t >= self._second_ends:
                self._second_ends, self._second_events = t + 1_000_000_000, 0
            self.events += 1
            self._second_events += 1
            if self._second_events > MOST_EVENTS_PER_S:
                raise Livelock(f"more than {MOST_EVENTS_PER_S} events in a second at {self.seconds:.3f} s")
            if task is None:
                what()
            else:
                self.run_task(task, what)
        self.now_ns = max(self.now_ns, end)

    # processes and threads ----------------------------------------------------------------------------------

    def spawn(
        self, name: str, main: Callable[[], object], environ: dict[str, str], pid: int | None = None
    ) -> Process:
        """Start a process. It ends when `main` returns."""
        process = Process(self, pid or next(self._pids), name)
        process.environ = environ
        self.processes[process.pid] = process

        def body() -> None:
            try:
                main()
            finally:
                if process.alive:
                    process.exit()

        self.start(process, "main", body)
        return process

    def start(self, process: Process, name: str, body: Callable[[], object]) -> Task:
        """Start a thread."""
        task = Task(self, process, name, body)
        self.resume_at(self.now_ns + int(self.random.random() * 2e5), task, 0)
        return task

    def run_task(self, task: Task, turn: int) -> None:
        """Let a task go on if it still waits for this turn."""
        if task.turn != turn or task.done:
            return
        process = task.process
        if process.stopped and process.alive:
            process.postpone(task, turn)
            return
        task.turn += 1
        task.resume()

    def unwind(self, task: Task) -> None:
        """Let a task of a dead process end."""
        if not task.done:
            task.turn += 1
            task.resume()

    def wake(self, task: Task) -> None:
        """Let a blocked task go on soon."""
        if task.woken != task.turn:
            task.woken = task.turn
            self.resume_at(self.now_ns + int(self.random.random() * 5e4), task, task.turn)

    def wait(self, ready: Callable[[], T], signals: Sequence[Signal], timeout: float = math.inf) -> T:
        """Block the current task until `ready` or a timeout. Return what `ready` returned last."""
        task = self.current
        assert task is not None, "only a task can wait"
        if not task.process.alive:
            raise Killed
        if found := ready():
            return found
        until = self.now_ns + int(timeout * 1e9) if timeout < 1e8 else None
        for signal in signals:
            signal.waiters.append(task)
        try:
            while True:
                if until is not None:
                    self.resume_at(until, task, task.turn)
                task.pause()
                found = ready()
                if found or (until is not None and self.now_ns >= until):
                    return found
        finally:
            for signal in signals:
                signal.waiters.remove(task)

    def sleep(self, seconds: float) -> None:
        """Block the current task."""
        task = self.current
        assert task is not None, "only a task can sleep"
        if not task.process.alive:
            raise Killed
        self.resume_at(self.now_ns + int(max(0.0, seconds) * 1e9), task, task.turn)
        task.pause()

    @property
    def process(self) -> Process:
        """The process whose thread runs now."""
        assert self.current is not None, "no process runs now"
        return self.current.process

    def failed(self, task: Task, error: Exception) -> None:
        """Keep an exception that ended a thread."""
        self.failures.append(f"{task.process.name}/{task.name}: {type(error).__name__}: {error}")

    def close(self) -> None:
        """Kill every process and end its threads."""
        for process in list(self.processes.values()):
            process.stopped = False
            if process.alive:
                process.kill()
            for task in process.tasks:
                if not task.done:
                    self.unwind(task)
        self._heap.clear()
