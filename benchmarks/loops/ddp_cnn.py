"""A convolutional network under DistributedDataParallel: 64 images a rank and step, in micro-batches.

It has GroupNorm, so micro-batches change nothing else. Their size and the memory format are knobs.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import hoptui
from benchmarks.loops.script import Script, options, ranks

BATCH = 64


def stage(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, stride=2, padding=1), nn.GroupNorm(4, outputs), nn.ReLU(),
    )  # fmt: skip


def main(script: Script) -> None:
    """Train until stopped."""
    with ranks(script) as (_, world, device):
        large = script.device == "cuda"
        width, side, count = (96, 96, 8_192) if large else (8, 24, 2_048)
        network = nn.Sequential(
            stage(3, width), stage(width, 2 * width), stage(2 * width, 4 * width),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 10),
        ).to(device)  # fmt: skip
        model = DistributedDataParallel(network)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
        images = TensorDataset(torch.randn(count, 3, side, side), torch.randint(10, (count,)))
        sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(images, drop_last=True)
        loader = DataLoader(images, BATCH, sampler=sampler, drop_last=True)

        run = hoptui.connect(script.name)
        micro_batch = run.knob("micro_batch", 4, choices=[2, 4, 8, 16, 32, 64], effect="speed")
        last = run.knob("channels_last", False, effect="speed")

        def batches():  # type: ignore[no-untyped-def]
            epoch = 0
            while True:
                sampler.set_epoch(epoch)
                yield from loader
                epoch += 1

        source = batches()
        for _ in run.iterations():
            x, y = next(source)
            x, y = x.to(device), y.to(device)
            x = x.to(memory_format=torch.channels_last if last.value else torch.contiguous_format)
            total = 0.0
            parts = list(zip(x.split(micro_batch.value), y.split(micro_batch.value), strict=True))
            for i, (part, labels) in enumerate(parts):
                model.require_backward_grad_sync = i == len(parts) - 1
                with torch.autocast(script.device, torch.bfloat16, enabled=large):
                    logits = model(part)
                loss = F.cross_entropy(logits.float(), labels) * (len(part) / BATCH)
                loss.backward()
                total += loss.item()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            run.log(loss=total, samples=BATCH * world)
        run.close()


if __name__ == "__main__":
    options(main)
