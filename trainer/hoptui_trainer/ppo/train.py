"""The training loop of PPO."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

import hoptui
from hoptui_trainer.common.checkpoint import resumed
from hoptui_trainer.common.compilation import steady
from hoptui_trainer.common.cuda_graphs import WARM_UPS
from hoptui_trainer.common.device import choose_device, describe_device
from hoptui_trainer.common.flops import Cost, conventions, mfu
from hoptui_trainer.common.memory import (
    greatest_bytes,
    is_out_of_memory,
    pressure,
    prove_first_step,
    release,
    reset_peak,
)
from hoptui_trainer.common.memory_budget import memory_line, set_limit
from hoptui_trainer.common.metrics import DelayedMetrics, Finished, measured
from hoptui_trainer.common.phases import PhaseClock, phase_clock
from hoptui_trainer.common.ranks import RankGroup, join, restarts
from hoptui_trainer.common.report import Console, amount, silent
from hoptui_trainer.common.session import TrainingSession
from hoptui_trainer.common.setup import check_resumed, explained, preparing
from hoptui_trainer.common.signals import StopOnSignal
from hoptui_trainer.common.smaller_model import Consent
from hoptui_trainer.ppo.config import PPOConfig, not_of
from hoptui_trainer.ppo.declarations import Handles, declare, flops_per_step, make_room, set_threads
from hoptui_trainer.ppo.envs.gym import GymTask
from hoptui_trainer.ppo.envs.physics import Physics
from hoptui_trainer.ppo.envs.registry import find_task, make_env
from hoptui_trainer.ppo.evaluate import episodes
from hoptui_trainer.ppo.job import PPOOptions, PPOPlan, make_plan
from hoptui_trainer.ppo.memory import NoRoomError, RolloutMemoryError
from hoptui_trainer.ppo.report import CONVENTIONS, PPOProgress, PPOResult, SteadyRate
from hoptui_trainer.ppo.state import PPOState

WORKLOAD = "ppo"
SIZES = "--num-envs, --rollout-len"
"""The options that decide how much memory a run takes."""


def train(job: PPOOptions, write: Callable[[str], None]) -> PPOResult:
    """Train until `job.iterations` are done, an evaluation reaches `job.until_return`, evaluations get no
    better, or a stop is asked for.

    `write` takes the lines for users, or the one line of JSON. Under torchrun every rank calls this, and
    trains with the others.

    Raises:
        UsageError: the job cannot be run as asked.
        ShortMemoryError: memory ran out, and nothing makes room.
    """
    began = time.monotonic()
    job.check()
    saved, notes = resumed(job.resume, WORKLOAD)
    goes_on = job.resume if saved is not None else None
    with join(job.device) as ranks:
        plan, task, device = resolve(job, saved, ranks)
        on_gpu = device.type == "cuda"
        console, pace = Console(silent if job.json or ranks.rank else write), SteadyRate()

        epoch = saved["run"] if saved else None
        run = hoptui.connect(plan.name, total=job.iterations, resume=epoch, ranks=ranks.store)
        console.unread = run.stop
        clock = phase_clock(run, device)
        with (
            StopOnSignal(run) as signals,
            run,
            ranks.guard(run),
            garbage_collection() as rest,
            ExitStack() as stack,
        ):
            with preparing(run, signals, device), explained(goes_on, SIZES):
                consent = Consent(
                    *(job, run, ranks, device, PPOConfig.check, console.say),
                    without=lambda config: not_of(config.policy),
                    other=(RolloutMemoryError,),
                )
                plan, state = consent.fitted(
                    plan, lambda plan: prepare(job, plan, task, saved, ranks, device)
                )
            config = state.config
            stack.callback(state.close)
            steps_before, delayed = state.env_steps, DelayedMetrics(device)
            lines = PPOProgress(steps_before)
            proven, caught_up = dataclasses.replace(config), False
            reset_peak(device)

            def utilization(steps_per_s: float) -> float | None:
                return mfu(Cost(flops_per_step(state), state.precision), steps_per_s, device, ranks.world)

            handles = declare(run, job, state)
            session = TrainingSession(
                *(WORKLOAD, job, run, ranks, device, console, PPOConfig),
                lambda: (state.iteration, {**state.state_dict(), "name": plan.name}),
                *(state.evaluations, clock, consent, signals),
            )
            session.report_new_weights(state.kept)
            console.begin((*notes, *introduction(job, plan, state, saved), *session.cautions()))
            prove_first_step(ranks, state.prepare)

            for iteration in run.iterations(job.iterations, start=state.iteration):
                if session.restart.due():
                    break
                started, pieces = time.monotonic(), state.grad_accum
                metrics = with_room(state, clock, handles, proven, session)
                if metrics is None:
                    break
                if state.grad_accum > pieces:
                    why = ran_out(pieces)
                    handles["grad_accum"].revert(state.grad_accum, why)
                    console.say(f"grad_accum {pieces} → {state.grad_accum}: {why}")
                followed = caught_up
                caught_up = job.evaluation_due(iteration + 1) or job.checkpoint_due(iteration + 1)
                # The host is an iteration ahead of a GPU. Right after it has waited for that, its times
                # only show how fast it queues.
                plain = state.since > WARM_UPS and not followed and not caught_up
                proven = dataclasses.replace(config)
                steps = state.collector.rollout.size * ranks.world
                state.iteration, state.epoch = iteration + 1, state.epoch + config.epochs
                state.env_steps += steps
                run.log(
                    measured(metrics, device, rare=("episode_return",)),  # no episode may end in an iteration
                    env_steps=steps,
                    samples=steps * config.epochs,
                    env_steps_total=state.env_steps,
                )
                if job.evaluation_due(state.iteration):
                    with clock.waited("evaluation"):
                        found = evaluated(state)
                    session.judge({"evaluation_return": found}, state.iteration)
                    lines.evaluation(state.evaluations.newest["evaluation_return"])
                if job.checkpoint_due(state.iteration):
                    with clock.waited("checkpoint"):
                        session.checkpoints.attempt()
                clock.end_iteration()
                if (seconds := console.due()) > 0:
                    run.log(pressure(device))
                if done := delayed.ready(
                    Finished(state.iteration, state.env_steps, metrics), due=seconds > 0
                ):
                    peak = greatest_bytes(device)
                    console.line(lines.parts(done, job.iterations, seconds, utilization, peak))
                session.tracer.end_iteration()
                state.since += 1
                if plain:
                    pace.add(steps, time.monotonic() - started, utilization(steps) if on_gpu else None)
                elif state.since >= WARM_UPS:
                    rest()
                if session.over:
                    break

            session.end()
            result = PPOResult(
                **state.evaluations.result(),
                env_steps=state.env_steps,
                seconds=(seconds := time.monotonic() - began),
                iterations=state.iteration,
                env_steps_per_s=(state.env_steps - steps_before) / seconds,
                steady_env_steps_per_s=pace.per_s,
                mfu=pace.mfu,
                peak_memory_bytes=greatest_bytes(device),
                minibatch_size=state.dealt.minibatch,
                grad_accum=state.grad_accum,
                ending=session.ending,
                restarts=restarts(os.environ),
            )
            session.announce(result, write)
    if session.replaced:
        session.restart.begin()
    return result


def learned(state: PPOState, clock: PhaseClock) -> dict[str, Tensor] | None:
    """One rollout and one update: its metrics, as 0-d tensors on the device.

    None where the memory of any rank was too short for it. The optimizer may have taken steps then, on
    minibatches for which there was room; the rest of the rollout is dropped.
    """
    config, collector = state.config, state.collector
    again = True
    while again:
        with steady(state.mode if state.since else "off"):
            ready = True
            try:
                collector.collect(clock)
                with clock.queued("update"):
                    collector.estimate()
                collector.batch(clock)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                ready = False
            try:
                with clock.queued("update"):
                    metrics = state.update.run(
                        collector.stored,
                        epochs=config.epochs,
                        minibatch_size=config.minibatch_size,
                        epoch=state.epoch,
                        ready=ready,
                    )
                returns = collector.episodes.take().to(state.device)
                state.ranks.add(returns)
                metrics["episode_return"] = (returns[0] / returns[1]).float()
                metrics["episodes"] = returns[1].float()
                metrics["lr"] = state.optimizer.param_groups[0]["lr"].clone()
                return metrics
            except NoRoomError as error:
                again = error.freed
                state.units_short = not error.rollout
        release(state.device)
    return None


def ran_out(pieces: int) -> str:
    """Why minibatches are computed in more than so many pieces."""
    cut = "minibatches in one piece" if pieces == 1 else f"minibatches in {pieces} pieces"
    return f"memory ran out with {cut}: the same minibatches are computed in smaller ones"


def with_room(
    state: PPOState, clock: PhaseClock, handles: Handles, proven: PPOConfig, session: TrainingSession
) -> dict[str, Tensor] | None:
    """The metrics of an iteration, for which sizes were made smaller where memory was too short.

    None if the loop is to be left for a process with a smaller model, which begins with the sizes of before.

    Raises:
        ShortMemoryError: nothing makes room; the checkpoint is written.
    """
    config = state.config
    anew = {"num_envs": config.num_envs, "rollout_len": config.rollout_len, "grad_accum": 0}
    while (metrics := learned(state, clock)) is None:
        why = ""
        try:
            make_room(state, handles, proven)
        except MemoryError as error:
            why = str(error)
        if why:
            session.shrink(
                config, why, {**anew, **({"checkpointing": False} if state.own_checkpointing else {})}
            )
            return None
    return metrics


def evaluated(state: PPOState) -> float:
    """How good the policy is now, in environments made for the purpose."""
    state.collector.renew()
    with state.ranks.turn(compiles=state.evaluation.compiles):
        return state.evaluation.run()


def resolve(
    job: PPOOptions, saved: Mapping[str, Any] | None, ranks: RankGroup
) -> tuple[PPOPlan, Physics | GymTask, torch.device]:
    """The complete job, what is to be learned, and where.

    Raises:
        UsageError: the job cannot be run as asked.
    """
    set_limit(job.memory_limit)
    device = choose_device(job.device)
    with explained(job.resume if saved is not None else None, SIZES):
        if job.resume:
            check_resumed(ranks, job.resume, saved)
        plan = make_plan(job, saved, on_gpu=device.type == "cuda")
        set_threads(job, plan.config, device, ranks)
        return plan, find_task(plan.env), device


def prepare(
    job: PPOOptions,
    plan: PPOPlan,
    task: Physics | GymTask,
    saved: Mapping[str, Any] | None,
    ranks: RankGroup,
    device: torch.device,
) -> PPOState:
    """The state to start from."""
    is_open = not plan.config.minibatch_size
    env = make_env(
        task,
        plan.config.num_envs,
        plan.seed,
        torch.device("cpu") if job.rollout_device == "cpu" or isinstance(task, GymTask) else device,
        ranks=ranks,
        staggered=True,
        workers=plan.config.env_workers if isinstance(task, GymTask) else 0,
    )
    try:
        state = PPOState(env, plan.config, plan.seed, device, ranks=ranks)
    except BaseException:
        env.close()
        raise
    if is_open:  # as a resumed run has them
        set_threads(job, plan.config, device, ranks)
    if saved:
        state.load_state_dict(saved)
    return state


def introduction(
    job: PPOOptions, plan: PPOPlan, state: PPOState, saved: Mapping[str, Any] | None
) -> Iterator[str]:
    """What is run, where it goes on, the source of each knob that two sources disagree on, and what the
    lines mean."""
    world = state.ranks.world
    where = describe_device(state.device) + (f", {world} ranks" if world > 1 else "")
    yield (
        f"{plan.name}: PPO on {plan.env}, {amount(state.parameters)} parameters ({state.network}), "
        f"seed {plan.seed}, {state.precision}, compile {state.mode}, {where}"
    )
    yield from sizes(state)
    rollout, asked = state.collector.rollout, state.config.sequence_len
    if "sequence_len" in job.knobs and rollout.sequence != asked:
        yield (
            f"sequence_len {asked:,}: {rollout.sequence:,} is in effect, because a rollout has "
            f"{rollout.length:,} steps"
        )
    yield memory_line(state.device, state.ranks.local_world)
    if saved:
        yield f"resumed after iteration {state.iteration:,} and {state.env_steps:,} env steps"
        if state.kept is not None:
            yield f"the network is another one than the checkpoint's: {state.kept}"
    yield from plan.notes
    yield from state.notes
    if state.collector.device != state.device:
        yield f"rollouts on the CPU act in fp32, the update computes in {state.precision}"
    yield from CONVENTIONS
    yield f"evaluation: mean of {episodes(state.env.task)} full episodes with the most probable actions"
    yield from conventions(
        state.device, "; an env step costs a third of that to act in it, and all of it in each epoch"
    )


def sizes(state: PPOState) -> Iterator[str]:
    """What an iteration computes, and in which pieces: as it is in effect, not as it was asked for."""
    rollout, config, world = state.collector.rollout, state.config, state.ranks.world
    yield (
        f"a rollout: {rollout.size * world:,} env steps = {world} × {rollout.num_envs:,} × "
        f"{rollout.length:,} (ranks × environments × steps)"
    )
    in_one = state.update.pieces.micro_batch * rollout.sequence
    yield (
        f"a minibatch: {state.dealt.minibatch:,} samples = {world} × {state.grad_accum:,} × {in_one:,} "
        f"(ranks × pieces × samples in one); {config.epochs} × {state.dealt.count:,} in an update (epochs × "
        "minibatches)"
    )
    if reason := state.minibatch_reason:
        yield f"minibatch_size {config.minibatch_size:,}: {state.dealt.minibatch:,} is in effect: {reason}"


@contextlib.contextmanager
def garbage_collection() -> Iterator[Callable[[], None]]:
    """Python's search for garbage cycles, which stops all threads for up to half a second whenever it likes.

    From the first call of what is yielded it runs in that call alone, and no longer looks at what was there
    before.
    """
    seen = False

    def rest() -> None:
        nonlocal seen
        gc.collect()
        if not seen:
            gc.freeze()
            gc.disable()
            seen = True

    try:
        yield rest
    finally:
        if seen:
            gc.unfreeze()
            gc.enable()
