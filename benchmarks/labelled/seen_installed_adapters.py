"""Loops with accelerate and peft."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import hoptui
from benchmarks.labelled.catalogue import AdapterRun, labelled

NEEDS = ("accelerate",)


def _accelerator(run: AdapterRun, device: str, **options: Any) -> tuple[Any, Any]:
    """Return an accelerator whose trackers have begun, and the tracker of hoptui."""
    from accelerate import Accelerator

    from hoptui.integrations.accelerate import HoptuiTracker

    accelerator = Accelerator(cpu=device == "cpu", log_with=HoptuiTracker(), **options)
    accelerator.init_trackers(run.name)
    return accelerator, accelerator.get_tracker("hoptui").tracker


def _llama(hidden: int, layers: int, vocab: int, length: int) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=max(2, hidden // 128),
        num_key_value_heads=max(2, hidden // 128),
        max_position_embeddings=length,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


@labelled(gpu="compute-bound power-limited", cpu="healthy", needs=("peft", "transformers"))
def qlora_style_long_context(run: hoptui.Run, device: str) -> None:
    """LoRA of rank 16 in the attention of a wide frozen Llama in bf16, 8 x 2048 tokens a step.

    On a GPU: 6 layers of width 4096 with 1.6 billion weights: 16 384 x 1.6e9 x 4 = 105 TFLOP forward and
    backward, without gradients of the weights. The weights and activations are some tens of GB.
    """
    from peft import LoraConfig, get_peft_model

    cpu = device == "cpu"
    length = 192 if cpu else 2048
    with torch.device(device):
        base = _llama(256 if cpu else 4096, 2 if cpu else 6, 1024, length)
    if not cpu:
        base = base.to(torch.bfloat16)
    lora = LoraConfig(
        r=16, lora_alpha=32, lora_dropout=0.0, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"
    )
    model: Any = get_peft_model(base, lora)
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=2e-4)
    ids = torch.randint(0, 1024, (8, length), device=device)
    while not run.stopping:
        out = model(input_ids=ids, labels=ids)
        out.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=out.loss.item(), tokens=ids.numel())


@labelled(gpu="transfer-bound", cpu="healthy", needs=("accelerate", "transformers"))
def probe_on_offloaded_bert(run: hoptui.Run, device: str) -> None:
    """A linear probe on a frozen encoder that is dispatched by accelerate's `cpu_offload`.

    On a GPU: 24 layers of 50 MB in pageable memory, 1.2 GB a step. That is more than 100 ms over PCIe, and
    the computation of 4 x 32 tokens takes some ms.
    """
    from transformers import BertConfig, BertModel

    cpu = device == "cpu"
    width, layers = (256, 4) if cpu else (1024, 24)
    config = BertConfig(
        vocab_size=1000,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
    )
    encoder: Any = BertModel(config, add_pooling_layer=False).eval().requires_grad_(False)
    if not cpu:
        from accelerate import cpu_offload

        cpu_offload(encoder, execution_device=torch.device(device))
    probe = nn.Linear(width, 2).to(device)
    opt = torch.optim.SGD(probe.parameters(), lr=0.1)
    tokens = torch.randint(0, 1000, (8 if cpu else 4, 128 if cpu else 32), device=device)
    y = torch.randint(0, 2, (len(tokens),), device=device)
    while not run.stopping:
        with torch.no_grad():
            h = encoder(input_ids=tokens).last_hidden_state[:, 0]  # here
        loss = F.cross_entropy(probe(h), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        run.log(loss=loss.item(), samples=len(y))


@labelled(gpu="save-bound", cpu="save-bound", needs=NEEDS, adapter=True)
def accelerate_checkpointing_steps(run: AdapterRun, device: str) -> None:
    """In the manner of `--checkpointing_steps`, set to 1: `save_state` follows each step.

    A table of 40 million weights is 160 MB on the disk for each step: more than 80 ms. Its gradients are
    sparse, and a step goes over 4096 rows of it, which takes less than 30 ms.
    """
    accelerator, tracked = _accelerator(run, device)
    model = nn.Sequential(nn.EmbeddingBag(310_000, 128, sparse=True), nn.Linear(128, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ids, y = torch.randint(0, 310_000, (2048, 16)), torch.randint(0, 2, (2048,))
    loader = DataLoader(TensorDataset(ids, y), batch_size=256, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    step = 0
    with tempfile.TemporaryDirectory() as output_dir:
        while step < run.iterations and not tracked.stopping:
            for x, target in loader:
                loss = F.cross_entropy(model(x), target)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                step += 1
                accelerator.save_state(f"{output_dir}/last")  # here
                accelerator.log({"loss": loss.item()}, step=step)
                if step >= run.iterations:
                    break
    accelerator.end_training()


@labelled(gpu="memory-unused launch-bound", cpu="healthy", needs=("accelerate", "transformers"), adapter=True)
def one_sequence_times_sixty_four(run: AdapterRun, device: str) -> None:
    """A setting for a small card: one short sequence a micro-batch, 64 of them accumulated.

    On a GPU less than 2 GB of the memory is used, and all 64 sequences fit at once. 64 x 64 tokens of width
    256 are small kernels, so that their launches are the limit too. On the CPU, wider layers are the work.
    """
    accelerator, tracked = _accelerator(run, device, gradient_accumulation_steps=4 if device == "cpu" else 64)
    width = 384 if device == "cpu" else 256
    model = _llama(width, 3, 1000, 64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    loader: Any = DataLoader(torch.randint(0, 1000, (2048, 64)), batch_size=1, shuffle=True)  # type: ignore[arg-type]
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    step = 0
    while step < run.iterations and not tracked.stopping:
        for ids in loader:
            with accelerator.accumulate(model):
                loss = model(input_ids=ids, labels=ids).loss
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                step += 1
                accelerator.log({"loss": loss.item()}, step=step)
                if step >= run.iterations:
                    break
    accelerator.end_training()


def weight_histograms(model: nn.Module, bins: int = 64) -> dict[str, Any]:
    """Return histograms of all weights and of their gradients, as a tracker wants them."""
    record: dict[str, Any] = {}
    for name, p in model.named_parameters():
        values = p.detach().float().cpu().numpy().ravel()
        low, high = np.percentile(values, (0.1, 99.9))  # here
        counts, edges = np.histogram(values, bins=bins, range=(low, high))  # here
        record[f"weights/{name}"] = {"counts": counts.tolist(), "limits": edges.tolist()}
        if p.grad is not None:
            counts, edges = np.histogram(p.grad.float().cpu().numpy().ravel(), bins=bins)  # here
            record[f"grads/{name}"] = {"counts": counts.tolist(), "limits": edges.tolist()}
    return record


@labelled(gpu="host-bound", cpu="host-bound", needs=NEEDS, adapter=True, helpers=(weight_histograms,))
def watch_all_weights(run: AdapterRun, device: str) -> None:
    """In the manner of `wandb.watch(log="all", log_freq=1)`: histograms of weights and gradients each step.

    5 million weights and as many gradients are sorted into bins by NumPy, and the limits of the weights are
    percentiles: more than 100 ms. The copies of 42 MB take less than 15 ms, and the step of 8 rows less than
    40 ms.
    """
    accelerator, tracked = _accelerator(run, device)
    model: Any = nn.Sequential(
        nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 2048), nn.GELU(), nn.Linear(2048, 10)
    )
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=1e-2)
    data = TensorDataset(torch.randn(2048, 512), torch.randint(0, 10, (2048,)))
    loader: Any = DataLoader(data, batch_size=8, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    step = 0
    while step < run.iterations and not tracked.stopping:
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            history = weight_histograms(accelerator.unwrap_model(model))
            optimizer.zero_grad()
            step += 1
            accelerator.log({"loss": loss.item(), "tensors": len(history)}, step=step)
            if step >= run.iterations:
                break
    accelerator.end_training()


@labelled(gpu="memory-bandwidth-bound", cpu="healthy", needs=NEEDS, adapter=True)
def wide_vocabulary_ema(run: AdapterRun, device: str) -> None:
    """Embeddings of a large vocabulary with dense gradients, AdamW, and a moving average of all weights.

    On a GPU: 1.3 billion weights. AdamW and the average go over them more than ten times in a step, which is
    over 50 GB. The 2048 looked-up rows and the head are less than 0.1 TFLOP.
    """
    accelerator, tracked = _accelerator(run, device)
    rows, width = (60_000, 64) if device == "cpu" else (320_000, 4096)
    with torch.device(accelerator.device):
        model: Any = nn.Sequential(nn.Embedding(rows, width), nn.LayerNorm(width), nn.Linear(width, 64))
    averaged = [p.detach().clone() for p in model.parameters()]
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids, y = torch.randint(0, rows, (1024, 32)), torch.randint(0, 64, (1024, 32))
    loader: Any = DataLoader(TensorDataset(ids, y), batch_size=64, shuffle=True, drop_last=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    step = 0
    while step < run.iterations and not tracked.stopping:
        for x, target in loader:
            loss = F.cross_entropy(model(x).flatten(0, 1), target.flatten())
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                for average, p in zip(averaged, model.parameters(), strict=True):
                    average.mul_(0.999).add_(p, alpha=0.001)
            step += 1
            accelerator.log({"loss": loss.item()}, step=step)
            if step >= run.iterations:
                break
    accelerator.end_training()


def read_dialogue(path: Path, length: int) -> Tensor:
    """Return the ids of the last turns of a dialogue in a file of JSON lines."""
    turns = [json.loads(line) for line in path.read_text().splitlines()]  # here
    ids: list[int] = []
    for turn in turns[::-1]:
        ids = [2 + byte % 250 for byte in turn["text"].encode()] + [1] + ids  # here
    return torch.tensor(ids[-length:])


@labelled(gpu="data-bound", cpu="data-bound", needs=("peft", "transformers"), helpers=(read_dialogue,))
def lora_on_chat_logs(run: hoptui.Run, device: str) -> None:
    """LoRA of a small model on dialogues, which are parsed each time that they are asked for.

    A file has 400 turns with logged token scores, 1.5 MB of JSON: about 20 ms, 8 files a batch. The model
    reads 64 bytes of each, in less than 30 ms.
    """
    from peft import LoraConfig, get_peft_model

    rng = np.random.default_rng(0)
    lora = LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    model: Any = get_peft_model(_llama(128, 2, 256, 64), lora).to(device)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, f"{i}.jsonl") for i in range(24)]
        for path in files:
            rows = [
                {"role": "user", "text": "hello there " * 12, "scores": rng.random(200).round(4).tolist()}
                for _ in range(400)
            ]
            path.write_text("\n".join(map(json.dumps, rows)))

        class Dialogues(torch.utils.data.Dataset[Tensor]):
            def __len__(self) -> int:
                return len(files)

            def __getitem__(self, index: int) -> Tensor:
                return read_dialogue(files[index], 64)

        loader = DataLoader(Dialogues(), batch_size=8, shuffle=True)
        while not run.stopping:
            for ids in loader:
                ids = ids.to(device)
                loss = model(input_ids=ids, labels=ids).loss
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                run.log(loss=loss.item(), samples=len(ids))
                if run.stopping:
                    break
