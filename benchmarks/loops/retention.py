"""A language model with retention: attention that decays with distance, without a softmax.

A sequence is cut into pieces. Inside a piece all pairs of tokens are compared, and a state goes from piece to
piece. The length of a piece is a knob, and so is whether the heads are computed one by one.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

import hoptui
from benchmarks.loops.script import Script, options

VOCABULARY = 256


def retain(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor, piece: int
) -> torch.Tensor:
    """Return the retention of tensors of shape (batch, heads, tokens, width), with a decay for each head."""
    q, k, v = (each.unflatten(2, (-1, piece)) for each in (q, k, v))
    place = torch.arange(piece, device=q.device)
    distance, powers = (place[:, None] - place).float(), decay[:, None, None]
    near = (powers ** distance.clamp(min=0)) * (distance >= 0)
    inside = ((q @ k.transpose(-1, -2)) * near[:, None]) @ v
    fade = powers ** (place + 1.0)[:, None]
    added = (k * (powers ** (piece - 1.0 - place)[:, None])[:, None]).transpose(-1, -2) @ v
    state, states = torch.zeros_like(added[:, :, 0]), []
    for i in range(added.shape[2]):
        states.append(state)
        state = powers**piece * state + added[:, :, i]
    return (inside + (q * fade[:, None]) @ torch.stack(states, dim=2)).flatten(2, 3)


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.qkvg, self.out = (
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.Linear(width, width),
        )
        self.register_buffer("decay", 1 - 2.0 ** (-4 - torch.arange(heads) / 2))

    def forward(self, x: torch.Tensor, piece: int, together: bool) -> torch.Tensor:
        *qkv, gate = self.qkvg(self.norm(x)).chunk(4, dim=-1)
        q, k, v = (each.unflatten(2, (self.heads, -1)).transpose(1, 2) for each in qkv)
        k = k / k.shape[-1] ** 0.5
        decay = self.decay
        assert isinstance(decay, torch.Tensor)
        if together:
            y = retain(q, k, v, decay, piece)
        else:
            one_by_one = [
                retain(q[:, h : h + 1], k[:, h : h + 1], v[:, h : h + 1], decay[h : h + 1], piece)
                for h in range(self.heads)
            ]
            y = torch.cat(one_by_one, dim=1)
        y = F.layer_norm(y, y.shape[-1:]).transpose(1, 2).flatten(2)
        return x + self.out(y * F.silu(gate))


def main(script: Script) -> None:
    """Train until stopped."""
    device, large = script.device, script.device == "cuda"
    width, heads, layers, length, sequences = (512, 8, 4, 4096, 4) if large else (64, 4, 2, 512, 4)
    tokens, head = nn.Embedding(VOCABULARY, width).to(device), nn.Linear(width, VOCABULARY).to(device)
    body = nn.ModuleList(Layer(width, heads) for _ in range(layers)).to(device)
    parameters = [p for each in (tokens, body, head) for p in each.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    text = torch.randint(VOCABULARY, (500_000,))

    with hoptui.connect(script.name) as run:
        chunk_len = run.knob(
            "chunk_len",
            length,
            min=32 if large else 4,
            max=length,
            scale="pow2",
            unit="tokens",
            effect="speed",
            cost="shape",
        )
        together = run.knob("batched_heads", False, effect="speed")
        for _ in run.iterations():
            starts = torch.randint(len(text) - length - 1, (sequences,)).tolist()
            x = torch.stack([text[i : i + length + 1] for i in starts]).to(device)
            y = tokens(x[:, :-1])
            for layer in body:
                y = layer(y, chunk_len.value, together.value)
            loss = F.cross_entropy(head(y).flatten(0, 1), x[:, 1:].flatten())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            run.log(loss=loss.item(), tokens=sequences * length)


if __name__ == "__main__":
    options(main)
