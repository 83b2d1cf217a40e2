"""A convolutional network on images that a DataLoader decodes. Knobs: workers and memory format."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

import hoptui
from benchmarks.loops.script import Script, options

BATCH = 64


class Images(Dataset[tuple[torch.Tensor, int]]):
    """Images that take a while to decode and to augment."""

    def __init__(self, side: int, count: int = 4096) -> None:
        self.side, self.count = side, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        generator = torch.Generator().manual_seed(index)
        image = torch.randint(256, (3, 2 * self.side, 2 * self.side), generator=generator, dtype=torch.uint8)
        x = F.interpolate(image[None].float() / 255, size=(self.side, self.side), mode="bilinear")[0]
        for _ in range(2):
            x = (x - x.mean()) / (x.std() + 1e-5)
        return x, index % 10


def stage(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
        nn.MaxPool2d(2),
    )  # fmt: skip


def main(script: Script) -> None:
    """Train until stopped."""
    device = script.device
    large = device == "cuda"
    width, side = (128, 128) if large else (8, 24)
    model = nn.Sequential(
        stage(3, width), stage(width, 2 * width), stage(2 * width, 4 * width),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 10),
    ).to(device)  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    images = Images(side)

    with hoptui.connect(script.name) as run:
        workers = run.knob(
            "num_workers",
            0,
            choices=[0, 1, 2, 4, 8, 16] if large else [0, 1, 2],
            effect="speed",
            cost="rebuild",
        )
        last = run.knob("channels_last", False, effect="speed")

        def batches():  # type: ignore[no-untyped-def]
            epoch = 0
            while True:
                count = workers.value
                order = torch.utils.data.RandomSampler(images, generator=torch.Generator().manual_seed(epoch))
                for batch in DataLoader(images, BATCH, sampler=order, num_workers=count, drop_last=True):
                    yield batch
                    if workers.value != count:
                        break
                epoch += 1

        source = batches()
        for _ in run.iterations():
            x, y = next(source)
            x, y = x.to(device), y.to(device)
            x = x.to(memory_format=torch.channels_last if last.value else torch.contiguous_format)
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            value = loss.item()
            run.log(loss=value if math.isfinite(value) else 0.0, samples=BATCH)


if __name__ == "__main__":
    options(main)
