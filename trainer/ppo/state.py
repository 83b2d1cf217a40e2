"""Everything that a training run is made of, and that its checkpoints hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from trainer.common.gradient import Pieces
from trainer.common.graphs import graphs
from trainer.common.modes import CompileMode, Precision
from trainer.common.precision import choose_precision, use
from trainer.common.ranks import ALONE, Ranks
from trainer.ppo.coefficients import Coefficients
from trainer.ppo.config import PPOConfig
from trainer.ppo.envs.gym import GymEnv
from trainer.ppo.envs.vector import VectorEnv
from trainer.ppo.memory import check_memory
from trainer.ppo.minibatches import Cut
from trainer.ppo.optimizer import make_optimizer, set_lr
from trainer.ppo.player import make_player
from trainer.ppo.policies.registry import make_policy
from trainer.ppo.update import Update

ENV_DIM = {"env": 0, "episodes": 0, "history": 1}
"""Where the environments are in the tensors of a player's state."""


class TrainingState:
    """Policy, optimizer, environments and counters of this rank; `config` is changed by knobs between iterations.

    `iteration` counts finished iterations, `epoch` the passes over rollouts in them, `env_steps` the steps of all ranks;
    `evaluation_return` is the newest one. `since` counts the iterations since something had to be compiled anew.

    Raises:
        MemoryError: the device has not the memory for `config`.
        UsageError: the device cannot compute in the precision asked for.
    """

    def __init__(
        self,
        env: VectorEnv | GymEnv,
        config: PPOConfig,
        seed: int,
        device: torch.device,
        *,
        ranks: Ranks = ALONE,
    ) -> None:
        self.env, self.config, self.seed, self.device, self.ranks = env, config, seed, device, ranks
        self.policy = make_policy(config, env.task, seed)
        self._held = check_memory(config, env.task, self.policy, env.counter.device)
        self.policy.to(device)
        self.optimizer = make_optimizer(self.policy, config.lr, device)
        self.coefficients = Coefficients(config, device)
        self.graphs = graphs(device)
        self.player = make_player(env, self.policy, config, seed=seed, graphs=self.graphs)
        self.update = Update(
            self.policy,
            self.optimizer,
            self.coefficients,
            seed=seed,
            ranks=ranks,
            graphs=self.graphs,
            pieces=Pieces(1, device, ranks, self._smaller),
        )
        self.iteration = 0
        self.epoch = 0
        self.env_steps = 0
        self.evaluation_return: float | None = None
        self.since = 0
        self._automatic: dict[str, str] = {}  # what `auto` became: another device may choose otherwise
        self.rebuild()
        self.cut_anew()

    @property
    def mode(self) -> CompileMode:
        return cast(CompileMode, self.config.compile)

    @property
    def precision(self) -> Precision:
        return cast(Precision, self.config.precision)

    @property
    def dealt(self) -> Cut:
        """How rollouts are cut into minibatches."""
        return self.update.cut(self.player.rollout, self.config.minibatch_size)

    @property
    def grad_accum(self) -> int:
        """Pieces that a minibatch is computed in: more than asked for where memory ran out, fewer where it has fewer units."""
        return -(-self._share // self.update.pieces.micro_batch)

    @property
    def _share(self) -> int:
        """Units of a whole minibatch on this rank."""
        dealt = self.dealt
        return dealt.strata * dealt.chunk // self.ranks.world

    # what knobs change ---------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Use the numbers that `config` now has."""
        set_lr(self.optimizer, self.config.lr)
        self.coefficients.fill(self.config)
        self.player.coefficients.fill(self.config)

    def cut_anew(self) -> None:
        """Cut rollouts as `config` now says, in as many pieces as it says: also if that was too few before."""
        pieces = self.update.pieces
        pieces.ceiling = None
        pieces.micro_batch = -(-self._share // min(self.config.grad_accum, self._share))
        self.since = 0

    def fit(self) -> int:
        """Bring environments and storage to the sizes that `config` now has; nothing changes if that is impossible.

        Environments that stay keep their episodes. Returns how many unfinished episodes were dropped.

        Raises:
            MemoryError: the device has not the memory.
        """
        config, player = self.config, self.player
        self._held = check_memory(config, self.env.task, self.policy, player.device, self._held)
        self.graphs.clear()
        dropped = player.fit(config)
        self.cut_anew()
        return dropped

    def rebuild(self) -> None:
        """Compute as `config` now says: precision and compilation; `auto` becomes what fits the device.

        Raises:
            UsageError: the device cannot compute in that precision.
        """
        config = self.config
        chosen = {"precision": _precision(config, self.device), "compile": _mode(config, self.device)}
        for name, value in chosen.items():
            asked = getattr(config, name)
            if asked == "auto":
                self._automatic[name] = value
            elif asked != self._automatic.get(name):
                self._automatic.pop(name, None)
            setattr(config, name, value)
        self.graphs.clear()
        self.graphs.wanted = self.mode != "off"
        use(self.precision)
        self.player.use(self.mode, self.precision)
        self.update.use(self.mode, self.precision)
        self.since = 0

    def _smaller(self, before: int, after: int) -> None:
        """Memory ran out in the middle of an update: pieces of another size may have to be compiled right now."""
        self.since = 0
        if self.mode != "off":
            torch.compiler.set_stance("default")

    # checkpoints ---------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All that decides how training goes on, of all ranks, which all call this together.

        The environments are in their global order, so that any number of ranks can go on with them.
        """
        own = {part: _on_cpu(fields) for part, fields in self.player.state_dict().items()}
        everybody = self.ranks.gather(own)
        return {
            "env": self.env.task.id,
            "seed": self.seed,
            "world": self.ranks.world,
            "config": dataclasses.asdict(self.config) | dict.fromkeys(self._automatic, "auto"),
            "iteration": self.iteration,
            "epoch": self.epoch,
            "env_steps": self.env_steps,
            "evaluation_return": self.evaluation_return,
            "policy": self.policy.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "player": {
                part: joined([rank[part] for rank in everybody], dim) for part, dim in ENV_DIM.items()
            },
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> int:
        """Go on where `saved` was taken, with this object's own `config`; returns the unfinished episodes dropped.

        With another network than the saved one, the weights of this object stay as they are.
        """
        self.iteration, self.epoch, self.env_steps = saved["iteration"], saved["epoch"], saved["env_steps"]
        self.evaluation_return = saved["evaluation_return"]
        if not self.has_other_network(saved):
            self.policy.load_state_dict(saved["policy"])
            held = [dict(group) for group in self.optimizer.param_groups]
            self.optimizer.load_state_dict(saved["optimizer"])
            for group, own in zip(self.optimizer.param_groups, held, strict=True):
                # What a group is told by this process: its learning rate (of `config`), and what fits its device.
                group.update({name: value for name, value in own.items() if name != "params"})
        rank, world = self.ranks.rank, self.ranks.world
        player = {part: shared(saved["player"][part], dim, rank, world) for part, dim in ENV_DIM.items()}
        dropped = self.player.load_state_dict(player, self.config)
        self.cut_anew()
        return dropped

    def has_other_network(self, saved: Mapping[str, Any]) -> bool:
        """Whether `saved` was asked to have another network than this state."""
        return any(saved["config"][name] != getattr(self.config, name) for name in ("policy", "hidden"))


def joined(parts: list[dict[str, Tensor]], dim: int) -> dict[str, Tensor]:
    """The tensors of all ranks as those of one: environment i of rank r is number i · world + r along `dim`.

    0-d tensors are the same on every rank.
    """
    first = parts[0]
    return {
        name: torch.stack([part[name] for part in parts], dim + 1).flatten(dim, dim + 1)
        if first[name].ndim
        else first[name]
        for name in first
    }


def shared(whole: Mapping[str, Tensor], dim: int, rank: int, world: int) -> dict[str, Tensor]:
    """The part of one rank in tensors that were joined."""
    return {
        name: field.index_select(dim, torch.arange(rank, field.shape[dim], world)) if field.ndim else field
        for name, field in whole.items()
    }


def _on_cpu(fields: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: field.cpu() for name, field in fields.items()}


def _mode(config: PPOConfig, device: torch.device) -> CompileMode:
    if config.compile == "auto":
        return "off" if device.type == "cpu" else "default"
    return cast(CompileMode, config.compile)


def _precision(config: PPOConfig, device: torch.device) -> Precision:
    """`auto`: TF32 for an MLP and bf16 for a transformer where the GPU has them, else float32."""
    wanted = cast(Precision, config.precision)
    if config.precision != "auto":
        return choose_precision(wanted, device)
    best = choose_precision("auto", device)
    if best != "bf16":
        return "fp32"
    return "tf32" if config.policy == "mlp" else "bf16"
