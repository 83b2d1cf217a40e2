"""What a person or a script is told on standard output."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from trainer.ppo.evaluate import EPISODES

Ending = Literal["finished", "passed", "stopped"]

CONVENTIONS = (
    "return: mean over the training episodes that ended in the iteration (sampled actions)",
    f"evaluation: mean of {EPISODES} full episodes with the most probable actions",
    "steps/s: environment steps over wall time since the line before, everything included",
)


@dataclass(frozen=True, kw_only=True)
class Result:
    """How a run ended.

    `iterations` and `env_steps` count the whole run, with what a resumed checkpoint had. `seconds` is this process's
    wall time from the set-up of the training to its end, evaluations and checkpoints included and imports not;
    `env_steps_per_s` is this process's steps over that time. `evaluation_return` is the newest one, None without any.
    """

    evaluation_return: float | None
    env_steps: int
    seconds: float
    iterations: int
    env_steps_per_s: float
    ending: Ending

    def json(self) -> str:
        """The figures as one line of JSON."""
        figures = dataclasses.asdict(self)
        del figures["ending"]
        return json.dumps(figures)

    def sentence(self) -> str:
        """The same for people."""
        evaluation = "" if self.evaluation_return is None else f", evaluation {self.evaluation_return:.1f}"
        return (
            f"{self.ending} after {self.iterations:,} iterations and {self.env_steps:,} env steps{evaluation}; "
            f"{self.seconds:.1f} s, {self.env_steps_per_s:,.0f} steps/s"
        )


class Console:
    """Lines for people: one an iteration, at most one a second."""

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._write = write
        self._clock = clock
        self._evaluation: float | None = None

    def begin(self, introduction: Iterable[str], env_steps: int) -> None:
        """Introduce the run and explain the lines to come; steps are counted from `env_steps` on."""
        for line in (*introduction, *CONVENTIONS):
            self._write(line)
        self._steps, self._last = env_steps, self._clock()

    def evaluation(self, mean_return: float) -> None:
        """Tell of an evaluation with the next line."""
        self._evaluation = mean_return

    def iteration(self, done: int, total: int, env_steps: int, metrics: Mapping[str, Tensor]) -> None:
        """Tell of a finished iteration if the line before is a second old; only then are the metrics read.

        On a GPU reading them waits for it.
        """
        now = self._clock()
        seconds = now - self._last
        if seconds < 1.0:
            return
        value = {name: float(metric) for name, metric in metrics.items()}
        episodes, mean = int(value["episodes"]), value["episode_return"]
        parts = (
            f"iteration {done:,}/{total:,}",
            f"env steps {env_steps:,}",
            "return –"
            if math.isnan(mean)
            else f"return {mean:.1f} ({episodes} episode{'s'[: episodes != 1]})",
            f"evaluation {self._evaluation:.1f}" if self._evaluation is not None else "",
            f"policy loss {value['policy_loss']:.4f}",
            f"value loss {value['value_loss']:.3g}",
            f"entropy {value['entropy']:.3f}",
            f"{(env_steps - self._steps) / seconds:,.0f} steps/s",
        )
        self._write(" · ".join(part for part in parts if part))
        self._steps, self._last, self._evaluation = env_steps, now, None
