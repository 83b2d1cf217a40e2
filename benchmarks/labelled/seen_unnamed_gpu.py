"""Loads of the second lot that was held out once: on the GPU, by many launches, or on the wrong device."""

from __future__ import annotations

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

import hoptui
from benchmarks.labelled.catalogue import labelled


def perceiver() -> nn.Module:
    """A frozen network that judges how images look."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 32), (32, 32), (32, 64), (64, 64)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers).requires_grad_(False)


@labelled(gpu="wrong-device", cpu="healthy")
def judge_left_on_the_host(run: hoptui.Run, device: str) -> None:
    """Super-resolution: the network is on the GPU, and the one of its perceptual loss was forgotten."""
    net = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.PixelShuffle(2)).to(device)
    judge = perceiver()
    optimizer = torch.optim.Adam(net.parameters(), 1e-4)
    small, large = torch.rand(8, 3, 24, 24, device=device), torch.rand(8, 3, 48, 48)
    while not run.stopping:
        sharp = net(small).cpu()
        loss = functional.mse_loss(judge(sharp), judge(large))  # here
        optimizer.zero_grad()
        loss.backward()  # here
        optimizer.step()
        run.log(loss=loss.item(), samples=8)


@labelled(gpu="launch-bound", cpu="healthy")
def adaptation_to_each_task(run: hoptui.Run, device: str) -> None:
    """MAML: four tasks with three inner steps each, and gradients of gradients."""

    def predict(x: Tensor, weights: list[Tensor]) -> Tensor:
        for w, b in zip(weights[:-2:2], weights[1:-2:2], strict=True):
            x = torch.tanh(x @ w + b)
        return x @ weights[-2] + weights[-1]

    layers = (1, 64), (64, 64), (64, 64), (64, 1)
    weights = []
    for inputs, outputs in layers:
        weights.append(torch.randn(inputs, outputs, device=device).mul(0.1).requires_grad_())
        weights.append(torch.zeros(outputs, device=device, requires_grad=True))
    outer = torch.optim.Adam(weights, 1e-3)
    while not run.stopping:
        outer.zero_grad()
        total = torch.zeros((), device=device)
        for _ in range(4):
            x, shift = torch.rand(32, 1, device=device) * 6, torch.rand(1, device=device)
            y, adapted = torch.sin(x + shift), list(weights)
            for _ in range(3):
                error = functional.mse_loss(predict(x, adapted), y)
                slopes = torch.autograd.grad(error, adapted, create_graph=True)
                adapted = [w - 0.01 * g for w, g in zip(adapted, slopes, strict=True)]
            total = total + functional.mse_loss(predict(x, adapted), y)
        total.backward()
        outer.step()
        run.log(loss=total.item() / 4, tasks=4, samples=128)


@labelled(gpu="launch-bound", cpu="healthy")
def trajectory_of_a_neural_ode(run: hoptui.Run, device: str) -> None:
    """A field of forces is integrated with sixty small steps, and the gradient goes through all of them."""
    force = nn.Sequential(nn.Linear(4, 48), nn.Softplus(), nn.Linear(48, 4)).to(device)
    optimizer = torch.optim.Adam(force.parameters(), 1e-3)
    start, end = torch.randn(48, 4, device=device), torch.randn(48, 4, device=device)

    def integrate(state: Tensor, steps: int) -> Tensor:
        for _ in range(steps):
            middle = state + 0.5 / steps * force(state)
            state = state + force(middle) / steps
        return state

    while not run.stopping:
        loss = (integrate(start, 60) - end).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=48)


@labelled(gpu="compute-bound power-limited")
def correlation_of_wide_views(run: hoptui.Run, device: str) -> None:
    """Barlow Twins with a very wide projector: products of matrices in half precision."""
    width = 12_288
    projector = nn.Sequential(nn.Linear(2048, width, bias=False), nn.Linear(width, width, bias=False))
    projector.to(device, torch.bfloat16)
    optimizer = torch.optim.SGD(projector.parameters(), 1e-4)
    views = torch.randn(2, 8192, 2048, device=device, dtype=torch.bfloat16)
    while not run.stopping:
        a, b = projector(views[0]), projector(views[1])
        common = a.T @ b / 8192
        loss = common.square().mean() - 2 * common.diagonal().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=8192)


@labelled(gpu="compute-bound power-limited healthy")
def attention_over_a_whole_book(run: hoptui.Run, device: str) -> None:
    """A layer of attention over 65,536 words, with a fused kernel in bfloat16."""
    heads, length, size = 16, 65_536, 128
    queries = torch.randn(1, heads, length, size, device=device, dtype=torch.bfloat16, requires_grad=True)
    book = torch.randn(2, 1, heads, length, size, device=device, dtype=torch.bfloat16)
    while not run.stopping:
        read = functional.scaled_dot_product_attention(queries, book[0], book[1], is_causal=True)
        loss = read.float().square().mean()
        loss.backward()
        with torch.no_grad():
            assert queries.grad is not None
            queries -= queries.grad
            queries.grad = None
        run.log(loss=loss.item(), tokens=length, samples=1)


@labelled(gpu="memory-bandwidth-bound")
def heat_in_a_large_plate(run: hoptui.Run, device: str) -> None:
    """A material is learned from how it conducts heat: sweeps over a plate of two gigabytes."""
    row = 24_576
    heat, wanted = torch.rand(2, row * row, device=device)
    conducts = torch.full((), 0.1, device=device)
    while not run.stopping:
        now = heat
        with torch.no_grad():
            for _ in range(4):
                inner = now[row:-row]
                around = now[: -2 * row] + now[2 * row :] + now[row - 1 : -row - 1] + now[row + 1 : 1 - row]
                now = inner + conducts * (around - 4 * inner)
            error = (now - wanted[: len(now)]).mean()
            conducts -= 0.01 * error
        run.log(error=error.item(), samples=1)
