"""A causal transformer under DistributedDataParallel: 32 sequences a rank and step, in micro-batches.

Gradients are reduced after each micro-batch or once a step. Both sizes and this switch are knobs.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import hoptui
from benchmarks.loops.script import Script, options, ranks

VOCABULARY, SEQUENCES = 512, 32


class Decoder(nn.Module):
    def __init__(self, width: int, layers: int, heads: int, length: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = self.tokens(x) + self.places.weight
        logits = self.head(self.layers(x, mask=self.mask, is_causal=True))
        return F.cross_entropy(logits.flatten(0, 1), y.flatten())


def main(script: Script) -> None:
    """Train until stopped."""
    with ranks(script) as (rank, world, device):
        large = script.device == "cuda"
        width, layers, heads, length = (768, 12, 12, 512) if large else (64, 2, 4, 32)
        model = DistributedDataParallel(Decoder(width, layers, heads, length).to(device))
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
        data = torch.randint(VOCABULARY, (1_000_000,))
        torch.manual_seed(rank)

        run = hoptui.connect(script.name)
        micro_batch = run.knob("micro_batch", 2, choices=[1, 2, 4, 8, 16, 32], effect="speed")
        once = run.knob("sync_once", False, effect="speed")
        for _ in run.iterations():
            starts = torch.randint(len(data) - length - 1, (SEQUENCES,))
            x = torch.stack([data[i : i + length + 1] for i in starts]).to(device)
            total = torch.zeros((), device=device)
            parts = x.split(micro_batch.value)
            for i, part in enumerate(parts):
                last = i == len(parts) - 1
                with model.no_sync() if once.value and not last else nullcontext():
                    with torch.autocast(script.device, torch.bfloat16, enabled=large):
                        loss = model(part[:, :-1], part[:, 1:]) * (len(part) / SEQUENCES)
                    loss.backward()
                total += loss.detach()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            dist.all_reduce(total)
            run.log(loss=total.item() / world, samples=SEQUENCES * world)
        run.close()


if __name__ == "__main__":
    options(main)
