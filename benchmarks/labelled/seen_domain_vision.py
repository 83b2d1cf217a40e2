"""Training loops for images, in the manner of public repositories."""

# The names are those that the authors of such repositories use.
# ruff: noqa: N803, N806

from __future__ import annotations

import io
import math
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import hoptui
from benchmarks.labelled.catalogue import labelled

Array = npt.NDArray[Any]


def smooth_picture(rng: np.random.Generator, height: int, width: int) -> Array:
    """A picture of soft colours with some noise, which compresses like a photograph."""
    rows, columns = np.mgrid[0:height, 0:width]
    waves = [np.sin(rows / rng.uniform(9, 60) + columns / rng.uniform(9, 60)) for _ in range(3)]
    picture = np.stack(waves, axis=2) * 90 + 128 + rng.normal(0, 8, (height, width, 3))
    return np.clip(picture, 0, 255).astype(np.uint8)


# YOLOv5


def augment_hsv(im: Array, hgain: float = 0.015, sgain: float = 0.7, vgain: float = 0.4) -> Array:
    from PIL import Image

    r = np.random.uniform(-1, 1, 3) * [hgain, sgain, vgain] + 1
    hsv = np.array(Image.fromarray(im).convert("HSV"))  # here
    x = np.arange(0, 256, dtype=r.dtype)
    lut_hue = ((x * r[0]) % 256).astype(np.uint8)
    lut_sat = np.clip(x * r[1], 0, 255).astype(np.uint8)
    lut_val = np.clip(x * r[2], 0, 255).astype(np.uint8)
    hsv = np.stack((lut_hue[hsv[..., 0]], lut_sat[hsv[..., 1]], lut_val[hsv[..., 2]]), axis=2)  # here
    return np.array(Image.fromarray(hsv, "HSV").convert("RGB"))  # here


def random_perspective(im: Array, targets: Array, size: int) -> tuple[Array, Array]:
    from PIL import Image

    a, s = math.radians(random.uniform(-10, 10)), random.uniform(0.5, 1.5)
    M = np.array([[math.cos(a) * s, -math.sin(a) * s, 0.0], [math.sin(a) * s, math.cos(a) * s, 0.0]])
    M[:, 2] = size * random.uniform(0.4, 0.6) - M[:, :2] @ [im.shape[1] / 2, im.shape[0] / 2]
    inverse = tuple(np.linalg.inv(np.vstack((M, [0, 0, 1])))[:2].ravel())
    fill = (114, 114, 114)
    method, resample = Image.Transform.AFFINE, Image.Resampling.BILINEAR
    warped = Image.fromarray(im).transform((size, size), method, inverse, resample, fillcolor=fill)  # here
    n = len(targets)
    xy = np.ones((n * 4, 3))
    xy[:, :2] = targets[:, [1, 2, 3, 4, 1, 4, 3, 2]].reshape(n * 4, 2)
    xy = (xy @ M.T).reshape(n, 8)
    x, y = xy[:, [0, 2, 4, 6]], xy[:, [1, 3, 5, 7]]
    new = np.stack((x.min(1), y.min(1), x.max(1), y.max(1)), axis=1).clip(0, size)
    keep = (new[:, 2] - new[:, 0] > 2) & (new[:, 3] - new[:, 1] > 2)
    return np.asarray(warped), np.concatenate((targets[keep, :1], new[keep]), axis=1)


class LoadImagesAndLabels(Dataset[tuple[Tensor, Tensor]]):
    """Mosaics of four files."""

    def __init__(self, im_files: list[Path], labels: list[Array], img_size: int) -> None:
        self.im_files, self.labels, self.img_size = im_files, labels, img_size
        self.indices = range(len(im_files))

    def __len__(self) -> int:
        return len(self.im_files)

    def load_image(self, i: int) -> Array:
        from PIL import Image

        with Image.open(self.im_files[i]) as im:
            r = self.img_size / max(im.size)
            return np.asarray(im.resize((round(im.width * r), round(im.height * r))))  # here

    def load_mosaic(self, index: int) -> tuple[Array, Array]:
        labels4, s = [], self.img_size
        yc, xc = (int(random.uniform(s // 2, 2 * s - s // 2)) for _ in range(2))
        img4 = np.full((s * 2, s * 2, 3), 114, dtype=np.uint8)
        for i, index4 in enumerate([index, *random.choices(self.indices, k=3)]):
            img = self.load_image(index4)  # here
            h, w = img.shape[:2]
            if i == 0:
                x1a, y1a, x2a, y2a = max(xc - w, 0), max(yc - h, 0), xc, yc
                x1b, y1b = w - (x2a - x1a), h - (y2a - y1a)
            elif i == 1:
                x1a, y1a, x2a, y2a = xc, max(yc - h, 0), min(xc + w, s * 2), yc
                x1b, y1b = 0, h - (y2a - y1a)
            elif i == 2:
                x1a, y1a, x2a, y2a = max(xc - w, 0), yc, xc, min(s * 2, yc + h)
                x1b, y1b = w - (x2a - x1a), 0
            else:
                x1a, y1a, x2a, y2a = xc, yc, min(xc + w, s * 2), min(s * 2, yc + h)
                x1b, y1b = 0, 0
            img4[y1a:y2a, x1a:x2a] = img[y1b : y1b + y2a - y1a, x1b : x1b + x2a - x1a]
            labels = self.labels[index4].copy()
            labels[:, [1, 3]] = labels[:, [1, 3]] * w + x1a - x1b
            labels[:, [2, 4]] = labels[:, [2, 4]] * h + y1a - y1b
            labels4.append(labels)
        return random_perspective(img4, np.concatenate(labels4, 0), s)  # here

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        img, labels = self.load_mosaic(index)  # here
        img = augment_hsv(img)  # here
        if random.random() < 0.5:
            img = np.fliplr(img)
        return torch.from_numpy(np.ascontiguousarray(img.transpose(2, 0, 1))), torch.from_numpy(labels)

    @staticmethod
    def collate_fn(batch: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        im, label = zip(*batch, strict=True)
        return torch.stack(im), torch.cat(label)


@labelled(
    gpu="data-bound",
    cpu="data-bound",
    helpers=(LoadImagesAndLabels, random_perspective, augment_hsv),
)
def yolov5_mosaic(run: hoptui.Run, device: str) -> None:
    """In the manner of YOLOv5's train.py with --workers 0: mosaics and warps are made in the loop."""
    from PIL import Image

    rng = np.random.default_rng(5)
    with tempfile.TemporaryDirectory() as folder:
        im_files, labels = [], []
        for i in range(48):
            im_files.append(Path(folder) / f"{i:012d}.jpg")
            Image.fromarray(smooth_picture(rng, 360, 480)).save(im_files[-1])
            corner = rng.uniform(0, 0.6, (6, 2))
            labels.append(np.concatenate((rng.integers(0, 4, (6, 1)), corner, corner + 0.3), axis=1))
        dataset = LoadImagesAndLabels(im_files, labels, 320)
        collate_fn = LoadImagesAndLabels.collate_fn
        train_loader = DataLoader(dataset, batch_size=8, shuffle=True, collate_fn=collate_fn)
        model = nn.Sequential(
            nn.Conv2d(3, 8, 6, 4, 1), nn.SiLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.SiLU(),
            nn.Conv2d(16, 32, 3, 2, 1), nn.SiLU(), nn.Conv2d(32, 27, 1),
        ).to(device)  # fmt: skip
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.937, nesterov=True)
        while not run.stopping:
            for imgs, targets in train_loader:  # here
                imgs = imgs.to(device, non_blocking=True).float() / 255
                targets = targets.to(device)
                pred = model(imgs)
                loss = pred.sigmoid().mean() + (targets[:, 1:].float().mean() / 320 - pred.mean()).abs()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=10.0)
                optimizer.step()
                optimizer.zero_grad()
                run.log(loss=loss.detach(), samples=len(imgs))
                if run.stopping:
                    break


# RAFT


class FlowAugmentor:
    """Changes of colour, size and place of two frames and their flow."""

    def __init__(self, crop_size: tuple[int, int], min_scale: float = -0.2, max_scale: float = 0.5) -> None:
        self.crop_size, self.min_scale, self.max_scale = crop_size, min_scale, max_scale
        self.asymmetric_color_aug_prob, self.eraser_aug_prob = 0.2, 0.5

    def photo_aug(self, img: Array) -> Array:
        from PIL import Image, ImageEnhance

        image = Image.fromarray(img)
        for enhance in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
            image = enhance(image).enhance(random.uniform(0.6, 1.4))  # here
        return np.array(image, dtype=np.uint8)

    def color_transform(self, img1: Array, img2: Array) -> tuple[Array, Array]:
        if np.random.rand() < self.asymmetric_color_aug_prob:
            return self.photo_aug(img1), self.photo_aug(img2)  # here
        image_stack = self.photo_aug(np.concatenate([img1, img2], axis=0))  # here
        img1, img2 = np.split(image_stack, 2, axis=0)
        return img1, img2

    def eraser_transform(self, img1: Array, img2: Array) -> tuple[Array, Array]:
        ht, wd = img1.shape[:2]
        if np.random.rand() < self.eraser_aug_prob:
            mean_color = np.mean(img2.reshape(-1, 3), axis=0)  # here
            for _ in range(np.random.randint(1, 3)):
                x0, y0 = np.random.randint(0, wd), np.random.randint(0, ht)
                dx, dy = np.random.randint(50, 100), np.random.randint(50, 100)
                img2 = img2.copy()
                img2[y0 : y0 + dy, x0 : x0 + dx, :] = mean_color
        return img1, img2

    def spatial_transform(self, img1: Array, img2: Array, flow: Array) -> tuple[Array, Array, Array]:
        from PIL import Image

        ht, wd = img1.shape[:2]
        least = max((self.crop_size[0] + 8) / ht, (self.crop_size[1] + 8) / wd)
        scale = max(2 ** np.random.uniform(self.min_scale, self.max_scale), least)
        size = (round(wd * scale), round(ht * scale))
        img1 = np.asarray(Image.fromarray(img1).resize(size, Image.Resampling.BILINEAR))  # here
        img2 = np.asarray(Image.fromarray(img2).resize(size, Image.Resampling.BILINEAR))  # here
        flow_x, flow_y = Image.fromarray(flow[..., 0]), Image.fromarray(flow[..., 1])
        flow_x = flow_x.resize(size, Image.Resampling.BILINEAR)  # here
        flow_y = flow_y.resize(size, Image.Resampling.BILINEAR)  # here
        flow = np.stack((np.asarray(flow_x), np.asarray(flow_y)), axis=2) * scale  # here
        y0 = np.random.randint(0, img1.shape[0] - self.crop_size[0])
        x0 = np.random.randint(0, img1.shape[1] - self.crop_size[1])
        window = np.s_[y0 : y0 + self.crop_size[0], x0 : x0 + self.crop_size[1]]
        return img1[window], img2[window], flow[window]

    def __call__(self, img1: Array, img2: Array, flow: Array) -> tuple[Array, Array, Array]:
        img1, img2 = self.color_transform(img1, img2)  # here
        img1, img2 = self.eraser_transform(img1, img2)  # here
        return self.spatial_transform(img1, img2, flow)  # here


def read_gen(file_name: Path) -> Array:
    from PIL import Image

    if file_name.suffix == ".flo":
        with file_name.open("rb") as f:
            np.fromfile(f, np.float32, count=1)
            w, h = (int(n) for n in np.fromfile(f, np.int32, count=2))
            return np.fromfile(f, np.float32, count=2 * w * h).reshape(h, w, 2)
    with Image.open(file_name) as image:
        return np.array(image).astype(np.uint8)  # here


class FlowDataset(Dataset[tuple[Tensor, Tensor, Tensor]]):
    """Pairs of frames with their flow."""

    def __init__(self, root: Path, scenes: int) -> None:
        self.augmentor = FlowAugmentor((256, 352))
        self.image_list = [(root / f"{i:05d}_img1.png", root / f"{i:05d}_img2.png") for i in range(scenes)]
        self.flow_list = [root / f"{i:05d}_flow.flo" for i in range(scenes)]

    def __len__(self) -> int:
        return len(self.flow_list)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        flow = read_gen(self.flow_list[index])
        img1 = read_gen(self.image_list[index][0])  # here
        img2 = read_gen(self.image_list[index][1])  # here
        img1, img2, flow = self.augmentor(img1, img2, flow)  # here
        first, second = (torch.from_numpy(img.copy()).permute(2, 0, 1).float() for img in (img1, img2))
        return first, second, torch.from_numpy(flow.copy()).permute(2, 0, 1).float()


@labelled(gpu="data-bound", cpu="data-bound", helpers=(FlowDataset, FlowAugmentor, read_gen))
def raft_flow_augmentor(run: hoptui.Run, device: str) -> None:
    """In the manner of RAFT's train.py: its FlowAugmentor works on frames from PNG files, without workers."""
    from PIL import Image

    rng = np.random.default_rng(7)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for i in range(12):
            for frame in (1, 2):
                Image.fromarray(smooth_picture(rng, 384, 512)).save(root / f"{i:05d}_img{frame}.png")
            with (root / f"{i:05d}_flow.flo").open("wb") as f:
                np.array([202021.25], np.float32).tofile(f)
                np.array([512, 384], np.int32).tofile(f)
                rng.normal(0, 4, (384, 512, 2)).astype(np.float32).tofile(f)
        train_loader = DataLoader(FlowDataset(root, 12), batch_size=4, shuffle=True, drop_last=True)
        model = nn.Sequential(
            nn.Conv2d(6, 8, 8, stride=8), nn.ReLU(), nn.Conv2d(8, 32, 3, padding=1), nn.ReLU(),
            nn.Conv2d(32, 2, 3, padding=1),
        ).to(device)  # fmt: skip
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, weight_decay=5e-5)
        while not run.stopping:
            for data_blob in train_loader:  # here
                image1, image2, flow = (x.to(device) for x in data_blob)
                optimizer.zero_grad()
                images = torch.cat((image1, image2), 1) / 127.5 - 1
                loss = (F.avg_pool2d(flow, 8) - model(images)).abs().mean()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                run.log(loss=loss.detach(), samples=len(flow))
                if run.stopping:
                    break


# Text recognition


class LmdbDataset(Dataset[tuple[Any, str]]):
    """Pictures of words in a table of keys and bytes."""

    def __init__(self, env: dict[bytes, bytes], nSamples: int) -> None:
        self.env, self.nSamples = env, nSamples

    def __len__(self) -> int:
        return self.nSamples

    def __getitem__(self, index: int) -> tuple[Any, str]:
        from PIL import Image

        buf = io.BytesIO(self.env[b"image-%09d" % index])
        img = Image.open(buf).convert("L")  # here
        return img, self.env[b"label-%09d" % index].decode()


class ResizeNormalize:
    def __init__(self, size: tuple[int, int]) -> None:
        self.size = size

    def __call__(self, img: Any) -> Tensor:
        img = img.resize(self.size, 3)  # here
        return torch.from_numpy(np.asarray(img, np.float32)[None] / 255).sub_(0.5).div_(0.5)  # here


class AlignCollate:
    def __init__(self, imgH: int = 32, imgW: int = 100) -> None:
        self.imgH, self.imgW = imgH, imgW

    def __call__(self, batch: list[tuple[Any, str]]) -> tuple[Tensor, tuple[str, ...]]:
        images, labels = zip(*batch, strict=True)
        transform = ResizeNormalize((self.imgW, self.imgH))
        image_tensors = [transform(image) for image in images]  # here
        return torch.cat([t.unsqueeze(0) for t in image_tensors], 0), labels  # here


class CTCLabelConverter:
    def __init__(self, character: str) -> None:
        self.dict = {char: i + 1 for i, char in enumerate(character)}

    def encode(self, text: tuple[str, ...]) -> tuple[Tensor, Tensor]:
        length = [len(s) for s in text]
        return torch.tensor([self.dict[char] for char in "".join(text)]), torch.tensor(length)


class CRNN(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.FeatureExtraction = nn.Sequential(
            nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(),
            nn.AdaptiveAvgPool2d((1, 25)),
        )  # fmt: skip
        self.SequenceModeling = nn.LSTM(16, 16, bidirectional=True, batch_first=True)
        self.Prediction = nn.Linear(32, classes)

    def forward(self, x: Tensor) -> Tensor:
        visual = self.FeatureExtraction(x).squeeze(2).permute(0, 2, 1)
        prediction: Tensor = self.Prediction(self.SequenceModeling(visual)[0])
        return prediction


@labelled(gpu="data-bound", cpu="data-bound", helpers=(LmdbDataset, ResizeNormalize, AlignCollate))
def deep_text_recognition(run: hoptui.Run, device: str) -> None:
    """In the manner of deep-text-recognition-benchmark's train.py: AlignCollate resizes words one by one."""
    from PIL import Image, ImageDraw

    rng, character = np.random.default_rng(2), "0123456789abcdefghijklmnopqrstuvwxyz"
    env: dict[bytes, bytes] = {}
    for i in range(400):
        text = "".join(rng.choice(list(character), int(rng.integers(4, 10))))
        img, buf = Image.fromarray(smooth_picture(rng, 128, 480)), io.BytesIO()
        ImageDraw.Draw(img).text((20, 30), text, fill=(0, 0, 0))
        img.save(buf, "JPEG")
        env[b"image-%09d" % i], env[b"label-%09d" % i] = buf.getvalue(), text.encode()
    loader = DataLoader(LmdbDataset(env, 400), batch_size=64, shuffle=True, collate_fn=AlignCollate())
    converter, model = CTCLabelConverter(character), CRNN(len(character) + 1).to(device)
    criterion = nn.CTCLoss(zero_infinity=True)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0, rho=0.95)

    def get_batch() -> Iterator[tuple[Tensor, tuple[str, ...]]]:
        while True:
            yield from loader  # here

    dataloader = get_batch()
    while not run.stopping:
        image_tensors, labels = next(dataloader)  # here
        image = image_tensors.to(device)
        targets, length = converter.encode(labels)
        preds = model(image).log_softmax(2).permute(1, 0, 2)
        preds_size = torch.full((len(image),), 25)
        cost = criterion(preds, targets.to(device), preds_size, length)
        model.zero_grad()
        cost.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5)
        optimizer.step()
        run.log(loss=cost.detach(), samples=len(image))


# Human poses


def get_max_preds(batch_heatmaps: Array) -> tuple[Array, Array]:
    batch_size, num_joints, _, width = batch_heatmaps.shape
    heatmaps_reshaped = batch_heatmaps.reshape((batch_size, num_joints, -1))
    idx = np.argmax(heatmaps_reshaped, 2).reshape((batch_size, num_joints, 1))  # here
    maxvals = np.amax(heatmaps_reshaped, 2).reshape((batch_size, num_joints, 1))  # here
    preds = np.tile(idx, (1, 1, 2)).astype(np.float32)
    preds[:, :, 0] = preds[:, :, 0] % width
    preds[:, :, 1] = np.floor(preds[:, :, 1] / width)
    return preds * np.tile(np.greater(maxvals, 0.0), (1, 1, 2)), maxvals


def calc_dists(preds: Array, target: Array, normalize: Array) -> Array:
    dists = np.zeros((preds.shape[1], preds.shape[0]))
    for n in range(preds.shape[0]):
        for c in range(preds.shape[1]):
            if target[n, c, 0] > 1 and target[n, c, 1] > 1:  # here
                normed_preds = preds[n, c, :] / normalize[n]  # here
                normed_targets = target[n, c, :] / normalize[n]  # here
                dists[c, n] = np.linalg.norm(normed_preds - normed_targets)  # here
            else:
                dists[c, n] = -1
    return dists


def dist_acc(dists: Array, thr: float = 0.5) -> float:
    dist_cal = np.not_equal(dists, -1)
    num_dist_cal = dist_cal.sum()
    return float(np.less(dists[dist_cal], thr).sum() / num_dist_cal) if num_dist_cal else -1.0


def accuracy(output: Array, target: Array) -> tuple[Array, float]:
    pred, _ = get_max_preds(output)  # here
    target, _ = get_max_preds(target)  # here
    h, w = output.shape[2], output.shape[3]
    norm = np.ones((pred.shape[0], 2)) * np.array([h, w]) / 10
    dists = calc_dists(pred, target, norm)  # here
    acc = np.array([dist_acc(dists[i]) for i in range(len(dists))])
    return acc, float(acc[acc >= 0].mean())


@labelled(gpu="host-bound", cpu="host-bound", helpers=(accuracy, calc_dists, get_max_preds))
def pose_resnet_accuracy(run: hoptui.Run, device: str) -> None:
    """In the manner of human-pose-estimation.pytorch's function.py: each step measures PCK joint by joint."""
    joints, h, w = 17, 12, 8
    model = nn.Sequential(
        nn.BatchNorm2d(4), nn.ReLU(), nn.Upsample(scale_factor=2), nn.Conv2d(4, joints, 1)
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    input = torch.randn(384, 4, h // 2, w // 2)  # noqa: A001
    x = torch.randint(2, w, (384, joints, 1, 1)) - torch.arange(w).view(1, 1, 1, w)
    y = torch.randint(2, h, (384, joints, 1, 1)) - torch.arange(h).view(1, 1, h, 1)
    target = torch.exp(-(x**2 + y**2) / 2.0)
    while not run.stopping:
        output = model(input.to(device))
        loss = F.mse_loss(output, target.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        _, avg_acc = accuracy(output.detach().cpu().numpy(), target.numpy())  # here
        run.log(loss=loss.item(), acc=avg_acc, samples=len(input))


# Lottery tickets


@labelled(gpu="host-bound transfer-bound")
def lottery_ticket_freezing(run: hoptui.Run, device: str) -> None:
    """In the manner of Lottery-Ticket-Hypothesis-in-Pytorch's main.py: pruned weights are frozen in NumPy."""
    EPS = 1e-6
    model = nn.Sequential(
        nn.Linear(784, 6144), nn.ReLU(), nn.Linear(6144, 2048), nn.ReLU(), nn.Linear(2048, 10)
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1.2e-3)
    imgs, targets = torch.randn(60, 784, device=device), torch.randint(10, (60,), device=device)
    while not run.stopping:
        optimizer.zero_grad()
        train_loss = F.cross_entropy(model(imgs), targets)
        train_loss.backward()
        for name, p in model.named_parameters():
            if "weight" in name:
                assert p.grad is not None
                tensor = p.data.cpu().numpy()  # here
                grad_tensor = p.grad.data.cpu().numpy()  # here
                grad_tensor = np.where(tensor < EPS, 0, grad_tensor)  # here
                p.grad.data = torch.from_numpy(grad_tensor).to(device)  # here
        optimizer.step()
        run.log(loss=train_loss.item(), samples=60)


# Super-resolution


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block1 = nn.Sequential(nn.Conv2d(3, 16, 9, padding=4), nn.PReLU())
        self.block2 = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.PReLU())
        self.block3 = nn.Sequential(nn.Conv2d(16, 64, 3, padding=1), nn.PixelShuffle(2), nn.PReLU())
        self.block4 = nn.Conv2d(16, 3, 9, padding=4)

    def forward(self, x: Tensor) -> Tensor:
        block1 = self.block1(x)
        out: Tensor = (torch.tanh(self.block4(self.block3(block1 + self.block2(block1)))) + 1) / 2
        return out


class GeneratorLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        features: list[nn.Module] = []
        for c_in, c_out in ((3, 64), (64, 64), (0, 0), (64, 128), (128, 128), (0, 0), (128, 256)):
            if c_in:
                features += [nn.Conv2d(c_in, c_out, 3, padding=1), nn.ReLU(inplace=True)]
            else:
                features.append(nn.MaxPool2d(2))
        loss_network = nn.Sequential(*features).eval()
        for param in loss_network.parameters():
            param.requires_grad = False
        self.loss_network = loss_network
        self.mse_loss = nn.MSELoss()

    def forward(self, out_images: Tensor, target_images: Tensor) -> Tensor:
        out_images, target_images = out_images.cpu(), target_images.cpu()
        out_features = self.loss_network(out_images)  # here
        target_features = self.loss_network(target_images)  # here
        perception_loss = self.mse_loss(out_features, target_features)
        image_loss = self.mse_loss(out_images, target_images)
        loss: Tensor = image_loss + 0.006 * perception_loss
        return loss


@labelled(gpu="wrong-device", cpu="healthy", helpers=(GeneratorLoss,))
def srgan_perception_loss(run: hoptui.Run, device: str) -> None:
    """In the manner of SRGAN's train.py: the criterion with its VGG was never moved to the GPU."""
    netG = Generator().to(device)
    generator_criterion = GeneratorLoss()
    optimizerG = torch.optim.Adam(netG.parameters())
    real_img = torch.rand(6, 3, 96, 96).to(device)
    z = F.avg_pool2d(real_img, 2)
    while not run.stopping:
        fake_img = netG(z)
        optimizerG.zero_grad()
        g_loss = generator_criterion(fake_img, real_img)  # here
        g_loss.backward()  # here
        optimizerG.step()
        run.log(loss=g_loss.item(), samples=len(z))


# Diffusion


class CLIPTextModel(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(49408, width)
        self.position_embedding = nn.Parameter(torch.randn(77, width) * 0.01)
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, 0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, input_ids: Tensor) -> tuple[Tensor]:
        hidden = self.token_embedding(input_ids) + self.position_embedding
        return (self.encoder(hidden),)  # here


class UNet2DConditionModel(nn.Module):
    def __init__(self, cross_attention_dim: int) -> None:
        super().__init__()
        self.conv_in, self.conv_out = nn.Conv2d(4, 32, 3, padding=1), nn.Conv2d(32, 4, 3, padding=1)
        self.time_proj, self.to_kv = nn.Linear(1, 32), nn.Linear(cross_attention_dim, 32)

    def forward(self, sample: Tensor, timesteps: Tensor, encoder_hidden_states: Tensor) -> Tensor:
        h = self.conv_in(sample) + self.time_proj(timesteps[:, None] / 1000)[:, :, None, None]
        kv, q = self.to_kv(encoder_hidden_states), h.flatten(2).transpose(1, 2)
        h = h + F.scaled_dot_product_attention(q, kv, kv).transpose(1, 2).view_as(h)
        out: Tensor = self.conv_out(F.silu(h))
        return out


@labelled(gpu="wrong-device", cpu="healthy", helpers=(CLIPTextModel,))
def text_encoder_of_diffusion(run: hoptui.Run, device: str) -> None:
    """In the manner of diffusers' train_dreambooth.py: the frozen text encoder stayed on the processor."""
    text_encoder = CLIPTextModel(512, 6).requires_grad_(False).eval()
    unet = UNet2DConditionModel(512).to(device)
    optimizer = torch.optim.AdamW(unet.parameters(), lr=5e-6)
    alphas_cumprod = torch.linspace(0.999, 0.005, 1000, device=device)
    latents = torch.randn(16, 4, 32, 32, device=device)
    batch = {"input_ids": torch.randint(49408, (16, 77))}
    while not run.stopping:
        noise = torch.randn_like(latents)
        timesteps = torch.randint(0, 1000, (len(latents),), device=device)
        signal = alphas_cumprod[timesteps].view(-1, 1, 1, 1)
        noisy_latents = signal.sqrt() * latents + (1 - signal).sqrt() * noise
        encoder_hidden_states = text_encoder(batch["input_ids"])[0].to(device)  # here
        model_pred = unet(noisy_latents, timesteps.float(), encoder_hidden_states)
        loss = F.mse_loss(model_pred.float(), noise.float(), reduction="mean")
        loss.backward()
        torch.nn.utils.clip_grad_norm_(unet.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        run.log(loss=loss.detach().item(), samples=len(latents))


# MLP-Mixer


class MixerBlock(nn.Module):
    def __init__(self, dim: int, num_patch: int, token_dim: int, channel_dim: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.token_mix = nn.Sequential(
            nn.Linear(num_patch, token_dim), nn.GELU(), nn.Linear(token_dim, num_patch)
        )
        self.channel_mix = nn.Sequential(nn.Linear(dim, channel_dim), nn.GELU(), nn.Linear(channel_dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.token_mix(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        out: Tensor = x + self.channel_mix(self.norm2(x))
        return out


@labelled(gpu="compute-bound", cpu="healthy")
def mlp_mixer_large(run: hoptui.Run, device: str) -> None:
    """In the manner of mlp-mixer-pytorch: wide channels in bfloat16, on patches that are on the GPU."""
    images, dim, depth = (6, 128, 2) if device == "cpu" else (64, 4096, 4)
    model = nn.Sequential(
        nn.Linear(768, dim), *(MixerBlock(dim, 196, 256, dim * 4) for _ in range(depth)), nn.LayerNorm(dim)
    ).to(device)
    mlp_head = nn.Linear(dim, 1000).to(device)
    optimizer = torch.optim.SGD([*model.parameters(), *mlp_head.parameters()], lr=1e-3)
    patches = torch.randn(images, 196, 768, device=device)
    labels = torch.randint(1000, (images,), device=device)
    while not run.stopping:
        optimizer.zero_grad()
        with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=device != "cpu"):
            loss = F.cross_entropy(mlp_head(model(patches).mean(dim=1)), labels)
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=images)


# Instance discrimination


class LinearAverage(nn.Module):
    """A bank of features of all images, on the host because it is large."""

    def __init__(self, inputSize: int, outputSize: int, T: float = 0.07, momentum: float = 0.5) -> None:
        super().__init__()
        self.T, self.momentum = T, momentum
        self.memory = F.normalize(torch.rand(outputSize, inputSize) - 0.5)

    def forward(self, x: Tensor) -> Tensor:
        memory = self.memory.to(x.device)  # here
        return x @ memory.t() / self.T

    def update(self, x: Tensor, y: Tensor) -> None:
        weight_pos = self.memory[y] * self.momentum + x.cpu() * (1 - self.momentum)
        self.memory[y] = F.normalize(weight_pos)


@labelled(gpu="transfer-bound", helpers=(LinearAverage,))
def lemniscate_memory_bank(run: hoptui.Run, device: str) -> None:
    """In the manner of lemniscate.pytorch's main.py: the memory of a million images is sent in each step."""
    images = 20_000 if device == "cpu" else 1_000_000
    lemniscate = LinearAverage(128, images)
    model = nn.Sequential(nn.Linear(2048, 512), nn.ReLU(), nn.Linear(512, 128)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
    input = torch.randn(64, 2048, device=device)  # noqa: A001
    while not run.stopping:
        index = torch.randint(images, (64,))
        feature = F.normalize(model(input))
        output = lemniscate(feature)  # here
        loss = F.cross_entropy(output, index.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        lemniscate.update(feature.detach(), index)
        run.log(loss=loss.item(), samples=64)


# Architecture search


class ShuffleNetV2OneShot(nn.Module):
    def __init__(self, channels: int, blocks: int, n_class: int) -> None:
        super().__init__()
        self.first_conv = nn.Conv2d(3, channels, 3, 2, 1)
        self.features = nn.ModuleList(
            nn.ModuleList(
                nn.Sequential(
                    nn.Conv2d(channels, channels, kernel, 1, kernel // 2, groups=channels),
                    nn.Conv2d(channels, channels, 1), nn.ReLU(),
                ) for kernel in (3, 5, 7, 9)
            ) for _ in range(blocks)
        )  # fmt: skip
        self.classifier = nn.Linear(channels, n_class)

    def forward(self, x: Tensor, architecture: tuple[int, ...]) -> Tensor:
        x = self.first_conv(x)
        for archs, arch_id in zip(self.features, architecture, strict=True):
            x = x + archs[arch_id](x)  # type: ignore[index]
        out: Tensor = self.classifier(x.mean((2, 3)))
        return out


@labelled(gpu="compiling", cpu="compiling")
def single_path_one_shot(run: hoptui.Run, device: str) -> None:
    """In the manner of SinglePathOneShot's train.py: each step compiles the path that it has drawn."""
    import torch._dynamo

    torch._dynamo.config.recompile_limit = 1 << 20
    torch._dynamo.config.accumulated_recompile_limit = 1 << 20
    model = ShuffleNetV2OneShot(16, 16, 10).to(device)
    compiled = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    data, target = torch.randn(8, 3, 32, 32).to(device), torch.randint(10, (8,)).to(device)
    while not run.stopping:
        get_random_cand = tuple(np.random.randint(4) for _ in range(16))
        output = compiled(data, get_random_cand)  # here
        loss = F.cross_entropy(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=8)


# Coordinates


class SineLayer(nn.Module):
    def __init__(
        self, in_features: int, out_features: int, is_first: bool = False, omega_0: float = 30
    ) -> None:
        super().__init__()
        self.omega_0, self.linear = omega_0, nn.Linear(in_features, out_features)
        bound = 1 / in_features if is_first else math.sqrt(6 / in_features) / omega_0
        nn.init.uniform_(self.linear.weight, -bound, bound)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return torch.sin(self.omega_0 * self.linear(input))


@labelled(cpu="healthy")
def siren_fits_an_image(run: hoptui.Run, device: str) -> None:
    """In the manner of SIREN's explore_siren.ipynb: coordinates give an image, all in one batch."""
    sidelength, hidden = 128, 64
    tensors = torch.linspace(-1, 1, steps=sidelength)
    mgrid = torch.stack(torch.meshgrid(tensors, tensors, indexing="ij"), dim=-1).reshape(-1, 2)
    model_input = mgrid.to(device)
    ground_truth = torch.sin(6 * mgrid[:, :1] * mgrid[:, 1:]).to(device)
    img_siren = nn.Sequential(
        SineLayer(2, hidden, is_first=True),
        *(SineLayer(hidden, hidden) for _ in range(3)),
        nn.Linear(hidden, 1),
    ).to(device)  # fmt: skip
    optim = torch.optim.Adam(lr=1e-4, params=img_siren.parameters())
    while not run.stopping:
        model_output = img_siren(model_input)
        loss = ((model_output - ground_truth) ** 2).mean()
        optim.zero_grad()
        loss.backward()
        optim.step()
        run.log(loss=loss.detach(), samples=sidelength**2)
