"""Trainings of torchvision's models, in the manner of its reference scripts."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import hoptui
from benchmarks.labelled.catalogue import labelled

NEEDS = ("torchvision",)
Target = dict[str, Tensor]


def _photograph(rng: Any, size: tuple[int, int]) -> Any:
    """Return a picture of coloured spots of this width and height."""
    from PIL import Image

    spots = rng.integers(0, 256, (size[1] // 12, size[0] // 12, 3), dtype=np.uint8)
    return Image.fromarray(spots).resize(size, Image.Resampling.BICUBIC)


class PennFudanLike(Dataset[tuple[Tensor, Target]]):
    """Pictures in memory with a mask for each of their round objects."""

    def __init__(self, size: int, objects: int, length: int = 32) -> None:
        self.size, self.objects, self.length = size, objects, length
        rows, columns = torch.arange(size)[:, None], torch.arange(size)[None]
        self.disks = []
        for _ in range(objects * 4):
            (y, x), radius = torch.randint(40, size - 40, (2,)), torch.randint(16, 40, ())
            self.disks.append(((rows - y) ** 2 + (columns - x) ** 2 < radius**2).to(torch.uint8))
        self.image = torch.rand(3, size, size)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, Target]:
        from torchvision.ops import masks_to_boxes

        chosen = torch.randperm(len(self.disks))[: self.objects].tolist()
        masks = torch.stack([self.disks[i] for i in chosen])
        labels = torch.ones(self.objects, dtype=torch.int64)
        return self.image, {"boxes": masks_to_boxes(masks), "labels": labels, "masks": masks}  # here


def _copy_paste(image: Tensor, target: Target, paste_image: Tensor, paste_target: Target) -> Any:
    """Return a picture with objects of another one, and the masks and boxes of both."""
    from torchvision.ops import masks_to_boxes
    from torchvision.transforms import functional as F

    num_masks = len(paste_target["masks"])
    random_selection = torch.randint(0, num_masks, (num_masks,)).unique()
    paste_masks = paste_target["masks"][random_selection]
    paste_labels = paste_target["labels"][random_selection]
    paste_alpha_mask = paste_masks.sum(dim=0) > 0  # here
    blended = F.gaussian_blur(paste_alpha_mask[None].float(), [5, 5], [2.0])  # here
    image = image * (1 - blended) + paste_image * blended  # here
    masks = target["masks"] * (~paste_alpha_mask)  # here
    non_all_zero_masks = masks.sum((-1, -2)) > 0  # here
    masks, labels = masks[non_all_zero_masks], target["labels"][non_all_zero_masks]
    out = {"masks": torch.cat([masks, paste_masks]), "labels": torch.cat([labels, paste_labels])}  # here
    out["boxes"] = masks_to_boxes(out["masks"])  # here
    boxes = out["boxes"]
    valid_targets = (boxes[:, 2:] > boxes[:, :2]).all(dim=1)
    return image, {name: each[valid_targets] for name, each in out.items()}  # here


def copypaste_collate_fn(batch: Any) -> Any:
    images, targets = zip(*batch, strict=True)
    rolled = zip(images[-1:] + images[:-1], targets[-1:] + targets[:-1], strict=True)
    pasted = [
        _copy_paste(image, target, *other)
        for image, target, other in zip(images, targets, rolled, strict=True)
    ]
    return tuple(zip(*pasted, strict=True))


def _small_mask_rcnn() -> Any:
    """Return a Mask R-CNN for small pictures."""
    from torchvision.models import mobilenet_v3_small
    from torchvision.models.detection import MaskRCNN
    from torchvision.models.detection.anchor_utils import AnchorGenerator
    from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
    from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
    from torchvision.ops import MultiScaleRoIAlign

    backbone: Any = mobilenet_v3_small().features[:9]
    backbone.out_channels = 48
    return MaskRCNN(
        backbone,
        min_size=96,
        max_size=96,
        rpn_anchor_generator=AnchorGenerator(((8, 16, 32),), ((0.5, 1.0, 2.0),)),
        rpn_pre_nms_top_n_train=100,
        rpn_post_nms_top_n_train=50,
        box_batch_size_per_image=32,
        box_roi_pool=MultiScaleRoIAlign(["0"], 7, 2),
        box_head=TwoMLPHead(48 * 7 * 7, 128),
        box_predictor=FastRCNNPredictor(128, 2),
        mask_roi_pool=MultiScaleRoIAlign(["0"], 14, 2),
        mask_head=MaskRCNNHeads(48, (32,), 1),
        mask_predictor=MaskRCNNPredictor(32, 32, 2),
    )


@labelled(
    gpu="data-bound",
    cpu="data-bound",
    needs=NEEDS,
    helpers=(PennFudanLike, _copy_paste),
)
def torchvision_copypaste_mask_rcnn(run: hoptui.Run, device: str) -> None:
    """The collate function pastes the objects of each picture into the next one.

    In the manner of torchvision's references/detection/train.py with --use-copypaste.
    """
    size, workers = (640, 0) if device == "cpu" else (800, 1)
    data_loader = DataLoader(
        PennFudanLike(size, 24),
        batch_size=4,
        shuffle=True,
        num_workers=workers,
        collate_fn=copypaste_collate_fn,
        persistent_workers=workers > 0,
    )
    model = _small_mask_rcnn().to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4)
    while not run.stopping:
        for images, targets in data_loader:  # here
            images = [image.to(device) for image in images]
            targets = [{k: v.to(device) for k, v in t.items()} for t in targets]
            loss_dict = model(images, targets)
            losses = sum(loss_dict.values())
            optimizer.zero_grad()
            losses.backward()
            optimizer.step()
            run.log(loss=losses.item(), samples=len(images))
            if run.stopping:
                break


def _write_voc(root: str, length: int, size: tuple[int, int]) -> None:
    """Write photographs and masks in the folders of VOC2012."""
    from PIL import Image

    voc, rng = Path(root, "VOCdevkit", "VOC2012"), np.random.default_rng(0)
    for folder in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
        (voc / folder).mkdir(parents=True)
    names = [f"2012_{number:06d}" for number in range(length)]
    (voc / "ImageSets/Segmentation/train.txt").write_text("\n".join(names))
    for name in names:
        _photograph(rng, size).save(voc / "JPEGImages" / f"{name}.jpg")
        regions = rng.integers(0, 21, (size[1] // 24, size[0] // 24), dtype=np.uint8)
        mask = Image.fromarray(regions).resize(size, Image.Resampling.NEAREST)
        mask.save(voc / "SegmentationClass" / f"{name}.png")


@labelled(gpu="data-bound", cpu="data-bound", needs=NEEDS)
def torchvision_voc_segmentation(run: hoptui.Run, device: str) -> None:
    """One worker decodes, resizes and crops photographs and their masks.

    In the manner of torchvision's references/segmentation/train.py with --use-v2 and one worker.
    """
    from torchvision import tv_tensors
    from torchvision.datasets import VOCSegmentation, wrap_dataset_for_transforms_v2
    from torchvision.models.segmentation import lraspp_mobilenet_v3_large
    from torchvision.transforms import v2 as T

    crop_size = 64 if device == "cpu" else 240
    to_dtype = {tv_tensors.Image: torch.float32, tv_tensors.Mask: torch.int64, "others": None}
    transforms = T.Compose(
        [
            T.RandomResize(260, 1040),
            T.RandomHorizontalFlip(0.5),
            T.RandomCrop(crop_size, pad_if_needed=True, fill={tv_tensors.Mask: 255, "others": 0}),
            T.ToImage(),
            T.ToDtype(to_dtype, scale=True),
            T.Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
        ]
    )
    model = lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=21).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    with tempfile.TemporaryDirectory() as root:
        _write_voc(root, 16, (2400, 1800))
        dataset = VOCSegmentation(root, "2012", "train", transforms=transforms)
        wrapped = wrap_dataset_for_transforms_v2(dataset)
        data_loader = DataLoader(
            wrapped, batch_size=8, shuffle=True, num_workers=1, drop_last=True, persistent_workers=True
        )
        while not run.stopping:
            for image, target in data_loader:  # here
                image, target = image.to(device), target.to(device).squeeze(1)
                output = model(image)
                loss = nn.functional.cross_entropy(output["out"], target, ignore_index=255)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                run.log(loss=loss.item(), samples=len(image))
                if run.stopping:
                    break


@labelled(gpu="memory-bandwidth-bound", cpu="healthy", needs=NEEDS)
def torchvision_densenet_amp(run: hoptui.Run, device: str) -> None:
    """A DenseNet normalizes and concatenates the pictures of a large batch many times.

    In the manner of torchvision's references/classification/train.py with --model densenet121 and --amp.
    """
    from torchvision.models import densenet121

    on_gpu = device != "cpu"
    batch_size, size = (192, 224) if on_gpu else (4, 64)
    model = densenet121(num_classes=1000).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    image = torch.randn(batch_size, 3, size, size, device=device)
    image = image.contiguous(memory_format=torch.channels_last)
    target = torch.randint(0, 1000, (batch_size,), device=device)
    while not run.stopping:
        with torch.autocast("cuda", torch.bfloat16, enabled=on_gpu):
            output = model(image)
            loss = criterion(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.detach(), samples=batch_size)


@labelled(gpu="straggler", cpu="straggler", needs=NEEDS, ranks=2)
def torchvision_large_photographs_on_one_rank(run: hoptui.Run, device: str) -> None:
    """Each rank reads the folders of its camera, and one camera takes large photographs.

    In the manner of torchvision's references/classification/train.py without workers and with
    DistributedDataParallel, where the split of the pictures is not a DistributedSampler.
    """
    from torchvision.datasets import ImageFolder
    from torchvision.models import shufflenet_v2_x0_5
    from torchvision.transforms import v2 as T

    rank = dist.get_rank()
    transform = T.Compose(
        [T.RandomResizedCrop(96), T.RandomHorizontalFlip(), T.ToImage(), T.ToDtype(torch.float32, scale=True)]
    )
    ids = None if device == "cpu" else [torch.cuda.current_device()]
    model = nn.parallel.DistributedDataParallel(shufflenet_v2_x0_5().to(device), device_ids=ids)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    with tempfile.TemporaryDirectory() as root:
        rng = np.random.default_rng(rank)
        for number in range(16):
            folder = Path(root, f"class{number % 2}")
            folder.mkdir(exist_ok=True)
            _photograph(rng, (2400, 1800) if rank else (160, 120)).save(folder / f"{number}.jpg")
        data_loader = DataLoader(ImageFolder(root, transform), batch_size=8, shuffle=True)
        for epoch in itertools.count():
            for image, target in data_loader:  # here
                image, target = image.to(device), target.to(device)
                loss = criterion(model(image), target)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                run.log(loss=loss.item(), epoch=epoch, samples=len(image))
                if run.stopping:
                    return
