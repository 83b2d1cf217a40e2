"""Trainings whose backward pass is most of the work, or where most of what limits them happens."""

# ruff: noqa: N803, N806, N812 - names as in the scripts that are imitated

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import hoptui
from benchmarks.labelled.catalogue import labelled


class _SoftDTW(torch.autograd.Function):
    """Soft dynamic time warping, cell by cell on the host."""

    @staticmethod
    def forward(ctx: Any, D: Tensor, gamma: float) -> Tensor:
        cost = D.detach().cpu().numpy().astype(np.float64)
        B, N, M = cost.shape
        R = np.full((B, N + 2, M + 2), np.inf)
        R[:, 0, 0] = 0
        for k in range(B):
            for j in range(1, M + 1):
                for i in range(1, N + 1):
                    r0 = -R[k, i - 1, j - 1] / gamma  # here
                    r1 = -R[k, i - 1, j] / gamma  # here
                    r2 = -R[k, i, j - 1] / gamma  # here
                    rmax = max(r0, r1, r2)  # here
                    rsum = np.exp(r0 - rmax) + np.exp(r1 - rmax) + np.exp(r2 - rmax)  # here
                    R[k, i, j] = cost[k, i - 1, j - 1] - gamma * (np.log(rsum) + rmax)  # here
        ctx.cost, ctx.R, ctx.gamma = cost, R, gamma
        return D.new_tensor(R[:, N, M])

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:
        cost, R, gamma = ctx.cost, ctx.R, ctx.gamma
        B, N, M = cost.shape
        C = np.zeros((B, N + 2, M + 2))
        C[:, 1 : N + 1, 1 : M + 1] = cost
        E = np.zeros((B, N + 2, M + 2))
        E[:, N + 1, M + 1] = 1
        R[:, :, M + 1] = R[:, N + 1, :] = -np.inf
        R[:, N + 1, M + 1] = R[:, N, M]
        for k in range(B):
            for j in range(M, 0, -1):
                for i in range(N, 0, -1):
                    a = np.exp((R[k, i + 1, j] - R[k, i, j] - C[k, i + 1, j]) / gamma)  # here
                    b = np.exp((R[k, i, j + 1] - R[k, i, j] - C[k, i, j + 1]) / gamma)  # here
                    c = np.exp((R[k, i + 1, j + 1] - R[k, i, j] - C[k, i + 1, j + 1]) / gamma)  # here
                    E[k, i, j] = E[k, i + 1, j] * a + E[k, i, j + 1] * b + E[k, i + 1, j + 1] * c  # here
        (grad,) = grad_outputs
        return grad.view(-1, 1, 1) * grad.new_tensor(E[:, 1 : N + 1, 1 : M + 1]), None


@labelled(gpu="host-bound", cpu="host-bound", helpers=(_SoftDTW,))
def forecasts_with_soft_dtw(run: hoptui.Run, device: str) -> None:
    """A forecaster's loss is soft-DTW, whose both passes go over the cells in Python.

    Four pairs of 48 steps are 9216 cells, forward and backward, each some microseconds: more than 60 ms.
    The perceptron and the optimizer need less than 10 ms.
    """
    encoder = nn.Sequential(nn.Linear(48, 128), nn.ReLU()).to(device)
    decoder = nn.Linear(128, 48).to(device)
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
    t = torch.linspace(0, 12, 96)
    while not run.stopping:
        waves = torch.sin(t + 6 * torch.rand(4, 1))[..., None].to(device)
        past, future = waves[:, :48], waves[:, 48:]
        forecast = decoder(encoder(past[..., 0]))[..., None]
        loss = _SoftDTW.apply((forecast - future.transpose(1, 2)) ** 2, 0.1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=4)


class RankMonitor:
    """Follows the singular values of what each layer gets back."""

    def __init__(self, net: nn.Sequential) -> None:
        self.spectra: dict[int, Any] = {}
        for depth, layer in enumerate(net):
            if isinstance(layer, nn.Linear):
                layer.register_full_backward_hook(self.record_as(depth))

    def record_as(self, depth: int) -> Callable[..., None]:
        """Return the hook of the layer at a depth."""

        def record(layer: nn.Module, grad_input: Any, grad_output: Any) -> None:
            g = grad_output[0].detach().cpu().numpy()
            _, self.spectra[depth], _ = np.linalg.svd(g)  # here

        return record


@labelled(gpu="host-bound", cpu="host-bound", helpers=(RankMonitor,))
def effective_rank_in_hooks(run: hoptui.Run, device: str) -> None:
    """Hooks of the backward pass compute singular values of the gradients of eight layers with NumPy.

    With the vectors, those of a 256 x 256 matrix take more than 12 ms, so eight are more than 96 ms. The
    step of the perceptron with 256 rows is 8 x 3 x 33 MFLOP: less than 25 ms.
    """
    layers = [part for _ in range(8) for part in (nn.Linear(256, 256), nn.Tanh())]
    net = nn.Sequential(*layers).to(device)
    monitor = RankMonitor(net)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    while not run.stopping:
        x = torch.randn(256, 256, device=device)
        loss = (net(x) - x.cos()).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        energy = [float(s[:10].sum() / s.sum()) for s in monitor.spectra.values()]
        run.log(loss=loss.item(), energy=min(energy), samples=256)


@labelled(gpu="compute-bound power-limited", cpu="healthy", needs=("timm",))
def vit_with_checkpointed_blocks(run: hoptui.Run, device: str) -> None:
    """timm's vision transformer with `set_grad_checkpointing`, so each block is computed twice.

    On a GPU: 16 blocks of width 2048, 0.8 billion weights, and 48 x 257 tokens in bf16 autocast: 12 336 x
    0.8e9 x 8 = 79 TFLOP. Casts, gradients and momentum of the weights are some 20 GB: less than 10 ms. On
    the CPU: 4 blocks of width 192 with 8 x 65 tokens: 7 GFLOP.
    """
    from timm.models.vision_transformer import VisionTransformer

    cpu = device == "cpu"
    size, batch_size = (64, 8) if cpu else (224, 48)
    model = VisionTransformer(
        img_size=size,
        patch_size=8 if cpu else 14,
        embed_dim=192 if cpu else 2048,
        depth=4 if cpu else 16,
        num_heads=4 if cpu else 16,
        num_classes=37,
    ).to(device)
    model.set_grad_checkpointing(True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss_fn = nn.CrossEntropyLoss(label_smoothing=0.1)
    input = torch.randn(batch_size, 3, size, size, device=device)  # noqa: A001
    target = torch.randint(0, 37, (batch_size,), device=device)
    while not run.stopping:
        with torch.autocast(device, dtype=torch.bfloat16, enabled=not cpu):
            loss = loss_fn(model(input), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=batch_size)


class ResidualUnit(nn.Module):
    """A unit of a very deep perceptron."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.a, self.b = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + 0.1 * self.b(F.gelu(self.a(self.norm(x))))
        return out


@labelled(gpu="launch-bound", cpu="healthy")
def very_deep_net_checkpointed(run: hoptui.Run, device: str) -> None:
    """A perceptron of hundreds of residual units with `checkpoint_sequential`.

    On a GPU: 400 units of 7 kernels over 16 x 32 numbers, computed twice, and their backward pass: 12 000
    launches of some microseconds. On the CPU: 24 units with 256 x 256 numbers: 24 x 4 x 67 MFLOP.
    """
    cpu = device == "cpu"
    width, rows, units = (256, 256, 24) if cpu else (32, 16, 400)
    net = nn.Sequential(*(ResidualUnit(width) for _ in range(units))).to(device)
    head = nn.Linear(width, 1).to(device)
    optimizer = torch.optim.SGD([*net.parameters(), *head.parameters()], lr=1e-3, foreach=True)
    while not run.stopping:
        x = torch.randn(rows, width, device=device)
        hidden = checkpoint_sequential(net, 4, x, use_reentrant=False)
        loss = F.mse_loss(head(hidden)[:, 0], x.mean(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=rows)


class SwishImplementation(torch.autograd.Function):
    """Swish that keeps its input alone, as EfficientNet-PyTorch's `MemoryEfficientSwish`."""

    @staticmethod
    def forward(ctx: Any, i: Tensor) -> Tensor:
        ctx.save_for_backward(i)
        return i * torch.sigmoid(i)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Tensor:
        (i,) = ctx.saved_tensors
        sigmoid_i = torch.sigmoid(i)
        grad: Tensor = grad_outputs[0] * (sigmoid_i * (1 + i * (1 - sigmoid_i)))
        return grad


@labelled(gpu="memory-bandwidth-bound", cpu="healthy")
def memory_efficient_swish_chain(run: hoptui.Run, device: str) -> None:
    """Maps of features are scaled by channel and go through an own swish, six times, and checkpointed.

    On a GPU: maps of 268 million numbers, 1 GB. Scale, shift and swish read and write 10 GB forward,
    twice by the checkpoint, and some 20 GB backward: 240 GB for six layers, at one or two operations for
    each number. On the CPU: maps of 1 million numbers.
    """
    shape = (4, 64, 64, 64) if device == "cpu" else (64, 256, 128, 128)
    scales = nn.ParameterList(nn.Parameter(torch.ones(1, shape[1], 1, 1, device=device)) for _ in range(6))
    shifts = nn.ParameterList(nn.Parameter(torch.zeros(1, shape[1], 1, 1, device=device)) for _ in range(6))
    opt = torch.optim.SGD([*scales, *shifts], lr=1e-3)
    maps = torch.randn(shape, device=device)

    def layer(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        out: Tensor = SwishImplementation.apply(x * scale + shift)
        return out

    while not run.stopping:
        x = maps
        for scale, shift in zip(scales, shifts, strict=True):
            x = checkpoint(layer, x, scale, shift, use_reentrant=False)
        loss = x.square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        run.log(loss=loss.item(), samples=shape[0])


@labelled(gpu="transfer-bound")
def activations_saved_on_the_host(run: hoptui.Run, device: str) -> None:
    """All activations are kept in host memory by `save_on_cpu`, without pinned memory.

    Eight layers keep 32 768 x 1024 numbers twice: 2 GB go to the host and come back, in pageable memory at
    some 10 GB/s or less: more than 400 ms with both ways. The products are 8 x 3 x 0.07 TFLOP in float32:
    less than 60 ms.
    """
    layers = [part for _ in range(8) for part in (nn.Linear(1024, 1024, bias=False), nn.Tanh())]
    net = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    x = torch.randn(32_768, 1024, device=device)
    while not run.stopping:
        with torch.autograd.graph.save_on_cpu(pin_memory=False):
            y = net(x)  # here
            loss = (y - x).square().mean()  # here
        optimizer.zero_grad()
        loss.backward()  # here
        optimizer.step()
        run.log(loss=loss.item(), samples=len(x))  # here


@labelled(gpu="launch-bound", cpu="healthy")
def maml_of_sine_waves(run: hoptui.Run, device: str) -> None:
    """MAML: some inner steps for each task, and a backward pass through them.

    On a GPU: 16 tasks with 5 inner steps of a perceptron of width 40 and 10 points: 80 times a forward
    and a differentiable backward pass of some 60 kernels, and their backward pass. On the CPU: 4 tasks
    with 3 inner steps of width 256 with 512 points, where the products are the work.
    """
    cpu = device == "cpu"
    width, points, tasks, inner_steps = (256, 512, 4, 3) if cpu else (40, 10, 16, 5)
    sizes = (1, width, width, width, 1)
    parts = [p for a, b in pairwise(sizes) for p in (nn.Linear(a, b), nn.Tanh())]
    net = nn.Sequential(*parts[:-1]).to(device)
    meta_opt = torch.optim.Adam(net.parameters(), lr=1e-3)

    def task_loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(functional_call(net, weights, (x,)), y)

    while not run.stopping:
        meta_loss = torch.zeros((), device=device)
        for _ in range(tasks):
            x = 10 * torch.rand(2, points, 1, device=device) - 5
            y = torch.sin(x + 3 * torch.rand((), device=device))
            fast: dict[str, Tensor] = dict(net.named_parameters())
            for _ in range(inner_steps):
                loss = task_loss(fast, x[0], y[0])
                grads = torch.autograd.grad(loss, list(fast.values()), create_graph=True)
                fast = {name: w - 0.01 * g for (name, w), g in zip(fast.items(), grads, strict=True)}
            meta_loss = meta_loss + task_loss(fast, x[1], y[1])
        meta_opt.zero_grad()
        meta_loss.backward()
        meta_opt.step()
        run.log(loss=meta_loss.item() / tasks, samples=tasks)
