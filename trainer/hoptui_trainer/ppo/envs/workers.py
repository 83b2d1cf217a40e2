"""Copies of a Gymnasium environment: one after the other in this process, or each in a process of its own.

Processes (`AsyncVectorEnv`) pay off where a step takes long enough: 64 CartPoles make 110,000 steps/s in one
process (`SyncVectorEnv`), 5,000 in 64.
"""

from __future__ import annotations

import multiprocessing
import os
from functools import partial
from multiprocessing.synchronize import Semaphore
from typing import Any

import gymnasium
from gymnasium.vector import AutoresetMode

CONTEXT = "forkserver"
"""Forking a process with threads, as the trainer has, may copy a lock that no thread will release."""
CLOSE_S = 5.0
"""So long a step that is under way may take until its process is ended."""


class Permits:
    """How many copies may step at once; `change` it between two steps.

    Gymnasium's own limit (`max_concurrency`) is fixed when the processes are made.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.semaphore = multiprocessing.get_context(CONTEXT).Semaphore(count)

    def change(self, count: int) -> None:
        """Let so many step at once from now on.

        Raises:
            RuntimeError: a process does not end its step, and keeps its permit.
        """
        while self.count < count:
            self.semaphore.release()
            self.count += 1
        while self.count > count:
            if not self.semaphore.acquire(timeout=CLOSE_S):
                raise RuntimeError("a process of an environment does not end its step")
            self.count -= 1


class Worker(gymnasium.Wrapper):  # type: ignore[misc]
    """A copy in a process of its own, which steps and resets while it has one of the permits.

    A signal to the whole group, such as Ctrl-C or torchrun's SIGTERM, asks the trainer to stop, not this: it
    gets a session of its own. The trainer itself, which makes a copy to look at, stays where it is.
    """

    def __init__(self, env: Any, semaphore: Semaphore, trainer: int) -> None:
        super().__init__(env)
        self._semaphore = semaphore
        if os.getpid() != trainer:
            os.setsid()

    def step(self, action: Any) -> Any:
        with self._semaphore:
            return self.env.step(action)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        with self._semaphore:
            return self.env.reset(seed=seed, options=options)


def vectorised(id: str, num_envs: int, permits: Permits | None) -> Any:  # noqa: A002
    """So many copies, in processes where there are `permits`."""
    options: dict[str, Any] = {"autoreset_mode": AutoresetMode.DISABLED, "copy": False}
    wrappers = []
    if permits:
        options["context"] = CONTEXT
        wrappers.append(partial(Worker, semaphore=permits.semaphore, trainer=os.getpid()))
    envs = gymnasium.make_vec(
        id,
        num_envs,
        vectorization_mode="async" if permits else "sync",
        vector_kwargs=options,
        wrappers=wrappers,
        disable_env_checker=True,
    )
    assert envs.metadata["autoreset_mode"] is AutoresetMode.DISABLED
    return envs


def close(envs: Any) -> None:
    """End copies, and their processes."""
    try:
        envs.close(timeout=CLOSE_S)
    except (OSError, EOFError):  # one of the processes is gone, and will not answer
        envs.close(terminate=True)
