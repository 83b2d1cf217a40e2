"""The run of a script that nobody edited: its iterations are the steps of an optimizer of torch."""

from __future__ import annotations

import atexit
import functools
import json
import logging
import os
import sys
import weakref
from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any

from hoptui.injection.batches import BatchCounts
from hoptui.injection.launch import VARIABLE
from hoptui.injection.optimizers import STEPS, IterationOptimizer, Schedulers, WeakOptimizer, rates_of

if TYPE_CHECKING:
    from hoptui.sdk.run import Run

log = logging.getLogger("hoptui")
OLDEST_PYTHON = (3, 11)
DECLINED = {
    "stop": "hoptui run cannot end the loop of a script that nobody edited: interrupt the script itself, "
    "or add hoptui.connect to it",
    "checkpoint": "hoptui run does not know what a script that nobody edited would save: add hoptui.connect "
    "and run.on_checkpoint to it",
    "profile": "hoptui run starts no profiler in a script that nobody edited: add hoptui.connect and "
    "run.on_profile to it",
}
"""Commands that need code in the script, with what to do."""

NO_KNOB = (
    "hoptui run sees the optimizer alone. {where}: run = hoptui.connect() and "
    'run.bind({what}, {name}=hoptui.Knob(1, {most}, effect="speed")), and run.boundary(step) in the loop'
)
NOT_OF_TORCH = dict.fromkeys(
    ("lr", "weight_decay"),
    "the optimizer is not one of torch, and hoptui run does not know where it reads its settings: "
    "change them in the script",
)
"""Knobs that an optimizer of torch has."""
IN_THE_SCRIPT = {
    "micro_batch": NO_KNOB.format(
        where="If the loop reads it in each iteration, add", what="args", name="micro_batch", most=64
    ),
    "grad_accum": NO_KNOB.format(
        where="If the loop reads it in each iteration, add", what="args", name="grad_accum", most=64
    ),
    "num_workers": NO_KNOB.format(
        where="Add, as the guide to your own loop shows", what="loader", name="num_workers", most=8
    ),
}
"""Usual knobs for the tuner that need lines in the script, with these lines."""


class InjectedRun:
    """Follows the optimizer steps of this process. The first one connects the run.

    A process in which a script or an adapter connects a run of its own has no injected run: the class then
    does nothing. The same holds for forked children of a process that trains.

    Args:
        settings: What `hoptui run` was asked for: `name` and `tags`.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self.run: Run | None = None
        self.schedulers = Schedulers()
        self.batches = BatchCounts()
        self._settings = settings
        self._steps = 0
        self._thread = 0
        self._connected = 0  # runs that were ever connected in this process, this one included
        self._core: Any = None  # the class RunCore
        self._iteration = IterationOptimizer()
        self._declared: tuple[Any, int, Any, Any] = (None, 0, None, None)
        self._off = False
        self._compiling: Callable[[], bool] = bool

    def watch(self, torch: Any) -> None:
        """Register the hooks. `torch` is the module, which has just been imported."""
        from torch.optim import lr_scheduler, optimizer
        from torch.utils.data import dataloader

        # The compiler follows `optimizer.step` into the hooks. It knows this function, and leaves them out.
        self._compiling = getattr(getattr(torch, "compiler", None), "is_compiling", self._compiling)
        optimizer.register_optimizer_step_pre_hook(self.stepping)
        optimizer.register_optimizer_step_post_hook(self.stepped)
        self.schedulers.watch(lr_scheduler)
        self.batches.watch(dataloader)
        os.register_at_fork(after_in_child=self._in_child)

    def follow(self, kind: Any, method: str) -> None:
        """Follow the steps of a class of optimizers that has no hooks of torch: calls of `method`."""
        step = getattr(kind, method)

        @functools.wraps(step)
        def followed(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            self.stepping(optimizer, args, kwargs)
            result = step(optimizer, *args, **kwargs)
            self.stepped(optimizer, args, kwargs)
            return result

        setattr(kind, method, followed)

    def stepping(self, optimizer: Any, args: object, kwargs: object) -> None:
        """An optimizer begins a step (torch calls this)."""
        if self._compiling() or self._off:
            return
        try:
            self._iteration.begins(optimizer)
        except Exception as error:  # an error of hoptui must not reach the script
            self.end(f"{type(error).__name__}: {error}")

    def stepped(self, optimizer: Any, args: object, kwargs: object) -> None:
        """An optimizer has taken a step (torch calls this)."""
        if self._compiling() or self._off:
            return
        try:
            if self._thread and get_ident() != self._thread:
                return
            run = self.run
            if run is not None and self._core.made != self._connected:
                self.end()
            elif self._iteration.ends_with(optimizer):
                if run is None:
                    self._begin()
                else:
                    self._boundary(run)
        except Exception as error:  # an error of hoptui must not reach the script
            self.end(f"{type(error).__name__}: {error}")

    def end(self, problem: str = "") -> None:
        """Do nothing from now on. With a problem, say so once.

        The hooks stay: torch fails in the step of the script if one of them is removed while it calls them.
        """
        if self._off:
            return
        self._off = True
        self.batches.phase = None
        if problem and first_rank():
            log.warning("hoptui: hoptui run is off in this process: %s", problem)
        if self.run is not None:
            try:
                self.run._core.recorder.discard()
                self.run.close()
            except Exception as error:
                log.warning("hoptui: the run was not closed: %s", error)

    # inside -------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Connect the run: this process trains."""
        if sys.version_info < OLDEST_PYTHON:
            self._refuse(f"it needs Python {'.'.join(map(str, OLDEST_PYTHON))} or newer")
            return
        try:
            made = runs_made(self._settings.get("places") or {})
        except ImportError as error:
            self._refuse(f"{error}; install hoptui there")
            return
        if made:
            self.end()
            return
        import hoptui
        from hoptui.sdk.shared_state import PhaseTimer

        tags: dict[str, Any] = {"tags": tuple(self._settings["tags"])} if self._settings.get("tags") else {}
        run = hoptui.connect(self._settings.get("name") or script_name(sys.argv), **tags)
        for name, reason in {**DECLINED, **IN_THE_SCRIPT}.items():
            run.decline(name, reason)
        self._thread = get_ident()
        self._core = sys.modules["hoptui.sdk.run_core"].RunCore
        self._connected = made + 1
        self._declare(run)
        self.batches.begin(PhaseTimer(run._core.state.phases, "data"), self._thread, ranks())
        self.run = run
        atexit.register(self._at_exit)  # before that of hoptui, which was registered earlier
        close_with_multiprocessing(self._close)
        self._steps = 1
        run.boundary(1)

    def _boundary(self, run: Run) -> None:
        """Pass a boundary, where a run may pause and knobs change."""
        self._steps += 1
        samples = self.batches.take()
        if samples:
            run._core.recorder.count("samples", samples)
        optimizer, made, schedule, rates = self._declared
        if (
            optimizer is not self._iteration.reference
            or made != self.schedulers.made
            or (schedule is not None and getattr(schedule(), "base_lrs", None) is not rates)
        ):
            self._declare(run)
        run._core.boundary(self._steps)

    def _declare(self, run: Run) -> None:
        """Declare the knobs of the optimizer that makes the iterations now, and of its schedule."""
        optimizer = self._iteration.now
        scheduler = self.schedulers.of(optimizer)
        schedule = None if scheduler is None else weakref.ref(scheduler)
        rates = getattr(scheduler, "base_lrs", None)
        self._declared = (self._iteration.reference, self.schedulers.made, schedule, rates)
        if isinstance(optimizer, sys.modules["torch.optim"].Optimizer):
            found = run.optimizer(WeakOptimizer(optimizer), rates_of(scheduler))
            run._core.state.declarations.replaceable.update(found)
        elif optimizer is not None:
            for name, reason in NOT_OF_TORCH.items():
                run.decline(name, reason)

    def _refuse(self, why: str) -> None:
        """Print why the run is not shown, on one rank. The logger may have no handler yet, or many."""
        if first_rank() and sys.stderr is not None:
            print(f"hoptui: this run is not shown: {sys.executable}: {why}", file=sys.stderr, flush=True)
        self.end()

    def _at_exit(self) -> None:
        """What follows the last step is not an iteration."""
        if self.run is not None and not self._off:
            self.run._core.recorder.discard()

    def _close(self) -> None:
        """This child of multiprocessing ends. Its exit code is not known here."""
        self._at_exit()
        if self.run is not None and not self._off:
            self.run._core.close(None, "", at_exit=True)

    def _in_child(self) -> None:
        """This is a forked child of a process that trains. Its parent has the run."""
        if self.run is not None:
            self._off = True
            self.batches.phase = None


def runs_made(places: dict[str, str]) -> int:
    """Return how many runs this process has ever connected.

    Args:
        places: Directories with packages that hoptui needs and that this interpreter may lack.

    Raises:
        ImportError: a package is missing, or made for another Python.
    """
    core = sys.modules.get("hoptui.sdk.run_core")
    if core is None:
        from hoptui.injection.dependencies import available

        with available(places):  # the link imports zmq in its own thread, after this block
            import zmq  # noqa: F401

            from hoptui.sdk import daemon_link, run_core  # noqa: F401

        core = run_core
    made: int = core.RunCore.made
    return made


def close_with_multiprocessing(close: Callable[[], None]) -> None:
    """Call `close` when this process ends, if multiprocessing forked it: it then ends without `atexit`."""
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        from multiprocessing import util

        util.Finalize(None, close, exitpriority=100)


def first_rank() -> bool:
    """Whether this process speaks for its job: rank 0, or a process without a rank."""
    ranks_given = (os.environ.get(name) for name in ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"))
    return next((rank for rank in ranks_given if rank), "0") == "0"


def ranks() -> int:
    """Return the number of processes that torch.distributed connects."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return 1
    return int(dist.get_world_size())


def script_name(argv: list[str]) -> str:
    """Return the name of a run: that of the script or the module that the process runs."""
    script = argv[0] if argv else ""
    folder, name = os.path.split(script)
    if name == "__main__.py":  # python -m package
        name = os.path.basename(folder)
    stem = name[:-3] if name.endswith(".py") else name
    return {
        "": "python",
        "-": "python",
        "-c": "python",
        "-m": "python",
        "ipykernel_launcher": "notebook",
    }.get(stem, stem)


_injected: InjectedRun | None = None


def watch() -> None:
    """Follow the training of this process. torch has just been imported."""
    global _injected
    if _injected is None:
        import torch

        _injected = InjectedRun(json.loads(os.environ[VARIABLE]))
        _injected.watch(torch)


def follow(module: str) -> None:
    """Follow the optimizers of a framework. Their module has just been imported."""
    if _injected is not None:
        kind, method = STEPS[module]
        _injected.follow(getattr(sys.modules[module], kind), method)
