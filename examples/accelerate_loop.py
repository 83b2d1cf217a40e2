"""A classifier of handwritten-like digits in a loop with `accelerate`, with gradient accumulation.

torchrun --nproc-per-node 2 examples/accelerate_loop.py
hoptui set digits lr=1e-3
"""

from __future__ import annotations

import argparse

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hoptui.integrations.accelerate import HoptuiTracker  # hoptui


def digits(count: int, seed: int) -> TensorDataset:
    """Ten patterns of 8 × 8 pixels with noise."""
    patterns = torch.randn(10, 64, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 10, (count,), generator=generator)
    return TensorDataset(patterns[labels] + 1.5 * torch.randn(count, 64, generator=generator), labels)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()
    accelerator = Accelerator(gradient_accumulation_steps=2, log_with=HoptuiTracker())  # hoptui
    accelerator.init_trackers("digits", config=vars(args))
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    train = DataLoader(digits(8192, 1), batch_size=args.batch_size, shuffle=True)
    test = DataLoader(digits(1024, 2), batch_size=args.batch_size)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * len(train) // 2)
    model, optimizer, train, test, scheduler = accelerator.prepare(model, optimizer, train, test, scheduler)

    steps = 0
    for epoch in range(args.epochs):
        model.train()
        for x, y in train:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                steps += 1
                accelerator.log({"loss": loss.item()}, step=steps)
        model.eval()
        right, seen = 0, 0
        for x, y in test:
            with torch.no_grad():
                guesses, labels = accelerator.gather_for_metrics((model(x).argmax(1), y))
            right, seen = right + int((guesses == labels).sum()), seen + len(labels)
        accelerator.log({"accuracy": right / seen}, step=steps)
        accelerator.print(f"epoch {epoch}: accuracy {right / seen:.3f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
