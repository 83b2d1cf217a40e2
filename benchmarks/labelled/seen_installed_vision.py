"""Trainings of vision models with timm, torchvision, Pillow and einops."""

# ruff: noqa: N806, N812 - names as in the scripts that are imitated

from __future__ import annotations

import io
import math
import sqlite3
import tarfile
import tempfile
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

import hoptui
from benchmarks.labelled.catalogue import labelled


def _picture(rng: Any, width: int, height: int) -> Any:
    """Return a smooth picture in colours."""
    from PIL import Image

    dots = rng.integers(0, 255, (height // 16, width // 16, 3), dtype=np.uint8)
    return Image.fromarray(dots).resize((width, height), Image.Resampling.BILINEAR)


def _small_net(classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, classes),
    )


@labelled(gpu="data-bound", cpu="data-bound", needs=("torchvision",))
def flowers_with_strong_augmentation(run: hoptui.Run, device: str) -> None:
    """ImageFolder with transforms v2: elastic deformation, blur and photometric distortion at 256 pixels.

    A picture takes more than 25 ms, a batch of 4 more than 100 ms in the main process. The network of three
    layers gets 64 pixels, and needs less than 10 ms.
    """
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    train_tf = v2.Compose(
        [
            v2.ToImage(),
            v2.RandomResizedCrop(256, scale=(0.4, 1.0), antialias=True),
            v2.RandomPhotometricDistort(p=1.0),
            v2.ToDtype(torch.float32, scale=True),
            v2.ElasticTransform(alpha=60.0),
            v2.GaussianBlur(15, sigma=(0.5, 3.0)),
            v2.Resize(64, antialias=True),
            v2.Normalize([0.5] * 3, [0.25] * 3),
        ]
    )
    with tempfile.TemporaryDirectory() as root:
        rng = np.random.default_rng(0)
        for label in ("daisy", "rose", "tulip"):
            (Path(root) / label).mkdir()
            for i in range(12):
                _picture(rng, 400, 320).save(Path(root) / label / f"{i:04d}.jpg", quality=90)
        loader = DataLoader(ImageFolder(root, transform=train_tf), batch_size=4, shuffle=True)
        model = _small_net(3).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        while not run.stopping:
            for images, labels in loader:  # here
                loss = F.cross_entropy(model(images.to(device)), labels.to(device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                run.log(loss=loss.item(), samples=len(labels))
                if run.stopping:
                    break


class TarShards(IterableDataset[tuple[Tensor, int]]):
    """Samples of tar files in the manner of webdataset: a picture and a label of the same key."""

    def __init__(self, shards: list[Path]) -> None:
        self.shards = shards

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        from PIL import Image

        for shard in cycle(self.shards):
            with tarfile.open(shard, "r:gz") as archive:
                image = None
                for member in archive:  # here
                    content = archive.extractfile(member).read()  # type: ignore[union-attr]  # here
                    if member.name.endswith(".png"):
                        picture = Image.open(io.BytesIO(content)).convert("RGB")  # here
                        image = torch.from_numpy(np.asarray(picture.resize((64, 64))).copy())  # here
                    elif image is not None:
                        yield image.permute(2, 0, 1).float().div_(255), int(content)


@labelled(gpu="data-bound", cpu="data-bound", needs=("timm",), helpers=(TarShards,))
def timm_from_tar_shards(run: hoptui.Run, device: str) -> None:
    """Shards of PNG files of 800 x 600 pixels are read by tarfile and decoded by Pillow.

    A picture takes more than 8 ms, a batch of 16 more than 130 ms. lcnet_035 at 64 pixels needs less than 40
    ms.
    """
    import timm

    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as root:
        shards = [Path(root) / f"train-{i:06d}.tar.gz" for i in range(2)]
        for shard in shards:
            with tarfile.open(shard, "w:gz", compresslevel=1) as out:
                for key in range(8):
                    buffer = io.BytesIO()
                    _picture(rng, 800, 608).save(buffer, format="PNG", compress_level=1)
                    for ext, data in (("png", buffer.getvalue()), ("cls", str(key % 10).encode())):
                        info = tarfile.TarInfo(f"{key:05d}.{ext}")
                        info.size = len(data)
                        out.addfile(info, io.BytesIO(data))
        model = timm.create_model("lcnet_035", num_classes=10).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for x, y in DataLoader(TarShards(shards), batch_size=16):
            loss = F.cross_entropy(model(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss.item(), samples=len(y))
            if run.stopping:
                break


@labelled(gpu="compute-bound power-limited", cpu="healthy", needs=("timm",))
def timm_wide_vit_bf16(run: hoptui.Run, device: str) -> None:
    """A vision transformer of width 4096 trains in bf16 on a batch that is on the device.

    On a GPU: 6 blocks with 1.2 billion weights, 48 x 257 tokens: 12 336 x 1.2e9 x 6 = 89 TFLOP, and some
    tens of GB of memory traffic.
    """
    from timm.models.vision_transformer import VisionTransformer

    cpu = device == "cpu"
    batch_size = 4 if cpu else 48
    model = VisionTransformer(
        img_size=64 if cpu else 224,
        patch_size=8 if cpu else 14,
        embed_dim=256 if cpu else 4096,
        depth=3 if cpu else 6,
        num_heads=4 if cpu else 32,
        num_classes=100,
    )
    dtype = torch.float32 if cpu else torch.bfloat16
    model = model.to(device, dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    size = 64 if cpu else 224
    images = torch.randn(batch_size, 3, size, size, device=device, dtype=dtype)
    labels = torch.randint(0, 100, (batch_size,), device=device)
    while not run.stopping:
        loss = F.cross_entropy(model(images).float(), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=batch_size)


class TwoCropsDataset(Dataset[tuple[Tensor, Tensor]]):
    """Two random views of each picture, by operations of Pillow."""

    def __init__(self, pictures: list[Any], size: int) -> None:
        self.pictures, self.size = pictures, size
        self.rng = np.random.default_rng(1)

    def __len__(self) -> int:
        return len(self.pictures)

    def view(self, img: Any) -> Tensor:
        from PIL import ImageEnhance, ImageFilter

        w, h = img.size
        side = int(min(w, h) * self.rng.uniform(0.5, 1.0))
        left, top = int(self.rng.integers(0, w - side + 1)), int(self.rng.integers(0, h - side + 1))
        img = img.crop((left, top, left + side, top + side))
        for enhance in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
            img = enhance(img).enhance(self.rng.uniform(0.6, 1.4))  # here
        img = img.filter(ImageFilter.GaussianBlur(self.rng.uniform(0.5, 3.0)))  # here
        img = img.resize((self.size, self.size))
        return torch.from_numpy(np.asarray(img, np.float32) / 255).permute(2, 0, 1)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return self.view(self.pictures[i]), self.view(self.pictures[i])


def nt_xent(z1: Tensor, z2: Tensor, temperature: float = 0.5) -> Tensor:
    """Return the loss of SimCLR."""
    z = F.normalize(torch.cat([z1, z2]), dim=1)
    sim = z @ z.T / temperature
    sim.fill_diagonal_(-1e9)
    n = len(z1)
    target = torch.cat([torch.arange(n, 2 * n), torch.arange(n)]).to(z.device)
    return F.cross_entropy(sim, target)


@labelled(gpu="data-bound", cpu="data-bound", needs=("torchvision",), helpers=(TwoCropsDataset,))
def simclr_two_views(run: hoptui.Run, device: str) -> None:
    """SimCLR on squeezenet: the views of pictures of 600 x 500 pixels are made by Pillow in the main process.

    A view takes more than 6 ms, and a batch has 32 of them. The network at 32 pixels needs less than 70 ms.
    """
    from torchvision.models import squeezenet1_1

    rng = np.random.default_rng(0)
    dataset = TwoCropsDataset([_picture(rng, 608, 496) for _ in range(64)], 32)
    loader = DataLoader(dataset, batch_size=16, shuffle=True, drop_last=True)
    net = squeezenet1_1(num_classes=64).to(device)
    opt = torch.optim.Adam(net.parameters(), lr=3e-4)
    while not run.stopping:
        for v1, v2 in loader:
            loss = nt_xent(net(v1.to(device)), net(v2.to(device)))
            opt.zero_grad()
            loss.backward()
            opt.step()
            run.log(loss=loss.item(), samples=len(v1))
            if run.stopping:
                break


def iou(a: list[float], b: list[float]) -> float:
    """Return the intersection over union of two boxes."""
    w = min(a[2], b[2]) - max(a[0], b[0])  # here
    h = min(a[3], b[3]) - max(a[1], b[1])  # here
    if w <= 0 or h <= 0:  # here
        return 0.0
    inter = w * h
    return inter / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - inter)  # here


def average_precision(boxes: list[list[float]], gold: list[list[float]], threshold: float) -> float:
    """Return the average precision of boxes that are ordered by their scores."""
    matched: set[int] = set()
    hits: list[int] = []
    for box in boxes:
        best, best_j = 0.0, -1
        for j, other in enumerate(gold):  # here
            overlap = iou(box, other)  # here
            if overlap > best:  # here
                best, best_j = overlap, j
        hits.append(int(best >= threshold and best_j not in matched))
        matched.add(best_j)
    total, ap = 0, 0.0
    for n, hit in enumerate(hits, 1):
        total += hit
        ap += hit * total / n
    return ap / max(1, len(gold))


@labelled(gpu="host-bound", cpu="host-bound", needs=("torchvision",), helpers=(iou, average_precision))
def box_head_with_map_each_step(run: hoptui.Run, device: str) -> None:
    """A head on RoIAlign is trained, and the mAP of its boxes is computed after each step, box by box.

    3 thresholds x 300 boxes x 150 objects are 135 000 calls of `iou`, more than 60 ms. The head of two layers
    needs less than 15 ms.
    """
    from torchvision.ops import roi_align

    features = torch.randn(1, 32, 64, 64, device=device)
    corner = torch.rand(300, 2, device=device) * 400
    rois = torch.cat([corner, corner + 20 + torch.rand(300, 2, device=device) * 80], 1)
    gold = rois[:150] + 4 * torch.randn(150, 4, device=device)
    target = torch.cat([gold, rois[150:]])
    head = nn.Sequential(nn.Flatten(), nn.Linear(32 * 9, 64), nn.ReLU(), nn.Linear(64, 4)).to(device)
    opt = torch.optim.SGD(head.parameters(), lr=1e-3)
    while not run.stopping:
        pooled = roi_align(features, [rois], output_size=3, spatial_scale=1 / 8)
        boxes = rois + head(pooled)
        loss = F.smooth_l1_loss(boxes, target)
        opt.zero_grad()
        loss.backward()
        opt.step()
        found, truth = boxes.tolist(), gold.tolist()
        mAP = sum(average_precision(found, truth, t) for t in (0.5, 0.75, 0.9)) / 3
        run.log(loss=loss.item(), map=mAP, samples=len(found))


@labelled(gpu="launch-bound", cpu="healthy", needs=("timm",))
def timm_sam_two_passes(run: hoptui.Run, device: str) -> None:
    """Sharpness-aware minimization of a deep network: two passes and a loop over all weights.

    On a GPU: rexnet_100 on 8 pictures of 64 pixels has some thousand kernels that take microseconds. On the
    CPU, 8 pictures of 96 pixels are work for its convolutions.
    """
    import timm

    size, batch = (96, 8) if device == "cpu" else (64, 8)
    model = timm.create_model("rexnet_100", num_classes=20).to(device)
    base = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x = torch.randn(batch, 3, size, size, device=device)
    y = torch.randint(0, 20, (batch,), device=device)
    rho = 0.05
    while not run.stopping:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        norm = torch.stack([g.norm() for g in grads]).norm()
        with torch.no_grad():
            moves = []
            for p in model.parameters():
                e_w = p.grad * (rho / (norm + 1e-12))
                p.add_(e_w)
                moves.append(e_w)
        base.zero_grad()
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for p, e_w in zip(model.parameters(), moves, strict=True):
                p.sub_(e_w)
        base.step()
        base.zero_grad()
        run.log(loss=loss.detach(), samples=batch)


@labelled(gpu="transfer-bound", cpu="healthy", needs=("einops",))
def einops_super_resolution_frames(run: hoptui.Run, device: str) -> None:
    """Whole frames in float32 are moved to the device, where one patch of each is taken.

    On a GPU: 48 frames of 3 x 1440 x 2560 are 2.1 GB of pageable memory, more than 150 ms. The network gets
    48 patches of 96 pixels, and needs less than 10 ms. On the CPU nothing is moved.
    """
    from einops.layers.torch import Rearrange

    cpu = device == "cpu"
    frames, (height, width) = (8, (270, 480)) if cpu else (48, (1440, 2560))
    clips = [torch.rand(frames, 3, height, width) for _ in range(2)]
    net = nn.Sequential(
        nn.Conv2d(3, 64, 5, padding=2),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 48, 3, padding=1),
        Rearrange("b (c s1 s2) h w -> b c (h s1) (w s2)", s1=4, s2=4),
    ).to(device)
    opt = torch.optim.Adam(net.parameters(), lr=1e-4)
    for clip in cycle(clips):
        hr = clip.to(device)  # here
        top, left = int(torch.randint(0, height - 192, ())), int(torch.randint(0, width - 192, ()))
        patch = hr[:, :, top : top + 192, left : left + 192]
        lr = F.interpolate(patch, scale_factor=0.25, mode="area")
        loss = F.l1_loss(net(lr), patch)
        opt.zero_grad()
        loss.backward()
        opt.step()
        run.log(loss=loss.item(), samples=frames)
        if run.stopping:
            break


@labelled(gpu="compute-bound power-limited", cpu="healthy", needs=("einops",))
def einops_mixer_full_precision(run: hoptui.Run, device: str) -> None:
    """An MLP-Mixer of einops and nn.Linear in float32 with the "highest" precision of products.

    On a GPU: width 4096 and 4 blocks, 64 x 256 tokens: about 50 TFLOP on units of 60 TFLOP/s, a second or so,
    and less than 60 GB of memory traffic.
    """
    from einops.layers.torch import Rearrange, Reduce

    torch.set_float32_matmul_precision("highest")
    cpu = device == "cpu"
    dim, tokens, depth, batch = (256, 64, 3, 8) if cpu else (4096, 256, 4, 64)

    class Residual(nn.Module):
        def __init__(self, *fn: nn.Module) -> None:
            super().__init__()
            self.fn = nn.Sequential(nn.LayerNorm(dim), *fn)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.fn(x)  # type: ignore[no-any-return]

    def feed_forward(width: int, hidden: int) -> tuple[nn.Module, ...]:
        return nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width)

    blocks = []
    for _ in range(depth):
        swap = (Rearrange("b n d -> b d n"), *feed_forward(tokens, 2 * tokens), Rearrange("b d n -> b n d"))
        blocks += [Residual(*swap), Residual(*feed_forward(dim, 4 * dim))]
    side = math.isqrt(tokens)
    model = nn.Sequential(
        Rearrange("b c (h p1) (w p2) -> b (h w) (p1 p2 c)", p1=8, p2=8),
        nn.Linear(192, dim),
        *blocks,
        Reduce("b n d -> b d", "mean"),
        nn.Linear(dim, 10),
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    x = torch.randn(batch, 3, 8 * side, 8 * side, device=device)
    y = torch.randint(0, 10, (batch,), device=device)
    while not run.stopping:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=batch)


@labelled(gpu="launch-bound", cpu="healthy", needs=("einops",))
def einops_perceiver_steps(run: hoptui.Run, device: str) -> None:
    """A Perceiver with shared weights goes twelve times over a short sequence.

    On a GPU: 32 latents of width 64 and 4 rows, so that some thousand kernels take microseconds. On the CPU:
    64 latents of width 384, where the products are the work.
    """
    from einops import rearrange, repeat

    width, latents, batch, rounds = (384, 64, 4, 2) if device == "cpu" else (64, 32, 4, 12)

    class Attention(nn.Module):
        def __init__(self, heads: int = 4) -> None:
            super().__init__()
            self.heads = heads
            self.norm_q, self.norm_kv = nn.LayerNorm(width), nn.LayerNorm(width)
            self.to_q, self.to_kv = nn.Linear(width, width), nn.Linear(width, 2 * width)
            self.out = nn.Linear(width, width)

        def forward(self, x: Tensor, context: Tensor) -> Tensor:
            q, (k, v) = self.to_q(self.norm_q(x)), self.to_kv(self.norm_kv(context)).chunk(2, -1)
            q, k, v = (rearrange(t, "b n (h d) -> b h n d", h=self.heads) for t in (q, k, v))
            attn = (torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.shape[-1])).softmax(-1)
            out = torch.einsum("bhij,bhjd->bhid", attn, v)
            return self.out(rearrange(out, "b h n d -> b n (h d)"))  # type: ignore[no-any-return]

    class Perceiver(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.latents = nn.Embedding(256, width), nn.Parameter(torch.randn(latents, width))
            self.cross, self.self_attn = Attention(), Attention()
            self.ff = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            self.head = nn.Linear(width, 10)

        def forward(self, ids: Tensor) -> Tensor:
            data = self.embed(ids)
            x = repeat(self.latents, "n d -> b n d", b=len(ids))
            for _ in range(rounds):
                x = x + self.cross(x, data)
                x = x + self.self_attn(x, x)
                x = x + self.ff(x)
            return self.head(x.mean(1))  # type: ignore[no-any-return]

    model = Perceiver().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    ids = torch.randint(0, 256, (batch, 128), device=device)
    labels = torch.randint(0, 10, (batch,), device=device)
    while not run.stopping:
        loss = F.cross_entropy(model(ids), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=batch)


class CellImages(Dataset[tuple[Tensor, int]]):
    """Microscope pictures as BLOBs of SQLite, in 16 bits. The background is estimated for each."""

    def __init__(self, path: Path) -> None:
        self.db = sqlite3.connect(path)

    def __len__(self) -> int:
        count: int = self.db.execute("select count(*) from cells").fetchone()[0]
        return count

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        blob, label = self.db.execute("select pixels, label from cells where id = ?", (i,)).fetchone()
        pixels = np.frombuffer(blob, np.uint16).reshape(3, 320, 320).astype(np.float32)
        background = [np.median(plane.reshape(20, 16, 20, 16), axis=(1, 3)) for plane in pixels]  # here
        flat = pixels - np.kron(np.stack(background), np.ones((16, 16), np.float32))  # here
        low, high = np.percentile(flat, (1, 99))  # here
        scaled = np.clip((flat - low) / (high - low), 0, 1)[:, ::5, ::5]
        return torch.from_numpy(np.ascontiguousarray(scaled, np.float32)), label


@labelled(gpu="data-bound", cpu="data-bound", needs=("timm",), helpers=(CellImages,))
def timm_cells_from_sqlite(run: hoptui.Run, device: str) -> None:
    """Each cell is read from SQLite, and loses its background by medians of tiles.

    A cell takes more than 8 ms, a batch of 16 more than 130 ms. lcnet_035 at 64 pixels needs less than 80 ms.
    """
    import timm

    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plate.db"
        with sqlite3.connect(path) as db:
            db.execute("create table cells (id integer primary key, pixels blob, label integer)")
            for i in range(96):
                pixels = rng.integers(0, 4096, (3, 320, 320)).astype(np.uint16)
                db.execute("insert into cells values (?, ?, ?)", (i, pixels.tobytes(), i % 5))
        loader = DataLoader(CellImages(path), batch_size=16, shuffle=True)
        net = timm.create_model("lcnet_035", num_classes=5).to(device)
        opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
        while not run.stopping:
            for x, y in loader:
                loss = F.cross_entropy(net(x.to(device)), y.to(device))
                opt.zero_grad()
                loss.backward()
                opt.step()
                run.log(loss=loss.item(), samples=len(y))
                if run.stopping:
                    break


@labelled(gpu="host-bound", cpu="host-bound", needs=("torchmetrics",))
def ocr_character_error_rate(run: hoptui.Run, device: str) -> None:
    """A reader of lines with CTC. torchmetrics counts edit distances of pages at each step.

    The edit distance is a table in Python: 6 pages of 400 x 400 characters are a million cells, more than 100
    ms. The recurrent network needs less than 30 ms.
    """
    from torchmetrics.text import CharErrorRate

    alphabet = "-abcdefghijklmnopqrstuvwxyz "
    rnn = nn.GRU(16, 32, batch_first=True).to(device)
    head = nn.Linear(32, len(alphabet)).to(device)
    optimizer = torch.optim.Adam([*rnn.parameters(), *head.parameters()], lr=1e-3)
    lines = torch.randn(6, 64, 16, device=device)
    targets = torch.randint(1, 28, (6, 20), device=device)
    pages = torch.randint(1, 28, (6, 400))
    reference = ["".join(alphabet[i] for i in page) for page in pages.tolist()]
    cer = CharErrorRate()
    steps, lengths = torch.full((6,), 64), torch.full((6,), 20)
    while not run.stopping:
        log_probs = head(rnn(lines)[0]).log_softmax(-1)
        loss = F.ctc_loss(log_probs.transpose(0, 1), targets, steps, lengths)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        best = log_probs.detach().argmax(-1).cpu().repeat(1, 7)[:, :400]
        noisy = torch.where(torch.rand(6, 400) < 0.5, pages, best)
        hypothesis = ["".join(alphabet[i] for i in row) for row in noisy.tolist()]
        cer.update(hypothesis, reference)  # here
        run.log(loss=loss.item(), cer=cer.compute().item(), samples=6)
