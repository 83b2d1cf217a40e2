"""Loops in the manner of public scripts that wait for their input."""

from __future__ import annotations

import csv
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

import hoptui
from benchmarks.labelled.catalogue import labelled

Array = npt.NDArray[Any]
Adjacency = dict[int, list[int]]


# ImageNet
class AverageMeter:
    """Keeps the current value and the average."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.val = self.sum = self.count = 0.0

    def update(self, val: float, n: int = 1) -> None:
        self.val = val
        self.sum += val * n
        self.count += n


def pil_loader(path: Path) -> Any:
    from PIL import Image

    with path.open("rb") as f:
        img = Image.open(f)
        return img.convert("RGB")  # here


class RandomResizedCrop:
    def __init__(self, size: int, scale: tuple[float, float] = (0.08, 1.0)) -> None:
        self.size = size
        self.scale = scale

    def __call__(self, img: Any) -> Any:
        from PIL import Image

        width, height = img.size
        side = int((width * height * random.uniform(*self.scale)) ** 0.5)
        w, h = min(side, width), min(side, height)
        i, j = random.randint(0, height - h), random.randint(0, width - w)
        img = img.crop((j, i, j + w, i + h))
        return img.resize((self.size, self.size), Image.Resampling.BILINEAR)  # here


class ImageFolder(Dataset[tuple[Tensor, int]]):
    """The pictures of a folder that has a folder for each class."""

    def __init__(self, root: Path, transform: Callable[[Any], Any]) -> None:
        self.transform = transform
        classes = sorted(root.iterdir())
        self.samples = [(path, i) for i, folder in enumerate(classes) for path in sorted(folder.iterdir())]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        path, target = self.samples[index]
        sample = pil_loader(path)
        sample = self.transform(sample)
        pic = torch.from_numpy(np.array(sample)).permute(2, 0, 1).float().div(255)
        mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
        return (pic - mean[:, None, None]) / std[:, None, None], target


def write_pictures(root: Path, classes: int, count: int) -> None:
    """Write noisy JPEG files of the size of those of ImageNet."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for label in range(classes):
        folder = root / f"n{label:08d}"
        folder.mkdir()
        for i in range(count):
            coarse = Image.fromarray(rng.integers(0, 255, (24, 32, 3), dtype=np.uint8))
            coarse.resize((500, 375), Image.Resampling.BICUBIC).save(folder / f"{i}.JPEG", quality=92)


@labelled(gpu="data-bound", cpu="data-bound", helpers=(pil_loader, RandomResizedCrop))
def imagenet_without_workers(run: hoptui.Run, device: str) -> None:
    """In the manner of imagenet/main.py of pytorch/examples: JPEG files are decoded with `--workers 0`."""
    with tempfile.TemporaryDirectory() as root:
        write_pictures(Path(root), 8, 16)
        train_dataset = ImageFolder(Path(root), RandomResizedCrop(64))
        train_loader = DataLoader(train_dataset, batch_size=32, shuffle=True, num_workers=0)
        model = nn.Sequential(
            nn.Conv2d(3, 16, 7, stride=4, padding=3), nn.BatchNorm2d(16), nn.ReLU(inplace=True),
            nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU(inplace=True),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 8),
        ).to(device)  # fmt: skip
        criterion = nn.CrossEntropyLoss().to(device)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)

        def train() -> None:
            losses = AverageMeter("Loss")
            model.train()
            for images, target in train_loader:
                images, target = images.to(device, non_blocking=True), target.to(device, non_blocking=True)
                output = model(images)
                loss = criterion(output, target)
                losses.update(loss.item(), images.size(0))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                run.log(loss=losses.val, samples=images.size(0))
                if run.stopping:
                    return

        while not run.stopping:
            train()


# Point clouds
def pc_normalize(pc: Array) -> Array:
    pc = pc - np.mean(pc, axis=0)
    return np.asarray(pc / np.max(np.sqrt(np.sum(pc**2, axis=1))))


def farthest_point_sample(point: Array, npoint: int) -> Array:
    """Choose points that are far from each other."""
    xyz = point[:, :3]
    centroids = np.zeros((npoint,))
    distance = np.ones((len(xyz),)) * 1e10
    farthest = np.random.randint(0, len(xyz))
    for i in range(npoint):
        centroids[i] = farthest
        centroid = xyz[farthest, :]
        dist = np.sum((xyz - centroid) ** 2, -1)  # here
        mask = dist < distance  # here
        distance[mask] = dist[mask]  # here
        farthest = int(np.argmax(distance, -1))  # here
    return np.asarray(point[centroids.astype(np.int32)])


class ModelNetDataLoader(Dataset[tuple[Array, int]]):
    def __init__(self, npoints: int, uniform: bool = True) -> None:
        rng = np.random.default_rng(1)
        self.npoints = npoints
        self.uniform = uniform
        self.list_of_points = [rng.standard_normal((3000, 3)).astype(np.float32) for _ in range(64)]

    def __len__(self) -> int:
        return len(self.list_of_points)

    def __getitem__(self, index: int) -> tuple[Array, int]:
        point_set = self.list_of_points[index]
        if self.uniform:
            point_set = farthest_point_sample(point_set, self.npoints)
        else:
            point_set = point_set[: self.npoints, :]
        point_set[:, :3] = pc_normalize(point_set[:, :3])
        return point_set, index % 10


class PointNet(nn.Module):
    def __init__(self, k: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(3, 64, 1), nn.Conv1d(64, 128, 1)
        self.bn1, self.bn2 = nn.BatchNorm1d(64), nn.BatchNorm1d(128)
        self.fc1, self.fc2 = nn.Linear(128, 64), nn.Linear(64, k)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.bn2(self.conv2(x)).max(2)[0]
        return F.log_softmax(self.fc2(F.relu(self.fc1(x))), -1)


@labelled(gpu="data-bound", cpu="data-bound", helpers=(farthest_point_sample,))
def pointnet_uniform_sampling(run: hoptui.Run, device: str) -> None:
    """In the manner of train_classification.py of Pointnet_Pointnet2_pytorch with `--use_uniform_sample`."""
    dataset = ModelNetDataLoader(npoints=256)
    loader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=0, drop_last=True)
    classifier = PointNet(10).to(device)
    optimizer = torch.optim.Adam(classifier.parameters(), lr=1e-3, weight_decay=1e-4)
    while not run.stopping:
        for points, target in loader:
            optimizer.zero_grad()
            points = points.float().transpose(2, 1).to(device)
            pred = classifier(points)
            loss = F.nll_loss(pred, target.long().to(device))
            pred_choice = pred.data.max(1)[1]
            correct = pred_choice.eq(target.to(device)).sum()
            loss.backward()
            optimizer.step()
            run.log(loss=loss, correct=correct, samples=len(target))
            if run.stopping:
                break


# Speech
class Fbank:
    """Filter banks of a waveform, with numpy."""

    def __init__(self, sample_rate: int = 16000, n_fft: int = 512, n_mels: int = 80) -> None:
        self.n_fft, self.hop = n_fft, sample_rate // 100
        self.window = np.hamming(n_fft)
        mel = np.linspace(0, 2595 * np.log10(1 + sample_rate / 2 / 700), n_mels + 2)
        hz = 700 * (10 ** (mel / 2595) - 1)
        bins = np.linspace(0, sample_rate / 2, n_fft // 2 + 1)
        up = (bins[None] - hz[:-2, None]) / (hz[1:-1] - hz[:-2])[:, None]
        down = (hz[2:, None] - bins[None]) / (hz[2:] - hz[1:-1])[:, None]
        self.banks = np.maximum(0, np.minimum(up, down)).T

    def __call__(self, wav: Array) -> Array:
        frames = np.lib.stride_tricks.sliding_window_view(wav, self.n_fft)[:: self.hop]
        spectrum = np.abs(np.fft.rfft(frames * self.window)) ** 2
        return np.asarray(np.log(spectrum @ self.banks + 1e-10), dtype=np.float32)


class SpeechDataset(Dataset[dict[str, Any]]):
    """Utterances that are changed in speed, put into a room, and turned into features when they are read."""

    def __init__(self, utterances: int) -> None:
        self.utterances = utterances
        self.compute_features = Fbank()

    def __len__(self) -> int:
        return self.utterances

    def __getitem__(self, index: int) -> dict[str, Any]:
        rng = np.random.default_rng(index)
        sig = rng.standard_normal(16000 * int(rng.integers(12, 16)))
        speed = random.choice((0.95, 1.0, 1.05))
        sig = np.interp(np.arange(0, len(sig), speed), np.arange(len(sig)), sig)
        rir = rng.standard_normal(8000) * np.exp(-np.arange(8000) / 1000)
        size = 2**18
        sig = np.fft.irfft(np.fft.rfft(sig, size) * np.fft.rfft(rir, size), size)[: len(sig)]
        return {"id": f"utt{index}", "feats": self.compute_features(sig), "tokens": rng.integers(1, 30, 20)}


def padded_batch(examples: list[dict[str, Any]]) -> dict[str, Any]:
    feats = nn.utils.rnn.pad_sequence([torch.from_numpy(e["feats"]) for e in examples], batch_first=True)
    return {
        "id": [e["id"] for e in examples],
        "feats": feats,
        "feat_lens": torch.tensor([len(e["feats"]) for e in examples]),
        "tokens": torch.stack([torch.from_numpy(e["tokens"]) for e in examples]),
    }


class CTCModel(nn.Module):
    def __init__(self, n_mels: int = 80, neurons: int = 48, vocabulary: int = 30) -> None:
        super().__init__()
        self.conv = nn.Conv1d(n_mels, neurons, 5, stride=16)
        self.rnn = nn.GRU(neurons, neurons, batch_first=True)
        self.ctc_lin = nn.Linear(neurons, vocabulary)

    def forward(self, feats: Tensor) -> Tensor:
        x = F.leaky_relu(self.conv(feats.transpose(1, 2))).transpose(1, 2)
        x, _ = self.rnn(x)
        return self.ctc_lin(x).log_softmax(-1)  # type: ignore[no-any-return]


@labelled(gpu="data-bound", cpu="data-bound")
def speech_features_in_a_worker(run: hoptui.Run, device: str) -> None:
    """In the manner of the LibriSpeech CTC recipe of SpeechBrain: one worker computes features."""
    dataset = SpeechDataset(4000)
    train_loader = DataLoader(dataset, batch_size=16, shuffle=True, collate_fn=padded_batch, num_workers=1)
    model = CTCModel().to(device)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)

    def compute_objectives(predictions: Tensor, batch: dict[str, Any]) -> Tensor:
        lens = torch.full((len(predictions),), predictions.shape[1])
        target_lens = torch.full((len(predictions),), batch["tokens"].shape[1])
        return F.ctc_loss(predictions.transpose(0, 1), batch["tokens"].to(device), lens, target_lens)

    def fit_batch(batch: dict[str, Any]) -> Tensor:
        outputs = model(batch["feats"].to(device))
        loss = compute_objectives(outputs, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    while not run.stopping:
        for batch in train_loader:  # here
            loss = fit_batch(batch)
            run.log(loss=loss, samples=len(batch["id"]))
            if run.stopping:
                break


# Language models
def get_stats(ids: list[int]) -> Counter[tuple[int, int]]:
    return Counter(pairwise(ids))  # here


def merge(ids: list[int], pair: tuple[int, int], idx: int) -> list[int]:
    newids = []
    i = 0
    while i < len(ids):  # here
        if i < len(ids) - 1 and ids[i] == pair[0] and ids[i + 1] == pair[1]:  # here
            newids.append(idx)  # here
            i += 2  # here
        else:
            newids.append(ids[i])  # here
            i += 1  # here
    return newids


class BasicTokenizer:
    """A tokenizer of byte pairs in Python."""

    def __init__(self) -> None:
        self.merges: dict[tuple[int, int], int] = {}

    def train(self, text: str, vocab_size: int) -> None:
        ids = list(text.encode())
        for idx in range(256, vocab_size):
            stats = get_stats(ids)
            pair = max(stats, key=lambda p: stats[p])
            ids = merge(ids, pair, idx)
            self.merges[pair] = idx

    def encode(self, text: str) -> list[int]:
        ids = list(text.encode())
        while len(ids) >= 2:
            stats = get_stats(ids)
            pair = min(stats, key=lambda p: self.merges.get(p, 1 << 30))  # here
            if pair not in self.merges:
                break
            ids = merge(ids, pair, self.merges[pair])
        return ids


class GPT(nn.Module):
    """A language model with one block."""

    def __init__(self, vocab_size: int, block_size: int, n_embd: int) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab_size, n_embd), nn.Embedding(block_size, n_embd)
        self.h = nn.TransformerEncoderLayer(n_embd, 4, 4 * n_embd, dropout=0.0, batch_first=True)
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)

    def forward(self, idx: Tensor) -> Tensor:
        t = idx.shape[1]
        x = self.wte(idx) + self.wpe(torch.arange(t, device=idx.device))
        mask = nn.Transformer.generate_square_subsequent_mask(t, device=idx.device)
        return self.lm_head(self.h(x, src_mask=mask, is_causal=True))  # type: ignore[no-any-return]


def write_documents(count: int, words: int) -> list[str]:
    """Return documents of made-up words."""
    rng = random.Random(3)
    syllables = ["ta", "ren", "mo", "li", "sta", "ke", "vor", "in", "ue", "pra", "sol", "di", "men", "ga"]
    lexicon = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(800)]
    return [" ".join(rng.choices(lexicon, k=words)) for _ in range(count)]


@labelled(gpu="data-bound", cpu="data-bound", helpers=(get_stats, merge, BasicTokenizer))
def clm_with_minbpe(run: hoptui.Run, device: str) -> None:
    """In the manner of run_clm_no_trainer.py with the tokenizer of minbpe: texts are encoded in collate."""
    raw_datasets = write_documents(256, 160)
    tokenizer = BasicTokenizer()
    tokenizer.train(" ".join(raw_datasets[:8]), 256 + 128)
    block_size = 64

    def tokenize_function(examples: list[str]) -> dict[str, Tensor]:
        input_ids = [tokenizer.encode(text)[: block_size + 1] for text in examples]
        return {"input_ids": torch.tensor(input_ids)}

    train_dataloader: DataLoader[Any] = DataLoader(
        raw_datasets,  # type: ignore[arg-type]
        shuffle=True,
        collate_fn=tokenize_function,
        batch_size=8,
    )
    model = GPT(256 + 128, block_size, 64).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
    while not run.stopping:
        model.train()
        for batch in train_dataloader:
            input_ids = batch["input_ids"].to(device)
            logits = model(input_ids[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), input_ids[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            run.log(loss=loss, samples=len(input_ids))
            if run.stopping:
                break


# Recommendations
INT_FEATURE_COUNT = 13
CAT_FEATURE_COUNT = 26


def safe_cast(val: str, dest_type: Callable[[str], Any], default: Any) -> Any:
    try:
        return dest_type(val)  # here
    except ValueError:
        return default


def row_mapper(example: list[str], hashes: int) -> tuple[int, list[float], list[int]]:
    """Turn the columns of a line of the Criteo logs into numbers."""
    label = int(example[0])
    ints = [safe_cast(x, int, 0) for x in example[1 : 1 + INT_FEATURE_COUNT]]  # here
    dense = [float(np.log(max(x, 0) + 1)) for x in ints]  # here
    cats = example[1 + INT_FEATURE_COUNT :]
    sparse = [safe_cast(x, lambda v: int(v, 16), 0) % hashes for x in cats]  # here
    return label, dense, sparse


class CriteoIterDataset(IterableDataset[tuple[int, list[float], list[int]]]):
    def __init__(self, paths: list[Path], hashes: int) -> None:
        self.paths = paths
        self.hashes = hashes

    def __iter__(self) -> Iterator[tuple[int, list[float], list[int]]]:
        for path in self.paths:
            with path.open(newline="") as f:
                for row in csv.reader(f, delimiter="\t"):  # here
                    yield row_mapper(row, self.hashes)


class DLRM(nn.Module):
    def __init__(self, hashes: int, dim: int) -> None:
        super().__init__()
        self.emb = nn.EmbeddingBag(CAT_FEATURE_COUNT * hashes, dim, mode="sum", sparse=True)
        self.bot_l = nn.Sequential(nn.Linear(INT_FEATURE_COUNT, 32), nn.ReLU(), nn.Linear(32, dim), nn.ReLU())
        self.top_l = nn.Sequential(nn.Linear(2 * dim, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        x = self.bot_l(dense)
        z = torch.cat([x, self.emb(sparse) * x], 1)
        return self.top_l(z).squeeze(1)  # type: ignore[no-any-return]


@labelled(gpu="data-bound", cpu="data-bound", helpers=(safe_cast, row_mapper, CriteoIterDataset))
def dlrm_from_text_logs(run: hoptui.Run, device: str) -> None:
    """In the manner of the Criteo data pipe of torchrec and of DLRM: lines of text are parsed in the loop."""
    hashes = 1000
    with tempfile.TemporaryDirectory() as folder:
        rng = random.Random(5)
        day = Path(folder) / "day_0.tsv"
        with day.open("w") as f:
            for _ in range(20_000):
                ints = [rng.choice(["", str(rng.randint(0, 500))]) for _ in range(INT_FEATURE_COUNT)]
                cats = [f"{rng.getrandbits(32):08x}" for _ in range(CAT_FEATURE_COUNT)]
                f.write("\t".join([str(rng.randint(0, 1)), *ints, *cats]) + "\n")

        def collate_wrapper_criteo(rows: list[tuple[int, list[float], list[int]]]) -> tuple[Tensor, ...]:
            labels, dense, sparse = zip(*rows, strict=True)
            offsets = torch.arange(CAT_FEATURE_COUNT) * hashes
            return torch.tensor(dense), torch.tensor(sparse) + offsets, torch.tensor(labels).float()  # here

        train_ld = DataLoader(
            CriteoIterDataset([day], hashes), batch_size=2048, collate_fn=collate_wrapper_criteo
        )
        dlrm = DLRM(hashes, 16).to(device)
        optimizer = torch.optim.SGD(dlrm.parameters(), lr=0.1)
        loss_fn = nn.BCEWithLogitsLoss()
        while not run.stopping:
            for x, ls_i, t in train_ld:
                z = dlrm(x.to(device), ls_i.to(device))
                e = loss_fn(z, t.to(device))
                optimizer.zero_grad()
                e.backward()
                optimizer.step()
                run.log(loss=e, samples=len(t))
                if run.stopping:
                    break


# Radiance fields
def get_rays(h: int, w: int, focal: float, c2w: Tensor) -> tuple[Tensor, Tensor]:
    columns, rows = torch.arange(w, device=c2w.device), torch.arange(h, device=c2w.device)
    i, j = torch.meshgrid(columns, rows, indexing="xy")
    dirs = torch.stack([(i - w * 0.5) / focal, -(j - h * 0.5) / focal, -torch.ones_like(i)], -1)  # here
    rays_d = torch.sum(dirs[..., None, :] * c2w[:3, :3], -1)  # here
    return c2w[:3, -1].expand(rays_d.shape), rays_d


class NeRF(nn.Module):
    def __init__(self, width: int, freqs: int) -> None:
        super().__init__()
        self.freqs = freqs
        self.pts_linears = nn.Sequential(
            nn.Linear(3 + 6 * freqs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.output_linear = nn.Linear(width, 4)

    def forward(self, pts: Tensor) -> Tensor:
        waves = [f(pts * 2.0**k) for k in range(self.freqs) for f in (torch.sin, torch.cos)]
        return self.output_linear(self.pts_linears(torch.cat([pts, *waves], -1)))  # type: ignore[no-any-return]


def render_rays(network_fn: NeRF, rays_o: Tensor, rays_d: Tensor, n_samples: int) -> Tensor:
    z_vals = torch.linspace(2.0, 6.0, n_samples, device=rays_o.device).expand(len(rays_o), n_samples)
    pts = rays_o[:, None] + rays_d[:, None] * z_vals[..., None]
    raw = network_fn(pts)
    alpha = 1.0 - torch.exp(-F.relu(raw[..., 3]) * (4.0 / n_samples))
    passed = torch.cat([torch.ones_like(alpha[:, :1]), 1.0 - alpha + 1e-10], -1)
    weights = alpha * torch.cumprod(passed, -1)[:, :-1]
    return (weights[..., None] * torch.sigmoid(raw[..., :3])).sum(-2)


@labelled(gpu="data-bound", cpu="data-bound", helpers=(get_rays,))
def nerf_without_ray_batching(run: hoptui.Run, device: str) -> None:
    """In the manner of run_nerf.py of nerf-pytorch with `--no_batching`: rays are drawn each time."""
    h = w = 1000
    images = np.random.rand(4, h, w, 3).astype(np.float32)
    poses = torch.eye(4)[:3].repeat(4, 1, 1).to(device)
    n_rand = 256
    model = NeRF(64, 4).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4, betas=(0.9, 0.999))
    while not run.stopping:
        # Random from one image
        img_i = np.random.choice(4)
        target = torch.Tensor(images[img_i]).to(device)  # here
        rays_o, rays_d = get_rays(h, w, 1100.0, poses[img_i])
        grid = torch.meshgrid(torch.linspace(0, h - 1, h), torch.linspace(0, w - 1, w), indexing="ij")
        coords = torch.stack(grid, -1).reshape(-1, 2)  # here
        select_inds = np.random.choice(coords.shape[0], size=[n_rand], replace=False)  # here
        select_coords = coords[select_inds].long().to(device)
        rays_o = rays_o[select_coords[:, 0], select_coords[:, 1]]
        rays_d = rays_d[select_coords[:, 0], select_coords[:, 1]]
        target_s = target[select_coords[:, 0], select_coords[:, 1]]

        rgb = render_rays(model, rays_o, rays_d, 16)
        optimizer.zero_grad()
        img_loss = torch.mean((rgb - target_s) ** 2)
        psnr = -10.0 * torch.log10(img_loss.detach())
        img_loss.backward()
        optimizer.step()
        run.log(loss=img_loss, psnr=psnr, samples=n_rand)


# Graphs
def sage_sampler(adjlist: Adjacency, nodes: list[int], num_sample: int) -> dict[int, list[int]]:
    """Draw neighbours of each node."""
    sampled = {}
    for node in nodes:
        neighbours = adjlist[node]
        if len(neighbours) > num_sample:
            neighbours = random.sample(neighbours, num_sample)  # here
        sampled[node] = neighbours
    return sampled


def sample_block(adjlist: Adjacency, seeds: list[int], num_sample: int) -> tuple[list[int], Tensor]:
    """Return the nodes that the seeds need, and the edges between them with local numbers."""
    sampled = sage_sampler(adjlist, seeds, num_sample)
    n_id = dict.fromkeys(seeds)
    for neighbours in sampled.values():
        n_id.update(dict.fromkeys(neighbours))  # here
    local = {node: i for i, node in enumerate(n_id)}  # here
    edges = [(local[u], local[v]) for v, neighbours in sampled.items() for u in neighbours]  # here
    return list(n_id), torch.tensor(edges).t()  # here


class SAGEConv(nn.Module):
    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.lin_l, self.lin_r = nn.Linear(in_channels, out_channels), nn.Linear(in_channels, out_channels)

    def forward(self, x: Tensor, edge_index: Tensor, size: int) -> Tensor:
        summed = x.new_zeros(size, x.shape[1]).index_add_(0, edge_index[1], x[edge_index[0]])
        degree = x.new_zeros(size).index_add_(0, edge_index[1], x.new_ones(edge_index.shape[1]))
        return self.lin_l(summed / degree.clamp(min=1)[:, None]) + self.lin_r(x[:size])  # type: ignore[no-any-return]


@labelled(gpu="data-bound", cpu="data-bound", helpers=(sage_sampler, sample_block))
def graphsage_neighbours(run: hoptui.Run, device: str) -> None:
    """In the manner of the sampled GraphSAGE of CogDL and PyG: neighbours are drawn from lists in Python."""
    num_nodes, rng = 20_000, random.Random(7)
    adjlist = {i: [rng.randrange(num_nodes) for _ in range(rng.randint(5, 40))] for i in range(num_nodes)}
    x, y = torch.randn(num_nodes, 16), torch.randint(0, 7, (num_nodes,))

    def collate(batch: list[int]) -> tuple[list[int], list[tuple[Tensor, int]], Tensor]:
        adjs: list[tuple[Tensor, int]] = []
        n_id = batch
        for num_sample in (10, 10):
            size = len(n_id)
            n_id, edge_index = sample_block(adjlist, n_id, num_sample)
            adjs.insert(0, (edge_index, size))
        return n_id, adjs, y[batch]

    train_loader: DataLoader[Any] = DataLoader(
        range(num_nodes),  # type: ignore[arg-type]
        batch_size=256,
        shuffle=True,
        collate_fn=collate,
    )
    convs = nn.ModuleList([SAGEConv(16, 32), SAGEConv(32, 7)]).to(device)
    optimizer = torch.optim.Adam(convs.parameters(), lr=0.003)
    while not run.stopping:
        for n_id, adjs, labels in train_loader:
            h = x[n_id].to(device)  # here
            for i, (edge_index, size) in enumerate(adjs):
                h = convs[i](h, edge_index.to(device), size)
                h = F.relu(h) if i == 0 else h
            optimizer.zero_grad()
            loss = F.cross_entropy(h, labels.to(device))
            loss.backward()
            optimizer.step()
            run.log(loss=loss, samples=len(labels))
            if run.stopping:
                break
