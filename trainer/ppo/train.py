"""The training loop of PPO."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import hoptui
from trainer.common.checkpoint import checkpoint_path, read_checkpoint, write_checkpoint
from trainer.common.device import choose_device, describe_device, wait_for
from trainer.common.errors import UsageError
from trainer.common.phases import phase_clock
from trainer.common.stop import StopOnSignal
from trainer.ppo.envs.registry import PHYSICS
from trainer.ppo.evaluate import evaluate
from trainer.ppo.job import Job, Plan, settle
from trainer.ppo.live import declare, measured, set_threads
from trainer.ppo.report import Console, Ending, Result
from trainer.ppo.state import TrainingState
from trainer.ppo.update import update

WORKLOAD = "ppo"


def train(job: Job, write: Callable[[str], None]) -> Result:
    """Train until `job.iterations` are done, an evaluation reaches `job.until_return`, or a stop is asked for.

    `write` takes the lines for people.

    Raises:
        UsageError: the job cannot be run as asked.
    """
    began = time.monotonic()
    saved = read_checkpoint(job.resume, WORKLOAD) if job.resume else None
    plan, state = prepare(job, saved)
    config, device, steps_before = plan.config, state.device, state.env_steps
    console = Console(write)
    ending: Ending = "finished"

    run = hoptui.connect(plan.name, total=job.iterations, resume=saved["run"] if saved else None)
    clock = phase_clock(run, device)
    with StopOnSignal(run), run:
        declare(run, job, state)
        save = checkpointing(run, job, plan, state)
        console.begin(introduction(job, plan, state), state.env_steps)

        for iteration in run.iterations(job.iterations, start=state.iteration):
            with clock.queued("rollout"):
                state.rollout.collect(state.env, state.episodes, state.policy, state.streams["policy"], clock)
            with clock.queued("update"):
                state.rollout.estimate(state.policy, config)
                metrics = update(
                    state.policy, state.optimizer, state.rollout, config, state.streams["minibatch"]
                )
            state.iteration = iteration + 1
            state.env_steps += state.rollout.size
            metrics["episode_return"], metrics["episodes"] = state.episodes.take()
            metrics["lr"] = state.optimizer.param_groups[0]["lr"]
            run.log(
                measured(metrics, device),
                env_steps=state.rollout.size,
                samples=state.rollout.size * config.epochs,
                env_steps_total=state.env_steps,
            )
            if job.evaluation_due(state.iteration):
                with clock.waited("evaluation"):
                    state.evaluation_return = evaluate(state.policy, state.physics, device)
                run.log(evaluation_return=state.evaluation_return)
                console.evaluation(state.evaluation_return)
                if job.until_return is not None and state.evaluation_return >= job.until_return:
                    ending = "passed"
            console.iteration(state.iteration, job.iterations, state.env_steps, metrics)
            if save and job.checkpoint_every and state.iteration % job.checkpoint_every == 0:
                with clock.waited("checkpoint"):
                    try_to_save(save, run, write)
            clock.end_iteration()
            if ending == "passed":
                break

        wait_for(device)
        if run.stopping and ending == "finished":
            ending = "stopped"
        if save:
            try_to_save(save, run, write)
        result = Result(
            evaluation_return=state.evaluation_return,
            env_steps=state.env_steps,
            seconds=(seconds := time.monotonic() - began),
            iterations=state.iteration,
            env_steps_per_s=(state.env_steps - steps_before) / seconds,
            ending=ending,
        )
        write(result.sentence())
    return result


def prepare(job: Job, saved: Mapping[str, Any] | None) -> tuple[Plan, TrainingState]:
    """The settled job, and the state to start from.

    Raises:
        UsageError: the job cannot be run as asked.
    """
    if job.checkpoint_dir:
        try:
            job.checkpoint_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--checkpoint-dir {job.checkpoint_dir}: {error.strerror}") from None
    device = choose_device(job.device)
    try:
        plan = settle(job, saved)
        set_threads(job, plan.config)
        state = TrainingState(PHYSICS[plan.env], plan.config, plan.seed, device)
        if saved:
            state.load_state_dict(saved)
    except MemoryError as error:
        raise UsageError(f"--num-envs, --rollout-len, --minibatch-size: {error}") from None
    except (KeyError, TypeError, RuntimeError) as error:
        if not saved:
            raise
        raise UsageError(f"--resume {job.resume}: it does not fit this trainer ({error!r})") from None
    return plan, state


def introduction(job: Job, plan: Plan, state: TrainingState) -> list[str]:
    """What is run, where it goes on, and which source won for each knob that two disagree on."""
    lines = [f"{plan.name}: PPO on {plan.env}, seed {plan.seed}, {describe_device(state.device)}"]
    if job.resume:
        lines.append(f"resumed after iteration {state.iteration:,} and {state.env_steps:,} env steps")
    return lines + list(plan.notes)


def checkpointing(run: hoptui.Run, job: Job, plan: Plan, state: TrainingState) -> Callable[[], Path] | None:
    """What writes a checkpoint of the finished iterations, also when somebody asks for one; None without a folder."""
    folder = job.checkpoint_dir
    if folder is None:
        return None

    def save() -> Path:
        path = checkpoint_path(folder, WORKLOAD, state.iteration)
        write_checkpoint(path, WORKLOAD, {**state.state_dict(), "name": plan.name, "run": run.state_dict()})
        run.event(f"checkpoint written: {path}")
        return path

    run.on_checkpoint(save)
    return save


def try_to_save(save: Callable[[], Path], run: hoptui.Run, write: Callable[[str], None]) -> None:
    """A full disk is worth a warning, not the end of a run that may have taken days."""
    try:
        write(f"checkpoint written: {save()}")
    except OSError as error:
        run.event(f"no checkpoint written: {error}", level="warning")
        write(f"no checkpoint written: {error}")
