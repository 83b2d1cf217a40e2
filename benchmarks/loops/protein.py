"""A masked language model of proteins, whose lengths differ much. A batch is trained in padded passes.

The knobs are the sequences of a pass, whether similar lengths share a pass, and how attention is computed.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

import hoptui
from benchmarks.loops.script import Script, options

AMINO_ACIDS, MASK, PAD = 20, 20, 21


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor, real: torch.Tensor, attention: str) -> torch.Tensor:
        q, k, v = self.qkv(self.before(x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if attention == "sdpa":
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=real[:, None, None, :])
        else:
            scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / q.shape[-1] ** 0.5
            weights = scores.masked_fill(~real[:, None, None, :], float("-inf")).softmax(-1)
            y = torch.einsum("bhqk,bhkd->bhqd", weights, v)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.wide(self.between(x))


class Model(nn.Module):
    def __init__(self, width: int, layers: int, longest: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(22, width), nn.Embedding(longest, width)
        self.blocks = nn.ModuleList(Block(width, width // 32) for _ in range(layers))
        self.head = nn.Linear(width, AMINO_ACIDS)

    def forward(self, tokens: torch.Tensor, attention: str) -> torch.Tensor:
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, tokens != PAD, attention)
        return F.log_softmax(self.head(x).float(), dim=-1)


def main(script: Script) -> None:
    """Train until stopped."""
    device, large = script.device, script.device == "cuda"
    width, layers, longest, batch = (512, 8, 1024, 64) if large else (64, 2, 128, 32)
    model = Model(width, layers, longest).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    lengths = (longest * torch.rand(2000) ** 2).long().clamp(min=8).tolist()
    proteins = [torch.randint(AMINO_ACIDS, (length,)) for length in lengths]

    with hoptui.connect(script.name) as run:
        seqs = run.knob("seqs_per_pass", 4 if large else 2, min=1, max=batch, effect="speed", cost="shape")
        by_length = run.knob("group_by_length", False, effect="speed", cost="shape")
        attention = run.knob("attention_impl", "einsum", choices=["einsum", "sdpa"], effect="speed")
        for _ in run.iterations():
            drawn = [proteins[i] for i in torch.randint(len(proteins), (batch,)).tolist()]
            pairs = [(p, torch.rand(len(p)) < 0.15) for p in drawn]
            hidden_tokens = max(1, sum(int(hidden.sum()) for _, hidden in pairs))
            if by_length.value:
                pairs.sort(key=lambda pair: len(pair[0]))
            total, size, kind = 0.0, seqs.value, attention.value
            for start in range(0, batch, size):
                part = pairs[start : start + size]
                seen = [p.masked_fill(hidden, MASK) for p, hidden in part]
                wanted = [p.masked_fill(~hidden, -100) for p, hidden in part]
                x = nn.utils.rnn.pad_sequence(seen, batch_first=True, padding_value=PAD).to(device)
                y = nn.utils.rnn.pad_sequence(wanted, batch_first=True, padding_value=-100).to(device)
                with torch.autocast(device, torch.bfloat16, enabled=large):
                    guess = model(x, kind)
                loss = F.nll_loss(guess.flatten(0, 1), y.flatten(), reduction="sum") / hidden_tokens
                loss.backward()
                total += loss.item()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            run.log(loss=total, samples=batch)


if __name__ == "__main__":
    options(main)
