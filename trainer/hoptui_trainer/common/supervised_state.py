"""The part of a training state that the language model and the vision transformer share."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar, cast

import torch
from torch import Tensor, nn

from hoptui_trainer.common.attention import choose_attention
from hoptui_trainer.common.auto_batch import MOST_SAMPLES, choose_batch
from hoptui_trainer.common.auto_settings import AutoSettings, resolve_modes
from hoptui_trainer.common.batch import Batched, largest_share, piece_for, pieces
from hoptui_trainer.common.compilation import Shapes
from hoptui_trainer.common.cuda_graphs import graphs
from hoptui_trainer.common.device import describe_device
from hoptui_trainer.common.dry_run import DryRun, Sizes
from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.common.evaluations import Evaluations
from hoptui_trainer.common.flat_gradient import FlatGradient
from hoptui_trainer.common.gradient import Pieces
from hoptui_trainer.common.kept_weights import KeptWeights, keep_fitting
from hoptui_trainer.common.memory import on_all_ranks
from hoptui_trainer.common.modes import CompileMode, OptimizerName, Precision
from hoptui_trainer.common.optimizer import converted, make_optimizer, restore, saved_moments
from hoptui_trainer.common.piece_graphs import PieceGraphs
from hoptui_trainer.common.precision import compute_dtype, grad_scaler, use
from hoptui_trainer.common.ranks import RankGroup
from hoptui_trainer.common.sharding import ShardedGradient, Sharding


class SupervisedConfig(Batched, Protocol):
    """A config with the knobs that this part of a state follows."""

    optimizer: str
    precision: str
    compile: str


class AttentionShape(NamedTuple):
    """What attention computes for a sample: so many `heads` of a `width`, at so many `positions`."""

    heads: int
    positions: int
    width: int


ConfigT = TypeVar("ConfigT", bound=SupervisedConfig)
ModelT = TypeVar("ModelT", bound=nn.Module)


class SupervisedState(ABC, Generic[ConfigT, ModelT]):
    """The state of one run between two iterations, on one device of one rank.

    `config` is the one that the run's knobs change. Whatever changes it calls `fit` or `rebuild` afterwards.
    `position` counts the samples of the stream that the run has learned from. `born` is the iteration in
    which its weights were new, `evaluations` are those of its weights. `on_smaller` is called when a
    micro-batch was halved because memory ran out.
    `own_checkpointing` is whether a lack of memory, and no user, has switched checkpointing on.
    All ranks hold the same, except for their part of a batch.
    """

    model: ModelT
    FIGURES: ClassVar[tuple[int, ...]] = ()
    CAUSAL: ClassVar[bool] = False
    """Whether each position sees only itself and those before it."""

    kept: KeptWeights | None = None
    """What the model has of a checkpoint with another shape; None if there was none."""
    graphs: PieceGraphs
    sharding: Sharding | None
    gradient: FlatGradient
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    pieces: Pieces
    dry_run: DryRun
    precision: Precision
    compile_mode: CompileMode
    _optimizer_name: OptimizerName

    def __init__(self, config: ConfigT, seed: int, device: torch.device, ranks: RankGroup) -> None:
        self.config, self.seed, self.device, self.ranks = config, seed, device, ranks
        self.automatic = AutoSettings(config)
        self.evaluations = Evaluations("val_loss")
        self.notes: list[str] = []
        self.on_smaller: Callable[[int, int], None] = lambda before, now: None
        self.own_checkpointing = False
        self.iteration = 0
        self.born = 0
        self.position = 0
        self._shapes = Shapes()
        self._attended: tuple[AttentionShape, torch.dtype] | None = None

    @property
    @abstractmethod
    def shape(self) -> dict[str, int]:
        """The sizes of the weights."""

    @property
    def parameters(self) -> int:
        """The number of weights."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    @property
    def computation(self) -> str:
        """How the run computes, for users: seed, number format, compilation, device and ranks."""
        world = self.ranks.world
        where = describe_device(self.device) + (f", {world} ranks" if world > 1 else "")
        where += f", {self.sharding.mode} shards" if self.sharding else ""
        return f"seed {self.seed}, {self.precision}, compile {self.compile_mode}, {where}"

    @abstractmethod
    def choose_batch(self) -> None:
        """Choose the size of a batch if `config` leaves it open.

        Raises:
            MemoryError: memory does not hold one sample.
        """

    @abstractmethod
    def fit(self, *, give_way: bool = False) -> None:
        """Bring batches to the sizes that `config` now has; with `give_way` in smaller pieces than asked for
        if memory is too short."""

    def rebuild(self) -> None:
        """Bring number format, compilation and checkpointing of activations to what `config` now has.

        Raises:
            UsageError: the device or the installation cannot do it; nothing has changed.
        """
        self.precision, self.compile_mode = on_all_ranks(self.ranks, self.device, self._resolve_modes)
        use(self.precision)
        self.scaler = grad_scaler(self.precision, self.device)
        self._shapes.reset(self.compile_mode)
        self.graphs.clear()
        self.dry_run.forget()
        self._compile()

    def choose_optimizer(self) -> None:
        """Go on with the optimizer that `config` now has, and with the moments of the one before.

        Raises:
            UsageError: it needs a library that is not installed; nothing has changed.
            MemoryError: there is too little memory for both at once; nothing has changed.
        """
        if self.config.optimizer == self._optimizer_name:
            return
        self._check_optimizer()
        self.gradient.clear()
        self._set_optimizer(lambda name: converted(self.optimizer, name, self.device))
        self.dry_run.forget()

    @abstractmethod
    def prove_sizes(self) -> None:
        """Compute the pieces of the next step once."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Everything that decides how training continues; the same on every rank."""

    @property
    @abstractmethod
    def sizes(self) -> Sizes:
        """The micro-batches to choose from. Pieces of at most the `first` are computed as CUDA graphs."""

    @abstractmethod
    def figures(self, *inputs: Tensor) -> Tensor:
        """Figures of a piece with these inputs, of the shape `FIGURES`: the summed loss first."""

    @property
    @abstractmethod
    def _attention_shape(self) -> AttentionShape:
        """That of the model, at the positions that samples have."""

    @abstractmethod
    def _compile(self) -> None:
        """Let the model compute as `precision` and `compile_mode` have it."""

    @abstractmethod
    def _pass(self, size: int) -> None:
        """Add the gradient of `size` samples."""

    def _train(
        self, model: ModelT, groups: Iterable[Mapping[str, Any]], sharding: Sharding | None = None
    ) -> None:
        """Train `model`, on its device, whose parameters are in `groups`: with a sharding in one group, which
        has all of them."""
        self.model, self.sharding = model, sharding
        if sharding is None:
            self.gradient = FlatGradient(model.parameters(), ranks=self.ranks)
        else:
            sharded = self.gradient = ShardedGradient(sharding, self.ranks)
            groups = [{**group, "params": sharded.local} for group in groups]
        self._check_optimizer()
        self._set_optimizer(lambda name: make_optimizer(name, groups, self.device))
        self.graphs = PieceGraphs(graphs(self.device), self.gradient, self.figures, self.FIGURES)
        self.pieces = Pieces(1, self.device, self.ranks, self._smaller, meets=sharding is not None)
        self.dry_run = DryRun(self._pass, self.gradient, self._shapes, self.pieces, self.ranks, self.notes)
        self.rebuild()
        self.choose_batch()
        self.fit(give_way=True)

    def _resolve_modes(self) -> tuple[Precision, CompileMode]:
        """How to compute on this device."""
        return resolve_modes(self.config, self.device)

    def _choose_attention(self) -> None:
        """Measure again which kernel is fastest, if samples or activations are others than at the last time:
        a kernel that does not take them leaves attention to the plain formula, whose time and memory grow
        with the square of the positions."""
        shape, dtype = self._attention_shape, compute_dtype(self.precision)
        if self._attended == (shape, dtype):
            return
        batch = self.config.micro_batch or self.sizes.first
        if note := choose_attention((batch, *shape), dtype, self.device, self.ranks, causal=self.CAUSAL):
            self.notes.append(note)
        self._attended = shape, dtype

    def _cut(self, *, give_way: bool) -> None:
        """Cut the batch of `config` into micro-batches; see `fit`."""
        config, world = self.config, self.ranks.world
        self.graphs.clear()
        share = largest_share(config, world)
        config.micro_batch = self.dry_run.choose(config.micro_batch, share, self.sizes, give_way=give_way)
        config.grad_accum = pieces(config, world)

    def _check_optimizer(self) -> None:
        if self.sharding and self.config.optimizer != "adamw":
            raise UsageError(
                f"--optimizer {self.config.optimizer}: its moments cannot be sharded (--shard none)"
            )

    def _set_optimizer(self, make: Callable[[OptimizerName], torch.optim.Optimizer]) -> None:
        name = cast(OptimizerName, self.config.optimizer)
        compiles = name == "adamw8bit"
        self.optimizer = on_all_ranks(self.ranks, self.device, lambda: make(name), compiles=compiles)
        self._optimizer_name = name

    def _choose_batch(self, name: str, available: int, each: int, unit: str) -> None:
        """Choose the knob `name`, which counts `each` `unit` for a sample, within `available` samples.

        Raises:
            MemoryError: memory does not hold one sample.
        """
        config, world = self.config, self.ranks.world
        least, most = world, max(world, MOST_SAMPLES // each)
        chosen = choose_batch(
            max(least, available), most, lambda whole: self.dry_run.most(-(-whole // world)) * world
        )
        size = max(least, chosen.size)
        value = (size - size % world if self.sharding else size) * each
        setattr(config, name, value)
        self.notes.append(chosen.note(name, unit, value))
        if config.grad_accum and not config.micro_batch:
            config.micro_batch = piece_for(config, config.grad_accum, world)
            self.automatic.choose("micro_batch", config.micro_batch)

    def add_gradient(self, inputs: Sequence[Tensor], of: int) -> Tensor:
        """The figures of a piece with these inputs, the first of which have its samples. Its summed loss over
        `of` adds to the gradient."""
        if self.graphs.active and self._compiled_small(len(inputs[0])):
            factor = self.scaler.scale(torch.full((), 1 / of, device=self.device))
            return self.graphs.run(inputs, factor)
        found = self.figures(*inputs)
        torch.autograd.backward(self.scaler.scale(found.flatten()[0] / of))
        return found.detach()

    def _compiled_small(self, samples: int) -> bool:
        return self.compile_mode != "off" and self.sharding is None and samples <= self.sizes.first

    def _smaller(self, before: int, now: int) -> None:
        self.graphs.clear()
        self.config.micro_batch = now
        self.config.grad_accum = pieces(self.config, self.ranks.world)
        self.on_smaller(before, now)

    def _saved_progress(self) -> dict[str, Any]:
        """The part of a checkpoint that has the run's progress."""
        config: Any = self.config
        return {
            "seed": self.seed,
            "config": dataclasses.asdict(config) | {"grad_accum": 0} | self.automatic.values(),
            "iteration": self.iteration,
            "born": self.born,
            "position": self.position,
            "evaluations": self.evaluations.state_dict(),
        }

    def _saved_weights(self) -> dict[str, Any]:
        """The part of a checkpoint that holds what was learned."""
        sharding = self.sharding
        return {
            "shape": self.shape,
            "model": sharding.saved_model() if sharding else self.model.state_dict(),
            "optimizer": (sharding.saved_moments if sharding else saved_moments)(self.optimizer),
            "scaler": self.scaler.state_dict(),
        }

    def _load(self, saved: Mapping[str, Any]) -> bool:
        """Continue where `saved` was taken, with this object's own `config`.

        False if its model has another shape. Then weights that fit are copied, the others stay new (`kept`),
        and the learning-rate schedule starts again.
        """
        self.iteration, self.position, self.born = saved["iteration"], saved["position"], saved["born"]
        if saved["shape"] != self.shape:
            self.born = self.iteration
            copy = self.sharding.copy_own if self.sharding else None
            self.kept = keep_fitting(self.model, saved["model"], copy)
            return False
        if "evaluations" in saved:  # not in checkpoints of earlier versions
            self.evaluations.load_state_dict(saved["evaluations"])
        if self.sharding:
            self.sharding.load_model(saved["model"])
            restore(self.optimizer, self.sharding.own_moments(saved["optimizer"]))
        else:
            self.model.load_state_dict(saved["model"])
            restore(self.optimizer, saved["optimizer"])
        if saved["scaler"] and self.scaler.is_enabled():
            self.scaler.load_state_dict(saved["scaler"])
        return True
