"""Trainings for textiles: faults of fabrics, woven patterns, dyes, weaves by diffusion, and tests of yarn."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import copy
import importlib
import importlib.util
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import hoptui
from benchmarks.labelled.catalogue import AdapterRun, labelled

PACKAGE = "lightning" if importlib.util.find_spec("lightning") else "pytorch_lightning"


class FaultFinder(nn.Module):
    """Scores the places of a strip of fabric. The strip is made smaller before."""

    def __init__(self, channels: int, faults: int) -> None:
        super().__init__()
        self.shrink = nn.AvgPool2d(16)
        self.body = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1), nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1)
        )
        self.head = nn.Linear(channels, faults)

    def forward(self, strips: Tensor) -> Tensor:
        hidden = F.relu(self.body(self.shrink(strips)))
        scores: Tensor = self.head(hidden.mean((2, 3)))
        return scores


@labelled(gpu="transfer-bound")
def faults_of_fabrics_distilled(run: hoptui.Run, device: str) -> None:
    """A small network learns faults of fabrics from a larger one, on strips of a line camera.

    A strip of 8192 x 4096 points in float32 is 134 MB. The eight of a batch lie one after another in the
    pageable memory of the host, and are 1.07 GB: more than 53 ms at 20 GB/s, and more than 100 ms at the
    usual 10 GB/s. They are pooled to 512 x 256 places in less than 1 ms, and both networks of at most 24
    channels need less than 8 ms.
    """
    camera = torch.rand(8, 1, 8192, 4096).repeat(3, 1, 1, 1)
    teacher = FaultFinder(24, 6).to(device).eval().requires_grad_(False)
    student = FaultFinder(8, 6).to(device)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3)
    temperature, first = 3.0, 0
    while not run.stopping:
        strips = camera[first : first + 8].to(device)  # here
        first = (first + 4) % 16
        with torch.no_grad():
            soft = torch.log_softmax(teacher(strips) / temperature, -1)
        told = torch.log_softmax(student(strips) / temperature, -1)
        loss = F.kl_div(told, soft, log_target=True, reduction="batchmean") * temperature**2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=8)


class PatternVAE(nn.Module):
    """A variational autoencoder of woven patterns."""

    def __init__(self, side: int, latent: int) -> None:
        super().__init__()
        self.side = side
        self.encode = nn.Sequential(nn.Flatten(), nn.Linear(side * side, 64), nn.ELU())
        self.mean, self.spread = nn.Linear(64, latent), nn.Linear(64, latent)
        self.decode = nn.Sequential(nn.Linear(latent, 64), nn.ELU(), nn.Linear(64, side * side))

    def forward(self, pattern: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.encode(pattern)
        mean, spread = self.mean(hidden), self.spread(hidden)
        z = mean + torch.randn_like(mean) * (0.5 * spread).exp()
        return self.decode(z).view(-1, self.side, self.side), mean, spread


def longest_float(threads: list[list[bool]]) -> int:
    """Return over how many threads one floats at most, around the edge of the repeat."""
    longest = 0
    for thread in threads:  # here
        run, last = 0, thread[-1]  # here
        for over in thread + thread:  # here
            run = run + 1 if over == last else 1  # here
            last = over  # here
            if run > longest:  # here
                longest = run  # here
    return min(longest, len(threads[0]))


def weavable(patterns: Tensor, limit: int) -> float:
    """Return which share of the patterns has no float beyond a limit, in warp or weft."""
    good = 0
    for pattern in patterns.tolist():
        weft = longest_float(pattern)  # here
        warp = longest_float([list(column) for column in zip(*pattern, strict=True)])  # here
        good += max(weft, warp) <= limit
    return good / len(patterns)


@labelled(gpu="host-bound", cpu="host-bound", helpers=(longest_float, weavable))
def woven_patterns_that_hold(run: hoptui.Run, device: str) -> None:
    """Patterns for a Jacquard loom are learned, and each step counts how many could be woven.

    48 patterns of 80 x 80 crossings are followed twice in warp and weft: 1.2 million crossings of more than
    40 nanoseconds in Python, so more than 48 ms, and as much for those that are reconstructed: 96 ms. The
    step of four small layers takes less than 6 ms.
    """
    side = 80
    vae = PatternVAE(side, 12).to(device)
    optimizer = torch.optim.Adamax(vae.parameters(), lr=2e-3)
    shift = torch.arange(side, device=device)
    while not run.stopping:
        step, width = torch.randint(1, 8, (2, 48, 1, 1), device=device)
        pattern = (shift[:, None] * step + shift) % 8 < width
        logits, mean, spread = vae(pattern.float())
        reconstruction = F.binary_cross_entropy_with_logits(logits, pattern.float())
        kl = 0.5 * (mean.square() + spread.exp() - spread - 1).sum(1).mean()
        loss = reconstruction + 1e-3 * kl
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        holds = weavable(pattern, limit=7)  # here
        drawn = weavable(logits > 0, limit=7)  # here
        run.log(loss=loss.item(), kl=kl.item(), holds=holds, drawn=drawn, samples=48)


DEFAULTS: dict[str, Any] = {
    "accelerator": "cpu",
    "devices": 1,
    "precision": "32-true",
    "log_every_n_steps": 10,
}


@labelled(gpu="wrong-device", cpu="healthy", needs=(PACKAGE,), adapter=True)
def recipes_of_dyes(run: AdapterRun, device: str) -> None:
    """Recipes of dyes are learned from spectra under Lightning. The defaults of the script say `cpu`.

    The GPU stays idle. Three layers of 1536 x 1536 and 1024 spectra are 6 x 7.9 million x 1024 = 48 GFLOP for
    a step: more than 40 ms on sixteen cores. Spectra come from memory.
    """
    from hoptui.integrations.lightning import HoptuiCallback

    pl: Any = importlib.import_module("lightning.pytorch" if PACKAGE == "lightning" else PACKAGE)

    class DyeRecipe(pl.LightningModule):  # type: ignore[misc]
        def __init__(self, wavelengths: int, dyes: int, width: int = 1536) -> None:
            super().__init__()
            layers: list[nn.Module] = [nn.Linear(wavelengths, width), nn.SiLU()]
            for _ in range(3):
                layers += [nn.Linear(width, width), nn.SiLU()]
            self.net = nn.Sequential(*layers, nn.Linear(width, dyes))

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            spectrum, recipe = batch
            loss = F.mse_loss(self.net(spectrum).softmax(-1), recipe)
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=3e-4)
            return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)]

    spectra, recipes = torch.rand(16_384, 36), torch.rand(16_384, 9).softmax(-1)
    trainer = pl.Trainer(
        **DEFAULTS,
        max_steps=run.iterations,
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[HoptuiCallback(run.name)],
    )
    trainer.fit(DyeRecipe(36, 9), DataLoader(TensorDataset(spectra, recipes), batch_size=1024, shuffle=True))


@labelled(gpu="healthy compute-bound power-limited", cpu="healthy", needs=("diffusers",))
def weaves_by_diffusion(run: hoptui.Run, device: str) -> None:
    """Pictures of weaves are drawn by a DiT of diffusers in bf16, with a moving average of its weights.

    On a GPU: 8 blocks of width 2048 have 0.4 billion weights for the patches. 24 x 1024 patches need 6 x 0.4
    billion x 24 576 = 59 TFLOP: more than 60 ms at 989 TFLOPS, and some 100 ms at what is reached. A tensor
    of 24 576 x 2048 numbers in bf16 is 101 MB. A block reads or writes less than 240 of them with its
    gradients, as modulation and norms use fp32: 195 GB, less than 45 ms. The weights with moments and
    averages take less than 8 ms, and the launches less than 25 ms. On the CPU: 2 blocks of width 64 and 2 x
    64 patches.
    """
    from diffusers import DDPMScheduler, DiTTransformer2DModel

    cpu = device == "cpu"
    batch, side, heads, layers = (2, 16, 2, 2) if cpu else (24, 64, 32, 8)
    with torch.device(device):
        dit = DiTTransformer2DModel(
            num_attention_heads=heads,
            attention_head_dim=32 if cpu else 64,
            in_channels=4,
            out_channels=4,
            num_layers=layers,
            sample_size=side,
            patch_size=2,
            norm_num_groups=4,
            num_embeds_ada_norm=1000,
        )
    average = copy.deepcopy(dit).requires_grad_(False)
    optimizer = torch.optim.AdamW(dit.parameters(), lr=1e-4, fused=not cpu)
    scheduler = DDPMScheduler(num_train_timesteps=1000, beta_schedule="squaredcos_cap_v2")
    latents = torch.randn(8 * batch, 4, side, side, device=device)
    weaves = torch.randint(0, 1000, (8 * batch,), device=device)
    while not run.stopping:
        rows = torch.randint(0, 8 * batch, (batch,), device=device)
        clean, noise = latents[rows], torch.randn(batch, 4, side, side, device=device)
        t = torch.randint(0, 1000, (batch,), device=device)
        noisy = scheduler.add_noise(clean, noise, t)
        with torch.autocast(device, torch.bfloat16, enabled=not cpu):
            told = dit(noisy, timestep=t, class_labels=weaves[rows]).sample
        loss = F.mse_loss(told.float(), noise)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            torch._foreach_lerp_(list(average.parameters()), list(dit.parameters()), 1e-3)
        run.log(loss=loss.item(), samples=batch)


class YarnBench:
    """Writes what a test of yarn found, with the curves that were measured and those that are told."""

    def __init__(self, folder: str) -> None:
        self.folder, self.tests = Path(folder), 0

    def record(self, **curves: Tensor) -> None:
        """Write the curves of a test to a packed file, and forget those of the test but two."""
        arrays: dict[str, Any] = {name: curve.detach().cpu().numpy() for name, curve in curves.items()}
        np.savez_compressed(self.folder / f"test-{self.tests}.npz", **arrays)  # here
        (self.folder / f"test-{self.tests - 2}.npz").unlink(missing_ok=True)
        self.tests += 1


@labelled(gpu="save-bound", cpu="save-bound", helpers=(YarnBench,))
def tests_of_yarn_on_file(run: hoptui.Run, device: str) -> None:
    """Curves of force are learned from the fibres of a yarn, and each step writes its curves to a file.

    512 yarns with 1000 places of force, measured and told, are 4.1 MB of noise, which NumPy packs at less
    than 40 MB/s: more than 100 ms. The step of three small layers takes less than 9 ms.
    """
    yarns, places = 512, 1000
    model = nn.Sequential(nn.Linear(14, 32), nn.Mish(), nn.Linear(32, 32), nn.Mish(), nn.Linear(32, places))
    model.to(device)
    optimizer = torch.optim.Rprop(model.parameters(), lr=1e-3)
    strain = torch.linspace(0, 1, places, device=device)
    with tempfile.TemporaryDirectory() as folder:
        bench = YarnBench(folder)
        while not run.stopping:
            fibres = torch.rand(yarns, 14, device=device)
            stiff = fibres.sum(1, keepdim=True)
            force = stiff * torch.tanh(2 * strain) + 0.05 * torch.randn(yarns, places, device=device)
            told = model(fibres)
            loss = F.mse_loss(told, force)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            bench.record(fibres=fibres, force=force, told=told)  # here
            run.log(loss=loss.item(), samples=yarns)
