"""Trainings of diffusers, in loops of accelerate as its example scripts have them."""

from __future__ import annotations

import io
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from benchmarks.labelled.catalogue import AdapterRun, labelled

NEEDS = ("accelerate", "diffusers")


def _accelerator(run: AdapterRun, device: str, mixed_precision: str = "no", **options: Any) -> Any:
    """Return an accelerator that logs to hoptui."""
    from accelerate import Accelerator

    from hoptui.integrations.accelerate import HoptuiTracker

    trackers = [HoptuiTracker(run.name), *options.pop("trackers", ())]
    return Accelerator(mixed_precision=mixed_precision, log_with=trackers, cpu=device == "cpu", **options)


def _over(run: AdapterRun, accelerator: Any, global_step: int) -> bool:
    """Whether the training has made its iterations, or has been asked to stop."""
    tracker = accelerator.get_tracker("hoptui")
    return global_step >= run.iterations or bool(tracker.tracker and tracker.tracker.stopping)


class ImageTensors(Dataset[dict[str, Tensor]]):
    """Images that have been prepared and lie in memory."""

    def __init__(self, count: int, size: int) -> None:
        self.images = torch.rand(count, 3, size, size) * 2 - 1

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input": self.images[index]}


@labelled(gpu="compute-bound power-limited", cpu="healthy", needs=NEEDS, adapter=True)
def unconditional_wide_bf16(run: AdapterRun, device: str) -> None:
    """In the manner of diffusers' train_unconditional.py: a wide U-Net with `--mixed_precision bf16`."""
    from diffusers import DDPMScheduler, UNet2DModel
    from diffusers.optimization import get_scheduler

    gpu = device != "cpu"
    accelerator = _accelerator(run, device, mixed_precision="bf16" if gpu else "no")
    model = UNet2DModel(
        sample_size=32 if gpu else 16,
        layers_per_block=2,
        block_out_channels=(1024, 1280, 1280) if gpu else (32, 64),
        down_block_types=("DownBlock2D",) * (3 if gpu else 2),
        up_block_types=("UpBlock2D",) * (3 if gpu else 2),
    )
    noise_scheduler = DDPMScheduler(num_train_timesteps=1000)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.95, 0.999), weight_decay=1e-6)
    dataset = ImageTensors(4_096 if gpu else 256, 32 if gpu else 16)
    train_dataloader = DataLoader(dataset, batch_size=64 if gpu else 8, shuffle=True)
    lr_scheduler = get_scheduler("cosine", optimizer, num_warmup_steps=500, num_training_steps=100_000)
    model, optimizer, train_dataloader, lr_scheduler = accelerator.prepare(
        model, optimizer, train_dataloader, lr_scheduler
    )
    accelerator.init_trackers(run.name)
    global_step = 0
    while not _over(run, accelerator, global_step):
        model.train()
        for batch in train_dataloader:
            clean_images = batch["input"]
            noise = torch.randn_like(clean_images)
            bsz = clean_images.shape[0]
            timesteps = torch.randint(0, 1000, (bsz,), device=clean_images.device)
            noisy_images = noise_scheduler.add_noise(clean_images, noise, timesteps)
            with accelerator.accumulate(model):
                model_output = model(noisy_images, timesteps).sample
                loss = F.mse_loss(model_output.float(), noise.float())
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                lr_scheduler.step()
                optimizer.zero_grad()
            global_step += 1
            accelerator.log({"loss": loss.detach().item()}, step=global_step)
            if _over(run, accelerator, global_step):
                break
    accelerator.end_training()


_TEXT: dict[str, int] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 16,
    "bos_token_id": 52,
    "eos_token_id": 53,
}


def _stable_diffusion(text_config: Any) -> tuple[Any, Any, Any]:
    """Return a small autoencoder, a text encoder of this configuration, and a small U-Net for its texts."""
    from diffusers import AutoencoderKL, UNet2DConditionModel
    from transformers import CLIPTextModel

    vae = AutoencoderKL(
        down_block_types=("DownEncoderBlock2D", "DownEncoderBlock2D"),
        up_block_types=("UpDecoderBlock2D", "UpDecoderBlock2D"),
        block_out_channels=(16, 32),
        norm_num_groups=8,
    )
    unet = UNet2DConditionModel(
        sample_size=16,
        layers_per_block=1,
        block_out_channels=(32, 64),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=text_config.hidden_size,
        attention_head_dim=4,
        norm_num_groups=8,
    )
    return vae, CLIPTextModel(text_config), unet


class DreamBoothDataset(Dataset[dict[str, Any]]):
    """Photographs of one thing and the prompt that names it."""

    def __init__(self, instance_data_root: Path, instance_prompt: str, tokenizer: Any, size: int) -> None:
        from torchvision import transforms

        self.tokenizer, self.instance_prompt = tokenizer, instance_prompt
        self.instance_images_path = sorted(instance_data_root.iterdir())
        self.image_transforms = transforms.Compose(
            [
                transforms.Resize(size, interpolation=transforms.InterpolationMode.BILINEAR),
                transforms.RandomCrop(size),
                transforms.ToTensor(),
                transforms.Normalize([0.5], [0.5]),
            ]
        )

    def __len__(self) -> int:
        return len(self.instance_images_path)

    def __getitem__(self, index: int) -> dict[str, Any]:
        from PIL import Image
        from PIL.ImageOps import exif_transpose

        instance_image: Any = Image.open(self.instance_images_path[index])
        instance_image = exif_transpose(instance_image)  # here
        if instance_image.mode != "RGB":
            instance_image = instance_image.convert("RGB")
        text_inputs = self.tokenizer(
            self.instance_prompt, truncation=True, padding="max_length", max_length=16, return_tensors="pt"
        )
        return {
            "instance_images": self.image_transforms(instance_image),  # here
            "instance_prompt_ids": text_inputs.input_ids[0],
        }


def write_photographs(folder: Path, count: int) -> None:
    """Write photographs of twelve megapixels, as a telephone makes them."""
    from PIL import Image

    for i in range(count):
        coarse = np.random.default_rng(i).integers(0, 256, (60, 80, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((4_000, 3_000), Image.Resampling.BICUBIC).save(
            folder / f"{i}.jpg", quality=92
        )


def small_tokenizer(folder: Path) -> Any:
    """Return a tokenizer of CLIP whose vocabulary is single letters."""
    from transformers import CLIPTokenizer

    letters = "abcdefghijklmnopqrstuvwxyz"
    words = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({word: i for i, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    return CLIPTokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"))


@labelled(
    gpu="data-bound",
    cpu="data-bound",
    needs=(*NEEDS, "peft", "PIL", "torchvision", "transformers"),
    helpers=(DreamBoothDataset,),
    adapter=True,
)
def dreambooth_lora_of_photographs(run: AdapterRun, device: str) -> None:
    """In the manner of diffusers' train_dreambooth_lora.py, with photographs of a telephone.

    Each item decodes twelve megapixels in the main process, since `--dataloader_num_workers` is 0.
    """
    from diffusers import DDPMScheduler
    from peft import LoraConfig
    from transformers import CLIPTextConfig

    accelerator = _accelerator(run, device)
    vae, text_encoder, unet = _stable_diffusion(CLIPTextConfig(vocab_size=64, **_TEXT))
    for frozen in (vae, text_encoder, unet):
        frozen.requires_grad_(False)
        frozen.to(accelerator.device)
    unet.add_adapter(LoraConfig(r=4, lora_alpha=4, target_modules=["to_k", "to_q", "to_v", "to_out.0"]))
    noise_scheduler = DDPMScheduler(num_train_timesteps=1000)
    lora_parameters = [p for p in unet.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(lora_parameters, lr=1e-4)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as vocabulary:
        write_photographs(Path(folder), 8)
        tokenizer = small_tokenizer(Path(vocabulary))
        train_dataset = DreamBoothDataset(Path(folder), "a photo of sks dog", tokenizer, size=32)
        train_dataloader = DataLoader(train_dataset, batch_size=4, shuffle=True, drop_last=True)
        unet, optimizer, train_dataloader = accelerator.prepare(unet, optimizer, train_dataloader)
        accelerator.init_trackers(run.name)
        global_step = 0
        while not _over(run, accelerator, global_step):
            unet.train()
            for batch in train_dataloader:  # here
                latents = vae.encode(batch["instance_images"]).latent_dist.sample() * 0.18215
                noise = torch.randn_like(latents)
                timesteps = torch.randint(0, 1000, (len(latents),), device=latents.device)
                noisy_latents = noise_scheduler.add_noise(latents, noise, timesteps)
                encoder_hidden_states = text_encoder(batch["instance_prompt_ids"])[0]
                model_pred = unet(noisy_latents, timesteps, encoder_hidden_states).sample
                loss = F.mse_loss(model_pred.float(), noise.float())
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(lora_parameters, 1.0)
                optimizer.step()
                optimizer.zero_grad()
                global_step += 1
                accelerator.log({"loss": loss.detach().item()}, step=global_step)
                if _over(run, accelerator, global_step):
                    break
    accelerator.end_training()


@labelled(gpu="save-bound", cpu="save-bound", needs=(*NEEDS, "transformers"), adapter=True)
def text_to_image_saves_pipeline(run: AdapterRun, device: str) -> None:
    """In the manner of diffusers' train_text_to_image.py, which builds a pipeline and saves all of it.

    It is saved after each batch here. The text encoder is large, and the prompts were encoded beforehand.
    """
    from diffusers import DDPMScheduler, StableDiffusionPipeline
    from diffusers.training_utils import EMAModel
    from transformers import CLIPTextConfig

    accelerator = _accelerator(run, device)
    text_config = CLIPTextConfig(
        hidden_size=768, intermediate_size=3072, num_hidden_layers=4, bos_token_id=52, eos_token_id=53
    )
    vae, text_encoder, unet = _stable_diffusion(text_config)
    vae.requires_grad_(False).to(accelerator.device)
    text_encoder.requires_grad_(False).to(accelerator.device)
    ema_unet = EMAModel(unet.parameters(), model_cls=type(unet), model_config=unet.config)
    noise_scheduler = DDPMScheduler(num_train_timesteps=1000)
    optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-4)
    cached_latents = [{"latents": torch.randn(4, 8, 8), "prompt": torch.randn(16, 768)} for _ in range(64)]
    train_dataloader: Any = DataLoader(cached_latents, batch_size=2, shuffle=True)  # type: ignore[arg-type]
    unet, optimizer, train_dataloader = accelerator.prepare(unet, optimizer, train_dataloader)
    ema_unet.to(accelerator.device)
    accelerator.init_trackers(run.name)
    global_step = 0
    with tempfile.TemporaryDirectory() as output_dir:
        tokenizer = small_tokenizer(Path(output_dir))
        while not _over(run, accelerator, global_step):
            for batch in train_dataloader:
                latents = batch["latents"]
                noise = torch.randn_like(latents)
                timesteps = torch.randint(0, 1000, (len(latents),), device=latents.device)
                noisy_latents = noise_scheduler.add_noise(latents, noise, timesteps)
                model_pred = unet(noisy_latents, timesteps, batch["prompt"]).sample
                loss = F.mse_loss(model_pred, noise)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                ema_unet.step(unet.parameters())
                global_step += 1
                pipeline = StableDiffusionPipeline(
                    vae=vae,
                    text_encoder=text_encoder,
                    tokenizer=tokenizer,
                    unet=accelerator.unwrap_model(unet),
                    scheduler=noise_scheduler,
                    safety_checker=None,
                    feature_extractor=None,
                    requires_safety_checker=False,
                )
                pipeline.save_pretrained(output_dir)  # here
                accelerator.log({"loss": loss.detach().item()}, step=global_step)
                if _over(run, accelerator, global_step):
                    break
    accelerator.end_training()


def log_validation(images: Any, panel: list[bytes], step: int) -> None:
    """Put enlarged images with captions into a grid, and keep it as the web page of the tracker shows it."""
    from diffusers.utils import make_image_grid
    from PIL import Image, ImageDraw

    pictures = []
    for i, array in enumerate((images * 255).round().astype("uint8")):
        picture = Image.fromarray(array).resize((192, 192), Image.Resampling.LANCZOS)  # here
        ImageDraw.Draw(picture).text((4, 4), f"step {step}, sample {i}", fill=(255, 255, 255))  # here
        pictures.append(picture)
    grid = make_image_grid(pictures, rows=4, cols=4)  # here
    buffer = io.BytesIO()
    grid.save(buffer, format="PNG")  # here
    panel[:] = [*panel[-8:], buffer.getvalue()]


@labelled(gpu="host-bound", cpu="host-bound", needs=(*NEEDS, "PIL"), helpers=(log_validation,), adapter=True)
def unconditional_grids_each_step(run: AdapterRun, device: str) -> None:
    """In the manner of diffusers' train_unconditional.py, with the `log_validation` of its other scripts.

    The images that the model sees behind the noise are shown after each step.
    """
    from diffusers import DDPMScheduler, UNet2DModel

    accelerator = _accelerator(run, device)
    model = UNet2DModel(
        sample_size=8,
        layers_per_block=1,
        block_out_channels=(16, 32),
        down_block_types=("DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"),
        norm_num_groups=8,
    )
    noise_scheduler = DDPMScheduler(num_train_timesteps=1000)
    alphas_cumprod = noise_scheduler.alphas_cumprod.to(accelerator.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    train_dataloader = DataLoader(ImageTensors(512, 8), batch_size=16, shuffle=True)
    model, optimizer, train_dataloader = accelerator.prepare(model, optimizer, train_dataloader)
    accelerator.init_trackers(run.name)
    panel: list[bytes] = []
    global_step = 0
    while not _over(run, accelerator, global_step):
        for batch in train_dataloader:
            clean_images = batch["input"]
            noise = torch.randn_like(clean_images)
            timesteps = torch.randint(0, 1000, (len(clean_images),), device=clean_images.device)
            noisy_images = noise_scheduler.add_noise(clean_images, noise, timesteps)
            model_output = model(noisy_images, timesteps).sample
            loss = F.mse_loss(model_output, noise)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            global_step += 1
            alpha = alphas_cumprod[timesteps].view(-1, 1, 1, 1)
            predicted = (noisy_images - (1 - alpha).sqrt() * model_output.detach()) / alpha.sqrt()
            images = (predicted / 2 + 0.5).clamp(0, 1).cpu().permute(0, 2, 3, 1).numpy()
            log_validation(images, panel, global_step)  # here
            accelerator.log({"loss": loss.detach().item()}, step=global_step)
            if _over(run, accelerator, global_step):
                break
    accelerator.end_training()
