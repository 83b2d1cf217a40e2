"""Trainings of timm's models, in the manner of its scripts and of scripts that use it."""

# ruff: noqa: A001, N806 - names as in the scripts that are imitated

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import hoptui
from benchmarks.labelled.catalogue import labelled

NEEDS = ("timm", "torchvision")
TOP = 500


def _write_photographs(root: str, classes: int, each: int, size: tuple[int, int]) -> None:
    """Write JPEG files into one folder per class."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for label in range(classes):
        folder = Path(root, f"n{label:08d}")
        folder.mkdir()
        for number in range(each):
            noise = rng.integers(0, 256, (size[1] // 8, size[0] // 8, 3), dtype=np.uint8)
            Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC).save(folder / f"{number}.jpg")


@labelled(gpu="data-bound", cpu="data-bound", needs=NEEDS)
def timm_augmix_splits(run: hoptui.Run, device: str) -> None:
    """A worker of timm's loader augments each photograph three times.

    In the manner of timm's train.py with --aug-splits 3, --jsd-loss and --aa rand-m9-inc1.
    """
    from timm import create_model
    from timm.data import AugMixDataset, create_dataset, create_loader
    from timm.loss import JsdCrossEntropy
    from timm.optim import create_optimizer_v2

    name, size, batch_size = ("resnet26", 224, 16) if device != "cpu" else ("lcnet_035", 64, 8)
    with tempfile.TemporaryDirectory() as root:
        _write_photographs(root, 4, batch_size // 2, (2560, 1920))
        dataset = AugMixDataset(create_dataset("", root=root, split="", is_training=True), num_splits=3)
        loader = create_loader(
            dataset,
            input_size=(3, size, size),
            batch_size=batch_size,
            is_training=True,
            re_prob=0.25,
            re_split=True,
            auto_augment="rand-m9-inc1",
            num_aug_splits=3,
            num_workers=1,
            device=torch.device(device),
            use_prefetcher=True,
        )
        model = create_model(name, num_classes=4).to(device)
        optimizer = create_optimizer_v2(model, opt="momentum", lr=0.01, weight_decay=2e-5)
        loss_fn = JsdCrossEntropy(num_splits=3, smoothing=0.1)
        while not run.stopping:
            for _, (input, target) in enumerate(loader):  # here
                loss = loss_fn(model(input), target)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                run.log(loss=loss.item(), samples=len(target))
                if run.stopping:
                    break


@labelled(gpu="compute-bound power-limited", cpu="healthy", needs=NEEDS)
def timm_benchmark_vit(run: hoptui.Run, device: str) -> None:
    """A large vision transformer trains in bfloat16 on pictures that are on the device.

    In the manner of timm's benchmark.py with --bench train and --precision bfloat16.
    """
    from timm import create_model
    from timm.optim import create_optimizer_v2

    on_gpu = device != "cpu"
    name, batch_size = ("vit_giant_patch14_224", 64) if on_gpu else ("vit_tiny_patch16_224", 4)
    dtype = torch.bfloat16 if on_gpu else torch.float32
    model = create_model(name, num_classes=1000).to(device, dtype).train()
    optimizer = create_optimizer_v2(model, opt="sgd", lr=1e-4)
    loss_fn = torch.nn.CrossEntropyLoss().to(device)
    example_inputs = torch.randn(batch_size, 3, 224, 224, device=device, dtype=dtype)
    target = torch.randint(0, 1000, (batch_size,), device=device)
    while not run.stopping:
        optimizer.zero_grad()
        output = model(example_inputs)
        loss = loss_fn(output, target)
        loss.backward()
        optimizer.step()
        run.log(loss=loss.detach(), samples=batch_size)


@labelled(gpu="launch-bound", cpu="healthy", needs=NEEDS)
def timm_small_batches_with_ema(run: hoptui.Run, device: str) -> None:
    """A deep network of small layers gets few small pictures, and ModelEmaV2 goes over each weight.

    In the manner of timm's train.py with --model-ema, Mixup and the RMSprop of EfficientNet's recipe.
    """
    from timm import create_model
    from timm.data import Mixup
    from timm.loss import SoftTargetCrossEntropy
    from timm.optim import create_optimizer_v2
    from timm.utils import ModelEmaV2, dispatch_clip_grad

    model = create_model("efficientnet_b2", num_classes=100, drop_path_rate=0.2).to(device)
    model_ema = ModelEmaV2(model, decay=0.9999)
    optimizer = create_optimizer_v2(model, opt="rmsproptf", lr=1e-4, weight_decay=1e-5)
    mixup_fn = Mixup(mixup_alpha=0.2, num_classes=100, label_smoothing=0.1, mode="batch")
    train_loss_fn = SoftTargetCrossEntropy()
    images = torch.randn(64, 3, 64, 64, device=device)
    targets = torch.randint(0, 100, (64,), device=device)
    while not run.stopping:
        chosen = torch.randint(0, 64, (8,), device=device)
        input, target = mixup_fn(images[chosen], targets[chosen])
        loss = train_loss_fn(model(input), target)
        optimizer.zero_grad()
        loss.backward()
        dispatch_clip_grad(model.parameters(), value=1.0, mode="norm")
        optimizer.step()
        model_ema.update(model)
        run.log(loss=loss.detach(), samples=8)


def _distances(classes: list[str]) -> dict[tuple[str, str], int]:
    """Return the height of the lowest common ancestor of each pair of classes in a binary tree."""
    return {(a, b): (i ^ j).bit_length() for i, a in enumerate(classes) for j, b in enumerate(classes)}


def _hierarchical_distances(
    output: Tensor, target: Tensor, distances: dict[tuple[str, str], int], classes: list[str]
) -> Any:
    """Return the distance in the tree from the true class to each of the best predictions."""
    topK_predicted_classes = output.topk(TOP).indices.cpu()
    target = target.cpu()
    topK_hdist = np.empty([len(target), TOP])
    for i in range(len(target)):
        for j in range(TOP):
            ground_truth = classes[target[i]]  # here
            predicted = classes[topK_predicted_classes[i][j]]  # here
            topK_hdist[i, j] = distances[(predicted, ground_truth)]  # here
    return topK_hdist


@labelled(gpu="host-bound", cpu="host-bound", needs=NEEDS, helpers=(_hierarchical_distances,))
def timm_mistakes_in_a_hierarchy(run: hoptui.Run, device: str) -> None:
    """The severity of the mistakes is looked up for each picture and each of its best classes.

    In the manner of run_xent.py of fiveai's making-better-mistakes, with log_freq 1 and a model of timm.
    """
    from timm import create_model
    from timm.optim import create_optimizer_v2

    classes = [f"n{i:08d}" for i in range(512)]
    distances = _distances(classes)
    max_dist = max(distances.values())
    model = create_model("lcnet_035", num_classes=len(classes)).to(device)
    optimizer = create_optimizer_v2(model, opt="adam", lr=1e-4)
    loss_function = torch.nn.CrossEntropyLoss()
    batch = torch.randn(128, 3, 16, 16, device=device)
    target = torch.randint(0, len(classes), (128,), device=device)
    while not run.stopping:
        output = model(batch)
        loss = loss_function(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        topK_hdist = _hierarchical_distances(output.detach(), target, distances, classes)
        mistakes_ids = np.where(topK_hdist[:, 0] != 0)[0]
        severity = float(topK_hdist[mistakes_ids, 0].mean()) if len(mistakes_ids) else 0.0
        hprecision = float(np.mean(1 - topK_hdist / max_dist))
        run.log(loss=loss.item(), severity=severity, hprecision=hprecision, samples=128)
