"""The options that all commands share, and how they combine with a checkpoint."""

# Annotations are evaluated here and not later: a dataclass of another module inherits them, and cyclopts
# would look for their names there.

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

from cyclopts import Parameter
from cyclopts.validators import Number

from hoptui_trainer.common.applicability import Circumstances, Rule
from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.common.memory_limit import parse_limit
from hoptui_trainer.common.modes import DeviceName
from hoptui_trainer.common.options import (
    KnobValues,
    check_options,
    declared,
    option_name,
    spelled,
    whole_number,
)
from hoptui_trainer.common.report import Ending
from hoptui_trainer.common.trace_plan import MOST_TRACED, WAIT, WARMUP, TracePlan

C = TypeVar("C")

NOT_REACHED = 1
"""Exit code of a run that finished without reaching the result asked for."""

AtLeastOne = Annotated[int, Parameter(converter=whole_number, validator=Number(gte=1))]
NotNegative = Annotated[int, Parameter(converter=whole_number, validator=Number(gte=0))]
UpToThousand = Annotated[int, Parameter(converter=whole_number, validator=Number(gte=1, lte=1024))]
UpToEightThousand = Annotated[int, Parameter(converter=whole_number, validator=Number(gte=1, lte=8192))]
UpToMillions = Annotated[int, Parameter(converter=whole_number, validator=Number(gte=1, lte=1 << 22))]
Flag = Annotated[bool, Parameter(negative="", show_default=False)]


class Target(NamedTuple):
    """A result that ends a run: a figure of its evaluations, at most `value`, or with `higher` at least."""

    metric: str
    value: float
    higher: bool = False


class _Unsaid(int):
    """A default, as opposed to the same number on the command line."""


ITERATIONS = _Unsaid(1000)
EVALUATE_EVERY = _Unsaid(100)


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """The options that all workloads share; None means that an option was not given.

    Parameters
    ----------
    preset
        Settings by name; single options win over it.
    name
        Name of the run in hoptui [default: of the workload and its preset or environment].
    seed
        Seed of all random numbers; the same seed gives the same run [default: 0].
    iterations
        Iterations after which to end, counted from the start of the run [default: 1000; with --preset tiny
        100].
    device
        Where to train; auto takes the GPU of this rank if there is one.
    threads
        CPU threads of torch [default: what pays off for the size of a micro-batch].
    memory_limit
        Memory that each process plans with: an amount such as 72GB, or a part of all memory of its GPU, or of
        the machine, such as 90% [default: 92% of what is free].
    smaller_model_on_oom
        Go on with a smaller model, whose weights begin anew, where nothing else makes room. Without it, the
        run asks on a terminal, and ends elsewhere.
    json
        Print nothing but the result, as one line of JSON.
    evaluate_every
        Iterations between two evaluations; 0 is never.
    patience
        End after so many evaluations in a row without a better one; 0 is never.
    checkpoint_dir
        Folder for checkpoints; one is written at the end.
    keep_best
        Keep the weights of the best evaluation in that folder, as a checkpoint of their own [default: they
        are kept].
    checkpoint_every
        Iterations between two checkpoints; 0 is only at the end and on request.
    resume
        Checkpoint to go on from, or a folder whose newest is taken; an empty folder means a new run. Options
        given win over what it holds.
    profile_dir
        Folder for traces, which TensorBoard and ui.perfetto.dev show [default: that of the checkpoints, else
        one next to the recordings].
    profile_steps
        Trace so many iterations near the start; `hoptui profile` traces later ones.
    profile_wait
        Iterations before that [default: 10, in which shapes are compiled].
    profile_warmup
        Iterations in which the profiler runs and records nothing [default: 1].
    profile_stacks
        Record the source line of each operation.
    profile_shapes
        Record the shapes of its inputs.
    profile_memory
        Record each allocation.
    """

    preset: str | None = None
    name: str | None = None
    seed: NotNegative | None = None
    iterations: Annotated[AtLeastOne, Parameter(show_default=False)] = ITERATIONS
    device: DeviceName = "auto"
    threads: UpToThousand | None = None
    memory_limit: str | None = None
    smaller_model_on_oom: Flag = False
    json: Flag = False
    evaluate_every: NotNegative = EVALUATE_EVERY
    patience: NotNegative = 0
    checkpoint_dir: Path | None = None
    keep_best: Annotated[bool | None, Parameter(show_default=False)] = None
    checkpoint_every: NotNegative = 0
    resume: Path | None = None
    profile_dir: Path | None = None
    profile_steps: NotNegative = 0
    profile_wait: NotNegative | None = None
    profile_warmup: NotNegative | None = None
    profile_stacks: Flag = False
    profile_shapes: bool = False
    profile_memory: Flag = False

    def __post_init__(self) -> None:
        if self.preset == "tiny" and isinstance(self.iterations, _Unsaid):
            object.__setattr__(self, "iterations", 100)

    def check(self) -> None:
        """Refuse what cannot be meant, and make the folder for checkpoints.

        Raises:
            UsageError: one sentence that names the option.
        """
        if self.memory_limit is not None:
            parse_limit(self.memory_limit)
        if (judging := self.judging) and not self.evaluate_every:
            raise UsageError(f"{judging[0]} needs evaluations: --evaluate-every must not be 0")
        self._check_profile()
        self._check_best()
        if self.checkpoint_dir is None:
            if self.checkpoint_every:
                raise UsageError("--checkpoint-every needs a folder: --checkpoint-dir")
            return
        try:
            self.checkpoint_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--checkpoint-dir {self.checkpoint_dir}: {error.strerror}") from None

    @property
    def targets(self) -> Mapping[str, Target]:
        """The results asked for, by option."""
        return {}

    @property
    def judging(self) -> tuple[str, ...]:
        """The options given that need evaluations."""
        return (*self.targets, *(("--patience",) if self.patience else ()))

    def reached(self, figures: Mapping[str, float]) -> str:
        """Which target an evaluation has reached, in words; "" if none. The first one ends a run."""
        for option, target in self.targets.items():
            found = figures[target.metric]
            if found >= target.value if target.higher else found <= target.value:
                return f"{target.metric} {found:.4f} meets {option} {target.value:g}"
        return ""

    def exit_code(self, ending: Ending) -> int:
        """Of a run that ended like this."""
        return NOT_REACHED if self.targets and ending in ("finished", "early-stopped") else 0

    @property
    def evaluations_asked(self) -> bool:
        """Whether evaluations were asked for on the command line, and are not just the default."""
        return bool(self.evaluate_every) and not isinstance(self.evaluate_every, _Unsaid)

    def evaluation_due(self, iteration: int) -> bool:
        """Whether to evaluate after so many iterations: every few, and after the last."""
        if not self.evaluate_every:
            return False
        return iteration % self.evaluate_every == 0 or iteration == self.iterations

    def checkpoint_due(self, iteration: int) -> bool:
        """Whether to write one after so many iterations; the one at the end is not counted here."""
        return bool(self.checkpoint_every) and iteration % self.checkpoint_every == 0

    def _check_best(self) -> None:
        if self.keep_best is None:
            return
        option = "--keep-best" if self.keep_best else "--no-keep-best"
        if not self.evaluate_every:
            raise UsageError(f"{option} needs evaluations: --evaluate-every must not be 0")
        if self.checkpoint_dir is None:
            raise UsageError(f"{option} needs a folder: --checkpoint-dir")

    def _check_profile(self) -> None:
        given = {
            "--profile-wait": self.profile_wait is not None,
            "--profile-warmup": self.profile_warmup is not None,
            "--profile-stacks": self.profile_stacks,
            "--profile-shapes": self.profile_shapes,
            "--profile-memory": self.profile_memory,
        }
        for option, is_given in given.items():
            if is_given and not self.profile_steps:
                raise UsageError(f"{option} needs a trace: say how many iterations with --profile-steps")
        if self.profile_steps > MOST_TRACED:
            raise UsageError(f"--profile-steps {self.profile_steps}: at most {MOST_TRACED} iterations")
        if (plan := self.trace) and plan.lead >= self.iterations:
            raise UsageError(
                f"--profile-steps: the trace would begin after iteration {plan.lead}, and the run ends at "
                f"{self.iterations} (--profile-wait, --profile-warmup, --iterations)"
            )

    @property
    def trace(self) -> TracePlan | None:
        """What to trace near the start; None: nothing."""
        if not self.profile_steps:
            return None
        return TracePlan(
            steps=self.profile_steps,
            wait=WAIT if self.profile_wait is None else self.profile_wait,
            warmup=WARMUP if self.profile_warmup is None else self.profile_warmup,
            stacks=self.profile_stacks,
            shapes=self.profile_shapes,
            memory=self.profile_memory,
        )

    @property
    def trace_folder(self) -> Path | None:
        """Where traces go; None for the folder of the run, next to the recordings."""
        return self.profile_dir or self.checkpoint_dir


def options_given(job: JobOptions) -> dict[str, Any]:
    """The options of a job that are not as they are by default, by field; the knobs in it are left out."""
    given = {}
    for field in dataclasses.fields(job):
        value, usual = getattr(job, field.name), field.default
        said = isinstance(usual, _Unsaid) and not isinstance(value, _Unsaid)
        if field.name != "knobs" and (said or value != usual):
            given[field.name] = value
    return given


def _without_threads(where: Circumstances) -> str:
    if not where.on_gpu or where.acts_on_cpu:
        return ""
    return "the GPU computes, and not the CPU's threads; --device cpu uses them"


THREAD_RULE = Rule(("threads",), _without_threads)
"""CPU threads have no effect where a GPU computes everything."""


def preset(presets: Mapping[str, Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    """The settings of that name.

    Raises:
        UsageError: there is none.
    """
    if name not in presets:
        raise UsageError(f"--preset {name}: there is no such preset; there are {', '.join(presets)}")
    return presets[name]


def resolve(default: C, held: Mapping[str, Any] | None, given: KnobValues) -> tuple[C, tuple[str, ...]]:
    """Command line before checkpoint before preset; and for each knob that two disagree on, which one won.

    Args:
        default: a config dataclass as the preset has it.
        held: the config of the checkpoint, as a dict; None without one.
        given: the knobs on the command line.

    Raises:
        UsageError: a value that its knob does not take.
        TypeError: `held` has fields that the config has not.
    """
    kind = type(default)
    typed = check_options(kind, given)
    if held is None:
        return dataclasses.replace(default, **typed), ()  # type: ignore[type-var]
    before = kind(**held)
    config = dataclasses.replace(before, **typed)  # type: ignore[type-var]
    return config, tuple(_origins(default, before, config, typed))


def _origins(default: object, held: object, chosen: object, given: Mapping[str, Any]) -> Iterator[str]:
    for name, _, _ in declared(type(chosen)):
        value, before, usual = (getattr(config, name) for config in (chosen, held, default))
        if name in given and value != before:
            yield f"{name} = {spelled(value)} from {option_name(name)} (the checkpoint has {spelled(before)})"
        elif value != usual:
            source = "the checkpoint" if name not in given else option_name(name)
            yield f"{name} = {spelled(value)} from {source} (the default is {spelled(usual)})"


def check_kept(options: Iterable[tuple[str, object, object]]) -> None:
    """Refuse what would make a resumed run another one: for each option the value given, or None, and the
    checkpoint's.

    Raises:
        UsageError: they differ.
    """
    for option, given, held in options:
        if given not in (None, held):
            raise UsageError(f"{option} {given}: the checkpoint's run has {held}, and keeps it")


def check_positive(targets: Mapping[str, Target]) -> None:
    """Refuse losses that no evaluation reaches.

    Raises:
        UsageError: one is not a positive finite number.
    """
    for option, target in targets.items():
        if not 0 < target.value < math.inf:
            raise UsageError(f"{option} takes a positive number, not {target.value}")


@contextmanager
def refused_by_option() -> Iterator[None]:
    """In here sizes are checked, with a ValueError that begins with the name of a knob.

    Raises:
        UsageError: the same sentence, after the option.
    """
    try:
        yield
    except ValueError as error:
        raise UsageError(f"{option_name(str(error).split()[0])}: {error}") from None
