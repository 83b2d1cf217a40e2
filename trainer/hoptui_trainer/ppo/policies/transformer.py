"""A causal transformer over the last observations of an episode: one trunk, a head for actions and a small
one for value.

Pre-norm with RMSNorm (Zhang & Sennrich 2019), rotary positions (Su et al. 2021), GELU; no biases in the
blocks. A step of an episode sees itself and the `context − 1` before it in every layer. So what is worked out
of an observation reaches further back than the window: layer by layer, to where the memory was last refilled.
`judge` therefore reads a sequence from there on, and finds what `act` found.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, pad, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from hoptui_trainer.ppo.envs.physics import Task
from hoptui_trainer.ppo.policies.memory import AttentionCache, Layer
from hoptui_trainer.ppo.policies.policy import Batch, Choice, Judgement, Policy

ROTARY_PERIOD = 10_000.0
EMBED_GAIN = 4.0
"""Lets successive observations differ enough: at 1.0 CartPole without velocities took twice as long, or was
not learned."""
ROUND = 8
"""Masked attention is fastest with a multiple of so many keys: otherwise its mask is copied, or a slower
kernel taken."""
CHUNK = 1 << 18
"""Observations that are read at once where no gradient is wanted: bounds the activations."""


@dataclass(frozen=True)
class Widths:
    """The size of a transformer: `layers` blocks of `d_model`, attention in `heads`, a hidden layer of
    `ff`."""

    d_model: int
    heads: int
    layers: int
    ff: int


class PolicyBlock(nn.Module):
    """Attention and a hidden layer, each added to what comes in."""

    def __init__(self, widths: Widths, generator: torch.Generator) -> None:
        super().__init__()
        d, self.heads = widths.d_model, widths.heads
        share = 1 / math.sqrt(2 * widths.layers)  # keeps the sum of all blocks at the size of one
        self.norms = nn.ModuleList(nn.RMSNorm(d) for _ in range(2))
        self.qkv = _linear(d, 3 * d, 1.0, generator)
        self.out = _linear(d, d, share, generator)
        self.up = _linear(d, widths.ff, 1.0, generator)
        self.down = _linear(widths.ff, d, share, generator)

    def forward(self, x: Tensor, turn: Tensor, seen: Tensor, layer: Layer | None = None) -> Tensor:
        """(B, S, d_model) → the same. `seen` (B, 1, S, keys) says which keys an observation looks at.

        The keys are those of `x`, or with a memory's layer all of its slots, into which the new ones are
        written first.
        """
        attention, hidden = self.norms
        q, k, v = self.qkv(attention(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind()
        q, k = _turned(q, turn), _turned(k, turn)  # not as one: compiled, each would be copied out of it
        if layer is not None:
            k, v = layer.keys.index_copy_(2, layer.slots, k), layer.values.index_copy_(2, layer.slots, v)
        looked = _looked(q, k, v, seen)
        x = x + self.out(looked.transpose(1, 2).flatten(2))
        grown: Tensor = x + self.down(gelu(self.up(hidden(x)), approximate="tanh"))
        return grown


class Transformer(Policy):
    """Sees the last `context` observations. Made on the CPU from `generator`, so a seed means the same
    anywhere.

    With `checkpointing`, the backward pass computes the activations of blocks again instead of keeping them.
    """

    turns: Tensor

    def __init__(self, task: Task, widths: Widths, context: int, generator: torch.Generator) -> None:
        super().__init__(task, context)
        self.widths = widths
        self.checkpointing = False
        d = widths.d_model
        self.embed = _linear(task.observation_size, d, EMBED_GAIN, generator, bias=True)
        # What the norms let through of a small observation is its direction alone, unless something stands
        # beside it.
        nn.init.normal_(self.embed.bias, generator=generator)
        self.blocks = nn.ModuleList(PolicyBlock(widths, generator) for _ in range(widths.layers))
        self.norm = nn.RMSNorm(d)
        # A small last layer makes the first policy nearly uniform whatever the observation.
        self.actor = _linear(d, self.head.inputs, 0.01, generator, bias=True)
        self.critic = _linear(d, 1, 1.0, generator, bias=True)
        pairs = d // widths.heads // 2
        self.register_buffer("turns", ROTARY_PERIOD ** -(torch.arange(pairs) / pairs), persistent=False)

    def lower(self, dtype: torch.dtype) -> None:
        """Hold in `dtype` the weights that autocast would cast to it at every use, and no others."""
        for module in self.blocks.modules():
            if isinstance(module, nn.Linear):
                module.to(dtype)

    def memory(self, num_envs: int, before: AttentionCache | None = None) -> AttentionCache:
        w, device = self.widths, self.turns.device
        kind = _kind(device)
        autocast = torch.is_autocast_enabled(kind)
        dtype = torch.get_autocast_dtype(kind) if autocast else self.embed.weight.dtype
        if before is not None and before.dtype == dtype and len(before.age) == num_envs:
            return before
        return AttentionCache(w.layers, num_envs, w.heads, self.context, w.d_model // w.heads, dtype, device)

    def refill(self, memory: AttentionCache | None, obs: Tensor, first: Tensor) -> None:
        assert memory is not None
        slots, seen = memory.restart(first)
        if not len(obs):
            return
        size = max(1, CHUNK // len(obs))
        for start in range(0, obs.shape[1], size):
            envs = slice(start, start + size)
            self._trunk(obs[:, envs].transpose(0, 1), slots, seen[envs], memory.layers(slots, envs))

    def act(self, obs: Tensor, first: Tensor, memory: AttentionCache | None, noise: Tensor | None) -> Choice:
        assert memory is not None
        slot, seen = memory.advance(first)
        trunk = self._trunk(obs[:, None], memory.position[None], seen, memory.layers(slot))
        memory.position.add_(1)
        said, value = self._say(trunk[:, 0])
        if noise is None:
            action = self.head.best(said)
            log_prob, _ = self.head.judge(said, action)
        else:
            action, log_prob = self.head.sample(said, noise)
        return Choice(action, log_prob, value)

    def judge(self, batch: Batch) -> Judgement:
        said, value = self._say(self._read(batch.obs, batch.first)[:, self.context - 1 :])
        return Judgement(*self.head.judge(said, batch.action), value)

    def value(self, obs: Tensor, first: Tensor) -> Tensor:
        size = max(1, CHUNK // obs.shape[1])
        pieces = zip(torch.split(obs, size), torch.split(first, size), strict=True)
        return torch.cat([self._say(self._read(*piece)[:, -1])[1] for piece in pieces])

    def _read(self, obs: Tensor, first: Tensor) -> Tensor:
        """The trunk (B, S, d_model) over sequences, without a memory."""
        length = obs.shape[1]
        spare = -length % ROUND
        if 0 < spare * 16 <= length:  # more would cost more than it saves
            # Behind the sequence, where no observation of it sees what stands there.
            obs, first = pad(obs, (0, 0, 0, spare)), pad(first, (0, spare))
        position = torch.arange(obs.shape[1], device=obs.device)
        episode = first.cumsum(1)
        back = position[:, None] - position
        window = (back >= 0) & (back < self.context)
        seen = window & (episode[:, :, None] == episode[:, None])
        return self._trunk(obs, position, seen[:, None])[:, :length]

    def _trunk(
        self, obs: Tensor, position: Tensor, seen: Tensor, layers: Sequence[Layer] | None = None
    ) -> Tensor:
        turn = position[:, None] * self.turns
        turn = torch.stack((turn.cos(), turn.sin()))
        with _exactly(obs):  # half precision would round away how little two observations differ
            x = self.embed(obs)
        for index, block in enumerate(self.blocks):
            if self.checkpointing and torch.is_grad_enabled():
                # Without the state of random numbers: nothing here draws any, and a CUDA graph forbids to
                # read it.
                x = checkpoint(block, x, turn, seen, use_reentrant=False, preserve_rng_state=False)
            else:
                x = block(x, turn, seen, None if layers is None else layers[index])
        normed: Tensor = self.norm(x)
        return normed

    def _say(self, trunk: Tensor) -> tuple[Tensor, Tensor]:
        """The head's inputs (…, k) and values (…)."""
        with _exactly(trunk):
            return self.actor(trunk), self.critic(trunk)[..., 0]


def _exactly(x: Tensor) -> torch.autocast:
    """In here `x` is computed with in float32, whatever is set outside."""
    return torch.autocast(_kind(x.device), enabled=False)


def _kind(device: torch.device) -> str:
    """The device as autocast knows it; it has not heard of tensors without content."""
    return "cpu" if device.type == "meta" else device.type


def _looked(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """What queries (B, heads, S, d_head) find in keys and values (B, heads, keys, d_head) that are `seen` (B,
    1, S, keys)."""
    if q.shape[2] > 1 or not torch.compiler.is_compiling():
        return scaled_dot_product_attention(q, k, v, attn_mask=seen)
    # Attention kernels compute 64 queries at once, of which 63 are not there. Written out, one query takes
    # one pass over keys and values, with sums in float32; eager code would store all of its products, and is
    # left to the kernels.
    alike = (q.float() * k.float()).sum(-1, keepdim=True) / math.sqrt(q.shape[-1])
    weight = alike.masked_fill(~seen.transpose(2, 3), -math.inf).softmax(2)
    return (weight * v.float()).sum(2, keepdim=True).to(v.dtype)


def _turned(x: Tensor, turn: Tensor) -> Tensor:
    """Queries or keys (B, heads, S, d_head) turned by their positions' cosines and sines (2, S, d_head /
    2)."""
    cos, sin = turn
    one, other = x.float().chunk(2, -1)
    return torch.cat((one * cos - other * sin, one * sin + other * cos), -1).to(x.dtype)


def _linear(
    inputs: int, outputs: int, gain: float, generator: torch.Generator, *, bias: bool = False
) -> nn.Linear:
    # Through the meta device, because torch's own initialisation would draw from the global generator.
    linear = nn.Linear(inputs, outputs, bias, device="meta").to_empty(device="cpu")
    nn.init.normal_(linear.weight, std=gain / math.sqrt(inputs), generator=generator)
    if bias:
        nn.init.zeros_(linear.bias)
    return linear
