"""Trainings with diffusers, vocoders in plain torch, and sets of Hugging Face's datasets."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import io
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

import hoptui
from benchmarks.labelled.catalogue import labelled


def _unet(size: int, widths: tuple[int, ...], layers: int = 1, channels: int = 3) -> Any:
    from diffusers import UNet2DModel

    return UNet2DModel(
        sample_size=size,
        in_channels=channels,
        out_channels=channels,
        layers_per_block=layers,
        block_out_channels=widths,
        down_block_types=("DownBlock2D",) * len(widths),
        up_block_types=("UpBlock2D",) * len(widths),
        norm_num_groups=8,
    )


@labelled(gpu="launch-bound", cpu="healthy", needs=("diffusers",))
def ddim_preview_in_the_loop(run: hoptui.Run, device: str) -> None:
    """A denoiser of small pictures is trained for two steps, and then DDIM draws four pictures.

    On a GPU: 20 passes through a U-Net of widths 32 and 64 at 16 pixels, some hundred kernels of microseconds
    each. On the CPU: 3 passes with widths 64 and 128, which are work for its convolutions.
    """
    from diffusers import DDIMScheduler

    cpu = device == "cpu"
    size, widths, steps = (16, (64, 128), 3) if cpu else (16, (32, 64), 20)
    model = _unet(size, widths, layers=1 if cpu else 2).to(device)
    scheduler = DDIMScheduler(num_train_timesteps=1000)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    pictures = torch.rand(64, 3, size, size, device=device) * 2 - 1
    while not run.stopping:
        for _ in range(2):
            x0 = pictures[torch.randint(0, 64, (4,), device=device)]
            noise = torch.randn_like(x0)
            t = torch.randint(0, 1000, (4,), device=device)
            loss = F.mse_loss(model(scheduler.add_noise(x0, noise, t), t).sample, noise)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            scheduler.set_timesteps(steps)
            sample = torch.randn(4, 3, size, size, device=device)
            for t in scheduler.timesteps:
                sample = scheduler.step(model(sample, t).sample, t, sample).prev_sample
        run.log(loss=loss.item(), contrast=sample.std().item(), samples=8)


@labelled(gpu="wrong-device", cpu="healthy", needs=("diffusers",))
def latent_diffusion_encodes_first(run: hoptui.Run, device: str) -> None:
    """A latent diffusion whose autoencoder was left where it was made, while the U-Net was moved.

    The pictures come from memory and are encoded by the CPU: 2 pictures of 128 pixels with widths 64 and
    128 are about 20 GFLOP, hundreds of milliseconds on one core. The U-Net works on 32 x 32 latents.
    """
    from diffusers import AutoencoderKL, DDPMScheduler

    vae = AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        block_out_channels=(64, 128, 128),
        norm_num_groups=8,
    ).requires_grad_(False)
    unet = _unet(32, (32, 64), channels=4).to(device)
    noise_scheduler = DDPMScheduler(num_train_timesteps=1000)
    optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-4)
    images = torch.rand(32, 3, 128, 128) * 2 - 1
    while not run.stopping:
        pixel_values = images[torch.randint(0, 32, (2,))]
        latents = vae.encode(pixel_values).latent_dist.sample() * 0.18215
        latents = latents.to(device)
        noise = torch.randn_like(latents)
        timesteps = torch.randint(0, 1000, (2,), device=device)
        pred = unet(noise_scheduler.add_noise(latents, noise, timesteps), timesteps).sample
        loss = F.mse_loss(pred, noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=2)


class TiffStacks(torch.utils.data.Dataset[Tensor]):
    """Recordings as TIFF files of many pages, which are decoded one after another."""

    def __init__(self, count: int, pages: int, size: int) -> None:
        from PIL import Image

        rng = np.random.default_rng(0)
        self.files = []
        for _ in range(count):
            coarse = rng.integers(0, 255, (pages, size // 4, size // 4, 3), dtype=np.uint8)
            pictures = [Image.fromarray(page).resize((size, size)) for page in coarse]
            buffer = io.BytesIO()
            pictures[0].save(
                buffer, "TIFF", save_all=True, append_images=pictures[1:], compression="tiff_lzw"
            )
            self.files.append(buffer.getvalue())

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Tensor:
        from PIL import Image, ImageSequence

        stack = Image.open(io.BytesIO(self.files[index]))
        frames = [
            np.asarray(page.convert("RGB").resize((16, 16), Image.Resampling.BOX))  # here
            for page in ImageSequence.Iterator(stack)  # here
        ]
        clip = torch.from_numpy(np.stack(frames[::8])).float() / 127.5 - 1
        return clip.permute(0, 3, 1, 2)


@labelled(gpu="data-bound", cpu="data-bound", needs=("diffusers",), helpers=(TiffStacks,))
def frames_of_recordings(run: hoptui.Run, device: str) -> None:
    """A denoiser of frames. Pillow decodes recordings of 24 pages of 360 pixels in the main process.

    A recording takes more than 40 ms, and a batch has 5. The U-Net gets 15 pictures of 16 pixels, and needs
    less than 50 ms.
    """
    from diffusers import DDPMScheduler

    loader = DataLoader(TiffStacks(10, 24, 360), batch_size=5, shuffle=True)
    net = _unet(16, (16, 32)).to(device)
    sched = DDPMScheduler(num_train_timesteps=100)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-4)
    while not run.stopping:
        for clips in loader:
            x = clips.flatten(0, 1).to(device)
            t = torch.randint(0, 100, (len(x),), device=device)
            eps = torch.randn_like(x)
            loss = F.mse_loss(net(sched.add_noise(x, eps, t), t).sample, eps)
            opt.zero_grad()
            loss.backward()
            opt.step()
            run.log(loss=loss.item(), samples=len(clips))
            if run.stopping:
                break


def stft_loss(fake: Tensor, real: Tensor, n_fft: int) -> Tensor:
    """Return the distance of two waves in one resolution."""
    window = torch.hann_window(n_fft, device=fake.device)
    a, b = (
        torch.stft(w, n_fft, n_fft // 4, window=window, return_complex=True).abs().clamp(min=1e-5)
        for w in (fake, real)
    )
    distance: Tensor = (a - b).norm() / b.norm() + F.l1_loss(a.log(), b.log())
    return distance


@labelled(gpu="launch-bound", cpu="healthy")
def vocoder_with_discriminators(run: hoptui.Run, device: str) -> None:
    """In the manner of HiFi-GAN: dilated convolutions, discriminators of periods, losses of spectra.

    On a GPU: segments of 1024 samples with 16 channels, so that thousands of kernels take microseconds. On
    the CPU: segments of 4096 samples with 48 channels, which are work for the convolutions.
    """
    cpu = device == "cpu"
    channels, length = (48, 4_096) if cpu else (16, 1_024)
    wn = nn.utils.parametrizations.weight_norm

    class Generator(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pre = wn(nn.Conv1d(20, channels, 7, padding=3))
            self.res = nn.ModuleList(
                wn(nn.Conv1d(channels, channels, 3, padding=d, dilation=d)) for d in (1, 3, 5, 1, 3, 5)
            )
            self.post = wn(nn.Conv1d(channels, 1, 7, padding=3))

        def forward(self, mel: Tensor) -> Tensor:
            x = F.interpolate(self.pre(mel), scale_factor=64.0)
            for conv in self.res:
                x = x + conv(F.leaky_relu(x, 0.1))
            return torch.tanh(self.post(x))

    class PeriodDiscriminator(nn.Module):
        def __init__(self, period: int) -> None:
            super().__init__()
            self.period = period
            widths = (1, 8, 16, 16)
            self.convs = nn.ModuleList(
                wn(nn.Conv2d(a, b, (5, 1), (3, 1), (2, 0))) for a, b in pairwise(widths)
            )
            self.post = wn(nn.Conv2d(16, 1, (3, 1), padding=(1, 0)))

        def forward(self, x: Tensor) -> Tensor:
            x = F.pad(x, (0, -x.shape[-1] % self.period))
            x = x.view(len(x), 1, -1, self.period)
            for conv in self.convs:
                x = F.leaky_relu(conv(x), 0.1)
            return self.post(x)  # type: ignore[no-any-return]

    gen = Generator().to(device)
    discs = nn.ModuleList(PeriodDiscriminator(p) for p in (2, 3, 5, 7, 11)).to(device)
    optim_g = torch.optim.AdamW(gen.parameters(), 2e-4, (0.8, 0.99))
    optim_d = torch.optim.AdamW(discs.parameters(), 2e-4, (0.8, 0.99))
    mel = torch.randn(4, 20, length // 64, device=device)
    wave = torch.rand(4, 1, length, device=device) * 2 - 1
    while not run.stopping:
        fake = gen(mel)
        optim_d.zero_grad()
        loss_d = sum(((1 - d(wave)) ** 2).mean() + (d(fake.detach()) ** 2).mean() for d in discs)
        loss_d.backward()
        optim_d.step()
        optim_g.zero_grad()
        loss_s = sum(stft_loss(fake[:, 0], wave[:, 0], n) for n in (64, 128, 256))
        loss_g = sum(((1 - d(fake)) ** 2).mean() for d in discs) + loss_s
        loss_g.backward()
        optim_g.step()
        run.log(loss=loss_g.item(), samples=4)


@labelled(gpu="data-bound", cpu="data-bound", needs=("PIL", "datasets", "transformers"))
def set_transform_decodes_pictures(run: hoptui.Run, device: str) -> None:
    """`set_transform` of `datasets`: PNG files are decoded and cropped when a batch is asked for.

    A picture of 900 x 700 pixels takes more than 12 ms, a batch of 8 more than 100 ms. The ViT of two layers
    needs less than 40 ms.
    """
    from datasets import Dataset
    from PIL import Image
    from transformers import ViTConfig, ViTForImageClassification

    rng, blobs = np.random.default_rng(0), []
    for _ in range(16):
        dots = Image.fromarray(rng.integers(0, 255, (60, 80, 3), dtype=np.uint8)).resize((900, 700))
        buffer = io.BytesIO()
        dots.save(buffer, format="PNG", compress_level=1)
        blobs.append(buffer.getvalue())

    def transforms(examples: dict[str, list[Any]]) -> dict[str, list[Any]]:
        pixel_values = []
        for blob in examples["image"]:
            img = Image.open(io.BytesIO(blob)).convert("RGB")  # here
            img = img.resize((360, 280), Image.Resampling.LANCZOS)  # here
            left, top = int(rng.integers(0, 100)), int(rng.integers(0, 50))
            img = img.crop((left, top, left + 224, top + 224)).resize((32, 32))
            pixel_values.append(torch.from_numpy(np.asarray(img, np.float32) / 255).permute(2, 0, 1))
        return {"pixel_values": pixel_values, "label": examples["label"]}

    ds = Dataset.from_dict({"image": blobs, "label": [i % 4 for i in range(len(blobs))]})
    ds.set_transform(transforms)

    def collate_fn(examples: list[dict[str, Any]]) -> dict[str, Tensor]:
        pixel_values = torch.stack([example["pixel_values"] for example in examples])
        return {"pixel_values": pixel_values, "labels": torch.tensor([e["label"] for e in examples])}

    loader = DataLoader(ds, batch_size=8, shuffle=True, drop_last=True, collate_fn=collate_fn)
    config = ViTConfig(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=128,
        image_size=32,
        patch_size=8,
        num_labels=4,
    )
    model = ViTForImageClassification(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    while not run.stopping:
        for batch in loader:
            out = model(**{k: v.to(device) for k, v in batch.items()})
            optimizer.zero_grad()
            out.loss.backward()
            optimizer.step()
            run.log(loss=out.loss.item(), samples=8)
            if run.stopping:
                break


def is_fluent(example: dict[str, Any]) -> bool:
    """Whether few of the words of a page were seen a moment ago."""
    words = example["text"].split()
    recent: list[str] = []
    repeated = 0
    for word in words:
        repeated += word in recent  # here
        recent = [*recent[-30:], word]  # here
    return bool(repeated < len(words) * (0.3 + 0.7 * (example["id"] % 2)))


@labelled(gpu="data-bound", cpu="data-bound", needs=("datasets", "transformers"), helpers=(is_fluent,))
def streamed_pages_with_a_filter(run: hoptui.Run, device: str) -> None:
    """A streamed set of Hugging Face's datasets, whose `filter` of repeated words is in Python.

    A page has 6000 words, each of which is looked for among 30: about 5 ms a page. Half of the pages are
    thrown away, so that a batch of 16 takes 160 ms. The model reads 32 ids of each, in less than 30 ms.
    """
    from datasets import IterableDataset
    from transformers import GPT2Config, GPT2LMHeadModel

    rng = np.random.default_rng(0)
    words = [f"w{i}" for i in range(40)]
    pages = [" ".join(rng.choice(words, 6_000).tolist()) for _ in range(64)]

    def generate() -> Any:
        n = 0
        while True:
            yield {"id": n, "text": pages[n % 64]}
            n += 1

    def encode(example: dict[str, Any]) -> dict[str, Any]:
        return {"ids": [int(word[1:]) for word in example["text"][:400].split()[:32]]}

    stream = IterableDataset.from_generator(generate).filter(is_fluent).map(encode)
    config = GPT2Config(vocab_size=64, n_positions=32, n_embd=64, n_layer=2, n_head=2)
    model = GPT2LMHeadModel(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for batch in stream.batch(16):
        ids = torch.tensor(batch["ids"], device=device)
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=16)
        if run.stopping:
            break
