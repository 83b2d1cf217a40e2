"""A small GPT in the manner of nanoGPT: 64 sequences a step, in micro-batches of a size that is a knob."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

import hoptui
from benchmarks.loops.script import Script, options

VOCABULARY, SEQUENCES = 256, 64


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.qkv, self.out, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, width), heads
        self.flash = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(x).split(c, dim=2))
        if self.flash:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-2, -1) / k.shape[-1] ** 0.5
            mask = torch.ones(t, t, dtype=torch.bool, device=x.device).tril()
            y = scores.masked_fill(~mask, float("-inf")).softmax(dim=-1) @ v
        return self.out(y.transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.first(x))
        return x + self.mlp(self.second(x))


class GPT(nn.Module):
    def __init__(self, width: int, layers: int, heads: int, length: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = self.tokens(x) + self.places.weight[: x.shape[1]]
        return F.cross_entropy(self.head(self.norm(self.blocks(x))).flatten(0, 1), y.flatten())


def main(script: Script) -> None:
    """Train until stopped."""
    device = script.device
    large = device == "cuda"
    width, layers, heads, length = (768, 12, 12, 1024) if large else (64, 2, 4, 32)
    model = GPT(width, layers, heads, length).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    compiled = torch.compile(model) if large else model
    data = torch.randint(VOCABULARY, (1_000_000,))

    with hoptui.connect(script.name) as run:
        micro_batch = run.knob("micro_batch", 2, choices=[1, 2, 4, 8, 16, 32, 64], effect="speed")

        def use_flash(on: bool) -> None:
            for block in model.blocks:
                block.attention.flash = on  # type: ignore[union-attr]

        run.knob("flash", False, effect="speed", apply=use_flash)
        compile_it = run.knob("compile", False, effect="speed", cost="rebuild") if large else None
        for _ in run.iterations():
            x = torch.stack(
                [data[i : i + length + 1] for i in torch.randint(len(data) - length - 1, (SEQUENCES,))]
            )
            x = x.to(device)
            size, forward = micro_batch.value, compiled if compile_it and compile_it.value else model
            total = 0.0
            for part in x.split(size):
                with torch.autocast(device, torch.bfloat16, enabled=large):
                    loss = forward(part[:, :-1], part[:, 1:]) * (len(part) / SEQUENCES)
                loss.backward()
                total += loss.item()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            run.log(loss=total, samples=SEQUENCES)


if __name__ == "__main__":
    options(main)
