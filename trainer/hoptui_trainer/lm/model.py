"""A GPT with rotary positions and nothing that needs no learning: no biases, no dropout, norms without
weights.

All parameters are matrices, so one group of the optimizer and one flat gradient hold them all. The head is
tied to the table of embeddings: untied it would add a quarter to the weights of the 124M model, its
optimizer's state and its gradient, and a corpus of some million tokens does not fill a second table. The
model ends before the head; `loss.py` multiplies with it and computes the loss at once, so that logits never
exist for a whole batch.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from hoptui_trainer.common.flops import transformer_flops
from hoptui_trainer.common.init_rng import stream
from hoptui_trainer.lm.config import LONGEST, VOCABULARY_MULTIPLE, LMConfig

NORM_EPS = 1e-6
ROTARY_BASE = 10_000.0
INIT_STD = 0.02


def norm(x: Tensor) -> Tensor:
    """Root-mean-square norm over the last dimension (Zhang and Sennrich 2019), its sum in float32, without a
    weight.

    Not `F.rms_norm`: CUDA's autocast makes that one return float32, and then the residual stream would take
    twice the memory traffic.
    """
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + NORM_EPS)).to(x.dtype)


def rotations(length: int, width: int) -> Tensor:
    """Cosines and sines (2, length, width / 2) of rotary position embeddings (Su et al. 2021), in float32."""
    speed = ROTARY_BASE ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angle = torch.outer(torch.arange(length, dtype=torch.float64), speed)
    return torch.stack((angle.cos(), angle.sin())).float()


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Turn the halves of each head (B, H, T, D) against each other by the position; computed in float32."""
    cos, sin = rotation[0], rotation[1]
    left, right = x.float().chunk(2, -1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), -1).to(x.dtype)


class GPTBlock(nn.Module):
    """Causal self-attention, then an MLP with squared ReLU (So et al. 2021), each on the normed residual
    stream."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.mlp_in = nn.Linear(width, 4 * width, bias=False)
        self.mlp_out = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor, rotation: Tensor) -> Tensor:
        """(B, T, d) → (B, T, d)."""
        attended: Tensor = x + self.attention_out(self.attend(norm(x), rotation))
        written: Tensor = self.mlp_out(functional.relu(self.mlp_in(norm(attended))).square())
        return attended + written

    def attend(self, x: Tensor, rotation: Tensor) -> Tensor:
        """The heads' outputs side by side, (B, T, d)."""
        batch, length, width = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        query, key = rotate(query, rotation), rotate(key, rotation)
        heads = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return heads.transpose(1, 2).reshape(batch, length, width)


class GPT(nn.Module):
    """Token numbers (B, T) int64 to normed hidden states (B, T, d) in `activations`, the head left out.

    `activations` is the number format of the residual stream, `checkpointing` whether blocks are computed
    again in the backward pass. `table` (vocabulary, d) is both the embeddings and the head.
    """

    rotation: Tensor

    def __init__(self, config: LMConfig, seed: int) -> None:
        super().__init__()
        self.activations = torch.float32
        self.checkpointing = False
        self.heads = config.heads
        rows = -(-config.vocab_size // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
        self.table = nn.Parameter(torch.empty(rows, config.d_model))
        with torch.device("meta"):  # torch's own initialisation would draw from its global generator
            self.blocks = nn.ModuleList(GPTBlock(config.d_model, config.heads) for _ in range(config.layers))
        self.blocks.to_empty(device="cpu")
        self.register_buffer("rotation", rotations(LONGEST, config.d_model // config.heads), persistent=False)
        self._initialise(seed)
        # Counted once: each iteration asks for the FLOPs of a token.
        self._weights = sum(parameter.numel() for parameter in self.parameters())

    def forward(self, tokens: Tensor) -> Tensor:
        x = functional.embedding(tokens, self.table).to(self.activations)
        rotation = self.rotation[:, : tokens.shape[1]]
        for block in self.blocks:
            if self.checkpointing and torch.is_grad_enabled():
                x = checkpoint(block, x, rotation, use_reentrant=False, preserve_rng_state=False)
            else:
                x = block(x, rotation)
        return norm(x)

    def flops_per_token(self, length: int) -> float:
        """FLOPs of training on one token of a sequence of `length`; the table counts once, as the head."""
        return transformer_flops(self._weights, len(self.blocks), self.table.shape[1], length)

    @torch.no_grad()
    def _initialise(self, seed: int) -> None:
        """Normal with deviation 0.02; what writes to the residual stream less, by the number of writers
        (GPT-2)."""
        generator = stream(seed, "weights")
        for name, parameter in self.named_parameters():
            writes = name.endswith("_out.weight")
            deviation = INIT_STD / math.sqrt(2 * len(self.blocks)) if writes else INIT_STD
            parameter.normal_(0.0, deviation, generator=generator)
