"""A LightningModule with a schedule, validation and checkpoints. One import and one argument are hoptui's.

python examples/lightning_trainer.py
hoptui set lightning-trainer lr=1e-3
"""

from __future__ import annotations

import lightning as L  # noqa: N812
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hoptui.integrations.lightning import HoptuiCallback  # hoptui


class LitClassifier(L.LightningModule):
    def __init__(self, lr: float = 3e-3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.model = nn.Sequential(
            nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8)
        )

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self.model(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self.model(x)
        self.log("val_loss", nn.functional.cross_entropy(logits, y), prog_bar=True)
        self.log("val_acc", (logits.argmax(1) == y).float().mean(), prog_bar=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        steps = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, int(steps))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def data(samples: int, teacher: torch.Tensor) -> TensorDataset:
    x = torch.randn(samples, 64)
    return TensorDataset(x, (x @ teacher).argmax(1))


def main() -> None:
    L.seed_everything(0)
    teacher = torch.randn(64, 8)
    trainer = L.Trainer(
        max_epochs=8,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        callbacks=[HoptuiCallback("lightning-trainer")],  # hoptui
    )
    train, val = data(40_960, teacher), data(4_096, teacher)
    trainer.fit(
        LitClassifier(),
        DataLoader(train, batch_size=256, shuffle=True),
        DataLoader(val, batch_size=1024),
    )
    print(f"accuracy {trainer.callback_metrics['val_acc']:.3f}")


if __name__ == "__main__":
    main()
