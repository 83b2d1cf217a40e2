"""Python processes that have imported torch before they begin: forked from a server that did so once.

To import torch takes a process more than two seconds of a core, far more than the trainings that tests do.
`Warm` is as much of `subprocess.Popen` as they need, for `python -m …` and `python -c …`; what Python itself
does with a command line it does not prove.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cache
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Self, TextIO
from unittest import mock

IMPORTED = [
    "torch._dynamo",
    "torch.distributed",
    "hoptui_trainer.ppo.train",
    "hoptui_trainer.lm.train",
    "hoptui_trainer.vision.train",
]


@cache
def server() -> ForkServerContext:
    """The server of this session of tests, also of those who ask multiprocessing for one later; it ends with
    it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    # It is no part of a test's node, and has no threads, which a fork would lose.
    own = {name: value for name, value in os.environ.items() if not name.startswith("HOPTUI")}
    with mock.patch.dict(os.environ, own | {"OMP_NUM_THREADS": "1"}, clear=True):
        first = context.Process(target=int)
        first.start()
    first.join()
    return context


class Warm:
    """A process as `python *words` starts it, with pipes for what it writes; killed if it outlives the `with`
    block.

    Args:
        words: `-m module …` or `-c script …`.
        environment: all of it; None: this process's.
        new_session: whether it leads a session, as one that a terminal's shell starts.
    """

    def __init__(
        self, *words: str, environment: Mapping[str, str] | None = None, new_session: bool = False
    ) -> None:
        context = server()
        (out, its_out), (err, its_err) = context.Pipe(duplex=False), context.Pipe(duplex=False)
        given = dict(os.environ if environment is None else environment)
        self._process = context.Process(
            target=_run, args=(words, given, str(Path.cwd()), new_session, its_out, its_err)
        )
        self._process.start()
        its_out.close()
        its_err.close()
        self.stdout, self.stderr = _reader(out), _reader(err)
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs; minus the signal that ended it."""
        return self._process.exitcode

    def wait(self, timeout: float) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("a warm process", timeout)
        return self._process.exitcode

    def communicate(self, timeout: float) -> tuple[str, str]:
        """What it writes until it has ended, as far as nobody has read it."""
        readers = ThreadPoolExecutor(2)
        try:
            out, err = [readers.submit(_rest, stream) for stream in (self.stdout, self.stderr)]
            said = out.result(timeout), err.result(timeout)
        except TimeoutError:
            raise subprocess.TimeoutExpired("a warm process", timeout) from None
        finally:
            readers.shutdown(wait=False)
        self.wait(timeout)
        return said

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Kill it if it still runs, and reap it."""
        self.kill()
        self.wait(10.0)
        self.stdout.close()
        self.stderr.close()


@contextmanager
def ranks(*words: str, world: int = 2) -> Iterator[list[Warm]]:
    """The processes of one job on this machine, each of them started as `python *words`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    sizes = {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
    common = {**os.environ, "HOPTUI": "off", **meeting, **sizes}
    with ExitStack() as reaped:
        yield [
            reaped.enter_context(
                Warm(*words, environment=common | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
            )
            for rank in range(world)
        ]


def _reader(pipe: Connection) -> TextIO:
    """A text stream that owns the pipe."""
    stream = os.fdopen(os.dup(pipe.fileno()))
    pipe.close()
    return stream


def _rest(stream: TextIO) -> str:
    if stream.closed:
        return ""
    with stream:
        return stream.read()


def _run(
    words: Sequence[str],
    environment: Mapping[str, str],
    folder: str,
    new_session: bool,
    out: Connection,
    err: Connection,
) -> None:
    """Be the process."""
    multiprocessing.set_start_method(None, force=True)  # as if it were no child of a server
    if new_session:
        os.setsid()
    for pipe, stream in ((out, sys.stdout), (err, sys.stderr)):
        os.dup2(pipe.fileno(), stream.fileno())
        pipe.close()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    kind, what, *arguments = words
    sys.orig_argv = [sys.executable, *words]
    sys.argv = [what if kind == "-m" else kind, *arguments]
    try:
        if kind == "-m":
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})
    except Exception:
        traceback.print_exc()
        sys.exit(1)
