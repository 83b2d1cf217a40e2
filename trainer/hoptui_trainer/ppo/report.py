"""What PPO prints on standard output, for users and for scripts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

from hoptui_trainer.common.metrics import Finished
from hoptui_trainer.common.report import Ending, elapsed, percent, plural, result_json

CONVENTIONS = (
    "return: mean over the training episodes that ended in the iteration (sampled actions)",
    "steps/s: environment steps of all processes over wall time since the line before, everything included",
)


@dataclass(frozen=True, kw_only=True)
class PPOResult:
    """How a run ended.

    `iterations` and `env_steps` count the whole run, with what a resumed checkpoint had. `seconds` is this
    process's wall time from the set-up of the training to its end, evaluations and checkpoints included and
    imports not; `env_steps_per_s` is the steps of all processes over that time. `steady_env_steps_per_s` and
    `mfu` are of the iterations in which, and right before which, nothing was compiled, captured, evaluated or
    written; None without any. `evaluation_return` is the newest one, `best_evaluation_return` the best, made
    after `best_iteration` iterations, and `best_file` has its weights; None without any. `minibatch_size` is
    the one in effect, computed in `grad_accum` pieces. `restarts` is how
    often a knob had this process replaced: times, rates and memory are of the time since.
    """

    evaluation_return: float | None = None
    best_evaluation_return: float | None = None
    best_iteration: int | None
    best_file: str | None
    env_steps: int
    seconds: float
    iterations: int
    env_steps_per_s: float
    steady_env_steps_per_s: float | None
    mfu: float | None
    peak_memory_bytes: int | None
    minibatch_size: int
    grad_accum: int
    ending: Ending
    restarts: int

    def json(self) -> str:
        """The figures as one line of JSON."""
        return result_json({"workload": "ppo", **asdict(self)})

    def sentence(self) -> str:
        """The result for users."""
        evaluation = "" if self.evaluation_return is None else f", evaluation {self.evaluation_return:.1f}"
        return (
            f"{self.ending} after {self.iterations:,} iterations and {self.env_steps:,} env "
            f"steps{evaluation}; {elapsed(self.seconds, self.restarts)}, {self.env_steps_per_s:,.0f} "
            "steps/s"
        )


class PPOProgress:
    """The parts of the line of an iteration; counts the steps since the line before."""

    def __init__(self, env_steps: int) -> None:
        self._steps = env_steps
        self._evaluation: float | None = None

    def evaluation(self, mean_return: float) -> None:
        """Report an evaluation with the next line."""
        self._evaluation = mean_return

    def parts(
        self,
        done: Finished,
        total: int,
        seconds: float,
        utilization: Callable[[float], float | None],
        memory: int | None,
    ) -> Iterator[str]:
        """The parts of the line of an iteration `seconds` after the line before; work is environment steps.

        `utilization` gives the MFU at a rate of environment steps, `memory` is the peak in bytes.
        """
        value = {name: float(metric) for name, metric in done.metrics.items()}
        episodes, mean = int(value["episodes"]), value["episode_return"]
        yield f"iteration {done.iteration:,}/{total:,}"
        yield f"env steps {done.work:,}"
        if math.isnan(mean):
            yield "return –"
        else:
            yield f"return {mean:.1f} ({episodes} {plural(episodes, 'episode')})"
        if self._evaluation is not None:
            yield f"evaluation {self._evaluation:.1f}"
        yield f"policy loss {value['policy_loss']:.4f}"
        yield f"value loss {value['value_loss']:.3g}"
        yield f"entropy {value['entropy']:.3f}"
        rate = (done.work - self._steps) / seconds
        yield f"{rate:,.0f} steps/s"
        if used := percent(utilization(rate)):
            yield f"{used} MFU"
        if memory:
            yield f"{memory / 1e9:.1f} GB"
        self._steps, self._evaluation = done.work, None


class SteadyRate:
    """Environment steps per second of the iterations in which nothing was compiled, captured, evaluated or
    written."""

    def __init__(self) -> None:
        self._steps, self._seconds = 0, 0.0
        self._ideal: float | None = 0.0

    def add(self, steps: int, seconds: float, ideal: float | None) -> None:
        """A plain iteration; `ideal` are the seconds that it would have taken at the GPUs' peak, None where
        that means nothing."""
        self._steps += steps
        self._seconds += seconds
        self._ideal = None if self._ideal is None or ideal is None else self._ideal + ideal

    @property
    def per_s(self) -> float | None:
        return self._steps / self._seconds if self._seconds else None

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilization, as a fraction: of each iteration by what a step cost in it."""
        return self._ideal / self._seconds if self._ideal and self._seconds else None
