"""Trainings by Lightning's Trainer, with hoptui's callback."""

# ruff: noqa: N806, N812 - names as in the scripts that are imitated

from __future__ import annotations

import importlib
import importlib.util
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

from benchmarks.labelled.catalogue import AdapterRun, labelled

PACKAGE = "lightning" if importlib.util.find_spec("lightning") else "pytorch_lightning"
NEEDS = (PACKAGE, "torchvision")


def _lightning() -> Any:
    """Return the module of Lightning that is installed."""
    return importlib.import_module("lightning.pytorch" if PACKAGE == "lightning" else PACKAGE)


def _callback(run: AdapterRun) -> Any:
    from hoptui.integrations.lightning import HoptuiCallback

    return HoptuiCallback(run.name)


def _trainer(run: AdapterRun, device: str, **options: Any) -> Any:
    """Return a Trainer of one device without a logger. It has no other callbacks than these."""
    callbacks = [_callback(run), *options.pop("callbacks", [])]
    return _lightning().Trainer(
        **{
            "accelerator": "cpu" if device == "cpu" else "gpu",
            "devices": 1,
            "max_steps": run.iterations,
            "max_epochs": -1,
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "callbacks": callbacks,
            **options,
        }
    )


def _classifier(model: Any, lr: float = 1e-3) -> Any:
    """Return a LightningModule that trains this model to classify."""
    L = _lightning()

    class LitClassifier(L.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            x, y = batch
            loss = F.cross_entropy(self.model(x), y)
            self.log("train_loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=lr, momentum=0.9)

    return LitClassifier()


class RandomDataset(Dataset[tuple[Tensor, Tensor]]):
    """Batches of pictures that are drawn once."""

    def __init__(self, batch_size: int, size: int, classes: int, length: int = 512) -> None:
        self.length = length
        self.data = torch.randn(batch_size, 3, size, size)
        self.target = torch.randint(0, classes, (batch_size,))

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.data, self.target


class GlacierDataset(Dataset[tuple[Tensor, Tensor]]):
    """Scenes of several bands in compressed files. Each band is stretched between its percentiles."""

    def __init__(self, root: str) -> None:
        self.files = sorted(Path(root).glob("*.npz"))

    def __len__(self) -> int:
        return len(self.files)

    def normalize(self, band: Any, lower_percent: float = 2, upper_percent: float = 98) -> Any:
        valid_mask = band > 0
        lower, upper = np.percentile(band[valid_mask], (lower_percent, upper_percent))  # here
        return np.clip((band - lower) / (upper - lower + 1e-6), 0, 1)  # here

    def __getitem__(self, idx: int) -> tuple[Tensor, Tensor]:
        file = np.load(self.files[idx])
        scene = file["image"].astype(np.float32)  # here
        image = np.stack([self.normalize(band) for band in scene]).astype(np.float32)  # here
        mask = torch.from_numpy(file["mask"].astype(np.int64))  # here
        picture = F.interpolate(torch.from_numpy(image)[None], size=(64, 64), mode="bilinear")[0]  # here
        return picture, mask[::6, ::6]


def _glacier_data(root: str, batch_size: int) -> Any:
    """Return a LightningDataModule that writes its scenes, and reads them in the process of the trainer."""
    L = _lightning()

    class GlacierDataModule(L.LightningDataModule):  # type: ignore[misc, name-defined]
        def prepare_data(self) -> None:
            rng = np.random.default_rng(0)
            for number in range(24):
                image = rng.gamma(2.0, 600.0, (8, 384, 384)).astype(np.uint16)
                mask = (image[0] > 1500).astype(np.uint8)
                np.savez_compressed(Path(root, f"{number}.npz"), image=image, mask=mask)

        def setup(self, stage: str) -> None:
            self.train_set = GlacierDataset(root)

        def train_dataloader(self) -> Any:
            return DataLoader(self.train_set, batch_size=batch_size, shuffle=True)

    return GlacierDataModule()


@labelled(gpu="data-bound", cpu="data-bound", needs=NEEDS, adapter=True, helpers=(GlacierDataset,))
def lightning_glacier_scenes(run: AdapterRun, device: str) -> None:
    """The percentiles of each band of a satellite scene are computed when the scene is read.

    In the manner of the percentile stretch of glacier segmentation (GlacierDataset and its 5-band files),
    with a LightningDataModule whose loader has no workers.
    """
    L = _lightning()

    class GlacierModule(L.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(
                *(nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
                *(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 2, 1)),
            )

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            image, mask = batch
            loss = F.cross_entropy(self.net(image), mask)
            self.log("train_loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    with tempfile.TemporaryDirectory() as root:
        _trainer(run, device).fit(GlacierModule(), datamodule=_glacier_data(root, 4))


def _confusion(classes: int) -> Any:
    """Return a Callback that counts the predictions of each batch, one pixel after another."""
    L = _lightning()

    class ConfusionMatrix(L.Callback):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self.confusion_matrix = torch.zeros(classes, classes)

        def on_train_batch_end(
            self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
        ) -> None:
            preds, labels = outputs["preds"].cpu(), batch[1].cpu()
            for t, p in zip(labels.view(-1), preds.view(-1), strict=True):  # here
                self.confusion_matrix[t.long(), p.long()] += 1  # here
            recall = self.confusion_matrix.diag() / self.confusion_matrix.sum(1)
            pl_module.log("train_recall", recall.mean())

    return ConfusionMatrix()


@labelled(gpu="host-bound", cpu="host-bound", needs=NEEDS, adapter=True, helpers=(_confusion,))
def lightning_confusion_matrix(run: AdapterRun, device: str) -> None:
    """A callback fills a confusion matrix in a loop over all pixels of the batch.

    In the manner of the common snippet `for t, p in zip(...): confusion_matrix[t.long(), p.long()] += 1`.
    """
    L = _lightning()
    classes = 6

    class LitSegmenter(L.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(
                *(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU()),
                *(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, classes, 1)),
            )

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            images, labels = batch
            outputs = self.net(images)
            loss = F.cross_entropy(outputs, labels)
            self.log("train_loss", loss)
            return {"loss": loss, "preds": outputs.argmax(1).detach()}

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=1e-3)

    images, labels = torch.randn(256, 3, 64, 64), torch.randint(0, classes, (256, 64, 64))
    loader = DataLoader(TensorDataset(images, labels), batch_size=4, shuffle=True)
    _trainer(run, device, callbacks=[_confusion(classes)]).fit(LitSegmenter(), loader)


@labelled(gpu="save-bound", cpu="save-bound", needs=NEEDS, adapter=True)
def lightning_checkpoint_every_step(run: AdapterRun, device: str) -> None:
    """A ModelCheckpoint saves a model of many weights after every second step.

    In the manner of ModelCheckpoint(every_n_train_steps=...) in Lightning's issues 11979 and 12240.
    """
    from torchvision.models import alexnet

    L = _lightning()
    model = alexnet(num_classes=10)
    # a head for small pictures, as in finetuning to CIFAR
    model.avgpool = nn.AdaptiveAvgPool2d((2, 2))
    model.classifier[1] = nn.Linear(256 * 2 * 2, 4096)
    loader = DataLoader(RandomDataset(4, 64, 10), batch_size=None)
    with tempfile.TemporaryDirectory() as root:
        checkpoint = L.callbacks.ModelCheckpoint(
            dirpath=root, save_top_k=1, monitor=None, every_n_train_steps=2, save_last=True
        )
        trainer = _trainer(run, device, callbacks=[checkpoint], enable_checkpointing=True)
        trainer.fit(_classifier(model), loader)  # here


@labelled(gpu="compute-bound power-limited", cpu="healthy", needs=NEEDS, adapter=True)
def lightning_default_precision(run: AdapterRun, device: str) -> None:
    """A vision transformer trains in float32 with the precision of matrix products that torch begins with.

    In the manner of trainings that ignore Lightning's hint to call torch.set_float32_matmul_precision.
    """
    from torchvision.models import VisionTransformer, vit_b_16

    if device == "cpu":
        model: Any = VisionTransformer(64, 8, 4, 4, 192, 768, num_classes=100)
        data = RandomDataset(16, 64, 100)
    else:
        model, data = vit_b_16(num_classes=100), RandomDataset(64, 224, 100)
    _trainer(run, device).fit(_classifier(model), DataLoader(data, batch_size=None))


@labelled(gpu="wrong-device", cpu="healthy", needs=NEEDS, adapter=True)
def lightning_accelerator_cpu(run: AdapterRun, device: str) -> None:
    """The Trainer has accelerator="cpu", as it was set to debug.

    In the manner of scripts that get Lightning's warning "GPU available but not used".
    """
    from torchvision.models import resnet18

    loader = DataLoader(RandomDataset(16, 64, 10), batch_size=None)
    _trainer(run, device, accelerator="cpu").fit(_classifier(resnet18(num_classes=10)), loader)
