"""A GPT-2 of 124M parameters as torch's own modules give it, and the shortest loop around it: what `hoptui
train lm` is held against.

`python -m benchmarks.plain_lm eager|compiled`: random tokens, bf16 autocast, fused AdamW, nothing else.
Prints one line of JSON. The model's FLOPs are those of `hoptui train lm --preset 124m`: 12 blocks of 768,
1,024 tokens, 50,304 words, tied head.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

WARM_UP_STEPS = 10


@dataclass(frozen=True)
class Size:
    """A model, and the sequences of a step."""

    width: int = 768
    layers: int = 12
    heads: int = 12
    vocabulary: int = 50_304
    length: int = 1024
    sequences: int = 32
    windows: int = 5
    window_s: float = 4.0


TINY = Size(width=32, layers=1, heads=2, vocabulary=256, length=16, sequences=2, windows=2, window_s=0.1)


class PlainGPT(nn.Module):
    """Tokens (B, T) to the mean cross-entropy of the tokens that follow."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.table = nn.Embedding(size.vocabulary, size.width)
        self.position = nn.Parameter(torch.zeros(size.length, size.width))
        block = nn.TransformerEncoderLayer(
            size.width, size.heads, 4 * size.width, 0.0, "gelu", batch_first=True, norm_first=True, bias=False
        )
        self.blocks = nn.TransformerEncoder(
            block, size.layers, nn.LayerNorm(size.width), enable_nested_tensor=False
        )
        mask = nn.Transformer.generate_square_subsequent_mask(size.length)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.blocks(self.table(tokens) + self.position, mask=self.mask, is_causal=True)
        logits = functional.linear(x, self.table.weight)
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def run(size: Size, *, compiled: bool, device: torch.device) -> dict[str, object]:
    """Tokens a second in each window; the time of the first two steps holds the compilation."""
    torch.manual_seed(0)
    model = PlainGPT(size).to(device)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    forward = torch.compile(model) if compiled else model
    shape = (size.sequences, size.length)
    tokens, targets = (torch.randint(size.vocabulary, shape, device=device) for _ in range(2))

    def steps(count: int) -> None:
        for _ in range(count):
            with torch.autocast(device.type, torch.bfloat16):
                loss = forward(tokens, targets)
            torch.autograd.backward(loss)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    began = time.monotonic()
    steps(2)
    first_s = time.monotonic() - began
    steps(WARM_UP_STEPS if device.type == "cuda" else 1)
    rates = []
    for _ in range(size.windows):
        began, done = time.monotonic(), 0
        while (seconds := time.monotonic() - began) < size.window_s or not done:
            steps(5 if device.type == "cuda" else 1)
            done += 5 if device.type == "cuda" else 1
        rates.append(done * size.sequences * size.length / seconds)
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    return {
        "rates": rates,
        "first_two_steps_s": round(first_s, 2),
        "sequences": size.sequences,
        "peak_memory_bytes": peak,
    }


def main() -> None:
    """Run one variant."""
    quick = "--quick" in sys.argv
    if quick:
        torch.set_num_threads(1)
    device = torch.device("cpu" if quick else "cuda")
    print(
        json.dumps(run(TINY if quick else Size(), compiled="compiled" in sys.argv, device=device)), flush=True
    )


if __name__ == "__main__":
    main()
