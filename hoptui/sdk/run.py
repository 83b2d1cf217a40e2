"""The public face of a run: `connect()` and `Run`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

from hoptui.domain.knobs import Cost, Effect, KnobValue, Scale
from hoptui.sdk.bindings import bind
from hoptui.sdk.details import DescribedValues
from hoptui.sdk.knobs import KnobHandle, ReadOnlyProperties
from hoptui.sdk.optimizer_knobs import declare_optimizer
from hoptui.sdk.rank_store import RankStore
from hoptui.sdk.run_core import Auto, RunCore, ending, whole
from hoptui.sdk.shared_state import Ending, Level, PhaseTimer

T = TypeVar("T", bool, int, float, str)
P = ParamSpec("P")
R = TypeVar("R")


def _harmless(
    without: Callable[[], R],
) -> Callable[[Callable[Concatenate[Run, P], R]], Callable[Concatenate[Run, P], R]]:
    """Decorate a method whose arguments may be of any type: what it raises is reported to viewers instead.

    It then returns what `without` does.
    """

    def decorate(method: Callable[Concatenate[Run, P], R]) -> Callable[Concatenate[Run, P], R]:
        @functools.wraps(method)
        def call(run: Run, /, *args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return method(run, *args, **kwargs)
            except Exception as error:
                run._core.state.declarations.refuse_call(method.__name__, error)
                return without()

        return call

    return decorate


def _nothing() -> None:
    return None


def connect(
    name: str,
    *,
    total: int | None = None,
    resume: Mapping[str, Any] | None = None,
    ranks: RankStore | Auto | None = "auto",
    config: object = None,
    tags: Sequence[str] = (),
    notes: str = "",
    stacks: bool = True,
) -> Run:
    """Make this process a run that `hoptui` shows on this node.

    The call returns at once. A background thread finds the daemon or starts it. Nothing is raised: if no
    daemon can be started, one warning is logged and the run works without viewers. With `HOPTUI=off` in the
    environment, the run has no viewers either. Its knobs keep their values, and all ranks still stop
    together.

    Connecting again under the same name in one process, as a notebook does, closes the former run, and is the
    next restart of that run. In another thread it is a run of its own, and so it is in a script once the
    former run was closed.

    Args:
        name: The name that viewers show. At most 100 characters are kept.
        total: The number of planned iterations, or None. Viewers show the progress and the time left.
        resume: The `Run.state_dict()` of an earlier process of the same run. This process is then its next
            restart, not a new run.
        ranks: How the processes of one run agree on commands. All connect, and pass the same boundaries.
            `"auto"`: over the store of torch.distributed. With torchrun's variables in the environment, its
            group may be made after `connect`. An object: over a store of your own (`hoptui.sdk.RankStore`).
            None: not at all; a run of several processes then refuses every command.
        config: The first values of `Run.config`: a mapping, data class, namespace, or an object with
            attributes.
        tags: Words to find the run by: `hoptui ls --tag WORD`. At most 20, of 64 characters each.
        notes: What the run is for. At most 2000 characters are kept.
        stacks: Whether to sample the stack of the training thread ten times a second, so that viewers show
            which line the time goes to. It takes at most 0.1 % of the time of the process. Source text is
            never sent. `HOPTUI_STACKS=off` in the environment switches it off as well.

    Returns:
        The run of this process.

    Example:
        ```python
        run = hoptui.connect("my-run", total=3)
        for step in run.iterations(3):
            run.log(loss=1.0 / (step + 1))
        run.close()
        ```
    """
    return Run(
        name,
        total=total,
        resume=resume,
        ranks=ranks,
        config=config,
        tags=tags,
        notes=notes,
        stacks=stacks,
    )


class Run(ReadOnlyProperties):
    """One training job, as its own process sees it. Create it with `hoptui.connect`.

    No call waits, except `boundary` while the run is paused, and `close`. An error of hoptui never reaches
    the training loop: the logger `hoptui` logs one warning, hoptui is off in this run, and training goes on.
    Only the training thread may call the methods. `stop` is also safe in a signal handler.

    The names below are the whole API. All state is private: attributes that a script adds to the object
    cannot collide with it. Assigning to a property, such as `run.step = 3`, has no effect and logs a warning.
    Replacing a method, as a test may do, replaces it for the script alone.

    A run is a context manager: leaving the block closes it with the reason of the end.

    Args:
        name: See `connect`.
        total: See `connect`.
        resume: See `connect`.
        ranks: See `connect`.
        config: See `connect`.
        tags: See `connect`.
        notes: See `connect`.
        stacks: See `connect`.

    Example:
        ```python
        with hoptui.connect("my-run") as run:
            lr = run.knob("lr", 3e-4, min=1e-6, max=1e-1, scale="log")
            for step in run.iterations(3):
                with run.phase("update"):
                    loss = lr.value * step
                run.log(loss=loss, samples=256)
        ```
    """

    __slots__ = ("__dict__", "__weakref__", "_core")
    _core: RunCore

    def __init__(
        self,
        name: str,
        *,
        total: int | None = None,
        resume: Mapping[str, Any] | None = None,
        ranks: RankStore | Auto | None = "auto",
        config: object = None,
        tags: Sequence[str] = (),
        notes: str = "",
        stacks: bool = True,
    ) -> None:
        self._core = RunCore(name, total, resume, ranks, config, tags, notes, stacks)

    # description --------------------------------------------------------------------------------------------

    @property
    def config(self) -> DescribedValues:
        """The configuration of the run, for viewers and for its recording. It can be updated at any time.

        It is a mapping with attribute access. Values may be nested mappings, data classes and namespaces.
        Viewers see them flat, as `optimizer.lr`. Values whose names or forms are those of secrets are masked.
        Only rank 0 sends it. Viewers see the first 32 KiB.

        Example:
            ```python
            run.config.update({"lr": 3e-4, "model": {"layers": 12}})
            run.config["seed"] = 1
            assert run.config.lr == 3e-4
            ```
        """
        return self._core.state.details.config

    @property
    def summary(self) -> DescribedValues:
        """The results of the run that the script chooses, such as its best accuracy. Otherwise as `config`.

        Viewers get changes once a second, and the last ones when the run closes. They see the first 16 KiB.

        Example:
            ```python
            run.summary["best_accuracy"] = 0.93
            ```
        """
        return self._core.state.details.summary

    def __repr__(self) -> str:
        state = self._core.state
        rank = f", rank {state.rank} of {state.world}" if state.world > 1 else ""
        off = "" if state.alive else ", closed or off"
        return f"<hoptui.Run {state.name!r} {state.id}, iteration {state.step}{rank}{off}>"

    # declarations -------------------------------------------------------------------------------------------

    def knob(
        self,
        name: str,
        default: T,
        *,
        min: int | float | None = None,
        max: int | float | None = None,
        choices: Sequence[T] = (),
        scale: Scale = "linear",
        effect: Effect = "learning",
        cost: Cost = "free",
        keeps: str = "",
        unit: str = "",
        description: str = "",
        apply: Callable[[Any], object] | None = None,
        read: Callable[[], Any] | None = None,
    ) -> KnobHandle[T]:
        """Declare a knob: a value that users and the tuner can change while the run goes on.

        The loop reads `handle.value`, which changes at boundaries and in `holds` only. A declaration that
        contradicts itself logs a warning and returns a handle that nobody can change.

        Args:
            name: Letters, digits, `_`, `-` and `.`, at most 64, not starting with a digit.
            default: The value in effect now. Its type is the type of the knob: bool, int, float or str.
            min: The least value, inclusive. None: no lower bound. For int and float.
            max: The greatest value, inclusive. None: no upper bound. For int and float.
            choices: The allowed values. Empty: every value within the bounds.
            scale: How editors and the tuner step through the values. `linear`: equal differences. `log`:
                equal ratios. `pow2`: powers of two, and no other value is accepted.
            effect: What a change affects. `speed`: the same training, faster or slower. `learning`: what is
                learned. The tuner turns only `speed` knobs unless a user allows others.
            cost: What applying a change needs. `free`: the step reads the value. `shape`: new tensor shapes,
                so a new compiled graph. `rebuild`: a new model, optimizer or set of data readers. `restart`:
                a new process, see `restart_wanted`.
            keeps: What stays true for every value. `"grad_accum × micro_batch"`: the run keeps this product
                constant. `"rollout = num_envs × rollout_len × ranks"`: `rollout` follows from the others. The
                factors are names of knobs, or `ranks`, the number of processes. `*` is the same as `×`, and
                `/` divides. Separate several relations with `;`. Free text is shown to users.
            unit: The unit shown with the value, such as `tokens`.
            description: One line that explains the knob.
            apply: Called at a boundary with the new value, to put it into effect. If it raises, the command
                fails with the error as its reason, and `apply` is called with the old value. To refuse a
                value, raise a `ValueError` or a `MemoryError`: users see its text alone. If the value takes
                effect later, return `hoptui.LATER`, and call `KnobHandle.holds` then.
            read: Called before and after changes, and at a boundary at most once a second. Returns the value
                in effect. None: the value in effect is the one that was applied last; for the cost `restart`
                it is `default`.

        Returns:
            The handle. Its `value` is the value in effect.

        Example:
            ```python
            optimizer = {"lr": 3e-4}
            lr = run.knob(
                "lr",
                3e-4,
                min=1e-6,
                max=1e-1,
                scale="log",
                apply=lambda value: optimizer.update(lr=value),
                read=lambda: optimizer["lr"],
            )
            accum = run.knob("grad_accum", 4, min=1, max=64, effect="speed")
            assert (lr.value, accum.value) == (3e-4, 4)
            ```
        """
        return self._core.state.declarations.declare_knob(
            name,
            default,
            apply,
            read,
            min=min,
            max=max,
            choices=choices,
            scale=scale,
            effect=effect,
            cost=cost,
            keeps=keeps,
            unit=unit,
            description=description,
        )

    @_harmless(dict[str, KnobHandle[Any]])
    def knobs(
        self,
        config: object,
        *,
        apply: Mapping[str, Callable[[Any], object]] | None = None,
        read: Mapping[str, Callable[[], Any]] | None = None,
        without: Collection[str] = (),
    ) -> dict[str, KnobHandle[Any]]:
        """Declare every field of a dataclass that is `Annotated[..., hoptui.Knob(...)]`.

        A change sets the field and then calls `apply[name](value)`. The field of a knob with the cost
        `restart` is not set, because only a new process has the new value; its `apply` may refuse the value.
        A declaration that contradicts itself logs a warning, and its field is left out.

        Args:
            config: A dataclass instance. Its field values are the values in effect now.
            apply: By field name: called with the new value, may raise to refuse it. See `knob`.
            read: By field name: returns the value in effect. Without an entry the field is read.
            without: Names of fields that this run cannot change.

        Returns:
            The handles, by field name.

        Example:
            ```python
            from dataclasses import dataclass
            from typing import Annotated

            @dataclass
            class Config:
                grad_accum: Annotated[int, hoptui.Knob(1, 64, effect="speed")] = 4
                hidden: Annotated[int, hoptui.Knob(8, 512, cost="restart")] = 64
                seed: int = 0

            handles = run.knobs(Config(), without=["hidden"])
            assert handles["grad_accum"].value == 4
            ```
        """
        return self._core.state.declarations.declare_fields(config, apply or {}, read or {}, without)

    @_harmless(dict[str, KnobHandle[Any]])
    def bind(
        self, obj: object, /, *, apply: Mapping[str, Callable[[Any], object]] | None = None, **bounds: object
    ) -> dict[str, KnobHandle[Any]]:
        """Declare settings of an object as knobs, in the place where the loop reads them.

        A change sets the item of a dict, or the attribute of any other object. The value that is shown is the
        one that the object has. A setting that the object does not have, or bounds of another form, log a
        warning, and only that setting is left out.

        Args:
            obj: A namespace of argparse, a dict, `globals()`, a dataclass instance, or any object.
            apply: By name: called with the new value after it was set. May raise to refuse it, see `knob`.
            bounds: By name, what values are allowed. `(min, max)` or `(min, max, scale)`: a number. A list:
                its entries. `hoptui.Knob(...)`: all that a knob can declare. `True`: every value.

        Returns:
            The handles, by name.

        Example:
            ```python
            from argparse import Namespace

            args = Namespace(batch_size=32, learning_rate=3e-4, fused=True, loader="fast")
            run.bind(
                args,
                batch_size=(1, 512),
                learning_rate=(1e-6, 1e-1, "log"),
                fused=True,
                loader=["fast", "slow"],
            )
            ```
        """
        return bind(self._core.state.declarations, obj, apply or {}, bounds)

    @_harmless(dict[str, KnobHandle[Any]])
    def optimizer(
        self, optimizer: Any, scheduler: Any = None, *, prefix: str = ""
    ) -> dict[str, KnobHandle[Any]]:
        """Declare the knobs of an optimizer of PyTorch: `lr`, `weight_decay`, `beta1` and `beta2`.

        Only those that the optimizer has are declared. Parameter groups keep their proportions. Numbers that
        are tensors are changed in place.

        Without a schedule, `lr` is the rate in effect. With one, `lr` is the base of the schedule: what the
        schedule makes 3e-4 × 0.1 of is 3e-4. A change scales the base and the rate in effect by the same
        factor, and the schedule goes on from there. So the value that is shown does not move with the
        schedule, and setting the former value undoes a change at any time. Log the rate in effect as a metric
        to see both. Under `OneCycleLR`, `lr` is the peak. `ReduceLROnPlateau` has no base: `lr` is the rate
        in effect.

        Args:
            optimizer: An optimizer, or a wrapper that has its `param_groups`.
            scheduler: Its schedule, a wrapper of it, or a list of several. None: without one.
            prefix: Before each name, for several optimizers, such as `actor_`.

        Returns:
            The handles, by name without the prefix.

        Example:
            ```python
            class Optimizer:  # such as torch.optim.AdamW(model.parameters(), lr=3e-4)
                param_groups = [{"lr": 3e-4, "weight_decay": 0.1, "betas": (0.9, 0.95)}]

            handles = run.optimizer(Optimizer())
            assert handles["lr"].value == 3e-4
            ```
        """
        return declare_optimizer(self._core.state.declarations, optimizer, scheduler, prefix)

    def decline(self, name: str, reason: str) -> None:
        """Say why a command, or a knob that users may expect, is not offered. It is refused with the reason.

        Use it in an integration whose loop cannot carry the command out. `run.stop` is not affected. A knob
        that is declared as well is offered. So is a command whose handler is set afterwards.

        Args:
            name: `pause`, `stop`, `checkpoint` or `profile`, or the name of a knob that users would try.
            reason: Why, and what to do instead, in one sentence. Empty: it is offered again.

        Example:
            ```python
            run.decline("batch_size", "the data loader reads it once: restart with another value")
            run.decline("stop", "this loop ends with its data: press Ctrl-C where it runs")
            ```
        """
        self._core.state.declarations.decline(name, reason)

    @_harmless(_nothing)
    def metric(self, name: str, *, unit: str = "", headline: bool = False) -> None:
        """Declare the unit of a metric, and whether it is the headline. `log` needs no declaration.

        Args:
            name: The name that `log` uses, or a rate such as `samples_per_s`.
            unit: The unit shown with the value, such as `tokens/s`.
            headline: Whether this metric stands for the throughput of the run. The last headline counts.

        Example:
            ```python
            run.metric("samples_per_s", unit="samples/s", headline=True)
            run.metric("entropy", unit="nat")
            ```
        """
        self._core.state.declarations.declare_metric(name, unit, headline)

    @_harmless(_nothing)
    def gpus(self, uuids: Sequence[str]) -> None:
        """Declare the GPUs of this process. With several ranks, each rank declares its own.

        Args:
            uuids: The UUIDs as NVML writes them: `GPU-…` or `MIG-…`.

        Example:
            ```python
            run.gpus(["GPU-8f6b2b5e-0000-0000-0000-000000000000"])
            ```
        """
        self._core.state.declarations.declare_gpus(uuids)

    @_harmless(_nothing)
    def flops(
        self,
        per_unit: float,
        *,
        metric: str = "",
        precision: Literal["fp64", "fp32", "tf32", "bf16", "fp16", "fp8"] = "bf16",
    ) -> None:
        """Declare the cost of training, so that viewers show MFU: model FLOPs utilization (arXiv:2204.02311).

        Call it again when the cost changes. A value that is not a positive finite number makes MFU unknown;
        one that is not a number at all also logs a warning.

        Args:
            per_unit: Floating-point operations, forward and backward, per unit of the rate `metric`. For a
                dense transformer: 6 × parameters per token, plus attention.
            metric: The rate, such as `tokens_per_s`. "": the headline.
            precision: The precision of the matrix products. MFU is relative to the GPU's dense peak in it.

        Example:
            ```python
            parameters = 124_000_000
            run.flops(6 * parameters, metric="tokens_per_s", precision="bf16")
            ```
        """
        self._core.state.declarations.declare_flops(per_unit, metric, precision)

    @_harmless(_nothing)
    def on_checkpoint(self, save: Callable[[], object]) -> None:
        """Let users ask for a checkpoint.

        Args:
            save: Called at a boundary, on all ranks. It may return the path or the URL that it wrote, or
                `hoptui.LATER` if the checkpoint is written later; see `checkpointed`. If it raises, the
                command fails with the error as its reason, and training goes on.

        Example:
            ```python
            run.on_checkpoint(lambda: "checkpoints/step_100.pt")
            ```
        """
        self._core.state.declarations.declare_checkpoint_handler(save)

    @_harmless(_nothing)
    def checkpointed(self, path: object = "", *, error: Exception | None = None) -> None:
        """The checkpoint is written, or has failed, of which a handler returned `hoptui.LATER`.

        It ends the command that asked for it. Without such a command it does nothing, so call it after each
        checkpoint. With several ranks, the call on rank 0 counts. Never raises.

        Args:
            path: Where it was written: a path or a URL. Viewers show it. A relative path becomes absolute at
                once, so the script may change its working directory later.
            error: Why there is none. The command fails with it as its reason.

        Example:
            ```python
            run.on_checkpoint(lambda: hoptui.LATER)  # the framework writes one after this step
            run.checkpointed("checkpoints/step_100.pt")
            ```
        """
        self._core.execution.checkpointed(path, error)

    @_harmless(_nothing)
    def on_profile(self, start: Callable[..., object]) -> None:
        """Let users ask for a trace of the next iterations.

        Args:
            start: Called at a boundary with the number of iterations to trace, 1 to 1000. It starts the trace
                and returns. Report with `event` where the trace was written. If it raises, the command fails.
                Each of these keyword parameters that it has becomes an option of `hoptui profile`: `wait` and
                `warmup` (iterations before the trace), `stacks`, `shapes` and `memory` (bool). Only options
                that were asked for are passed.

        Example:
            ```python
            run.on_profile(lambda steps: run.event(f"tracing {steps} iterations"))
            ```
        """
        self._core.state.declarations.declare_profile_handler(start)

    # the loop -----------------------------------------------------------------------------------------------

    def iterations(self, total: int | None = None, *, start: int = 0) -> Iterator[int]:
        """Iterate over `range(start, total)`, with a boundary before each iteration. A stop ends it early.

        In a notebook, the end of the loop is the end of the run. Elsewhere the run ends with `close`, or with
        its process.

        Args:
            total: The end of the range. None: go on until a stop. It becomes the run's total if `connect` got
                none.
            start: The first iteration, for a run that resumes.

        Yields:
            The step of the iteration.

        Example:
            ```python
            for step in run.iterations(10, start=7):
                run.log(loss=0.5)
            ```
        """
        if self._core.state.total is None and total is not None:
            self._core.plan(total)
        step = start
        while total is None or step < total:
            if not self.boundary(step):
                break
            yield step
            step += 1
        self._core.end_loop()

    @_harmless(_nothing)
    def plan(self, total: int | None) -> None:
        """Change the number of planned iterations, which `connect` or `iterations` gave.

        Args:
            total: The number of planned iterations, or None if it is not known.

        Example:
            ```python
            run.plan(10_000)
            ```
        """
        self._core.plan(total)

    def boundary(self, step: int | None = None) -> bool:
        """Pass the boundary between two iterations, for loops that do not use `iterations`.

        It closes the row of the last iteration, carries out due commands and waits while the run is paused.
        It costs a few microseconds if no command is due. With several ranks, all of them call it.

        Args:
            step: The iteration about to begin. None: one more than the last.

        Returns:
            False if the run stops here, else True.

        Example:
            ```python
            step = 0
            while step < 3 and run.boundary(step):
                run.log(loss=0.5)
                step += 1
            ```
        """
        return self._core.boundary(step)

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Time a part of the iteration on the host clock. `env` inside `rollout` is the phase `rollout/env`.

        For work that the GPU does later, measure with CUDA events and use `phase_seconds`.

        Args:
            name: The name of the phase, without `/`.

        Returns:
            A context manager. It can be entered again once it was left.

        Example:
            ```python
            for step in run.iterations(2):
                with run.phase("rollout"), run.phase("env"):
                    pass
            ```
        """
        return PhaseTimer(self._core.state.phases, name)

    @_harmless(_nothing)
    def enter(self, name: str) -> None:
        """Begin a phase that `leave` ends, where a `with` block does not fit, such as in two callbacks.

        Phases nest. One that is still open at a boundary ends there. Never raises.

        Args:
            name: The name of the phase, without `/`.

        Example:
            ```python
            for step in run.iterations(2):
                run.enter("rollout")
                run.leave()
            ```
        """
        self._core.state.phases.enter(str(name))

    @_harmless(_nothing)
    def leave(self, name: str | None = None) -> None:
        """End the phase that was entered last. Without one it does nothing. Never raises.

        Args:
            name: End all phases up to the one that was entered under this name. If there is none, nothing
                ends.

        Example:
            ```python
            run.enter("update")
            run.enter("minibatch")
            run.leave("update")  # both
            ```
        """
        self._core.state.phases.leave(name)

    @_harmless(_nothing)
    def phase_seconds(self, path: str, seconds: float, *, ended: float | None = None) -> None:
        """Add time to a phase of this iteration that was measured in another way, such as with CUDA events.

        Args:
            path: The path of the phase, such as `rollout/env`.
            seconds: The time to add, in seconds.
            ended: When it ended, in seconds of `time.monotonic()`, if it was one stretch of time. Then GPU
                readings of that time count for the phase.

        Example:
            ```python
            run.phase_seconds("update/forward", 0.012)
            ```
        """
        phases = self._core.state.phases
        phases.add(str(path), float(seconds))
        if ended is not None:
            phases.stretch(path, float(ended) - float(seconds), float(ended))

    def log(
        self, values: Mapping[str, Any] | None = None, /, *, step: int | None = None, **metrics: Any
    ) -> None:
        """Log metrics of this iteration. Outside of a loop with boundaries, each call makes a row of its own.

        Values are Python numbers, numpy scalars or tensors of one element. A CUDA tensor is copied
        asynchronously and never blocks the GPU. Values that are not numbers are counted, not raised. A call
        takes about 5 µs for 40 metrics (`benchmarks/log_cost.py`).

        `env_steps`, `tokens` and `samples` count the work of the iteration. Each also gives a rate, such as
        `samples_per_s`. With several ranks, rank 0 logs the work of all of them, and this is the run's. What
        another rank logs of these three is recorded as its own and is not added. Other metrics of other ranks
        are dropped.

        Args:
            values: Metrics by name, for names that are not Python identifiers.
            step: An iteration that has finished, if the metrics are of that one. None: of the one in
                progress.
            metrics: Metrics as keyword arguments.

        Example:
            ```python
            run.log(loss=0.25, samples=512)
            run.log({"grad/norm": 1.5}, lr=3e-4)
            ```
        """
        recorder = self._core.recorder
        recorder.log(values, metrics, None if step is None else whole(step))
        if not recorder.began:
            self._core.in_loop()

    @_harmless(_nothing)
    def event(self, text: str, *, level: Level = "info") -> None:
        """Put a line of text on the time axis. Only rank 0 does; on other ranks nothing happens.

        Args:
            text: What happened. At most 500 characters are kept.
            level: `info` or `warning`.

        Example:
            ```python
            run.event("evaluation begins")
            run.event("loss is NaN", level="warning")
            ```
        """
        self._core.state.note(text, level)

    @property
    def step(self) -> int:
        """The iteration in progress, from 0.

        Example:
            ```python
            for step in run.iterations(2):
                assert run.step == step
            ```
        """
        return self._core.state.step

    @property
    def trace_folder(self) -> Path:
        """A folder for traces, next to this user's recordings. Its directory is private; the folder may not
        exist yet. The working folder if there can be none. hoptui never deletes what is in it.

        Example:
            ```python
            path = run.trace_folder / "trace.json"
            ```
        """
        from hoptui.node.addresses import AddressError, addresses, secure

        try:
            state = addresses().state
            secure(state)
        except (AddressError, OSError):
            return Path()
        return state / "traces"

    # stop and restart ---------------------------------------------------------------------------------------

    @_harmless(_nothing)
    def stop(self, by: str = "") -> None:
        """End the loop at its next boundary. Safe in a signal handler.

        With several ranks, one call on one rank is enough: all of them stop at the same boundary.

        Args:
            by: Who or what asked for the stop, such as `SIGTERM`. Viewers show it.

        Example:
            ```python
            for step in run.iterations(100):
                if step == 2:
                    run.stop("the target is reached")
            assert run.step == 3
            ```
        """
        self._core.meeting.request_stop(by)

    @property
    def stop_asked(self) -> bool:
        """Whether a stop was asked for, even if the ranks have not agreed on it yet.

        Example:
            ```python
            run.stop()
            assert run.stop_asked
            ```
        """
        return self._core.stop_asked

    @property
    def stopping(self) -> bool:
        """Whether the loop ends at its next boundary: a stop was asked for, and all ranks agreed.

        Example:
            ```python
            assert not run.stopping
            ```
        """
        return self._core.state.stopping

    @property
    def restart_wanted(self) -> dict[str, KnobValue]:
        """The requested values of knobs with the cost `restart`, by knob. They are the same on all ranks.

        If it is not empty after a boundary, write a checkpoint, call `hand_over`, and replace this process
        with `os.execv`. The new process declares these knobs with these values. If that is impossible, call
        `refuse_restart`.

        Example:
            ```python
            run.knob("hidden", 64, min=8, max=512, cost="restart")
            for step in run.iterations(2):
                if run.restart_wanted:
                    break
            ```
        """
        knobs = self._core.state.declarations.knobs
        return {name: knobs[name].wanted for name in self._core.execution.restarts}

    @_harmless(_nothing)
    def refuse_restart(self, reason: str) -> None:
        """Fail the commands that need a new process. With several ranks, call it on all of them.

        Args:
            reason: Why there will be no new process. Viewers show it with the failed commands.

        Example:
            ```python
            if run.restart_wanted:
                run.refuse_restart("the disk is full")
            ```
        """
        self._core.execution.refuse_restart(reason)

    def hand_over(self, where: str) -> None:
        """Leave this run to the process that replaces this one with `os.execv`. Use it in place of `close`.

        The next process reports the outcome of the commands that needed the restart, at its first boundary.
        `close` does nothing afterwards.

        Args:
            where: The checkpoint that the next process loads. Viewers show it.

        Example:
            ```python
            run.hand_over("checkpoints/step_100.pt")
            # os.execv(sys.executable, [sys.executable, "train.py", "--resume=checkpoints/step_100.pt"])
            ```
        """
        self._core.hand_over(where)

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs to continue this run: the `resume` argument of `connect`.

        Returns:
            A dict of JSON values: the run's id and restart, its knob values, and the number of applied
            commands.

        Example:
            ```python
            checkpoint = {"hoptui": run.state_dict()}
            later = hoptui.connect("my-run", resume=checkpoint["hoptui"])
            assert later.id == run.id
            ```
        """
        return self._core.state_dict()

    # the end ------------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """The id of the run: eight letters and digits. It stays the same over restarts.

        It can change once, soon after `connect`, if another live process already has the id.

        Example:
            ```python
            assert len(run.id) == 8
            ```
        """
        return self._core.state.id

    def close(self, reason: Ending | None = None, detail: str = "") -> None:
        """Send what is left, and why the run ends. It returns within about a second.

        hoptui calls it at exit. A second call does nothing.

        Args:
            reason: `finished`, `stopped` or `exception`. None: derived from how the script ends.
            detail: A line that viewers show with the reason. At most 500 characters are kept.

        Example:
            ```python
            run.close("finished", "the target is reached")
            ```
        """
        self._core.close(reason, detail)

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or (isinstance(error, SystemExit) and not error.code):
            self.close()
        else:
            self._core.close(*ending(error, "finished"), interrupted=True)
