"""The state of a PPO run, and its checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, cast

import torch

from hoptui_trainer.common.compilation import choose_mode
from hoptui_trainer.common.cuda_graphs import graphs
from hoptui_trainer.common.device import free_bytes
from hoptui_trainer.common.evaluations import Evaluations
from hoptui_trainer.common.gradient import Pieces
from hoptui_trainer.common.kept_weights import KeptWeights, keep_fitting
from hoptui_trainer.common.memory import on_all_ranks
from hoptui_trainer.common.memory_budget import bytes_within_limit
from hoptui_trainer.common.modes import CompileMode, Precision
from hoptui_trainer.common.precision import choose_precision, use
from hoptui_trainer.common.ranks import ALONE, RankGroup
from hoptui_trainer.common.report import model_size
from hoptui_trainer.ppo.coefficients import Coefficients
from hoptui_trainer.ppo.collector import make_collector
from hoptui_trainer.ppo.config import PPOConfig, model_sizes
from hoptui_trainer.ppo.envs.gym import GymEnv
from hoptui_trainer.ppo.envs.vector import VectorEnv
from hoptui_trainer.ppo.evaluate import Evaluation
from hoptui_trainer.ppo.memory import check_memory
from hoptui_trainer.ppo.minibatch_sizes import MinibatchSizes
from hoptui_trainer.ppo.minibatches import Cut
from hoptui_trainer.ppo.optimizer import make_optimizer, set_lr
from hoptui_trainer.ppo.policies.registry import make_policy
from hoptui_trainer.ppo.policies.transformer import Transformer
from hoptui_trainer.ppo.rank_layout import ENV_DIM, joined, on_cpu, shared
from hoptui_trainer.ppo.update import Update

OPEN: Mapping[str, int | str] = {"precision": "auto", "compile": "auto", "grad_accum": 0}
"""Knobs that may be left open, and how: they are chosen when training starts, and again in the next
process."""
KEPT_SIZES, KEPT_SHARE = 4, 0.1
"""Previous sizes whose buffers and graphs are kept, and the part of the free memory that they may take
together."""


class PPOState:
    """Policy, optimizer, environments and counters of this rank; `config` is changed by knobs between
    iterations.

    `iteration` counts finished iterations, `epoch` the passes over rollouts in them, `env_steps` the steps of
    all ranks; `evaluations` are those of its weights. `since` counts the iterations since something had to be
    compiled anew; `proves_sizes` is false where memory has run out, and nothing is kept or captured in
    advance. `units_short` is whether it last ran out with single units of a minibatch,
    `own_checkpointing` whether checkpointing was switched on for that, by no user. `kept` is what the
    policy has of a checkpoint with another network, None without one. `notes` has what was measured.
    `automatic` is what the knobs that were left open are here; elsewhere it may be another.

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
        ranks: RankGroup = ALONE,
    ) -> None:
        self.env, self.config, self.seed, self.device, self.ranks = env, config, seed, device, ranks
        self.policy = make_policy(config, env.task, seed)
        self._needed: dict[tuple[int, int], int] = {}  # bytes, by size
        on_all_ranks(ranks, device, self._find_room)
        on_all_ranks(ranks, device, lambda: self.policy.to(device))
        self.optimizer = on_all_ranks(ranks, device, lambda: make_optimizer(self.policy, config.lr, device))
        self.coefficients = Coefficients(config, device)
        self.graphs = graphs(device)
        self.collector = make_collector(env, self.policy, config, seed=seed, graphs=self.graphs)
        self.update = Update(
            self.policy,
            self.optimizer,
            self.coefficients,
            seed=seed,
            ranks=ranks,
            graphs=self.graphs,
            pieces=Pieces(1, device, ranks, self._smaller),
            make_way=self.forget_sizes,
        )
        self.evaluation = Evaluation(env.task, self.collector.policy, self.collector.device, self.graphs)
        self.iteration = 0
        self.epoch = 0
        self.env_steps = 0
        self.evaluations = Evaluations("evaluation_return", higher=True)
        self.since = 0
        self.proves_sizes = True
        self.units_short = self.own_checkpointing = False
        self.notes: list[str] = []
        self.kept: KeptWeights | None = None
        self._sizes = MinibatchSizes(self.update, self.collector, ranks, device)
        self._compiled: set[tuple[int, int]] = set()
        self.automatic: dict[str, int | str] = {}
        self.rebuild()
        self.cut_anew()

    @property
    def mode(self) -> CompileMode:
        return cast(CompileMode, self.config.compile)

    @property
    def precision(self) -> Precision:
        return cast(Precision, self.config.precision)

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.policy.parameters())

    @property
    def network(self) -> str:
        """The policy and its sizes, for users."""
        if not isinstance(self.policy, Transformer):
            return f"{self.config.policy}, {self.config.hidden} hidden units"
        shown = model_size(model_sizes(self.config))
        saving = ", checkpointing" if self.policy.checkpointing else ""
        return f"{self.config.policy}: {shown}, context {self.policy.context}{saving}"

    @property
    def dealt(self) -> Cut:
        """How rollouts are cut into minibatches."""
        return self.update.cut(self.collector.rollout, self.config.minibatch_size)

    @property
    def grad_accum(self) -> int:
        """Pieces that a minibatch is computed in: more than asked for where memory ran out, fewer where it
        has fewer units."""
        return -(-self._share // self.update.pieces.micro_batch)

    @property
    def minibatch_reason(self) -> str:
        """Why minibatches have another size than `config` asks for; "" where they have that."""
        asked, rollout, world = self.config.minibatch_size, self.collector.rollout, self.ranks.world
        if self.dealt.minibatch == asked:
            return ""
        if asked > rollout.size * world:
            return f"a rollout has {rollout.size * world:,} samples (num_envs × rollout_len × ranks)"
        return f"it must be a multiple of {rollout.sequence * world:,} samples"

    @property
    def _share(self) -> int:
        """Units of a whole minibatch on this rank."""
        return self.dealt.share(0, self.ranks.world)

    # what knobs change --------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Use the numbers that `config` now has."""
        set_lr(self.optimizer, self.config.lr)
        self.coefficients.fill(self.config)
        self.collector.coefficients.fill(self.config)

    def cut_anew(self, *, sizes: bool = True) -> None:
        """Cut rollouts by the present `config`, in its number of pieces; 0 pieces are chosen by
        measurement.

        With `sizes` minibatches may have others than before: then what was measured of them is measured
        again, and they are cut in more pieces than asked for if pieces so large were too much before.

        Raises:
            MemoryError: pieces so large were too much before, or not even small ones fit; on all ranks.
        """
        if not self.config.minibatch_size:
            self.config.minibatch_size, note = self._sizes.minibatch()
            self.notes.append(note)
        config, share = self.config, self._share
        is_open = config.grad_accum in (0, self.automatic.get("grad_accum"))
        if not config.grad_accum or (is_open and sizes):
            config.grad_accum = self._measured_pieces(share)
        pieces = self.update.pieces
        size = -(-share // min(config.grad_accum, share))
        pieces.resize(
            max(1, min(size, pieces.ceiling - 1)) if pieces.ceiling and (sizes or is_open) else size
        )
        self.automatic.pop("grad_accum", None)
        if is_open:
            self.automatic["grad_accum"] = config.grad_accum = self.grad_accum
        self.since = 0

    def fit(self) -> int:
        """Bring environments and storage to the sizes that `config` now has; nothing changes if that is
        impossible.

        Environments that stay keep their episodes. Returns how many unfinished episodes were dropped.

        Raises:
            MemoryError: a device has not the memory; on all ranks.
        """
        before = self.collector.rollout.sequence
        on_all_ranks(self.ranks, self.device, self._find_room)
        dropped = on_all_ranks(self.ranks, self.device, self._fit)
        if self.collector.rollout.sequence != before:  # what is sampled as one
            self._forget_measured()
        self.cut_anew()
        return dropped

    def rebuild(self) -> None:
        """Compute by the present `config`: precision, compilation and checkpointing of activations; `auto`
        becomes what fits the device.

        Raises:
            UsageError: the device cannot compute in that precision.
        """
        config = self.config

        def choose() -> dict[str, str]:
            precision = _precision(config, self.device)
            return {"precision": precision, "compile": choose_mode(config.compile, self.device)}

        chosen = on_all_ranks(self.ranks, self.device, choose)
        for name, value in chosen.items():
            asked = getattr(config, name)
            if asked == "auto":
                self.automatic[name] = value
            elif asked != self.automatic.get(name):
                self.automatic.pop(name, None)
            setattr(config, name, value)
        self.collector.forget()
        self.graphs.clear()
        self.graphs.wanted = self.mode != "off"
        use(self.precision)
        if isinstance(self.policy, Transformer):
            self.policy.checkpointing = config.checkpointing
        self.collector.use(self.mode, self.precision)
        self.update.use(self.mode, self.precision)
        self.evaluation.use(self.collector.mode)
        self._compiled.clear()
        self._forget_measured()
        self.since = 0

    def prepare(self) -> None:
        """Compile and capture now what the next iteration will run: a change has then cost what it costs.

        Raises:
            MemoryError: a device has not the memory; on all ranks.
        """
        if self.mode == "off" or not self.proves_sizes:
            return

        def both() -> None:
            self.collector.prepare()
            self.update.prepare(self.collector.stored, self.config.minibatch_size)

        # For other sizes than these, what is compiled is only captured anew.
        sizes = self.update.pieces.micro_batch, self.collector.rollout.sequence
        on_all_ranks(self.ranks, self.device, both, compiles=sizes not in self._compiled)
        self._compiled.add(sizes)

    def forget_sizes(self) -> int:
        """Give back what is kept of previous sizes; returns how many there were."""
        dropped = self.collector.forget()
        self.graphs.clear()  # they share their memory
        return dropped

    def _find_room(self) -> None:
        """Refuse sizes for which there is no memory, before any rank takes some: on a CPU they share it."""
        config, held = self.config, 0
        size = config.rollout_len, config.num_envs
        if self._needed:  # else this state is being made, and nothing is held
            if self.collector.keeps(config):
                return
            held = self._needed[self.collector.rollout.shape]
        try:
            self._needed[size] = self._check_memory(held)
        except MemoryError:
            if not self._needed or not self.forget_sizes():
                raise
            self._needed[size] = self._check_memory(held)

    def _fit(self) -> int:
        collector = self.collector
        dropped = collector.fit(self.config)
        free = free_bytes(self.device, self.ranks.local_world)
        if self.proves_sizes:
            collector.forget(sizes=KEPT_SIZES, nbytes=int(KEPT_SHARE * free))
        else:
            self.forget_sizes()
        return dropped

    def _check_memory(self, held: int) -> int:
        """The bytes that the sizes of `config` take where the environments are."""
        where = self.env.counter.device
        precision = _precision(self.config, where) if where == self.device else "fp32"
        free = free_bytes(where, self.ranks.local_world)
        limit = bytes_within_limit(where, self.ranks.local_world)
        return check_memory(self.config, self.env.task, self.policy, precision, free, held, limit, where)

    def _measured_pieces(self, share: int) -> int:
        """The fewest pieces that fit, as all ranks found them; 1 on a CPU, where memory means little."""
        if self.device.type == "cpu":
            return 1
        pieces = self._sizes.pieces(share)
        if pieces != self.automatic.get("grad_accum"):
            self.notes.append(f"grad_accum chosen by measurement: {pieces}")
        return pieces

    def _forget_measured(self) -> None:
        """What a sample takes may have changed."""
        self._sizes.forget()
        self.update.pieces.forget()

    def _smaller(self, before: int, after: int) -> None:
        """Memory ran out in the middle of an update: pieces of another size may have to be compiled right
        now."""
        if "grad_accum" in self.automatic:
            self.automatic["grad_accum"] = self.grad_accum
        self.since = 0
        if self.mode != "off":
            torch.compiler.set_stance("default")

    def close(self) -> None:
        """End the environments."""
        self.env.close()
        self.evaluation.close()

    # checkpoints --------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All that decides how training goes on, of all ranks, which all call this together.

        The environments are in their global order, so that any number of ranks can go on with them.
        """
        of_all = self.ranks.gather(on_cpu(self.collector.state_dict()))
        return {
            "env": self.env.task.id,
            "seed": self.seed,
            "world": self.ranks.world,
            "config": dataclasses.asdict(self.config) | {name: OPEN[name] for name in self.automatic},
            "iteration": self.iteration,
            "epoch": self.epoch,
            "env_steps": self.env_steps,
            "evaluations": self.evaluations.state_dict(),
            "policy": self.policy.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.update.scaler.state_dict(),
            "player": {part: joined([rank[part] for rank in of_all], dim) for part, dim in ENV_DIM.items()},
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> int:
        """Go on where `saved` was taken, with this object's own `config`; returns the unfinished episodes
        dropped.

        Of another network, weights that fit are copied. The others stay as they are (`kept`).
        """
        self.iteration, self.epoch, self.env_steps = saved["iteration"], saved["epoch"], saved["env_steps"]
        if not self.has_other_network(saved):
            if "evaluations" in saved:  # not in checkpoints of earlier versions
                self.evaluations.load_state_dict(saved["evaluations"])
            self.policy.load_state_dict(saved["policy"])
            held = [dict(group) for group in self.optimizer.param_groups]
            self.optimizer.load_state_dict(saved["optimizer"])
            for group, own in zip(self.optimizer.param_groups, held, strict=True):
                # What this process sets in a group: its learning rate (of `config`), and what fits its
                # device.
                group.update({name: value for name, value in own.items() if name != "params"})
            if saved["scaler"] and self.update.scaler.is_enabled():
                self.update.scaler.load_state_dict(saved["scaler"])
        else:
            self.kept = keep_fitting(self.policy, saved["policy"])
        rank, world = self.ranks.rank, self.ranks.world
        collector = {part: shared(saved["player"][part], dim, rank, world) for part, dim in ENV_DIM.items()}
        dropped = self.collector.load_state_dict(collector, self.config)
        self.cut_anew()
        return dropped

    def has_other_network(self, saved: Mapping[str, Any]) -> bool:
        """Whether `saved` was asked to have another network than this state."""
        held = PPOConfig(**saved["config"])
        return _network(held) != _network(self.config)


def _network(config: PPOConfig) -> tuple[object, ...]:
    """What the shapes of the weights follow from."""
    sizes = (config.hidden,) if config.policy == "mlp" else tuple(model_sizes(config).values())
    return config.policy == "mlp", *sizes


def _precision(config: PPOConfig, device: torch.device) -> Precision:
    """`auto`: half precision for a transformer and TF32 for an MLP where the GPU has them, else float32."""
    wanted = cast(Precision, config.precision)
    best = choose_precision(wanted if config.precision != "auto" else "auto", device)
    if config.precision == "auto" and config.policy == "mlp":
        return "tf32" if best == "bf16" else "fp32"
    return best
