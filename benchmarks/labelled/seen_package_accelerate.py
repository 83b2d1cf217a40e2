"""Trainings with accelerate and peft, as their example scripts write them."""

from __future__ import annotations

import random
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

import hoptui
from benchmarks.labelled.catalogue import AdapterRun, labelled

NEEDS = ("accelerate", "transformers")


def extract_label(fname: Path) -> str:
    """Return the breed in the name of a picture."""
    found = re.search(r"^(.*)_\d+\.jpg$", fname.name)
    assert found is not None
    return found.group(1)


class PetsDataset(Dataset[dict[str, Any]]):
    """Photographs of pets, opened where they are asked for."""

    def __init__(self, file_names: list[Path], image_transform: Any, label_to_id: dict[str, int]) -> None:
        self.file_names = file_names
        self.image_transform = image_transform
        self.label_to_id = label_to_id

    def __len__(self) -> int:
        return len(self.file_names)

    def __getitem__(self, idx: int) -> dict[str, Any]:
        from PIL import Image

        fname = self.file_names[idx]
        raw_image = Image.open(fname)
        image = raw_image.convert("RGB")  # here
        image = self.image_transform(image)  # here
        return {"pixel_values": image, "labels": self.label_to_id[extract_label(fname)]}


def _photographs(folder: Path, number: int) -> list[Path]:
    """Write photographs of two breeds. They are large, and smooth as photographs are."""
    from PIL import Image

    rng, file_names = np.random.default_rng(0), []
    for i in range(number):
        coarse = rng.integers(0, 255, (48, 64, 3), dtype=np.uint8)
        path = folder / f"{('beagle', 'siamese')[i % 2]}_{i}.jpg"
        Image.fromarray(coarse).resize((1600, 1200), Image.Resampling.BICUBIC).save(path, quality=92)
        file_names.append(path)
    return file_names


@labelled(
    gpu="data-bound", cpu="data-bound", needs=(*NEEDS, "torchvision"), adapter=True, helpers=(PetsDataset,)
)
def pets_in_a_worker(run: AdapterRun, device: str) -> None:
    """In the manner of accelerate's cv_example.py: a worker process decodes and crops photographs."""
    from accelerate import Accelerator
    from torchvision.transforms import Compose, RandomResizedCrop, ToTensor
    from transformers import ViTConfig, ViTForImageClassification

    from hoptui.integrations.accelerate import HoptuiTracker

    with tempfile.TemporaryDirectory() as data_dir:
        file_names = _photographs(Path(data_dir), 48)
        label_to_id = {label: i for i, label in enumerate(sorted({extract_label(f) for f in file_names}))}
        accelerator = Accelerator(cpu=device == "cpu", log_with=HoptuiTracker())
        train_tfm = Compose([RandomResizedCrop((64, 64), scale=(0.5, 1.0)), ToTensor()])
        train_dataset = PetsDataset(file_names * 20, train_tfm, label_to_id)
        train_dataloader = DataLoader(train_dataset, shuffle=True, batch_size=16, num_workers=1)
        config = ViTConfig(
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=128,
            image_size=64,
            num_labels=len(label_to_id),
        )
        model = ViTForImageClassification(config)
        optimizer = torch.optim.Adam(params=model.parameters(), lr=3e-2 / 25)
        model, optimizer, train_dataloader = accelerator.prepare(model, optimizer, train_dataloader)
        accelerator.init_trackers(run.name)
        tracked, completed_steps = accelerator.get_tracker("hoptui").tracker, 0
        while completed_steps < run.iterations and not tracked.stopping:
            model.train()
            for batch in train_dataloader:  # here
                outputs = model(**batch)
                accelerator.backward(outputs.loss)
                optimizer.step()
                optimizer.zero_grad()
                accelerator.log({"loss": outputs.loss.item()})
                completed_steps += 1
                if completed_steps >= run.iterations:
                    break
        accelerator.end_training()


@labelled(gpu="compiling", cpu="compiling", needs=NEEDS, adapter=True)
def clm_compiled_without_dynamic_shapes(run: AdapterRun, device: str) -> None:
    """In the manner of run_clm_no_trainer.py with a `TorchDynamoPlugin`.

    Batches are padded to their longest text. With `dynamic=False` the model is compiled again for each new
    length. The limits of recompilation were raised, as scripts do after the first warning.
    """
    from accelerate import Accelerator
    from accelerate.utils import TorchDynamoPlugin
    from transformers import GPT2Config, GPT2LMHeadModel

    from hoptui.integrations.accelerate import HoptuiTracker

    torch._dynamo.config.cache_size_limit = 4096
    torch._dynamo.config.accumulated_cache_size_limit = 65536
    dynamo_plugin = TorchDynamoPlugin(backend="aot_eager", dynamic=False)
    accelerator = Accelerator(cpu=device == "cpu", dynamo_plugin=dynamo_plugin, log_with=HoptuiTracker())
    config = GPT2Config(
        vocab_size=256,
        n_positions=2048,
        n_embd=64,
        n_layer=1,
        n_head=2,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    rng = random.Random(1)
    texts = [[rng.randrange(1, 256) for _ in range(rng.randrange(24, 1500))] for _ in range(4_096)]

    def collate_fn(examples: list[list[int]]) -> dict[str, torch.Tensor]:
        longest = max(map(len, examples))
        input_ids = torch.tensor([[*example, *[0] * (longest - len(example))] for example in examples])
        return {"input_ids": input_ids, "labels": input_ids.masked_fill(input_ids == 0, -100)}

    train_dataloader: Any = DataLoader(texts, shuffle=True, collate_fn=collate_fn, batch_size=2)  # type: ignore[arg-type]
    model = GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
    model, optimizer, train_dataloader = accelerator.prepare(model, optimizer, train_dataloader)
    accelerator.init_trackers(run.name)
    tracked, completed_steps = accelerator.get_tracker("hoptui").tracker, 0
    while completed_steps < run.iterations and not tracked.stopping:
        model.train()
        for batch in train_dataloader:
            with accelerator.accumulate(model):
                outputs = model(**batch)  # here
                loss = outputs.loss
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            accelerator.log({"train_loss": loss.item()})
            completed_steps += 1
            if completed_steps >= run.iterations:
                break
    accelerator.end_training()


@labelled(gpu="launch-bound", cpu="healthy", needs=(*NEEDS, "peft"))
def lora_of_a_small_t5(run: hoptui.Run, device: str) -> None:
    """In the manner of peft's peft_lora_seq2seq_accelerate_fsdp.py.

    A small T5 gets LoRA in each linear layer.
    """
    from accelerate import Accelerator
    from peft import LoraConfig, TaskType, get_peft_model
    from transformers import (
        T5Config,
        T5ForConditionalGeneration,
        default_data_collator,
        get_linear_schedule_with_warmup,
    )

    accelerator = Accelerator(cpu=device == "cpu")
    batch_size, max_length, lr = 4, 64, 1e-3
    peft_config = LoraConfig(
        task_type=TaskType.SEQ_2_SEQ_LM,
        inference_mode=False,
        r=8,
        lora_alpha=32,
        lora_dropout=0.1,
        target_modules=["q", "k", "v", "o", "wi", "wo"],
    )
    config = T5Config(
        vocab_size=1024,
        d_model=256,
        d_kv=32,
        d_ff=512,
        num_layers=2 if device == "cpu" else 6,
        num_heads=8,
        decoder_start_token_id=0,
        pad_token_id=0,
    )
    model: Any = get_peft_model(T5ForConditionalGeneration(config), peft_config)
    rows = [
        {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids[:8]}
        for ids in torch.randint(2, 1024, (256, max_length))
    ]
    train_dataloader: Any = DataLoader(
        rows,  # type: ignore[arg-type]
        shuffle=True,
        collate_fn=default_data_collator,
        batch_size=batch_size,
    )
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=lr)
    lr_scheduler: Any = get_linear_schedule_with_warmup(
        optimizer=optimizer, num_warmup_steps=0, num_training_steps=len(train_dataloader) * 10_000
    )
    model, train_dataloader, optimizer, lr_scheduler = accelerator.prepare(
        model, train_dataloader, optimizer, lr_scheduler
    )
    total_loss = torch.zeros((), device=accelerator.device)
    while not run.stopping:
        model.train()
        for batch in train_dataloader:
            outputs = model(**batch)
            loss = outputs.loss
            total_loss += loss.detach().float()
            accelerator.backward(loss)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
            run.log(loss=loss.detach(), samples=batch_size)
            if run.stopping:
                break


def _get_batch_logps(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the log probability of each sequence."""
    logits, labels = logits[:, :-1], labels[:, 1:]
    lost = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    return -lost.view(labels.shape).sum(-1)


@labelled(gpu="transfer-bound", cpu="healthy", needs=NEEDS)
def dpo_metrics_of_all_logits(run: hoptui.Run, device: str) -> None:
    """In the manner of TRL's DPOTrainer before its pull request 1154, in a loop with accelerate.

    The metrics of each step are means of all logits, which are moved to the host first.
    """
    from accelerate import Accelerator
    from transformers import GPT2Config, GPT2LMHeadModel

    cpu = device == "cpu"
    accelerator = Accelerator(cpu=cpu)
    config = GPT2Config(
        vocab_size=512 if cpu else 50257,
        n_positions=512,
        n_embd=128 if cpu else 512,
        n_layer=2 if cpu else 4,
        n_head=4 if cpu else 8,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    beta, pairs = 0.1, 4 if cpu else 8
    model, ref_model = GPT2LMHeadModel(config), GPT2LMHeadModel(config).eval()
    train_dataset = torch.randint(0, config.vocab_size, (256, 2, 64 if cpu else 512))
    train_dataloader: Any = DataLoader(train_dataset, shuffle=True, batch_size=pairs, drop_last=True)  # type: ignore[arg-type]
    optimizer: Any = torch.optim.RMSprop(model.parameters(), lr=5e-7)
    model, ref_model, optimizer, train_dataloader = accelerator.prepare(
        model, ref_model, optimizer, train_dataloader
    )

    def concatenated_forward(model: Any, batch: torch.Tensor) -> tuple[torch.Tensor, ...]:
        input_ids = batch.transpose(0, 1).flatten(0, 1)
        all_logits = model(input_ids).logits
        all_logps = _get_batch_logps(all_logits, input_ids)
        return all_logps[:pairs], all_logps[pairs:], all_logits[:pairs], all_logits[pairs:]

    while not run.stopping:
        for batch in train_dataloader:
            chosen_logps, rejected_logps, policy_chosen_logits, policy_rejected_logits = concatenated_forward(
                model, batch
            )
            with torch.no_grad():
                reference_chosen_logps, reference_rejected_logps, *_ = concatenated_forward(ref_model, batch)
            chosen_rewards = beta * (chosen_logps - reference_chosen_logps)
            rejected_rewards = beta * (rejected_logps - reference_rejected_logps)
            losses = -functional.logsigmoid(chosen_rewards - rejected_rewards)
            accelerator.backward(losses.mean())
            optimizer.step()
            optimizer.zero_grad()
            metrics: dict[str, Any] = {
                "accuracies": (chosen_rewards > rejected_rewards).float().detach().cpu().mean().item(),
                "logits_rejected": policy_rejected_logits.detach().cpu().mean().item(),  # here
                "logits_chosen": policy_chosen_logits.detach().cpu().mean().item(),  # here
            }
            run.log(loss=losses.mean().item(), samples=pairs, **metrics)
            if run.stopping:
                break


@labelled(gpu="straggler", cpu="straggler", ranks=2, needs=NEEDS, adapter=True)
def vit_buckets_of_resolutions(run: AdapterRun, device: str) -> None:
    """In the manner of accelerate's documentation of `split_between_processes`, in a training loop.

    Pictures are in buckets by their resolution, and each process gets a part of the buckets. One process has
    the large pictures.
    """
    from accelerate import Accelerator
    from transformers import ViTConfig, ViTForImageClassification

    from hoptui.integrations.accelerate import HoptuiTracker

    cpu = device == "cpu"
    accelerator = Accelerator(cpu=cpu, log_with=HoptuiTracker())
    config = ViTConfig(
        hidden_size=256 if cpu else 1024,
        num_hidden_layers=4 if cpu else 12,
        num_attention_heads=4 if cpu else 16,
        intermediate_size=512 if cpu else 4096,
        image_size=64 if cpu else 128,
        num_labels=10,
    )
    resolutions = [48, 64, 224, 256] if cpu else [96, 128, 640, 768]
    batch_size = 4 if cpu else 8
    buckets = [
        {
            "pixel_values": torch.randn(batch_size, 3, size, size),
            "labels": torch.randint(0, 10, (batch_size,)),
        }
        for size in resolutions
    ]
    model: Any = ViTForImageClassification(config)
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=5e-5)
    model, optimizer = accelerator.prepare(model, optimizer)
    accelerator.init_trackers(run.name)
    tracked, completed_steps = accelerator.get_tracker("hoptui").tracker, 0
    model.train()
    with accelerator.split_between_processes(buckets) as mine:
        while completed_steps < run.iterations and not tracked.stopping:
            batch = {k: v.to(accelerator.device) for k, v in mine[completed_steps % len(mine)].items()}
            outputs = model(**batch, interpolate_pos_encoding=True)  # here
            accelerator.backward(outputs.loss)  # here
            optimizer.step()
            optimizer.zero_grad()
            accelerator.log({"loss": outputs.loss.detach().item()})  # here
            completed_steps += 1
    accelerator.end_training()
