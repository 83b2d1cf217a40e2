"""The knobs, the metrics and the cost that a run declares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

import hoptui
from hoptui.sdk import KnobHandle
from hoptui_trainer.common.applicability import Circumstances, knob_setters, objection, without_effect
from hoptui_trainer.common.auto_batch import MOST_SAMPLES
from hoptui_trainer.common.device import choose_threads
from hoptui_trainer.common.flat_gradient import WITHOUT_BUCKETS
from hoptui_trainer.common.notes import NoteEvents
from hoptui_trainer.common.options import declared
from hoptui_trainer.common.ranks import RankGroup
from hoptui_trainer.ppo.coefficients import NAMES
from hoptui_trainer.ppo.config import (
    MODEL_SIZES,
    TRANSFORMERS,
    PPOConfig,
    not_of,
)
from hoptui_trainer.ppo.job import RULES, PPOOptions
from hoptui_trainer.ppo.optimizer import read_lr
from hoptui_trainer.ppo.policies.transformer import Transformer
from hoptui_trainer.ppo.state import PPOState

RESTARTED = tuple(name for name, _, knob in declared(PPOConfig) if knob.cost == "restart")
"""Knobs that need a new network."""

Handles = Mapping[str, KnobHandle[Any]]


def declare(run: hoptui.Run, job: PPOOptions, state: PPOState) -> Handles:
    """Declare the run's knobs and metrics. The run applies knobs between two iterations."""
    config = state.config
    notes = NoteEvents(run, state.notes)

    def prepare() -> None:
        """Make the change, however long it takes, and report its result."""
        set_threads(job, config, state.device, state.ranks)
        state.prepare()
        notes.report()
        for name in state.automatic:
            handles[name].adopt()

    def fit(_: object) -> None:
        before = state.env.num_envs
        dropped = state.fit()
        prepare()
        if config.num_envs < before:
            run.event(f"num_envs {before} → {config.num_envs}: {dropped} unfinished episodes dropped")

    def cut(size: object) -> None:
        state.cut_anew()
        prepare()
        if not size:  # it was chosen
            handles["minibatch_size"].adopt()
        elif reason := state.minibatch_reason:
            handles["minibatch_size"].explain(reason)

    def accumulate(_: object) -> None:
        state.cut_anew(sizes=False)
        prepare()

    def employ(workers: int) -> None:
        before = state.env.workers
        dropped = state.collector.employ(workers)
        if dropped is not None:
            run.event(
                f"env_workers {before} → {state.env.workers}: all episodes began anew, {dropped} unfinished "
                "ones dropped"
            )

    def turn(_: object) -> None:
        state.turn()

    def rebuild(_: object) -> None:
        state.rebuild()
        state.cut_anew()
        prepare()
        declare_cost(run, state)

    def begin_anew(name: str) -> Callable[[Any], None]:
        """What refuses a network that cannot be, together with what else waits for a new process."""

        def check(value: Any) -> None:
            if value != getattr(config, name):  # else what waited is taken back
                check_network(config, {**run.restart_wanted, name: value})

        return check

    apply: dict[str, Callable[[Any], object]] = {
        **dict.fromkeys(("num_envs", "rollout_len"), fit),
        "env_workers": employ,
        "minibatch_size": cut,
        "grad_accum": accumulate,
        **dict.fromkeys(("lr", *NAMES), turn),
        **dict.fromkeys(("precision", "compile", "checkpointing"), rebuild),
        **{name: begin_anew(name) for name in RESTARTED},
        "epochs": lambda _: declare_cost(run, state),
    }
    read: dict[str, Callable[[], Any]] = {
        "num_envs": lambda: state.env.num_envs,
        "env_workers": lambda: state.env.workers,
        "rollout_len": lambda: state.collector.rollout.length,
        "minibatch_size": lambda: state.dealt.minibatch,
        "grad_accum": lambda: state.grad_accum,
        "lr": lambda: read_lr(state.optimizer),
        **{name: _reader(state, name) for name in NAMES},
    }

    def circumstances() -> Circumstances:
        return Circumstances(
            config=config,
            on_gpu=state.device.type == "cuda",
            source=state.env.task.id,
            acts_on_cpu=state.collector.device != state.device,
        )

    run.decline("ddp_bucket_mb", WITHOUT_BUCKETS)
    handles = run.knobs(
        config,
        apply=knob_setters(RULES, circumstances, apply),
        read=read,
        without=without_effect(RULES, circumstances()),
    )
    run.metric("env_steps_per_s", unit="steps/s", headline=True)
    run.metric("samples_per_s", unit="samples/s")
    run.metric("env_steps", unit="steps")
    run.metric("env_steps_total", unit="steps")
    run.metric("samples", unit="samples")
    run.metric("entropy", unit="nat")
    run.metric("approx_kl", unit="nat")
    declare_cost(run, state)
    notes.report()
    return handles


def check_network(config: PPOConfig, wanted: Mapping[str, Any]) -> None:
    """Refuse values of knobs with which a new process could not begin: all that `wanted` changes in `config`.

    Raises:
        ValueError: one sentence that begins with the name of a knob.
    """
    policy = wanted.get("policy", config.policy)
    left = {} if policy == config.policy else dict.fromkeys(MODEL_SIZES, 0)
    network = replace(config, **{**left, **wanted})
    if reason := objection(RULES, Circumstances(config=network, on_gpu=False), wanted):
        raise ValueError(reason)
    for name, value in wanted.items():
        if name in MODEL_SIZES and not value:
            raise ValueError(f"{name}: 0 is for the command line; {policy} has {TRANSFORMERS[policy][name]}")
    network.check()


def flops_per_step(state: PPOState) -> float:
    """What an environment step costs: matrix products alone, 2 FLOPs a weight forwards, 4 backwards.

    The policy sees each step once in the rollout and once in each epoch, there with gradients. What a
    transformer reads again of the steps before a sequence is not counted: it is no step of this rollout. Nor
    is a rollout that the CPU acts in: its work is none of the GPU's.
    """
    forward = 2 * sum(p.numel() for p in state.policy.parameters() if p.ndim == 2)
    if isinstance(state.policy, Transformer):
        widths = state.policy.widths
        forward += 4 * widths.layers * widths.d_model * state.policy.context
    acting = state.collector.device == state.device
    return forward * (acting + 3 * state.config.epochs)


def declare_cost(run: hoptui.Run, state: PPOState) -> None:
    """Declare what an environment step costs, and in which precision; nothing on a CPU, whose peak is
    unknown."""
    if state.device.type == "cuda":
        run.flops(flops_per_step(state), metric="env_steps_per_s", precision=state.precision)


def set_threads(job: PPOOptions, config: PPOConfig, device: torch.device, ranks: RankGroup) -> None:
    """Let torch use as many CPU threads as the job has, or as pay off for the size of a micro-batch computed
    on the CPU.

    Before anything is computed: the number of threads changes the order of sums, and so the last bits.
    Compiled code is of one number, on a GPU too: where that does the work, a change of sizes must not cost a
    compilation of everything.
    """
    minibatch = min(
        (config.minibatch_size or MOST_SAMPLES) // ranks.world, config.num_envs * config.rollout_len
    )
    if job.threads:
        torch.set_num_threads(job.threads)
    elif device.type == "cpu":
        chosen = choose_threads(minibatch // max(1, config.grad_accum))
        torch.set_num_threads(max(1, chosen // ranks.core_sharers))


def _reader(state: PPOState, name: str) -> Callable[[], float]:
    return lambda: state.coefficients.read(name)


def make_room(state: PPOState, handles: Handles, proven: PPOConfig) -> None:
    """Make room: a transformer keeps no activations any more if single units of a minibatch were too much.
    Else what is too large shrinks: back to the sizes that were `proven`, else rollout, else environments.

    Micro-batches have given way before, by themselves. Called on all ranks alike.

    Raises:
        MemoryError: one step of one environment is too much.
    """
    state.proves_sizes = False  # there is no room for it now
    config = state.config
    try:
        if state.units_short and not config.checkpointing and "checkpointing" not in not_of(config.policy):
            state.own_checkpointing = True
            handles["checkpointing"].revert(True, "memory ran out with single units of a minibatch")
            return
        name, size = _smaller(config, proven)
        handles[name].revert(size, "memory ran out")
    finally:
        state.proves_sizes = True


def _smaller(config: PPOConfig, proven: PPOConfig) -> tuple[str, int]:
    """The size that gives way, and to what."""
    for name in ("num_envs", "rollout_len"):
        if getattr(config, name) > (before := getattr(proven, name)):
            return name, before
    for name in ("rollout_len", "num_envs"):
        if (now := getattr(config, name)) > 1:
            return name, now // 2
    raise MemoryError("memory ran out with one step of one environment")
