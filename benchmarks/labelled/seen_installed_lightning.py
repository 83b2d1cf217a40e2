"""Trainings by Lightning: own data modules, callbacks, manual optimization."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import importlib
import importlib.util
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from benchmarks.labelled.catalogue import AdapterRun, labelled

PACKAGE = "lightning" if importlib.util.find_spec("lightning") else "pytorch_lightning"
NEEDS = (PACKAGE,)


def _pl() -> Any:
    """Return the module of Lightning, by either of its names."""
    return importlib.import_module("lightning.pytorch" if PACKAGE == "lightning" else PACKAGE)


def _fit(run: AdapterRun, device: str, module: Any, callbacks: tuple[Any, ...] = (), **options: Any) -> Any:
    """Return a Trainer for this module with hoptui's callback."""
    from hoptui.integrations.lightning import HoptuiCallback

    data = options.pop("data", None)
    settings: dict[str, Any] = {
        "accelerator": "cpu" if device == "cpu" else "gpu",
        "devices": 1,
        "max_steps": run.iterations,
        "max_epochs": -1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        **options,
    }
    trainer = _pl().Trainer(callbacks=[HoptuiCallback(run.name), *callbacks], **settings)
    if isinstance(data, DataLoader):
        trainer.fit(module, data)
    else:
        trainer.fit(module, datamodule=data)
    return trainer


def mel_filters(n_mels: int, n_fft: int, sample_rate: int) -> Tensor:
    """Return triangular filters on the mel scale."""
    top = 2595 * np.log10(1 + sample_rate / 2 / 700)
    edges = 700 * (10 ** (np.linspace(0, top, n_mels + 2) / 2595) - 1)
    freqs = np.linspace(0, sample_rate / 2, n_fft // 2 + 1)
    rows = [
        np.clip(np.minimum((freqs - a) / (b - a), (c - freqs) / (c - b)), 0, None)
        for a, b, c in zip(edges, edges[1:], edges[2:], strict=False)
    ]
    return torch.from_numpy(np.array(rows, np.float32))


class SpeechCommandsClips(Dataset[tuple[Tensor, int]]):
    """Recordings in files of 16-bit samples. Each is stretched, filtered and turned into a spectrogram."""

    def __init__(self, root: str) -> None:
        self.paths = sorted(Path(root).glob("*.pcm"))
        self.filters = mel_filters(64, 2048, 44_100)
        self.window = torch.hann_window(2048)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, n: int) -> tuple[Tensor, int]:
        samples = np.fromfile(self.paths[n], np.int16)
        wave = torch.from_numpy(samples.astype(np.float32) / 32768)
        rate = 0.9 + 0.2 * torch.rand(()).item()
        wave = F.interpolate(wave[None, None], scale_factor=rate, mode="linear")[0, 0]  # here
        wave = wave[1:] - 0.97 * wave[:-1]  # here
        spec = torch.stft(wave, 2048, 128, window=self.window, return_complex=True).abs() ** 2  # here
        mel = (self.filters @ spec + 1e-6).log()  # here
        mel = F.interpolate(mel[None], size=64)[0]
        return (mel - mel.mean()) / (mel.std() + 1e-5), n % 8


@labelled(gpu="data-bound", cpu="data-bound", needs=NEEDS, adapter=True, helpers=(SpeechCommandsClips,))
def lit_keyword_spotting(run: AdapterRun, device: str) -> None:
    """A LightningDataModule makes spectrograms of 10 seconds with a hop of 128 samples in the main process.

    A recording takes more than 30 ms, and a batch has 4. The network gets 64 x 64 numbers of each, and needs
    less than 40 ms.
    """
    pl = _pl()

    class ClipsDataModule(pl.LightningDataModule):  # type: ignore[misc, name-defined]
        def __init__(self, root: str) -> None:
            super().__init__()
            self.root = root

        def prepare_data(self) -> None:
            rng = np.random.default_rng(0)
            for n in range(16):
                rng.integers(-8000, 8000, 44_100 * 10).astype(np.int16).tofile(f"{self.root}/{n:03d}.pcm")

        def setup(self, stage: str | None = None) -> None:
            self.train = SpeechCommandsClips(self.root)

        def train_dataloader(self) -> Any:
            return DataLoader(self.train, batch_size=4, shuffle=True)

    class KeywordNet(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Sequential(
                nn.Conv1d(64, 64, 5, padding=2), nn.ReLU(), nn.Conv1d(64, 64, 5), nn.ReLU()
            )
            self.fc = nn.Linear(64, 8)

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            mel, label = batch
            loss = F.cross_entropy(self.fc(self.conv(mel).mean(-1)), label)
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=1e-3)

    with tempfile.TemporaryDirectory() as root:
        _fit(run, device, KeywordNet(), data=ClipsDataModule(root))


def frechet_distance(a: Any, b: Any) -> float:
    """Return the Fréchet distance of two sets of features, as for the FID."""
    mu = a.mean(0) - b.mean(0)
    cov_a, cov_b = np.cov(a, rowvar=False), np.cov(b, rowvar=False)  # here
    eigenvalues = np.linalg.eigvals(cov_a @ cov_b)  # here
    trace = np.sqrt(np.abs(eigenvalues)).sum()
    return float(mu @ mu + np.trace(cov_a) + np.trace(cov_b) - 2 * trace)


@labelled(gpu="host-bound", cpu="host-bound", needs=NEEDS, adapter=True, helpers=(frechet_distance,))
def lit_vae_fid_callback(run: AdapterRun, device: str) -> None:
    """A callback computes a Fréchet distance of the decoded and the real pictures after each batch.

    The eigenvalues of a 576 x 576 matrix that is not symmetric take more than 60 ms. The autoencoder with
    perceptrons needs less than 20 ms.
    """
    pl = _pl()
    real = np.random.default_rng(0).random((512, 576)).astype(np.float64)

    class FIDCallback(pl.Callback):  # type: ignore[misc, name-defined]
        def on_train_batch_end(
            self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
        ) -> None:
            with torch.no_grad():
                fake = pl_module.decoder(torch.randn(512, 16, device=pl_module.device))
            features = fake[:, :576].cpu().numpy().astype(np.float64)
            pl_module.log("fid", frechet_distance(features, real))  # here

    class VAE(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 32))
            self.decoder = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 784), nn.Sigmoid())

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            (x,) = batch
            mu, logvar = self.encoder(x).chunk(2, dim=-1)
            recon = self.decoder(mu + torch.randn_like(mu) * (logvar / 2).exp())
            kl = -0.5 * (1 + logvar - mu**2 - logvar.exp()).sum(-1).mean()
            return F.binary_cross_entropy(recon, x) * 784 + kl  # type: ignore[no-any-return]

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=1e-3)

    loader = DataLoader(TensorDataset(torch.rand(4096, 784)), batch_size=64, shuffle=True)
    _fit(run, device, VAE(), (FIDCallback(),), data=loader)


@labelled(gpu="launch-bound", cpu="healthy", needs=NEEDS, adapter=True)
def lit_wgan_gp_manual(run: AdapterRun, device: str) -> None:
    """WGAN-GP with manual optimization: five steps of the critic to one of the generator.

    On a GPU: layers of width 64 with 32 rows are some thousand kernels of microseconds. On the CPU: layers of
    width 512 with 256 rows, so that the products are the work.
    """
    pl = _pl()
    width, batch_size = (512, 256) if device == "cpu" else (64, 32)

    def mlp(inputs: int, outputs: int) -> nn.Module:
        hidden = [part for _ in range(4) for part in (nn.Linear(width, width), nn.LeakyReLU(0.2))]
        return nn.Sequential(nn.Linear(inputs, width), nn.LeakyReLU(0.2), *hidden, nn.Linear(width, outputs))

    class WGANGP(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.G, self.D = mlp(32, 64), mlp(64, 1)

        def gradient_penalty(self, real: Tensor, fake: Tensor) -> Tensor:
            alpha = torch.rand(len(real), 1, device=real.device)
            mixed = (alpha * real + (1 - alpha) * fake).requires_grad_()
            (grad,) = torch.autograd.grad(self.D(mixed).sum(), mixed, create_graph=True)
            return ((grad.norm(2, dim=1) - 1) ** 2).mean()  # type: ignore[no-any-return]

        def training_step(self, batch: Any, batch_idx: int) -> None:
            opt_g, opt_d = self.optimizers()
            (real,) = batch
            for _ in range(5):
                fake = self.G(torch.randn(len(real), 32, device=real.device)).detach()
                loss_d = self.D(fake).mean() - self.D(real).mean() + 10 * self.gradient_penalty(real, fake)
                opt_d.zero_grad()
                self.manual_backward(loss_d)
                opt_d.step()
            loss_g = -self.D(self.G(torch.randn(len(real), 32, device=real.device))).mean()
            opt_g.zero_grad()
            self.manual_backward(loss_g)
            opt_g.step()
            self.log_dict({"g": loss_g, "d": loss_d})

        def configure_optimizers(self) -> Any:
            adam = torch.optim.Adam
            return adam(self.G.parameters(), 1e-4, (0.0, 0.9)), adam(self.D.parameters(), 1e-4, (0.0, 0.9))

    loader = DataLoader(TensorDataset(torch.randn(8192, 64)), batch_size=batch_size, shuffle=True)
    _fit(run, device, WGANGP(), data=loader)


@labelled(gpu="save-bound", cpu="save-bound", needs=NEEDS, adapter=True)
def lit_ema_snapshots(run: AdapterRun, device: str) -> None:
    """A callback keeps an average of the weights on the host, and writes it after each fifth batch.

    72 million weights are 290 MB for each file: about 200 ms or more, as the file is synced. Five steps of
    the sparse table take less than 30 ms.
    """
    pl = _pl()

    class SnapshotCallback(pl.Callback):  # type: ignore[misc, name-defined]
        def __init__(self, folder: str) -> None:
            self.folder = Path(folder)

        def on_train_batch_end(
            self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
        ) -> None:
            if batch_idx % 5 == 0:
                target = self.folder / f"snapshot-{batch_idx % 3}.pt"
                torch.save(pl_module.state_dict(), target)  # here

    class MatrixFactorization(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.users = nn.Embedding(1_000_000, 64, sparse=True)
            self.items = nn.Embedding(125_000, 64, sparse=True)

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            user, item, rating = batch
            loss = F.mse_loss((self.users(user) * self.items(item)).sum(-1), rating)
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    count = 65_536
    data = TensorDataset(
        torch.randint(0, 1_000_000, (count,)), torch.randint(0, 125_000, (count,)), torch.rand(count) * 5
    )
    loader = DataLoader(data, batch_size=128, shuffle=True)
    with tempfile.TemporaryDirectory() as folder:
        _fit(run, device, MatrixFactorization(), (SnapshotCallback(folder),), data=loader)


@labelled(gpu="memory-bandwidth-bound", cpu="healthy", needs=NEEDS, adapter=True)
def lit_deep_wide_regression(run: AdapterRun, device: str) -> None:
    """Wide perceptrons in float32 with few rows, and AdamW over all their weights.

    On a GPU: 24 layers of 8192 x 8192, 1.6 billion weights of 4 bytes. They are read twice and their
    gradients written once, and AdamW goes over weights, gradients and moments: over 80 GB a step. 16 rows are
    0.15 TFLOP.
    """
    pl = _pl()
    width, depth = (512, 4) if device == "cpu" else (8192, 24)

    class WideRegressor(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            with torch.device(device):
                layers = [part for _ in range(depth) for part in (nn.Linear(width, width), nn.SiLU())]
                self.body, self.head = nn.Sequential(*layers), nn.Linear(width, 1)

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            x, y = batch
            loss = F.mse_loss(self.head(self.body(x))[:, 0], y)
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-5)

    rows = 1024 if device == "cpu" else 16
    data = TensorDataset(torch.randn(rows * 8, width), torch.randn(rows * 8))
    _fit(run, device, WideRegressor(), data=DataLoader(data, batch_size=rows, shuffle=True))
