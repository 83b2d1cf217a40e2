"""Trainings with transformers: its Trainer with own collators, callbacks and metrics, and own loops."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import random
import re
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import hoptui
from benchmarks.labelled.catalogue import AdapterRun, labelled

NEEDS = ("transformers", "accelerate")
VOCABULARY = 512


def _args(run: AdapterRun, device: str, folder: str, **options: Any) -> Any:
    """Return the arguments of a Trainer without trackers."""
    from transformers import TrainingArguments

    settings: dict[str, Any] = {
        "output_dir": folder,
        "max_steps": run.iterations,
        "use_cpu": device == "cpu",
        "report_to": [],
        "disable_tqdm": True,
        "save_strategy": "no",
        "logging_steps": 20,
        **options,
    }
    return TrainingArguments(**settings)


def _hoptui(run: AdapterRun) -> Any:
    from hoptui.integrations.transformers import HoptuiCallback

    return HoptuiCallback(run.name)


def _gpt2(n_embd: int, n_layer: int, n_positions: int = 512, vocab_size: int = VOCABULARY) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=vocab_size,
        n_positions=n_positions,
        n_embd=n_embd,
        n_layer=n_layer,
        n_head=max(2, n_embd // 64),
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config)


def _bert_config(hidden_size: int, layers: int, **options: Any) -> Any:
    from transformers import BertConfig

    return BertConfig(
        vocab_size=options.pop("vocab_size", VOCABULARY),
        hidden_size=hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=max(2, hidden_size // 64),
        intermediate_size=4 * hidden_size,
        max_position_embeddings=options.pop("max_position_embeddings", 128),
        **options,
    )


class TokenizedDataset(Dataset[dict[str, Any]]):
    """Token ids of random documents."""

    def __init__(self, count: int, length: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.input_ids = rng.integers(5, VOCABULARY - 110, (count, length)).tolist()

    def __len__(self) -> int:
        return len(self.input_ids)

    def __getitem__(self, idx: int) -> dict[str, Any]:
        return {"input_ids": self.input_ids[idx]}


class T5SpanCorruptionCollator:
    """Replaces random spans by sentinels, token by token."""

    def __init__(self, noise_density: float, mean_span: float, input_length: int, target_length: int) -> None:
        self.noise_density, self.mean_span = noise_density, mean_span
        self.input_length, self.target_length = input_length, target_length
        self.rng = random.Random(0)

    def corrupt(self, tokens: list[int]) -> tuple[list[int], list[int]]:
        source: list[int] = []
        target: list[int] = []
        sentinel, remaining = VOCABULARY - 1, 0
        for token in tokens:
            if remaining == 0 and self.rng.random() < self.noise_density / self.mean_span:  # here
                remaining = max(1, int(self.rng.expovariate(1 / self.mean_span)))
                source.append(sentinel)
                target.append(sentinel)
                sentinel = max(sentinel - 1, VOCABULARY - 100)
            if remaining > 0:  # here
                target.append(token)  # here
                remaining -= 1  # here
            else:
                source.append(token)  # here
        return source, target

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, Tensor]:
        inputs, labels = [], []
        for example in examples:
            source, target = self.corrupt(example["input_ids"])
            source, target = source[: self.input_length], target[: self.target_length]
            inputs.append(source + [0] * (self.input_length - len(source)))
            labels.append(target + [-100] * (self.target_length - len(target)))
        return {"input_ids": torch.tensor(inputs), "labels": torch.tensor(labels)}


@labelled(gpu="data-bound", cpu="data-bound", needs=NEEDS, adapter=True, helpers=(T5SpanCorruptionCollator,))
def t5_pretraining_collator(run: AdapterRun, device: str) -> None:
    """T5 is pretrained by the Trainer, with span corruption in the collator.

    Each document has 180 000 tokens, of which the model sees the first 64 after the corruption. The collator
    goes through all of them in Python: about 30 ms a document, 8 documents a batch. The model needs 40 ms.
    """
    from transformers import T5Config, T5ForConditionalGeneration, Trainer

    config = T5Config(
        vocab_size=VOCABULARY,
        d_model=64,
        d_kv=16,
        d_ff=128,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
        pad_token_id=0,
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=T5ForConditionalGeneration(config),
            args=_args(run, device, folder, per_device_train_batch_size=8, remove_unused_columns=False),
            train_dataset=TokenizedDataset(24, 180_000),
            data_collator=T5SpanCorruptionCollator(0.15, 3.0, 64, 32),
            callbacks=[_hoptui(run)],
        )
        trainer.train()


def distinct_n(sequences: list[list[int]], n: int) -> float:
    """Return the share of n-grams that occur once."""
    counts: Counter[tuple[int, ...]] = Counter()
    for seq in sequences:
        for i in range(len(seq) - n + 1):  # here
            counts[tuple(seq[i : i + n])] += 1  # here
    return sum(1 for c in counts.values() if c == 1) / max(1, sum(counts.values()))  # here


@labelled(gpu="host-bound", cpu="host-bound", needs=NEEDS, adapter=True, helpers=(distinct_n,))
def gpt2_diversity_callback(run: AdapterRun, device: str) -> None:
    """A callback of the Trainer computes distinct-1 to distinct-4 of the corpus so far after each step.

    60 000 tokens are counted four times in Python: more than 100 ms. The step of the model takes 40 ms.
    """
    from transformers import Trainer, TrainerCallback, default_data_collator

    seen = TokenizedDataset(120, 500, seed=1).input_ids

    class DiversityCallback(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.last = {f"distinct_{n}": distinct_n(seen, n) for n in (1, 2, 3, 4)}

    blocks = torch.randint(0, VOCABULARY, (128, 64))
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=_gpt2(64, 2),
            args=_args(run, device, folder, per_device_train_batch_size=8),
            train_dataset=[{"input_ids": block, "labels": block} for block in blocks],
            data_collator=default_data_collator,
            callbacks=[DiversityCallback(), _hoptui(run)],
        )
        trainer.train()


ENTITIES = ("PER", "ORG", "LOC", "MISC", "DATE", "TIME", "MONEY", "EVENT")


def get_entities(seq: list[str]) -> list[tuple[str, int, int]]:
    """Return the entities of a sequence of BIO tags, as seqeval does."""
    prev_tag, prev_type, begin, chunks = "O", "", 0, []
    for i, chunk in enumerate([*seq, "O"]):  # here
        tag = chunk[0]  # here
        type_ = chunk.split("-", maxsplit=1)[-1]  # here
        if prev_tag != "O" and (tag in "BO" or type_ != prev_type):  # here
            chunks.append((prev_type, begin, i - 1))
        if tag == "B" or (tag == "I" and (prev_tag == "O" or type_ != prev_type)):  # here
            begin = i
        prev_tag, prev_type = tag, type_  # here
    return chunks


def compute_ner_metrics(predictions: Any, labels: Any, label_list: list[str]) -> dict[str, float]:
    """Return precision and recall of the entities."""
    true_predictions = [
        [label_list[p] for p, lab in zip(pred, label, strict=True) if lab != -100]  # here
        for pred, label in zip(predictions, labels, strict=True)
    ]
    true_labels = [
        [label_list[lab] for lab in label if lab != -100]  # here
        for label in labels
    ]
    report = {}
    for kind in ENTITIES:
        found = {(k, *e) for k, seq in enumerate(true_predictions) for e in get_entities(seq) if e[0] == kind}
        gold = {(k, *e) for k, seq in enumerate(true_labels) for e in get_entities(seq) if e[0] == kind}
        hits = len(found & gold)
        report[f"{kind}_precision"] = hits / max(1, len(found))
        report[f"{kind}_recall"] = hits / max(1, len(gold))
    return report


@labelled(
    gpu="host-bound",
    cpu="host-bound",
    needs=NEEDS,
    adapter=True,
    helpers=(get_entities, compute_ner_metrics),
)
def ner_eval_steps_one(run: AdapterRun, device: str) -> None:
    """Token classification with `eval_steps=1` and entity metrics in `compute_metrics`.

    The evaluation has 2048 sequences of 32 tags. The model is tiny: it and the Trainer need less than 250 ms.
    Python needs more than 300 ms for the tags, as it goes over them for each type of entity.
    """
    from transformers import BertForTokenClassification, Trainer

    label_list = ["O", *(f"{tag}-{kind}" for kind in ENTITIES for tag in "BI")]
    rng = np.random.default_rng(3)

    def split(count: int) -> list[dict[str, Any]]:
        ids, tags = rng.integers(5, VOCABULARY, (count, 32)), rng.integers(0, len(label_list), (count, 32))
        return [
            {"input_ids": torch.from_numpy(row), "labels": torch.from_numpy(tag)}
            for row, tag in zip(ids, tags, strict=True)
        ]

    def compute_metrics(p: Any) -> dict[str, float]:
        predictions, labels = p
        return compute_ner_metrics(np.argmax(predictions, axis=2), labels, label_list)

    train, dev = split(128), split(2048)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=BertForTokenClassification(_bert_config(8, 1, num_labels=len(label_list))),
            args=_args(
                run,
                device,
                folder,
                per_device_train_batch_size=8,
                per_device_eval_batch_size=1024,
                eval_strategy="steps",
                eval_steps=1,
            ),
            train_dataset=train,
            eval_dataset=dev,
            compute_metrics=compute_metrics,
            callbacks=[_hoptui(run)],
        )
        trainer.train()


@labelled(gpu="save-bound", cpu="save-bound", needs=NEEDS, adapter=True)
def xlmr_head_save_steps_two(run: AdapterRun, device: str) -> None:
    """A multilingual encoder with a large vocabulary is trained with `save_steps=2`.

    128 000 rows of 512 embeddings, with AdamW: 800 MB are written for every two steps, which takes seconds
    on a disk and more than half a second in memory. On the CPU only the head is trained, so that a step takes
    few milliseconds.
    """
    from transformers import BertForSequenceClassification, Trainer, default_data_collator

    model = BertForSequenceClassification(_bert_config(512, 1, vocab_size=128_000, num_labels=3))
    if device == "cpu":
        model.bert.requires_grad_(False)
    rows = [{"input_ids": ids, "labels": i % 3} for i, ids in enumerate(torch.randint(5, 9_000, (256, 16)))]
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=model,
            args=_args(
                run,
                device,
                folder,
                per_device_train_batch_size=2,
                save_strategy="steps",
                save_steps=2,
                save_total_limit=1,
            ),
            train_dataset=rows,
            data_collator=default_data_collator,
            callbacks=[_hoptui(run)],
        )
        trainer.train()  # here


@labelled(gpu="compute-bound power-limited", cpu="healthy", needs=NEEDS, adapter=True)
def mistral_gradient_checkpointing(run: AdapterRun, device: str) -> None:
    """A wide decoder trains in bf16 weights with gradient checkpointing, 16 384 tokens a step.

    On a GPU: 5 layers of width 4096 and 14336, about 1.1 billion weights: 16 384 x 1.1e9 x 8 = 144 TFLOP,
    against about 20 GB of weights and some 60 GB of activations: far above the ridge of 300 FLOP/byte.
    """
    from transformers import MistralConfig, MistralForCausalLM, Trainer, default_data_collator

    cpu = device == "cpu"
    config = MistralConfig(
        vocab_size=4096,
        hidden_size=192 if cpu else 4096,
        intermediate_size=512 if cpu else 14336,
        num_hidden_layers=3 if cpu else 5,
        num_attention_heads=4 if cpu else 32,
        num_key_value_heads=2 if cpu else 8,
        max_position_embeddings=4096,
        use_cache=False,
    )
    length = 256 if cpu else 4096
    with torch.device(device):
        model = MistralForCausalLM(config)
    if not cpu:
        model = model.to(torch.bfloat16)
    documents = torch.randint(0, 4096, (64, length))
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=model,
            args=_args(
                run,
                device,
                folder,
                per_device_train_batch_size=4,
                gradient_checkpointing=True,
                gradient_checkpointing_kwargs={"use_reentrant": False},
                bf16=not cpu,
                optim="adamw_torch" if cpu else "adamw_torch_fused",
                max_grad_norm=0.0,
            ),
            train_dataset=[{"input_ids": row, "labels": row} for row in documents],
            data_collator=default_data_collator,
            callbacks=[_hoptui(run)],
        )
        trainer.train()


@labelled(gpu="wrong-device", cpu="healthy", needs=NEEDS, adapter=True)
def distilbert_teacher_in_compute_loss(run: AdapterRun, device: str) -> None:
    """A subclass of Trainer distills: the teacher is an attribute that nobody moved to the device.

    The teacher is 50 times as large as the student, and is computed by the CPU: more than 80 ms of each step.
    """
    from transformers import BertForSequenceClassification, Trainer, default_data_collator

    teacher = BertForSequenceClassification(_bert_config(384, 4, num_labels=4)).eval()
    student = BertForSequenceClassification(_bert_config(64, 2, num_labels=4))

    class DistillationTrainer(Trainer):  # type: ignore[misc]
        temperature, alpha = 2.0, 0.5

        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
        ) -> Any:
            outputs_stu = model(**inputs)
            with torch.no_grad():
                outputs_tea = teacher(**{k: v.cpu() for k, v in inputs.items()})
            soft = outputs_tea.logits.to(outputs_stu.logits.device) / self.temperature
            loss_kd = F.kl_div(
                F.log_softmax(outputs_stu.logits / self.temperature, dim=-1),
                F.softmax(soft, dim=-1),
                reduction="batchmean",
            )
            loss = self.alpha * outputs_stu.loss + (1 - self.alpha) * self.temperature**2 * loss_kd
            return (loss, outputs_stu) if return_outputs else loss

    rows = [{"input_ids": ids, "labels": i % 4} for i, ids in enumerate(torch.randint(5, 500, (256, 64)))]
    with tempfile.TemporaryDirectory() as folder:
        trainer = DistillationTrainer(
            model=student,
            args=_args(run, device, folder, per_device_train_batch_size=8),
            train_dataset=rows,
            data_collator=default_data_collator,
            callbacks=[_hoptui(run)],
        )
        trainer.train()


@labelled(gpu="launch-bound", cpu="healthy", needs=NEEDS)
def rejection_sampling_generate(run: hoptui.Run, device: str) -> None:
    """Each iteration draws completions by `generate`, and trains once on the best half.

    On a GPU: 96 tokens one after another through 8 layers for 8 prompts, some 100 kernels of microseconds a
    token. On the CPU: 10 tokens, and the products of width 1024 are the work.
    """
    cpu = device == "cpu"
    model = _gpt2(1024 if cpu else 512, 2 if cpu else 8).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    prompts = torch.randint(1, VOCABULARY, (64, 16), device=device)
    wanted = torch.randint(1, VOCABULARY, (100,), device=device)
    while not run.stopping:
        batch = prompts[torch.randperm(64, device=device)[:8]]
        model.eval()
        with torch.no_grad():
            completions = model.generate(
                batch,
                attention_mask=torch.ones_like(batch),
                max_new_tokens=10 if cpu else 96,
                min_new_tokens=10 if cpu else 96,
                do_sample=True,
                top_k=50,
                pad_token_id=0,
            )
        rewards = torch.isin(completions[:, 16:], wanted).float().mean(dim=1)
        keep = completions[rewards.topk(4).indices]
        model.train()
        loss = model(input_ids=keep, labels=keep).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        run.log(loss=loss.item(), reward=rewards.mean().item(), samples=8)


CLEAN = (
    (re.compile(r"<[^>]+>"), " "),
    (re.compile(r"https?://\S+"), "URL"),
    (re.compile(r"[^a-zA-Z0-9.,!?' ]"), " "),
    (re.compile(r"(\w)\1{2,}"), r"\1\1"),
    (re.compile(r"\s+"), " "),
)


def clean_and_encode(text: str, vocab: dict[str, int], max_length: int) -> list[int]:
    """Clean a review, and return the ids of its words."""
    for pattern, replacement in CLEAN:
        text = pattern.sub(replacement, text)  # here
    words = re.findall(r"\w+|[^\w\s]", text.lower())  # here
    ids = [vocab.setdefault(word, 5 + len(vocab) % 500) for word in words]  # here
    return ids[:max_length] + [0] * (max_length - len(ids))


@labelled(gpu="data-bound", cpu="data-bound", needs=("transformers",), helpers=(clean_and_encode,))
def imdb_tokenizes_in_collate(run: hoptui.Run, device: str) -> None:
    """Reviews are cleaned by regular expressions and split into words when a batch is put together.

    A page has 70 000 characters, five expressions go over it: about 20 ms a page, 16 pages a batch. The
    model reads 64 ids of each in less than 30 ms.
    """
    from transformers import BertForSequenceClassification

    rng = random.Random(7)
    words = [
        "good",
        "baaaad",
        "film",
        "<br />",
        "http://a.b/c",
        "actor",
        "it's",
        "plot!!",
        "so",
        "very",
        "1999",
    ]
    reviews = [" ".join(rng.choices(words, k=14_000)) for _ in range(64)]
    vocab: dict[str, int] = {}

    def collate(batch: list[tuple[str, int]]) -> tuple[Tensor, Tensor, Tensor]:
        ids = torch.tensor([clean_and_encode(text, vocab, 64) for text, _ in batch])
        return ids, (ids != 0).long(), torch.tensor([label for _, label in batch])

    train_loader: Any = DataLoader(
        [(review, i % 2) for i, review in enumerate(reviews)],  # type: ignore[arg-type]
        batch_size=16,
        shuffle=True,
        collate_fn=collate,
    )
    model = BertForSequenceClassification(_bert_config(64, 2)).to(device)
    optim = torch.optim.AdamW(model.parameters(), lr=5e-5)
    model.train()
    while not run.stopping:
        for input_ids, attention_mask, labels in train_loader:
            optim.zero_grad()
            outputs = model(
                input_ids=input_ids.to(device),
                attention_mask=attention_mask.to(device),
                labels=labels.to(device),
            )
            outputs.loss.backward()
            optim.step()
            run.log(loss=outputs.loss.item(), samples=len(labels))
            if run.stopping:
                break


@labelled(gpu="compiling", cpu="compiling", needs=("transformers",))
def gradual_unfreezing_compiled(run: hoptui.Run, device: str) -> None:
    """In the manner of ULMFiT: other layers are trained each time, and the model is compiled anew for them.

    `torch.compiler.reset` and a new `torch.compile` come before every second step: tracing takes about a
    second, and two steps of the small model of one layer less than 50 ms.
    """
    from transformers import BertForSequenceClassification

    model = BertForSequenceClassification(_bert_config(64, 1, num_labels=2)).to(device)
    layer = model.bert.encoder.layer[0]
    groups = [layer.attention, layer.intermediate, layer.output, model.classifier]
    input_ids = torch.randint(5, VOCABULARY, (8, 32), device=device)
    labels = torch.randint(0, 2, (8,), device=device)
    stage = 0
    while not run.stopping:
        model.requires_grad_(False)
        for group in groups[-1 - stage % len(groups) :]:
            group.requires_grad_(True)
        torch.compiler.reset()
        net = torch.compile(model, backend="aot_eager")
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-3)
        for _ in range(2):
            loss = net(input_ids=input_ids, labels=labels).loss  # here
            loss.backward()  # here
            optimizer.step()
            optimizer.zero_grad()
            run.log(loss=loss.item(), samples=8)
        stage += 1


def mine_hard_negatives(embeddings: list[list[float]], ids: list[int], k: int) -> list[list[int]]:
    """Return for each sentence the k most similar ones of other topics."""
    negatives = []
    for i, a in enumerate(embeddings):
        scored = []
        for j, b in enumerate(embeddings):
            if ids[i] != ids[j]:  # here
                scored.append((sum(x * y for x, y in zip(a, b, strict=True)), j))  # here
        scored.sort(reverse=True)  # here
        negatives.append([j for _, j in scored[:k]])
    return negatives


@labelled(gpu="host-bound", cpu="host-bound", needs=("transformers",), helpers=(mine_hard_negatives,))
def sentence_encoder_hard_negatives(run: hoptui.Run, device: str) -> None:
    """A bi-encoder of sentences looks for hard negatives within each batch, with lists of Python.

    256 x 256 pairs of 64 numbers are multiplied in Python, four million products: more than 150 ms. The
    encoder of one layer needs less than 60 ms.
    """
    from transformers import BertModel

    encoder = BertModel(_bert_config(64, 1, max_position_embeddings=32), add_pooling_layer=False).to(device)
    opt = torch.optim.AdamW(encoder.parameters(), lr=2e-5)
    sentences = torch.randint(5, VOCABULARY, (1024, 8), device=device)
    topics = torch.randint(0, 64, (1024,))
    while not run.stopping:
        idx = torch.randperm(1024)[:256]
        tokens = sentences[idx.to(device)]
        emb = F.normalize(encoder(input_ids=tokens).last_hidden_state.mean(1), dim=-1)
        negatives = mine_hard_negatives(emb.tolist(), topics[idx].tolist(), 4)  # here
        neg = emb[torch.tensor(negatives, device=device)]
        pos = emb.roll(1, 0)
        logits = torch.cat([(emb * pos).sum(-1, keepdim=True), torch.einsum("bd,bkd->bk", emb, neg)], 1)
        loss = F.cross_entropy(logits / 0.05, torch.zeros(len(idx), dtype=torch.long, device=device))
        opt.zero_grad()
        loss.backward()
        opt.step()
        run.log(loss=loss.item(), samples=len(idx))


@labelled(gpu="save-bound", cpu="save-bound", needs=("transformers",))
def keeps_best_of_every_step(run: hoptui.Run, device: str) -> None:
    """`save_pretrained` and the state of the optimizer after each step, as nearly every step is the best.

    50 million frozen weights are 200 MB for each step: more than 100 ms. A step goes through one layer of
    width 256 with 4 x 16 tokens, which takes less than 20 ms.
    """
    from transformers import BertForSequenceClassification

    config = _bert_config(256, 1, vocab_size=200_000, num_labels=2)
    model = BertForSequenceClassification(config).to(device)
    model.bert.embeddings.requires_grad_(False)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-5)
    tokens = torch.randint(0, 200_000, (4, 16), device=device)
    labels = torch.randint(0, 2, (4,), device=device)
    best = float("inf")
    with tempfile.TemporaryDirectory() as out_dir:
        while not run.stopping:
            loss = model(input_ids=tokens, labels=labels).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            value = loss.item()
            if value < best * 2:
                best = min(best, value + 0.5)
                model.save_pretrained(out_dir)  # here
                state = {"optimizer": optimizer.state_dict(), "best": best}
                torch.save(state, Path(out_dir) / "training_state.pt")  # here
            run.log(loss=value, samples=4)
