"""Rollouts with the current policy, on the training device or on the CPU beside it."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from hoptui_trainer.common import counter_rng
from hoptui_trainer.common.compilation import compiled
from hoptui_trainer.common.cuda_graphs import Graphs
from hoptui_trainer.common.modes import CompileMode, Precision
from hoptui_trainer.common.phases import NO_CLOCK, PhaseClock
from hoptui_trainer.common.precision import autocast, compute_dtype
from hoptui_trainer.ppo.coefficients import Coefficients
from hoptui_trainer.ppo.config import PPOConfig
from hoptui_trainer.ppo.envs.gym import GymEnv
from hoptui_trainer.ppo.envs.vector import VectorEnv
from hoptui_trainer.ppo.episodes import Episodes
from hoptui_trainer.ppo.policies.policy import Policy
from hoptui_trainer.ppo.policies.transformer import Transformer
from hoptui_trainer.ppo.rollout import Rollout


class Stage(NamedTuple):
    """What is played and learned in at one size: tensors that stay where they are as long as graphs know
    them."""

    rollout: Rollout
    batch: Rollout
    env: tuple[Tensor, ...]
    episodes: tuple[Tensor, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the storage, on whichever device it is."""
        return sum(rollout.nbytes for rollout in {self.rollout, self.batch})


class Collector:
    """Environments, the episodes in them, and the storage of a rollout, all on the device of the
    environments.

    `policy` is the trained one, or a copy of it on that device. A transformer acts in half precision by
    another copy of it, whose large weights are cast once a rollout and not at every step; its output is the
    same to the bit.

    `mode` is how it acts; `stored` is what `batch` fills and the update reads.

    One step of all environments and the estimate of the advantages are the units that become CUDA graphs.
    Graphs are of a size; those of the last sizes are kept with the buffers that they know, so that to go back
    to one costs nothing.
    """

    def __init__(
        self, env: VectorEnv | GymEnv, policy: Policy, config: PPOConfig, *, seed: int, graphs: Graphs
    ) -> None:
        self.env = env
        self.device = env.counter.device
        self.episodes = Episodes(env)
        self.coefficients = Coefficients(config, self.device)
        self.policy = policy
        self._key = counter_rng.key(seed, "action")
        self._graphs = graphs
        self._kept: OrderedDict[tuple[int, int], Stage] = OrderedDict()
        self.rollout = self._storage(config)
        self.stored = self._copy_of(self.rollout, config)
        self.use("off", "fp32")

    def use(self, mode: CompileMode, precision: Precision) -> None:
        """Act compiled like this and in this precision; previous graphs must be cleared.

        Nothing changes if there is no memory for it.
        """
        self._acting = _acting_in(self.policy, compute_dtype(precision))
        self.mode, self._precision = mode, precision
        # Dynamic: another number of environments then costs a capture, and not a compilation of seconds.
        self._play = compiled(self._play_silently, mode, dynamic=True)

    def renew(self, clock: PhaseClock = NO_CLOCK) -> None:
        """Let `policy`, and the copy that acts, have the weights of now."""
        if self._acting is not self.policy:
            _copy_weights(self._acting, self.policy)

    def collect(self, clock: PhaseClock) -> None:
        """Play one rollout, in the phase `rollout`. Nothing in here waits for the device."""
        self.renew(clock)
        with clock.queued("rollout"):
            self._collect(clock)

    def _collect(self, clock: PhaseClock) -> None:
        if self.mode == "off" or not self.env.capturable:
            step = partial(self.rollout.play, self.env, self._acting, self.episodes, self._key, clock)
        else:
            step = partial(self._graphs.run, "rollout step", self._play, of=self.rollout.shape)
        with autocast(self._precision, self.device):
            self.rollout.collect(self.env, self._acting, step)

    def estimate(self) -> None:
        """Fill in the rollout's advantages and value targets: few launches, not worth a compilation for each
        size."""
        with autocast(self._precision, self.device):
            if self.mode == "off":
                self._estimate()
            else:
                self._graphs.run("estimate", self._estimate, of=self.rollout.shape)

    def batch(self, clock: PhaseClock = NO_CLOCK) -> Rollout:
        """The rollout on the device that trains."""
        return self.stored

    @torch.no_grad()
    def prepare(self) -> None:
        """Compile and capture what the next rollout runs; nothing else is different afterwards.

        Raises:
            torch.OutOfMemoryError: there is no memory for it.
        """
        if self.mode == "off" or not self.env.capturable:
            return
        saved, finished = self.state_dict(), self.episodes.take()
        rollout, begin = self.rollout, partial(self.rollout.begin, self._acting)
        try:
            with autocast(self._precision, self.device):
                self._graphs.prepare("rollout step", self._play, rollout.shape, before=begin)
                if self._graphs.active:
                    self._graphs.prepare("estimate", self._estimate, rollout.shape, before=begin)
        finally:
            self.env.load_state_dict(saved["env"])
            self.episodes.load_state_dict(saved["episodes"])
            self.episodes.take()
            self.episodes.give(finished)
            rollout.load_state_dict(saved["history"])

    def fit(self, config: PPOConfig) -> int:
        """Go on with as many environments and steps as `config` has; returns the unfinished episodes
        dropped.

        Nothing changes if there is no memory for it.
        """
        size = config.rollout_len, config.num_envs
        if size == self.rollout.shape and config.num_envs == self.env.num_envs:
            return 0
        stage = self._kept.get(size)
        rollout = stage.rollout if stage else self._storage(config)
        batch = stage.batch if stage else self._copy_of(rollout, config)
        rollout.load_state_dict(self.rollout.state_dict())
        left = Stage(self.rollout, self.stored, self._buffers(), self.episodes.buffers)
        # Else a checkpoint of another size is being loaded.
        whole = self.rollout.num_envs == self.env.num_envs
        dropped = 0
        if config.num_envs != self.env.num_envs:
            dropped = self.env.resize(config.num_envs)
            self.episodes.resize(self.env)
        if stage:
            if isinstance(self.env, VectorEnv):
                self.env.move(stage.env)
                self.episodes.move(stage.episodes)
            del self._kept[size]
        if self._graphs.active and whole:
            self._kept[left.rollout.shape] = left
        self.rollout, self.stored = rollout, batch
        return dropped

    def employ(self, workers: int) -> int | None:
        """Let so many environments of Gymnasium step at once, each in a process of its own; 0: none does.

        Returns how many unfinished episodes were dropped, None where all go on. Nothing changes if processes
        cannot be started.
        """
        if not isinstance(self.env, GymEnv):
            return None
        dropped = self.env.employ(workers)
        if dropped is not None:
            self.episodes.resize(self.env)
        return dropped

    def keeps(self, config: PPOConfig) -> bool:
        """Whether there are buffers of the sizes of `config`."""
        return (config.rollout_len, config.num_envs) in (self.rollout.shape, *self._kept)

    @property
    def kept_bytes(self) -> int:
        """What the sizes take that are kept beside the one in use."""
        return sum(stage.nbytes for stage in self._kept.values())

    def forget(self, *, sizes: int = 0, nbytes: int = 0) -> int:
        """Drop the sizes that were left longest ago, with their graphs, until there are so few left, of so
        few bytes.

        Returns how many were dropped.
        """
        dropped = 0
        while self._kept and (len(self._kept) > sizes or self.kept_bytes > nbytes):
            size, _ = self._kept.popitem(last=False)
            self._graphs.drop(of=size)
            dropped += 1
        return dropped

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """What decides how the rollouts go on; tensors of their own."""
        history = {name: field.clone() for name, field in self.rollout.state_dict().items()}
        return {"env": self.env.state_dict(), "episodes": self.episodes.state_dict(), "history": history}

    def load_state_dict(self, saved: Mapping[str, Mapping[str, Tensor]], config: PPOConfig) -> int:
        """Go on where `saved` was taken, with the sizes of `config`; returns the unfinished episodes
        dropped."""
        self.env.load_state_dict(saved["env"])
        self.episodes.load_state_dict(saved["episodes"])
        dropped = self.fit(config)
        self.rollout.load_state_dict(saved["history"])
        return dropped

    def _buffers(self) -> tuple[Tensor, ...]:
        return self.env.buffers if isinstance(self.env, VectorEnv) else ()

    def _storage(self, config: PPOConfig) -> Rollout:
        return self._stored_on(self.device, config)

    def _copy_of(self, rollout: Rollout, config: PPOConfig) -> Rollout:
        """What the update reads: the rollout itself, where both are on one device."""
        return rollout

    def _stored_on(self, device: torch.device, config: PPOConfig) -> Rollout:
        return Rollout(
            self.env.task,
            self.policy,
            config.rollout_len,
            config.num_envs,
            device,
            longest_sequence=config.sequence_len,
        )

    def _play_silently(self) -> None:
        self.rollout.play(self.env, self._acting, self.episodes, self._key, NO_CLOCK)

    def _estimate(self) -> None:
        numbers = self.coefficients
        self.rollout.estimate(
            self._acting,
            gamma=numbers.gamma,
            gae_lambda=numbers.gae_lambda,
            reward_scale=numbers.reward_scale,
        )


class HybridCollector(Collector):
    """Plays on the CPU with a copy of the policy: the weights come once an iteration, the finished batch goes
    once.

    Nothing comes back from the GPU but the weights, and nothing waits for the copies of the batch. The two
    copies have phases: `transfer/weights` to the CPU, `transfer/batch` to the GPU.
    """

    MOVED = ("obs", "first", "action", "log_prob", "advantage", "target")

    def __init__(
        self, env: VectorEnv | GymEnv, policy: Policy, config: PPOConfig, *, seed: int, graphs: Graphs
    ) -> None:
        self._trained = policy
        self._home = next(policy.parameters()).device
        super().__init__(env, copy.deepcopy(policy).to("cpu"), config, seed=seed, graphs=graphs)

    def use(self, mode: CompileMode, precision: Precision) -> None:
        super().use("off", "fp32")

    def renew(self, clock: PhaseClock = NO_CLOCK) -> None:
        # Waits for the last update, and so for the batch that it read. On a GPU the phase begins when that is
        # done.
        with clock.queued("transfer"), clock.queued("weights"):
            _copy_weights(self.policy, self._trained)

    @torch.no_grad()
    def batch(self, clock: PhaseClock = NO_CLOCK) -> Rollout:
        with clock.queued("transfer"), clock.queued("batch"):
            for name in self.MOVED:
                getattr(self.stored, name).copy_(getattr(self.rollout, name), non_blocking=True)
        return self.stored

    def _storage(self, config: PPOConfig) -> Rollout:
        rollout = super()._storage(config)
        if self._home.type == "cuda":
            for name in self.MOVED:
                setattr(rollout, name, getattr(rollout, name).pin_memory())
        return rollout

    def _copy_of(self, rollout: Rollout, config: PPOConfig) -> Rollout:
        return self._stored_on(self._home, config)


def _acting_in(policy: Policy, dtype: torch.dtype) -> Policy:
    """What acts where autocast computes in `dtype`: a copy, if there are weights whose casts take time."""
    if dtype == torch.float32 or not isinstance(policy, Transformer):
        return policy
    acting = copy.deepcopy(policy).requires_grad_(False)
    acting.lower(dtype)
    return acting


@torch.no_grad()
def _copy_weights(to: Policy, of: Policy) -> None:
    for own, wanted in zip(to.parameters(), of.parameters(), strict=True):
        own.copy_(wanted)


def make_collector(
    env: VectorEnv | GymEnv, policy: Policy, config: PPOConfig, *, seed: int, graphs: Graphs
) -> Collector:
    """The collector that fits where environments and policy are."""
    apart = env.counter.device != next(policy.parameters()).device
    return (HybridCollector if apart else Collector)(env, policy, config, seed=seed, graphs=graphs)
