"""Super-resolution of image patches by a residual network that doubles the sides.

The knobs are the patches of a pass, the blocks whose activations are computed again, and the memory format.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import hoptui
from benchmarks.loops.script import Script, options


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0.1 * self.second(F.leaky_relu(self.first(x), 0.1))


class Upscaler(nn.Module):
    def __init__(self, channels: int, blocks: int) -> None:
        super().__init__()
        self.head, self.tail = nn.Conv2d(3, channels, 3, padding=1), nn.Conv2d(channels, 12, 3, padding=1)
        self.body = nn.ModuleList(Block(channels) for _ in range(blocks))

    def forward(self, x: torch.Tensor, again: int) -> torch.Tensor:
        """Upscale. The activations of the first `again` blocks are computed again in the backward pass."""
        y = self.head(x)
        for i, block in enumerate(self.body):
            y = checkpoint(block, y, use_reentrant=False) if i < again else block(y)
        return F.pixel_shuffle(self.tail(y), 2) + F.interpolate(x, scale_factor=2, mode="nearest")


def main(script: Script) -> None:
    """Train until stopped."""
    device, large = script.device, script.device == "cuda"
    channels, blocks, side, patches = (128, 16, 64, 64) if large else (16, 4, 16, 32)
    model = Upscaler(channels, blocks).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-4)
    coarse = torch.rand(512, 3, side // 4, side // 4)
    images = F.interpolate(coarse, size=(2 * side, 2 * side), mode="bicubic").clamp(0, 1)

    with hoptui.connect(script.name) as run:
        per_pass = run.knob("patches_per_pass", 2, choices=[2, 8, patches], effect="speed", cost="shape")
        again = run.knob("ckpt_blocks", blocks, min=0, max=blocks, effect="speed")
        nhwc = run.knob("nhwc", False, effect="speed")
        for _ in run.iterations():
            layout = torch.channels_last if nhwc.value else torch.contiguous_format
            model.to(memory_format=layout)  # type: ignore[call-overload]
            fine = images[torch.randint(len(images), (patches,))].to(device)
            low = F.avg_pool2d(fine, 2).contiguous(memory_format=layout)
            losses = []
            for x, y in zip(low.split(per_pass.value), fine.split(per_pass.value), strict=True):
                with torch.autocast(device, torch.bfloat16, enabled=large):
                    guess = model(x, again.value)
                loss = F.l1_loss(guess.float(), y) * (len(x) / patches)
                loss.backward()
                losses.append(loss.detach())
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            run.log(loss=torch.stack(losses).sum().item(), samples=patches)


if __name__ == "__main__":
    options(main)
