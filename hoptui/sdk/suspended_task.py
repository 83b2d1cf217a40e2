"""The task of asyncio that trains, and where it is suspended while its event loop waits."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from contextlib import suppress
from pathlib import Path
from types import AsyncGeneratorType, CodeType, CoroutineType, FrameType, GeneratorType
from typing import Any

STANDARD_LIBRARY = Path(threading.__file__).parent
EVENT_LOOP = str(STANDARD_LIBRARY / "asyncio" / "base_events.py")
SELECTORS = str(STANDARD_LIBRARY / "selectors.py")
RUNNERS = str(STANDARD_LIBRARY / "asyncio" / "runners.py")
ADAPTERS = frozenset(("async_generator_asend", "FutureIter"))
"""Types of C code that a coroutine awaits for an asynchronous generator, and for a future or a task."""

TaskRef = weakref.ref[Any]
"""A task of asyncio, which it does not keep alive."""


def running_task() -> TaskRef | None:
    """Return the task that runs in this thread, None without one. It imports nothing."""
    asyncio = sys.modules.get("asyncio")
    with suppress(RuntimeError, AttributeError, TypeError):  # no loop or task, or asyncio is half imported
        return weakref.ref(asyncio.current_task())  # type: ignore[union-attr]
    return None


def in_event_loop(frame: FrameType) -> bool:
    """Whether a thread with this innermost frame is in an event loop that waits.

    An event loop of C code, such as that of uvloop, has no frame. Its caller is then the innermost one.
    """
    code, caller = frame.f_code, frame.f_back
    if code.co_name == "run" and code.co_filename == RUNNERS:
        return True
    waits = code.co_name == "select" and code.co_filename == SELECTORS
    return waits and caller is not None and caller.f_code.co_filename == EVENT_LOOP


def suspended(task: TaskRef | None, most: int) -> list[CodeType | int]:
    """Return the code and the offset of what a task awaits, the innermost first. Empty if that is unknown.

    It goes on with a task that is awaited, and ends at a future or an object of the script.

    Args:
        task: The task.
        most: The number of frames.
    """
    known = task() if task is not None else None
    if known is None:
        return []
    found: list[CodeType | int] = []
    awaited = known.get_coro()
    while awaited is not None and len(found) < 2 * most:
        if type(awaited) is CoroutineType:
            frame, awaited = awaited.cr_frame, awaited.cr_await
        elif type(awaited) is GeneratorType:
            frame, awaited = awaited.gi_frame, awaited.gi_yieldfrom
        elif type(awaited) is AsyncGeneratorType:
            frame, awaited = awaited.ag_frame, awaited.ag_await
        else:
            awaited = _inside(awaited)
            continue
        if frame is None:
            break
        found[:0] = frame.f_code, frame.f_lasti
    return found


def _inside(awaited: Any) -> Any:
    """Return the asynchronous generator or the coroutine of the task that is awaited through an adapter.

    None for anything else. Nothing of the script is called.
    """
    if type.__getattribute__(type(awaited), "__name__") not in ADAPTERS:
        return None
    task = getattr(sys.modules.get("_asyncio"), "Task", None)
    for held in gc.get_referents(awaited):
        if type(held) is AsyncGeneratorType:
            return held
        if type(held) is task:
            return held.get_coro()
    return None
