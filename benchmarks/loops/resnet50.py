"""torchvision's ResNet-50 on an ImageFolder. Knobs: workers, memory format, and bf16 on a GPU."""

from __future__ import annotations

import math
import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import ConcatDataset, DataLoader

import hoptui
from benchmarks.loops.script import Script, options

try:
    from torchvision import transforms
    from torchvision.datasets import ImageFolder
    from torchvision.models import resnet18, resnet50
except ImportError as error:
    sys.exit(f"this loop needs torchvision: {error}")

COPIES = 64
"""The folder stands for one that is so many times as large: an epoch is long."""


def main(script: Script) -> None:
    """Train until stopped."""
    device = script.device
    large = device == "cuda"
    batch, side = (128, 224) if large else (16, 32)
    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(side),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    folder = ImageFolder(script.data, transform)
    images: ConcatDataset[tuple[torch.Tensor, int]] = ConcatDataset([folder] * COPIES)
    model: nn.Module = (resnet50 if large else resnet18)(num_classes=len(folder.classes)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)

    with hoptui.connect(script.name) as run:
        choices = [0, 1, 2, 4, 8, 16] if large else [0, 1, 2]
        workers = run.knob("num_workers", 0, choices=choices, effect="speed", cost="rebuild")
        last = run.knob("channels_last", False, effect="speed")
        half = run.knob("bf16", False, effect="speed") if large else None

        def batches():  # type: ignore[no-untyped-def]
            while True:
                count = workers.value
                loader = DataLoader(
                    images, batch, shuffle=True, num_workers=count, pin_memory=large, drop_last=True
                )
                for each in loader:
                    yield each
                    if workers.value != count:
                        break

        source = batches()
        for _ in run.iterations():
            x, y = next(source)
            layout = torch.channels_last if last.value else torch.contiguous_format
            model.to(memory_format=layout)  # type: ignore[call-overload]
            x = x.to(device, memory_format=layout, non_blocking=True)
            y = y.to(device, non_blocking=True)
            with torch.autocast(device, torch.bfloat16, enabled=bool(half and half.value)):
                loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            value = loss.item()
            run.log(loss=value if math.isfinite(value) else 0.0, samples=batch)


if __name__ == "__main__":
    options(main)
