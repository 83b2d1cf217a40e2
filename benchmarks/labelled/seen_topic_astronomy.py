"""Trainings for astronomy: galaxies, pictures of radio telescopes, small simulated galaxies, transients."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hoptui
from benchmarks.labelled.catalogue import labelled


def cleaned_exposure(seed: int, size: int = 128, rounds: int = 2) -> tuple[Any, int]:
    """Return an exposure of a galaxy without the traces of cosmic rays, in the manner of L.A.Cosmic."""
    from scipy import ndimage

    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:size, :size] - size / 2
    kind = seed % 4
    light = 50 * np.exp(-np.hypot(x, y * (1 + kind)) / 10) + rng.standard_normal((size, size))
    hit = rng.integers(0, size, (2, 40))
    light[hit[0], hit[1]] += 300
    for _ in range(rounds):
        sharp = np.maximum(ndimage.laplace(light), 0)  # here
        noise = np.sqrt(np.maximum(ndimage.median_filter(light, 5), 1))  # here
        significance = sharp / noise
        significance -= ndimage.median_filter(significance, 5)  # here
        fine = ndimage.median_filter(light, 3)  # here
        fine -= ndimage.median_filter(fine, 7)  # here
        cosmic = (significance > 8) & (sharp / np.maximum(fine, 0.1) > 4)
        light = np.where(cosmic, ndimage.median_filter(light, 5), light)  # here
    return light.reshape(64, 2, 64, 2).mean((1, 3)).astype(np.float32), kind


@contextmanager
def exposures(batch: int, ahead: int) -> Iterator[Iterator[tuple[Tensor, Tensor]]]:
    """Give batches of exposures, which two processes clean a few batches ahead."""
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(2, mp_context=context) as pool:

        def batches() -> Iterator[tuple[Tensor, Tensor]]:
            seeds = iter(range(10**9))
            pending: deque[list[Future[tuple[Any, int]]]] = deque()
            while True:
                while len(pending) < ahead:
                    pending.append([pool.submit(cleaned_exposure, next(seeds)) for _ in range(batch)])
                done = [future.result() for future in pending.popleft()]  # here
                light, kinds = zip(*done, strict=True)
                yield torch.from_numpy(np.stack(light))[:, None], torch.tensor(kinds)

        yield batches()
        pool.shutdown(wait=False, cancel_futures=True)


@labelled(gpu="data-bound", cpu="data-bound", needs=("timm", "scipy"), helpers=(cleaned_exposure, exposures))
def galaxies_without_cosmic_rays(run: hoptui.Run, device: str) -> None:
    """Galaxies are classified by a small network of timm. Two processes clean the exposures.

    An exposure of 128 x 128 points is cleaned by ten medians over 9 to 49 points: more than 24 ms. A batch
    of 8 is more than 190 ms of work: more than 95 ms with both processes. lcnet_035 with 8 x 64 x 64 points
    needs less than 25 ms on the CPU, and less than 15 ms with a GPU.
    """
    import timm
    from timm.optim import create_optimizer_v2

    model = timm.create_model("lcnet_035", in_chans=1, num_classes=4).to(device)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
    with exposures(batch=8, ahead=3) as batches:
        for light, kinds in batches:  # here
            scaled = torch.asinh(light.to(device) / 10)
            loss = F.cross_entropy(model(scaled), kinds.to(device), label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss.item(), samples=len(kinds))
            if run.stopping:
                break


class UnrolledImaging(nn.Module):
    """Steps of a proximal gradient method with learned step sizes and thresholds."""

    def __init__(self, baselines: int, pixels: int, steps: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.measure: Tensor
        self.register_buffer("measure", (torch.randn(baselines, pixels) / baselines**0.5).to(dtype))
        self.eta = nn.Parameter(torch.full((steps,), 0.1))
        self.theta = nn.Parameter(torch.full((steps,), 0.01))

    def forward(self, visibilities: Tensor) -> Tensor:
        sky = self.eta[0].to(visibilities.dtype) * (visibilities @ self.measure)
        for eta, theta in zip(self.eta, self.theta, strict=True):
            wrong = sky @ self.measure.T - visibilities
            sky = F.relu(sky - eta.to(sky.dtype) * (wrong @ self.measure) - theta.to(sky.dtype))
        return sky


@labelled(gpu="compute-bound power-limited", cpu="healthy")
def pictures_from_baselines(run: hoptui.Run, device: str) -> None:
    """Pictures of the sky are made from measured visibilities by an unrolled method, in bf16.

    On a GPU: a step is two products of 8192 x 16 384 numbers with 4096 pictures, 2.2 TFLOP, and as much in
    the backward pass. Eight steps need 37 TFLOP: more than 37 ms at 989 TFLOPS, and some 55 ms at what is
    reached. Pictures of 16 384 points are 134 MB, and are read or written less than 30 times a step: 32 GB, 8
    ms. On the CPU: 4 steps with 512 x 1024 numbers and 256 pictures.
    """
    cpu = device == "cpu"
    baselines, pixels, pictures, steps = (512, 1024, 256, 4) if cpu else (8192, 16_384, 4096, 8)
    dtype = torch.float32 if cpu else torch.bfloat16
    with torch.device(device):
        imaging = UnrolledImaging(baselines, pixels, steps, dtype)
    optimizer = torch.optim.Adam(imaging.parameters(), lr=1e-3)
    while not run.stopping:
        with torch.no_grad():
            sky = F.relu(torch.randn(pictures, pixels, device=device, dtype=dtype) - 2)
            visibilities = sky @ imaging.measure.T
            visibilities += 0.05 * torch.randn_like(visibilities)
        loss = F.mse_loss(imaging(visibilities), sky)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=pictures)


class Shadow:
    """An average of the weights, which the samples are drawn with."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = [p.detach().clone() for p in model.parameters()]

    @torch.no_grad()
    def follow(self, model: nn.Module) -> None:
        """Come a little closer to a model."""
        for mean, p in zip(self.weights, model.parameters(), strict=True):
            mean.lerp_(p, 1 - self.decay)


@labelled(gpu="launch-bound", cpu="healthy", needs=("diffusers",))
def small_galaxies_by_diffusion(run: hoptui.Run, device: str) -> None:
    """A UNet of diffusers learns to draw small galaxies, with accumulated gradients and averaged weights.

    On a GPU: five batches of two pictures of 16 x 16 points. 26 blocks with a dozen operations, the
    attention, and twice as many in the backward pass are more than 1100 operations: 5500, with the average
    of 350 weights 6000. With the modules around them each takes the host more than 10 microseconds: 60 ms,
    and the GPU less than 4: 24 ms. On the CPU: one batch of 16 pictures, and 8 blocks.
    """
    from diffusers import DDPMScheduler, UNet2DModel

    cpu = device == "cpu"
    batches, batch, layers = (1, 16, 1) if cpu else (5, 2, 4)
    unet = UNet2DModel(
        sample_size=16,
        in_channels=1,
        out_channels=1,
        layers_per_block=layers,
        block_out_channels=(32, 64, 64),
        down_block_types=("DownBlock2D", "DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D", "UpBlock2D"),
        norm_num_groups=8,
    ).to(device)
    noising = DDPMScheduler(num_train_timesteps=1000, beta_schedule="squaredcos_cap_v2")
    optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-4)
    shadow = Shadow(unet, 0.999)
    y, x = torch.meshgrid(torch.linspace(-1, 1, 16), torch.linspace(-1, 1, 16), indexing="ij")
    galaxies = torch.stack([torch.exp(-4 * (x**2 + (y * (1 + n / 32)) ** 2)) for n in range(64)])[:, None]
    galaxies = galaxies.to(device) * 2 - 1
    while not run.stopping:
        total = torch.zeros((), device=device)
        for _ in range(batches):
            clean = galaxies[torch.randint(0, 64, (batch,), device=device)]
            t = torch.randint(0, 1000, (batch,), device=device)
            noise = torch.randn_like(clean)
            loss = F.mse_loss(unet(noising.add_noise(clean, noise, t), t).sample, noise)
            (loss / batches).backward()
            total += loss.detach() / batches
        nn.utils.clip_grad_norm_(unet.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        shadow.follow(unet)
        run.log(loss=total.item(), samples=batches * batch)


@labelled(gpu="transfer-bound")
def transients_in_a_survey(run: hoptui.Run, device: str) -> None:
    """The brightness and background of references are fitted to exposures. All differences go to the host.

    16 differences of 6144 x 6144 points are 2.4 GB, for which `.cpu()` takes new pageable memory: more than
    120 ms at less than 20 GB/s. On the GPU the exposures are read or written about 20 times: 48 GB, 12 ms.
    The host looks at one row of each: less than 1 ms.
    """
    count, side = 16, 6144
    reference = torch.rand(side, side, device=device)
    exposures = reference * torch.linspace(0.8, 1.2, count, device=device)[:, None, None]
    ramp = torch.linspace(-1, 1, side, device=device)
    fit = nn.Parameter(torch.tensor([[1.0, 0.0, 0.0]], device=device).repeat(count, 1))
    optimizer = torch.optim.Adam([fit], lr=0.01)
    while not run.stopping:
        bright, level, slope = fit[:, :, None, None].unbind(1)
        difference = exposures - bright * reference - (level + slope * ramp)
        loss = difference.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found = difference.detach().cpu()  # here
        run.log(loss=loss.item(), peak=found[:, side // 2].max().item(), samples=count)
