"""Trainings in the manner of PyTorch's own tutorials and examples."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import hoptui
from benchmarks.labelled.catalogue import labelled


@labelled(gpu="memory-bandwidth-bound", cpu="healthy")
def volume_by_lbfgs(run: hoptui.Run, device: str) -> None:
    """In the manner of PyTorch's neural_style_tutorial.py: L-BFGS changes the input itself.

    The input is a volume from a scanner, and its noise is taken out by the total variation of kornia's
    tutorial. The optimizer reads its long history in each step.
    """
    size = 448 if device != "cpu" else 96
    while not run.stopping:
        noisy = torch.rand(size, size, size, device=device)
        input_img = noisy.clone().requires_grad_(True)
        optimizer = torch.optim.LBFGS([input_img], lr=0.5, max_iter=1, history_size=50)
        denoise(run, optimizer, input_img, noisy)


def denoise(run: hoptui.Run, optimizer: torch.optim.LBFGS, input_img: Tensor, noisy: Tensor) -> None:
    """Take the noise out of one volume."""

    def closure() -> Any:
        optimizer.zero_grad()
        content_score = F.mse_loss(input_img, noisy, reduction="sum")
        variation: Any = sum(input_img.diff(dim=dim).square().sum() for dim in range(3))
        loss = content_score + 0.1 * variation + 0.01 * input_img.abs().pow(1.5).sum()
        loss.backward()
        return loss

    for _ in range(60):
        loss: Any = optimizer.step(closure)
        run.log(loss=loss.detach() / noisy.numel(), samples=1)
        if run.stopping:
            return


class PositionalEncoding(nn.Module):
    """Sines and cosines of the position."""

    def __init__(self, d_model: int, max_len: int) -> None:
        super().__init__()
        position = torch.arange(max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10_000.0) / d_model))
        pe = torch.zeros(max_len, 1, d_model)
        pe[:, 0, 0::2] = torch.sin(position * div_term)
        pe[:, 0, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe)

    def forward(self, x: Tensor) -> Tensor:
        pe: Any = self.pe
        encoded: Tensor = x + pe[: x.size(0)]
        return encoded


class TransformerModel(nn.Module):
    """The language model of the tutorial."""

    def __init__(self, ntoken: int, d_model: int, nhead: int, d_hid: int, nlayers: int) -> None:
        super().__init__()
        self.d_model = d_model
        self.pos_encoder = PositionalEncoding(d_model, max_len=1_024)
        encoder_layers = nn.TransformerEncoderLayer(d_model, nhead, d_hid, dropout=0.0)
        self.transformer_encoder = nn.TransformerEncoder(encoder_layers, nlayers)
        self.embedding = nn.Embedding(ntoken, d_model)
        self.linear = nn.Linear(d_model, ntoken)

    def forward(self, src: Tensor, src_mask: Tensor) -> Tensor:
        src = self.pos_encoder(self.embedding(src) * math.sqrt(self.d_model))
        output: Tensor = self.linear(self.transformer_encoder(src, src_mask, is_causal=True))
        return output


@labelled(gpu="compute-bound power-limited", cpu="healthy")
def transformer_tutorial_wide(run: hoptui.Run, device: str) -> None:
    """In the manner of PyTorch's transformer_tutorial.py, with wide layers and weights in bfloat16."""
    gpu = device != "cpu"
    ntokens, bptt, batch_size = (8_192, 512, 32) if gpu else (1_000, 35, 16)
    dtype = torch.bfloat16 if gpu else torch.float32
    with torch.device(device):
        if gpu:
            model = TransformerModel(ntokens, d_model=4_096, nhead=32, d_hid=16_384, nlayers=4)
        else:
            model = TransformerModel(ntokens, d_model=200, nhead=2, d_hid=400, nlayers=2)
    model = model.to(dtype)
    train_data = torch.randint(ntokens, (20 * bptt + 1, batch_size), device=device)
    src_mask = nn.Transformer.generate_square_subsequent_mask(bptt, device=torch.device(device), dtype=dtype)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while not run.stopping:
        model.train()
        for i in range(0, train_data.size(0) - 1, bptt):
            data, targets = train_data[i : i + bptt], train_data[i + 1 : i + 1 + bptt].reshape(-1)
            output = model(data, src_mask)
            loss = criterion(output.view(-1, ntokens), targets)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            run.log(loss=loss, samples=batch_size)
            if run.stopping:
                break
