"""Trainings on texts: distillation, experts, rewards, cleaning of a corpus, and weights for an engine."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import difflib
import importlib
import os
import random
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from benchmarks.labelled.catalogue import AdapterRun, labelled


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


@labelled(
    gpu="compute-bound power-limited", cpu="healthy", needs=("transformers", "accelerate"), adapter=True
)
def distillation_trainer(run: AdapterRun, device: str) -> None:
    """A small student learns the distributions of a wide teacher, by a Trainer with its own loss, in bf16.

    On a GPU: the teacher has 8 layers of width 4096, 2.1 billion weights, and reads 16 x 2048 tokens: 2 x
    2.1e9 x 32 768 = 140 TFLOP, more than 140 ms at 989 TFLOPS. Its activations are read and written for
    about 70 GB, less than 25 ms. The student has 2 layers of width 256: less than 2 TFLOP, 10 ms. On the
    CPU: a teacher of width 256, and 4 x 96 tokens.
    """
    from transformers import Trainer, TrainingArguments

    from hoptui.integrations.transformers import HoptuiCallback

    cpu = device == "cpu"
    length, batch, vocab = (96, 4, 512) if cpu else (2048, 16, 1024)

    class DistillationTrainer(Trainer):  # type: ignore[misc]
        def __init__(self, *args: Any, teacher: Any, temperature: float = 2.0, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.teacher, self.temperature = teacher, temperature

        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
            outputs = model(**inputs)
            with torch.no_grad():
                wanted = self.teacher(input_ids=inputs["input_ids"]).logits
            soft = F.log_softmax(outputs.logits.float() / self.temperature, -1)
            target = F.softmax(wanted.float() / self.temperature, -1)
            kl = F.kl_div(soft.flatten(0, 1), target.flatten(0, 1), reduction="batchmean")
            loss = 0.5 * outputs.loss + 0.5 * self.temperature**2 * kl
            return (loss, outputs) if return_outputs else loss

    with torch.device(device):
        teacher = _llama(256 if cpu else 4096, 2 if cpu else 8, vocab, length).eval().requires_grad_(False)
    if not cpu:
        teacher = teacher.to(torch.bfloat16)
    ids = torch.randint(0, vocab, (256, length))
    rows = [{"input_ids": row, "labels": row} for row in ids]
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            output_dir=folder,
            max_steps=run.iterations,
            per_device_train_batch_size=batch,
            learning_rate=1e-4,
            bf16=not cpu,
            use_cpu=cpu,
            report_to=[],
            disable_tqdm=True,
            save_strategy="no",
            logging_steps=20,
        )
        trainer = DistillationTrainer(
            model=_llama(64 if cpu else 256, 2, vocab, length),
            args=args,
            train_dataset=rows,
            callbacks=[HoptuiCallback(run.name)],
            teacher=teacher,
        )
        trainer.train()


class SwitchFeedForward(nn.Module):
    """Sends each token to the expert that its router prefers."""

    def __init__(self, dim: int, hidden: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(dim, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, dim)) for _ in range(experts)
        )

    def forward(self, x: Tensor) -> Tensor:
        gate, chosen = self.router(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for n, expert in enumerate(self.experts):
            rows = (chosen == n).nonzero()[:, 0]
            y = expert(x[rows]) * gate[rows, None]
            out = out.index_add(0, rows, y.to(out.dtype))
        return out


@labelled(gpu="compute-bound power-limited", cpu="healthy", needs=("accelerate",), adapter=True)
def switch_layer_upcycled(run: AdapterRun, device: str) -> None:
    """A layer of eight experts is trained alone on stored activations, with accelerate in bf16.

    On a GPU: 131 072 tokens of width 4096, and experts of width 16 384: 4 x 4096 x 16 384 x 131 072 = 35
    TFLOP forward and 106 TFLOP with the backward pass: more than 107 ms at 989 TFLOPS. The hidden
    activations are 4.3 GB, and are read or written about ten times; SGD goes over 1.1 billion weights: 75
    GB together, less than 25 ms. On the CPU: 1024 tokens of width 128.
    """
    cpu = device == "cpu"
    accelerator, tracked = _accelerator(run, device, mixed_precision="no" if cpu else "bf16")
    tokens, dim, hidden = (1024, 128, 512) if cpu else (131_072, 4096, 16_384)
    with torch.device(accelerator.device):
        layer, head = SwitchFeedForward(dim, hidden, 8), nn.Linear(dim, 64)
        stored = torch.randn(tokens, dim, dtype=torch.float32 if cpu else torch.bfloat16)
        labels = torch.randint(0, 64, (tokens,))
    model = nn.Sequential(layer, nn.LayerNorm(dim), head)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.01)
    prepared, optimizer = accelerator.prepare(model, optimizer)
    step = 0
    while step < run.iterations and not tracked.stopping:
        loss = F.cross_entropy(prepared(stored), labels)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        accelerator.log({"loss": loss.item()}, step=step)
    accelerator.end_training()


LETTERS = "etaoinshrdlu cmfwypvbgk"


def similarity_reward(completion: str, reference: str) -> float:
    """Return how much of a text is in the reference, in order."""
    matcher = difflib.SequenceMatcher(None, completion, reference, autojunk=False)  # here
    return matcher.ratio()  # here


@labelled(
    gpu="host-bound", cpu="host-bound", needs=("accelerate",), adapter=True, helpers=(similarity_reward,)
)
def grpo_text_editor(run: AdapterRun, device: str) -> None:
    """A model that corrects texts gets the similarity with the right text as reward, in groups of four.

    `difflib` compares two texts of 640 letters from an alphabet of 23 in more than 4 ms, as each letter
    occurs at some 28 places. There are 8 x 4 texts: more than 128 ms. All letters are drawn at once by a
    perceptron of width 64, and prompts are made noisy in Python: less than 32 ms together.
    """
    accelerator, tracked = _accelerator(run, device)
    rng = random.Random(0)
    references = ["".join(rng.choices(LETTERS, k=640)) for _ in range(64)]
    policy: Any = nn.Sequential(
        nn.Embedding(len(LETTERS), 64),
        nn.Linear(64, 64),
        nn.ReLU(),
        nn.Linear(64, len(LETTERS)),
    )
    optimizer: Any = torch.optim.AdamW(policy.parameters(), lr=1e-3)
    policy, optimizer = accelerator.prepare(policy, optimizer)
    step = 0
    while step < run.iterations and not tracked.stopping:
        wanted = rng.sample(references, 8)
        noisy = [[LETTERS.index(c if rng.random() < 0.8 else "e") for c in text] for text in wanted]
        prompts = torch.tensor(noisy, device=accelerator.device).repeat_interleave(4, 0)
        dist = torch.distributions.Categorical(logits=policy(prompts))
        actions = dist.sample()
        texts = ["".join(LETTERS[c] for c in row) for row in actions.tolist()]
        scores = [similarity_reward(text, wanted[n // 4]) for n, text in enumerate(texts)]
        rewards = torch.tensor(scores, device=accelerator.device).view(8, 4)
        advantages = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
        loss = -(dist.log_prob(actions).mean(1) * advantages.flatten()).mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        accelerator.log({"loss": loss.item(), "reward": rewards.mean().item()}, step=step)
    accelerator.end_training()


class WithoutNearDuplicates(IterableDataset[Tensor]):
    """Pages of a crawl, without those whose MinHash has been met."""

    def __init__(self, permutations: int = 24, length: int = 128) -> None:
        rng = random.Random(0)
        self.salts = [rng.getrandbits(32) for _ in range(permutations)]
        self.length = length
        self.words = ["".join(rng.choices(LETTERS[:11], k=rng.randint(2, 9))) for _ in range(2000)]

    def signature(self, text: str) -> tuple[int, ...]:
        """Return the least hash of all shingles, for each permutation."""
        hashes = {zlib.crc32(text[n : n + 6].encode()) for n in range(len(text) - 5)}  # here
        return tuple(min(h ^ salt for h in hashes) for salt in self.salts)  # here

    def __iter__(self) -> Iterator[Tensor]:
        rng = random.Random(1)
        met: set[tuple[int, ...]] = set()
        while True:
            page = " ".join(rng.choices(self.words, k=300))
            minhash = self.signature(page)
            if minhash in met:
                continue
            met.add(minhash)
            yield torch.tensor(list(page.encode()[: self.length]))


@labelled(
    gpu="data-bound", cpu="data-bound", needs=("accelerate",), adapter=True, helpers=(WithoutNearDuplicates,)
)
def pretraining_on_cleaned_pages(run: AdapterRun, device: str) -> None:
    """A stream of pages is freed from near duplicates while a model is trained on it with accelerate.

    A page has 1900 shingles. Their hashes under 24 permutations are 45 000 operations in Python: more than 2
    ms. A batch has 48 pages: more than 100 ms. The model reads 128 bytes of each page: less than 20 ms.
    """
    accelerator, tracked = _accelerator(run, device)
    model: Any = nn.Sequential(nn.Embedding(256, 32), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 256))
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader: Any = DataLoader(WithoutNearDuplicates(), batch_size=48)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for step, ids in enumerate(loader, 1):
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        accelerator.log({"loss": loss.item(), "tokens": ids.numel()}, step=step)
        if step >= run.iterations or tracked.stopping:
            break
    accelerator.end_training()


class NgramScorer(nn.Module):
    """Scores texts by the sum of vectors of their hashed n-grams."""

    def __init__(self, buckets: int, dim: int) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(buckets, dim, sparse=True)
        self.out = nn.Linear(dim, 2)

    def forward(self, ngrams: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.out(self.bag(ngrams))
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


@labelled(
    gpu="save-bound", cpu="save-bound", needs=("transformers", "accelerate", "safetensors"), adapter=True
)
def reward_model_for_an_engine(run: AdapterRun, device: str) -> None:
    """The Trainer's callback hands the weights to an engine for inference after each step, as a file.

    A table of 600 000 x 128 weights is 307 MB, which are written with safetensors and synchronised with the
    disk: more than 150 ms at 2 GB/s. Its gradients are sparse: a step with 64 x 32 n-grams needs less than
    25 ms.
    """
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from hoptui.integrations.transformers import HoptuiCallback

    save_file: Any = importlib.import_module("safetensors.torch").save_file

    class WeightSync(TrainerCallback):  # type: ignore[misc]
        def __init__(self, path: Path) -> None:
            self.path = path

        def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            partial = self.path.with_suffix(".partial")
            save_file(model.state_dict(), partial)  # here
            with partial.open("rb+") as file:
                os.fsync(file.fileno())  # here
            partial.replace(self.path)  # here

    ngrams = torch.randint(0, 600_000, (1024, 32))
    rows = [{"ngrams": row, "labels": n % 2} for n, row in enumerate(ngrams)]
    model = NgramScorer(600_000, 128)
    model = model.to("cpu" if device == "cpu" else "cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            output_dir=folder,
            max_steps=run.iterations,
            per_device_train_batch_size=64,
            max_grad_norm=0.0,
            use_cpu=device == "cpu",
            remove_unused_columns=False,
            report_to=[],
            disable_tqdm=True,
            save_strategy="no",
            logging_steps=20,
        )
        trainer = Trainer(
            model=model,
            args=args,
            train_dataset=rows,
            optimizers=(optimizer, scheduler),
            callbacks=[HoptuiCallback(run.name), WeightSync(Path(folder, "policy.safetensors"))],
        )
        trainer.train()
