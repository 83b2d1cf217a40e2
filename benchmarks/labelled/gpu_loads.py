"""Loads that are limited by the GPU itself, or by launching its kernels."""

from __future__ import annotations

import torch
from torch import nn

import hoptui
from benchmarks.labelled.catalogue import labelled
from benchmarks.labelled.models import mlp, synchronize, trainer, transformer

WIDTH = 256
LARGE = "compute-bound power-limited memory-bandwidth-bound healthy"
"""Of a large model that keeps the GPU at work. Which part of it gives way first is not known beforehand."""


@labelled(gpu="launch-bound", cpu="healthy")
def perceptron_of_small_layers(run: hoptui.Run, device: str) -> None:
    step, x = trainer(mlp(device, 64, 8)), torch.randn(32, 64, device=device)
    while not run.stopping:
        run.log(loss=step(x), samples=32)


@labelled(gpu="launch-bound", cpu="healthy")
def item_after_each_operation(run: hoptui.Run, device: str) -> None:
    x = torch.randn(1024, WIDTH, device=device)
    while not run.stopping:
        total = 0.0
        for column in range(32):
            total += (x[:, column] * 2).sum().item()
        run.log(total=total, samples=1024)


@labelled(gpu="launch-bound", cpu="healthy")
def recurrent_cells_one_by_one(run: hoptui.Run, device: str) -> None:
    cell, head = nn.LSTMCell(64, 128).to(device), nn.Linear(128, 64).to(device)
    optimizer = torch.optim.Adam([*cell.parameters(), *head.parameters()])
    x = torch.randn(40, 16, 64, device=device)
    while not run.stopping:
        h = c = torch.zeros(16, 128, device=device)
        loss = torch.zeros((), device=device)
        for t in range(39):
            h, c = cell(x[t], (h, c))
            loss = loss + ((head(h) - x[t + 1]) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.detach(), samples=16)


@labelled(gpu="launch-bound", cpu="healthy")
def transformer_with_one_sequence(run: hoptui.Run, device: str) -> None:
    step, x = trainer(transformer(device)), torch.randn(1, 64, WIDTH, device=device)
    while not run.stopping:
        loss = step(x)
        run.log(loss=loss, tokens=64)


@labelled(gpu="launch-bound", cpu="healthy")
def optimizer_of_many_tensors(run: hoptui.Run, device: str) -> None:
    weights = [torch.randn(64, 64, device=device, requires_grad=True) for _ in range(200)]
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    optimizer = torch.optim.AdamW(weights, foreach=False)
    while not run.stopping:
        optimizer.step()
        run.log(samples=1)


@labelled(gpu="launch-bound", cpu="healthy")
def images_two_at_a_time(run: hoptui.Run, device: str) -> None:
    parts: list[nn.Module] = [nn.Conv2d(3, 32, 3, padding=1)]
    for _ in range(12):
        parts += [nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1)]
    model = nn.Sequential(*parts).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(2, 3, 32, 32, device=device)
    while not run.stopping:
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.detach(), samples=2)


@labelled(gpu="launch-bound", cpu="healthy")
def decodes_token_by_token(run: hoptui.Run, device: str) -> None:
    model = transformer(device, 256, 6).eval()
    with torch.no_grad():
        while not run.stopping:
            x = torch.randn(1, 8, WIDTH, device=device)
            for _ in range(16):
                x = torch.cat((x, model(x)[:, -1:]), 1)
            run.log(tokens=16)


@labelled(gpu="launch-bound", cpu="healthy")
def policy_acts_step_by_step(run: hoptui.Run, device: str) -> None:
    policy, value = mlp(device, 64, 4), mlp(device, 64, 4)
    observed = torch.randn(16, 64)
    while not run.stopping:
        with torch.no_grad():
            x = observed.to(device)
            chosen = torch.multinomial(policy(x).softmax(-1), 1).squeeze(-1).cpu()
            value(x)
        observed[:, 0] = chosen.float()
        run.log(env_steps=16)


@labelled(gpu="launch-bound", cpu="healthy")
def elementwise_chain_of_short_vectors(run: hoptui.Run, device: str) -> None:
    x = torch.randn(4096, device=device)
    while not run.stopping:
        for _ in range(500):
            x = (x * 1.0001).clamp(-3, 3) + 0.001
        run.log(samples=500)


@labelled(gpu="launch-bound")
def graph_of_tiny_kernels(run: hoptui.Run, device: str) -> None:
    x = torch.randn(2048, device=device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(1000):
            x.mul_(1.0001).clamp_(-3, 3)
    while not run.stopping:
        graph.replay()
        torch.cuda.synchronize()
        run.log(samples=1000)


@labelled(gpu="launch-bound data-bound")
def half_input_half_launches(run: hoptui.Run, device: str) -> None:
    step, x = trainer(mlp(device, 64, 8)), torch.randn(32, 64, device=device)

    def load_rows() -> list[float]:
        return [i / 7 for i in range(40_000)]

    while not run.stopping:
        rows = load_rows()
        for _ in range(3):
            loss = step(x)
        run.log(loss=loss, samples=len(rows))


@labelled(gpu="compute-bound power-limited")
def products_in_bf16(run: hoptui.Run, device: str) -> None:
    a = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    while not run.stopping:
        for _ in range(20):
            b = a @ a
        run.log(value=b[0, 0], samples=20)
        torch.cuda.synchronize()


@labelled(gpu="compute-bound")
def products_in_fp32(run: hoptui.Run, device: str) -> None:
    torch.set_float32_matmul_precision("highest")
    a = torch.randn(4096, 4096, device=device)
    while not run.stopping:
        for _ in range(10):
            torch.mm(a, a)
        torch.cuda.synchronize()
        run.log(samples=10)


@labelled(gpu="compute-bound healthy power-limited")
def perceptron_without_autocast(run: hoptui.Run, device: str) -> None:
    torch.set_float32_matmul_precision("highest")
    step, x = trainer(mlp(device, 4096, 6)), torch.randn(4096, 4096, device=device)
    while not run.stopping:
        run.log(loss=step(x).item(), samples=4096)


@labelled(gpu=LARGE)
def large_transformer(run: hoptui.Run, device: str) -> None:
    model = transformer(device, 1024, 8, 16)
    step, x = trainer(model), torch.randn(16, 1024, 1024, device=device)
    while not run.stopping:
        with torch.autocast("cuda", torch.bfloat16):
            loss = step(x)
        run.log(loss=loss.item(), tokens=16 * 1024)


@labelled(gpu=LARGE)
def large_convolutions(run: hoptui.Run, device: str) -> None:
    parts: list[nn.Module] = [nn.Conv2d(3, 256, 3, padding=1)]
    for _ in range(6):
        parts += [nn.ReLU(), nn.Conv2d(256, 256, 3, padding=1)]
    model = nn.Sequential(*parts).to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(64, 3, 112, 112, device=device).contiguous(memory_format=torch.channels_last)
    while not run.stopping:
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=64)


@labelled(gpu=LARGE)
def python_hidden_behind_the_gpu(run: hoptui.Run, device: str) -> None:
    """Python that takes less time than the kernels that were launched before it."""
    a = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    while not run.stopping:
        for _ in range(60):
            torch.mm(a, a)
        total = 0
        for i in range(300_000):
            total += i ^ 3
        torch.cuda.synchronize()
        run.log(total=total, samples=60)


@labelled(gpu="memory-bandwidth-bound")
def scales_a_long_vector(run: hoptui.Run, device: str) -> None:
    x = torch.randn(1 << 29, device=device)
    while not run.stopping:
        for _ in range(10):
            x.mul_(1.0001)
        torch.cuda.synchronize()
        run.log(samples=10)


@labelled(gpu="memory-bandwidth-bound")
def normalizes_wide_rows(run: hoptui.Run, device: str) -> None:
    norm, x = nn.LayerNorm(4096).to(device), torch.randn(1 << 16, 4096, device=device)
    with torch.no_grad():
        while not run.stopping:
            for _ in range(10):
                norm(x)
            torch.cuda.synchronize()
            run.log(samples=1 << 16)


@labelled(gpu="memory-bandwidth-bound")
def optimizer_of_a_large_model(run: hoptui.Run, device: str) -> None:
    weights = [torch.randn(1 << 26, device=device, requires_grad=True) for _ in range(8)]
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    optimizer = torch.optim.AdamW(weights, fused=True)
    while not run.stopping:
        optimizer.step()
        torch.cuda.synchronize()
        run.log(samples=1)


@labelled(gpu="memory-latency-bound memory-bandwidth-bound")
def follows_random_indices(run: hoptui.Run, device: str) -> None:
    order = torch.randperm(1 << 27, device=device)
    at = torch.arange(1 << 21, device=device)
    while not run.stopping:
        for _ in range(200):
            at = order[at]
        run.log(at=at[0], samples=200)
        torch.cuda.synchronize()


@labelled(gpu="memory-latency-bound memory-bandwidth-bound healthy")
def sorts_on_the_gpu(run: hoptui.Run, device: str) -> None:
    x = torch.rand(1 << 26, device=device)
    while not run.stopping:
        torch.sort(x)
        synchronize(device)
        run.log(samples=1)


@labelled(gpu="memory-bandwidth-bound compute-bound healthy")
def attention_in_fp32_by_hand(run: hoptui.Run, device: str) -> None:
    q = torch.randn(8, 16, 2048, 64, device=device)
    while not run.stopping:
        for _ in range(4):
            weights = (q @ q.transpose(-1, -2)).softmax(-1)
            out = weights @ q
        run.log(value=out[0, 0, 0, 0].item(), samples=8)
