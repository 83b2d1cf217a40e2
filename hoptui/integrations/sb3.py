"""Stable-Baselines3: `model.learn(100_000, callback=HoptuiCallback())`.

An iteration is a rollout and the update after it. Off-policy algorithms collect a few steps at a time. There
an iteration is as many rollouts as make up `steps_per_iteration` environment steps. The boundary is the start
of a rollout: the update is over, and no step of the next rollout is taken.
"""

from __future__ import annotations

import copy
import functools
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common import buffers
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, ConvertCallback, EventCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

import hoptui
from hoptui.integrations.error_guard import harmless
from hoptui.integrations.versions import Supported

log = logging.getLogger("hoptui")

SUPPORTED = Supported("stable-baselines3", "2.3", "2.9")
RESIZABLE = (buffers.RolloutBuffer, buffers.DictRolloutBuffer)
"""The rollout buffers whose size may change. Another class may keep more arrays than these two."""


class HoptuiCallback(BaseCallback):  # type: ignore[misc]
    """Make each `learn` a run that hoptui shows and changes.

    Args:
        name: The name of the run. None: the name of the algorithm and of the environment, `PPO-CartPole-v1`.
        checkpoint_dir: The folder for models that a user asks for. None: the working folder.
        steps_per_iteration: Of an off-policy algorithm: the environment steps that make an iteration.

    Example:
        ```python
        from hoptui.integrations.sb3 import HoptuiCallback

        PPO("MlpPolicy", "CartPole-v1").learn(100_000, callback=HoptuiCallback("my-run"))
        ```
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        checkpoint_dir: str | Path | None = None,
        steps_per_iteration: int = 100,
    ) -> None:
        super().__init__()
        self.name = name
        self.checkpoint_dir = checkpoint_dir
        self.steps_per_iteration = steps_per_iteration
        self.run: hoptui.Run | None = None
        self._resume: dict[str, Any] | None = None
        self._go = True
        self._iteration = 0

    # the life of a learn ------------------------------------------------------------------------------------

    @harmless
    def _on_training_start(self) -> None:
        SUPPORTED.warn()
        model = self.model
        self._on_policy = isinstance(model, OnPolicyAlgorithm)
        if not self.num_timesteps:
            self._iteration = 0
        self._go, self._begun, self._phase = True, False, ""
        self._counted = self._planned_at = self.num_timesteps
        self._updates = int(model._n_updates)
        self._seen: dict[str, Any] = {}
        self._rollout_next: int | None = None
        self._total = self._planned()
        self.run = run = hoptui.connect(self.name or _name(model), total=self._total, resume=self._resume)
        run.metric("env_steps_per_s", unit="steps/s", headline=True)
        run.on_checkpoint(self._save)
        self._declare(run)

    @harmless
    def _on_training_end(self) -> None:
        run = self.run
        if run is None:
            return
        self._log(run)
        self._resume, self.run = run.state_dict(), None  # another learn is the next restart of the run
        run.close()

    # iterations ---------------------------------------------------------------------------------------------

    @harmless
    def _on_rollout_start(self) -> None:
        run = self.run
        if run is None:
            return
        if (
            not self._begun
            or self._on_policy
            or self.num_timesteps - self._counted >= self.steps_per_iteration
        ):
            if self._begun:
                self._log(run)
                self._iteration += 1
            self._begun = True
            self._resize()
            self._plan(run)
            self._phase = ""
            self._go = run.boundary(self._iteration)
        self._enter(run, "rollout")

    @harmless
    def _on_rollout_end(self) -> None:
        if self.run is not None:
            self._enter(self.run, "update")

    def _on_step(self) -> bool:
        """Return whether to go on. Stable-Baselines3 asks after each step of the environments alone."""
        return self._go

    def give_up(self) -> None:
        """End the run after an error of this class, and let training go on."""
        self._go, run, self.run = True, self.run, None
        if run is not None:
            run.close()

    def _enter(self, run: hoptui.Run, name: str) -> None:
        if self._phase:
            run.leave(self._phase)
        run.enter(name)
        self._phase = name

    def _log(self, run: hoptui.Run) -> None:
        """Log the iteration that has just ended: its steps, what the update recorded, the latest episodes."""
        model = self.model
        updates = int(model._n_updates)
        found: dict[str, Any] = {}
        for name, value in model.logger.name_to_value.items():
            # The logger keeps values until it writes. A new value of `train/…` comes with an update.
            fresh = (
                updates != self._updates if name.startswith("train/") else value is not self._seen.get(name)
            )
            self._seen[name] = value
            if fresh:
                found[name] = value
        self._updates = updates
        for name, key in (("rollout/ep_rew_mean", "r"), ("rollout/ep_len_mean", "l")):
            episodes = [each[key] for each in model.ep_info_buffer or () if key in each]
            if episodes:
                found[name] = float(np.mean(episodes))
        run.log(found, env_steps=self.num_timesteps - self._counted)
        self._counted = self.num_timesteps

    # the total ----------------------------------------------------------------------------------------------

    def _planned(self) -> int | None:
        """Return the number of iterations until the timesteps of `learn` are reached."""
        model = self.model
        total = self.locals.get("total_timesteps")
        if not isinstance(total, (int, float)):
            return None
        if self._on_policy:
            each = int(model.n_steps) * int(model.n_envs)
        else:
            frequency, unit = model.train_freq.frequency, model.train_freq.unit.value
            if unit != "step":  # an episode has any number of steps
                return None
            rollout = int(frequency) * int(model.n_envs)
            each = math.ceil(self.steps_per_iteration / rollout) * rollout
        return self._iteration + math.ceil((total - self.num_timesteps) / each) if each > 0 else None

    def _plan(self, run: hoptui.Run) -> None:
        """Report another number of iterations, as after a change of `n_steps`."""
        total = self._planned()
        if total is not None and total != self._total:
            self._total = total
            run.plan(total)

    # knobs --------------------------------------------------------------------------------------------------

    def _declare(self, run: hoptui.Run) -> None:
        model = self.model
        self._schedule(run, "learning_rate", "lr_schedule", low=1e-9, high=10.0)
        self._number(run, "gamma", low=0.0, high=1.0, also=("rollout_buffer", "replay_buffer"))
        if self._on_policy:
            self._number(run, "gae_lambda", low=0.0, high=1.0, also=("rollout_buffer",))
            self._number(run, "ent_coef", low=0.0, high=10.0)
            self._number(run, "vf_coef", low=0.0, high=100.0)
            self._number(run, "max_grad_norm", low=1e-6, high=1e6)
            self._number(run, "n_epochs", low=1, high=1000)
            self._schedule(run, "clip_range", "clip_range", low=1e-6, high=10.0)
            if getattr(model, "clip_range_vf", None) is not None:
                self._schedule(run, "clip_range_vf", "clip_range_vf", low=1e-6, high=1e6)
            self._declare_rollout(run)
        else:
            self._number(run, "tau", low=1e-9, high=1.0)
            if isinstance(model.gradient_steps, int) and model.gradient_steps > 0:
                self._number(run, "gradient_steps", low=1, high=100_000)
            self._declare_entropy(run)
        self._declare_batch(run)
        run.decline(
            "n_envs",
            f"the model was made for {model.n_envs}: start the script again with another number",
        )

    def _number(
        self, run: hoptui.Run, name: str, *, low: float, high: float, also: tuple[str, ...] = ()
    ) -> None:
        """Offer a number that each rollout or update reads from the model, and from some of its parts."""
        model = self.model
        value = getattr(model, name, None)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return  # this algorithm has none, or does not use a number

        def apply(new: float) -> None:
            for holder in (model, *(getattr(model, part, None) for part in also)):
                if holder is model or hasattr(holder, name):
                    setattr(holder, name, new)

        kind = int if isinstance(value, int) and isinstance(low, int) else float
        run.knob(name, kind(value), min=low, max=high, apply=apply, read=lambda: kind(getattr(model, name)))

    def _schedule(self, run: hoptui.Run, name: str, attribute: str, *, low: float, high: float) -> None:
        """Offer a schedule by its first value. A change scales all of it, so the schedule keeps its form."""
        model = self.model
        if not callable(getattr(model, attribute, None)):
            return

        def read() -> float:
            return float(getattr(model, attribute)(1.0))

        def apply(value: float) -> None:
            former = getattr(model, attribute)
            new = _scheduled(former, value if constant else _scaled(former, value / read()))
            setattr(model, attribute, new)
            if name == "learning_rate":  # a model that is loaded makes its schedule of this
                model.learning_rate = new if callable(model.learning_rate) else value

        constant, first = _constant(getattr(model, attribute)), read()
        if low <= first <= high:  # a schedule that begins at 0 has no factor
            text = "" if constant else "the start of its schedule, which goes on from there"
            run.knob(name, first, min=low, max=high, scale="log", apply=apply, read=read, description=text)

    def _declare_batch(self, run: hoptui.Run) -> None:
        model = self.model
        if not isinstance(getattr(model, "batch_size", None), int):
            return  # A2C takes the whole rollout

        def apply(size: int) -> None:
            model.batch_size = size
            self._check_batches(run, int(getattr(model, "n_steps", 0)))

        run.knob(
            "batch_size",
            int(model.batch_size),
            min=2 if self._on_policy else 1,
            max=1 << 20,
            cost="shape",
            apply=apply,
            read=lambda: int(model.batch_size),
            unit="samples",
            description="samples of one gradient step",
        )

    def _check_batches(self, run: hoptui.Run, steps: int) -> None:
        """Warn as Stable-Baselines3 does in the constructor: the last minibatch of an epoch is smaller."""
        size = steps * int(self.model.n_envs)
        batch = getattr(self.model, "batch_size", None)
        if self._on_policy and isinstance(batch, int) and size % batch:
            run.event(
                f"batch_size {batch} is no factor of n_steps × n_envs = {size}: "
                f"the last minibatch of each epoch has {size % batch} samples",
                level="warning",
            )

    def _declare_rollout(self, run: hoptui.Run) -> None:
        """Offer `n_steps`, which takes effect one rollout later: `learn` has passed it on already."""
        model = self.model
        if type(model.rollout_buffer) not in RESIZABLE:
            return

        def apply(steps: int) -> object:
            buffer = model.rollout_buffer
            trial = copy.copy(buffer)  # the arrays of the next size fit into memory, or this raises
            trial.buffer_size = steps
            trial.reset()
            model.n_steps = steps
            self._rollout_next = steps if steps != buffer.buffer_size else None
            if self._rollout_next is None:
                return None
            self._check_batches(run, steps)
            return hoptui.LATER

        self._rollout_knob = run.knob(
            "n_steps",
            int(model.n_steps),
            min=2,
            max=1 << 20,
            cost="shape",
            apply=apply,
            read=lambda: int(model.rollout_buffer.buffer_size),
            unit="steps",
            description="steps of each environment in one rollout; takes effect one rollout later",
        )

    def _resize(self) -> None:
        """Give the rollout buffer the size of the rollout that begins."""
        if self._rollout_next is None:
            return
        buffer = self.model.rollout_buffer
        buffer.buffer_size = self._rollout_next
        buffer.reset()
        self._rollout_next = None
        self._rollout_knob.holds()

    def _declare_entropy(self, run: hoptui.Run) -> None:
        """Offer the entropy coefficient of SAC, if it is not learned."""
        model = self.model
        if getattr(model, "ent_coef_tensor", None) is None or getattr(model, "ent_coef_optimizer", None):
            return

        def apply(value: float) -> None:
            model.ent_coef = value
            model.ent_coef_tensor = model.ent_coef_tensor.new_tensor(value)

        run.knob(
            "ent_coef",
            float(model.ent_coef_tensor),
            min=0.0,
            max=10.0,
            apply=apply,
            read=lambda: float(model.ent_coef),
        )

    # checkpoints --------------------------------------------------------------------------------------------

    def _save(self) -> str:
        """Save the model as `CheckpointCallback` does, with the statistics of a `VecNormalize`."""
        name = "".join(c if c.isalnum() or c in "-_." else "_" for c in self.name or _name(self.model))
        path = Path(self.checkpoint_dir or ".").absolute() / f"{name}_{self.num_timesteps}_steps.zip"
        path.parent.mkdir(parents=True, exist_ok=True)
        self.model.save(path)
        normalize = self.model.get_vec_normalize_env()
        if normalize is not None:
            normalize.save(str(path.with_suffix("")) + "_vecnormalize.pkl")
        return str(path)


def _name(model: Any) -> str:
    """Return `PPO-CartPole-v1` for a model."""
    found: Any = None
    try:
        found = model.get_env().get_attr("spec", 0)[0]
    except Exception as error:
        log.debug("the environment has no name: %s", error)
    algorithm = type(model).__name__
    return f"{algorithm}-{found.id}" if found is not None and hasattr(found, "id") else algorithm


# Schedules are saved with a model. Functions within functions are saved by value, so a model can be loaded
# where hoptui is not installed.


def _constant(schedule: Any) -> bool:
    """Return whether a schedule gives the same value all the time."""
    return len({float(schedule(progress)) for progress in (1.0, 0.73, 0.5, 0.25, 0.0)}) == 1


def _scaled(schedule: Any, factor: float) -> Callable[[float], float]:
    def scaled(progress_remaining: float) -> float:
        return float(schedule(progress_remaining)) * factor

    return scaled


def _scheduled(former: Any, schedule: Any) -> Any:
    """Return a schedule in the class of the former one, `FloatSchedule` since 2.6, or as a function."""
    kind = type(former)
    if kind.__name__ == "FloatSchedule":
        return kind(schedule)
    if callable(schedule):
        return schedule

    def constant(progress_remaining: float) -> float:
        return schedule  # type: ignore[no-any-return]

    return constant


def install(name: str | None = None) -> None:
    """Give each `learn` of this process the callback from now on, unless its script passes one.

    It covers the algorithms that use the `learn` of `OnPolicyAlgorithm` or `OffPolicyAlgorithm`, as all of
    Stable-Baselines3 do.

    Args:
        name: The name of the runs. None: the name of the algorithm and of the environment.

    Example:
        ```python
        import hoptui.integrations.sb3

        hoptui.integrations.sb3.install("my-run")
        ```
    """
    for kind in (OnPolicyAlgorithm, OffPolicyAlgorithm):
        if not getattr(kind.learn, "of_hoptui", False):
            kind.learn = _installing(kind.learn, name)


def _installing(original: Callable[..., Any], name: str | None) -> Callable[..., Any]:
    @functools.wraps(original)
    def learn(self: Any, total_timesteps: Any, callback: Any = None, *args: Any, **kwargs: Any) -> Any:
        added = None
        try:
            if not _has_callback(callback):
                added = HoptuiCallback(name)
                callback = CallbackList([*_callbacks(callback), added])
        except Exception as error:
            log.warning("hoptui is off in this run: %s: %s", type(error).__name__, error)
        try:
            return original(self, total_timesteps, callback, *args, **kwargs)
        except BaseException as error:
            if added is not None and added.run is not None:
                interrupted = isinstance(error, KeyboardInterrupt)
                run, added.run = added.run, None
                run.close("stopped" if interrupted else "exception", f"{type(error).__name__}: {error}")
            raise

    learn.of_hoptui = True  # type: ignore[attr-defined]
    return learn


def _callbacks(callback: Any) -> list[Any]:
    """Return what `learn` accepts as a list of callbacks."""
    if callback is None:
        return []
    if isinstance(callback, list):
        return list(callback)
    return [callback if isinstance(callback, BaseCallback) else ConvertCallback(callback)]


def _has_callback(callback: Any) -> bool:
    """Return whether there is a callback of hoptui in what the script passed."""
    if isinstance(callback, HoptuiCallback):
        return True
    if isinstance(callback, CallbackList):
        return any(map(_has_callback, callback.callbacks))
    if isinstance(callback, list):
        return any(map(_has_callback, callback))
    return isinstance(callback, EventCallback) and _has_callback(callback.callback)
