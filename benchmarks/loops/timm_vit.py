"""timm's ViT-S/16. Knobs: the size of micro-batches, gradient checkpointing, and bf16 on a GPU."""

from __future__ import annotations

import sys

import torch
from torch.nn import functional as F

import hoptui
from benchmarks.loops.script import Script, options

try:
    import timm
except ImportError as error:
    sys.exit(f"this loop needs timm: {error}")

CLASSES = 100


def main(script: Script) -> None:
    """Train until stopped."""
    device = script.device
    large = device == "cuda"
    batch, side = (256, 224) if large else (32, 32)
    if large:
        model = timm.create_model("vit_small_patch16_224", pretrained=False, num_classes=CLASSES)
    else:
        model = timm.create_model(
            "vit_tiny_patch16_224", pretrained=False, num_classes=CLASSES, img_size=32, patch_size=8, depth=3
        )
    model = model.to(device)
    model.set_grad_checkpointing(True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.05)
    images = torch.randint(256, (2_048, 3, side, side), dtype=torch.uint8)
    labels = torch.randint(CLASSES, (len(images),))

    with hoptui.connect(script.name) as run:
        choices = [8, 16, 32, 64, 128, 256] if large else [2, 4, 8, 16, 32]
        micro_batch = run.knob("micro_batch", choices[0], choices=choices, effect="speed")
        run.knob("grad_checkpointing", True, effect="speed", apply=model.set_grad_checkpointing)
        half = run.knob("bf16", False, effect="speed") if large else None
        for _ in run.iterations():
            chosen = torch.randint(len(images), (batch,))
            x, y = images[chosen].to(device), labels[chosen].to(device)
            total = 0.0
            for part, answers in zip(x.split(micro_batch.value), y.split(micro_batch.value), strict=True):
                with torch.autocast(device, torch.bfloat16, enabled=bool(half and half.value)):
                    logits = model(part.float() / 127.5 - 1)
                loss = F.cross_entropy(logits.float(), answers) * (len(part) / batch)
                loss.backward()
                total += loss.item()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            run.log(loss=total, samples=batch)


if __name__ == "__main__":
    options(main)
