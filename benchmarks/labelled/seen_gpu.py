"""Loads of an earlier held-out lot, development loads since: the GPU or its launches hold them back."""

from __future__ import annotations

import torch
import torch.nn.functional as functional
from torch import nn

import hoptui
from benchmarks.labelled.catalogue import labelled
from benchmarks.labelled.models import transformer


@labelled(gpu="compute-bound power-limited")
def wide_layers_in_bf16(run: hoptui.Run, device: str) -> None:
    """A wide perceptron, whose products of matrices take nearly all of its time."""
    net = nn.Sequential(*(nn.Linear(8192, 8192, bias=False) for _ in range(4))).to(device, torch.bfloat16)
    x = torch.randn(16_384, 8192, device=device, dtype=torch.bfloat16)
    optimizer = torch.optim.SGD(net.parameters(), 1e-4)
    while not run.stopping:
        loss = net(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=16_384)


@labelled(gpu="compute-bound power-limited")
def equation_solved_in_float64(run: hoptui.Run, device: str) -> None:
    """A physics-informed network of double precision."""
    parts = [part for _ in range(4) for part in (nn.Linear(4096, 4096), nn.Tanh())]
    net = nn.Sequential(*parts).to(device, torch.float64)
    points = torch.rand(16_384, 4096, device=device, dtype=torch.float64)
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    while not run.stopping:
        residual = net(points).mean(1) - points[:, 0]
        loss = residual.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(residual=loss.item(), samples=16_384)


@labelled(gpu="compute-bound power-limited memory-bandwidth-bound healthy")
def gpt_in_micro_batches(run: hoptui.Run, device: str) -> None:
    """A GPT whose gradients are accumulated and clipped. The GPU is busy; which part of it, is left open."""
    net, head = transformer(device, 1024, 12, 16), nn.Linear(1024, 32_768, bias=False).to(device)
    weights = [*net.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(weights, 3e-4, fused=True)
    x = torch.randn(8, 1024, 1024, device=device)
    y = torch.randint(0, 32_768, (8 * 1024,), device=device)
    while not run.stopping:
        for _ in range(2):
            with torch.autocast("cuda", torch.bfloat16):
                loss = functional.cross_entropy(head(net(x)).flatten(0, 1), y) / 2
            loss.backward()
        norm = nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        run.log(loss=loss.item(), norm=norm.item(), tokens=16_384, samples=16)


@labelled(gpu="memory-bandwidth-bound")
def average_of_many_weights(run: hoptui.Run, device: str) -> None:
    """Self-distillation: the average of the weights takes more time than their step."""
    weights = [torch.randn(1 << 27, device=device) for _ in range(4)]
    averages = [weight.clone() for weight in weights]
    x = torch.randn(256, 1024, device=device)
    while not run.stopping:
        loss = (x @ weights[0][: 1 << 20].view(1024, 1024)).square().mean()
        for weight, average in zip(weights, averages, strict=True):
            weight.mul_(0.9999)
            average.mul_(0.99).add_(weight, alpha=0.01)
        run.log(loss=loss.item(), samples=256)


@labelled(gpu="memory-bandwidth-bound")
def noise_on_volumes(run: hoptui.Run, device: str) -> None:
    """Diffusion of volumes: elementwise operations on tensors of 1.6 GB, forward and backward."""
    volumes = torch.randn(24, 4, 160, 160, 160, device=device)
    noise = torch.randn_like(volumes)
    gain = torch.ones(1, 4, 1, 1, 1, device=device, requires_grad=True)
    while not run.stopping:
        noisy = 0.8 * volumes + 0.6 * noise
        guess = functional.leaky_relu(noisy * gain, 0.1)
        loss = (guess - noise).square().mean()
        loss.backward()
        with torch.no_grad():
            assert gain.grad is not None
            gain -= 0.1 * gain.grad
            gain.grad = None
        run.log(loss=loss.item(), samples=24)


@labelled(gpu="launch-bound")
def agents_one_after_another(run: hoptui.Run, device: str) -> None:
    """A population of small agents, each with its own optimizer."""
    nets = [nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4)).to(device) for _ in range(40)]
    optimizers = [torch.optim.RMSprop(net.parameters(), 1e-3, foreach=False) for net in nets]
    x = torch.randn(64, 8, device=device)
    while not run.stopping:
        losses = []
        for net, optimizer in zip(nets, optimizers, strict=True):
            loss = net(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        run.log(best=torch.stack(losses).min().item(), samples=64)


@labelled(gpu="launch-bound", cpu="healthy")
def generator_and_discriminator(run: hoptui.Run, device: str) -> None:
    """A GAN with two optimizers. The discriminator takes three steps for each of the generator."""

    def network(inputs: int, outputs: int) -> nn.Sequential:
        hidden = [part for _ in range(3) for part in (nn.Linear(256, 256), nn.LeakyReLU(0.2))]
        return nn.Sequential(nn.Linear(inputs, 256), *hidden, nn.Linear(256, outputs)).to(device)

    generator, discriminator = network(32, 64), network(64, 1)
    of_generator = torch.optim.Adam(generator.parameters(), 2e-4, betas=(0.5, 0.999))
    of_discriminator = torch.optim.Adam(discriminator.parameters(), 2e-4, betas=(0.5, 0.999))
    real = torch.randn(512, 64, device=device)
    while not run.stopping:
        fake = generator(torch.randn(512, 32, device=device))
        for _ in range(3):
            doubt = functional.softplus(-discriminator(real)).mean()
            doubt = doubt + functional.softplus(discriminator(fake.detach())).mean()
            of_discriminator.zero_grad()
            doubt.backward()
            of_discriminator.step()
        fooled = functional.softplus(-discriminator(fake)).mean()
        of_generator.zero_grad()
        fooled.backward()
        of_generator.step()
        run.log(discriminator=doubt.item(), generator=fooled.item(), samples=512)


@labelled(gpu="launch-bound", cpu="healthy")
def gradients_clipped_by_hand(run: hoptui.Run, device: str) -> None:
    """The norm of each gradient is read with `.item()`, and each one is logged."""
    parts = [part for _ in range(24) for part in (nn.Linear(192, 192), nn.LayerNorm(192), nn.GELU())]
    net = nn.Sequential(*parts).to(device)
    optimizer = torch.optim.SGD(net.parameters(), 1e-3, foreach=False)
    x = torch.randn(256, 192, device=device)
    while not run.stopping:
        loss = functional.mse_loss(net(x), x)
        optimizer.zero_grad()
        loss.backward()
        norms = {}
        for name, weight in net.named_parameters():
            assert weight.grad is not None
            norm = weight.grad.norm().item()
            if norm > 0.1:
                weight.grad.mul_(0.1 / norm)
            norms[f"norm_{name.replace('.', '_')}"] = norm
        optimizer.step()
        run.log(loss=loss.item(), samples=256, largest=max(norms.values()), **dict(list(norms.items())[:30]))


@labelled(cpu="healthy")
def digits_on_the_processor(run: hoptui.Run, device: str) -> None:
    """A convolutional network for small images, which is trained and evaluated without a GPU."""
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(1568, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    images, digits = torch.rand(2048, 1, 28, 28), torch.randint(0, 10, (2048,))
    step = 0
    while not run.stopping:
        chosen = torch.randint(0, 2048, (64,))
        loss = functional.cross_entropy(net(images[chosen]), digits[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 50 == 0:
            with torch.no_grad():
                net(images[:512]).argmax(1).eq(digits[:512]).float().mean().item()
        run.log(loss=loss.item(), samples=64)
