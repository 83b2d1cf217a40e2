"""Trainings for courts: clauses of contracts, similar judgments, citations, names in files, and hearings."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import math
import random
import re
import tempfile
from collections import Counter, defaultdict
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

import hoptui
from benchmarks.labelled.catalogue import AdapterRun, labelled


@labelled(gpu="compute-bound power-limited", cpu="healthy", needs=("transformers", "peft"))
def clauses_with_low_rank_adapters(run: hoptui.Run, device: str) -> None:
    """Clauses of contracts are classified by a Llama in bf16, of which only low-rank adapters are trained.

    On a GPU: 6 layers of width 4096 and 14 336 have 1.46 billion weights. The forward pass and the gradients
    of the activations are 4 x 1.46 billion x 16 x 1024 tokens = 96 TFLOP: more than 95 ms at 989 TFLOPS, and
    some 140 ms at what is reached. A layer reads or writes less than 28 GB with its gradients: 170 GB in all,
    less than 40 ms. On the CPU: 2 layers of width 128 and 8 x 64 tokens.
    """
    from peft import LoraConfig, TaskType, get_peft_model
    from transformers import LlamaConfig, LlamaForSequenceClassification

    cpu = device == "cpu"
    batch, tokens, kinds = (8, 64, 12) if cpu else (16, 1024, 41)
    config = LlamaConfig(
        vocab_size=32_000 if not cpu else 1000,
        hidden_size=128 if cpu else 4096,
        intermediate_size=344 if cpu else 14_336,
        num_hidden_layers=2 if cpu else 6,
        num_attention_heads=4 if cpu else 32,
        max_position_embeddings=2048,
        num_labels=kinds,
        pad_token_id=0,
    )
    with torch.device(device):
        base = LlamaForSequenceClassification(config)
    if not cpu:
        base = base.to(torch.bfloat16)
    lora = LoraConfig(
        task_type=TaskType.SEQ_CLS, r=16, lora_alpha=32, lora_dropout=0.0, target_modules=["q_proj", "v_proj"]
    )
    model: Any = get_peft_model(base, lora)
    model.print_trainable_parameters()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=2e-4)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=50)
    clauses = torch.randint(1, config.vocab_size, (8 * batch, tokens), device=device)
    kind = torch.randint(0, kinds, (8 * batch,), device=device)
    while not run.stopping:
        rows = torch.randint(0, 8 * batch, (batch,), device=device)
        out = model(input_ids=clauses[rows], labels=kind[rows])
        out.loss.backward()
        norm = nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        warm.step()
        optimizer.zero_grad()
        run.log(loss=out.loss.item(), norm=norm.item(), samples=batch)


class SimilarJudgments(Dataset[dict[str, Tensor]]):
    """Pairs of a judgment and the passage that is hardest to tell from its own, found by BM25."""

    word = re.compile(r"[a-z]+|§\s?\d+")

    def __init__(self, judgments: int, pool: int, length: int) -> None:
        rng = random.Random(8)
        roots = ["claim", "tort", "lease", "plea", "bail", "writ", "appeal", "estate", "duty", "breach"]
        endings = ["", "s", "ed", "ing", "able", "or", "ant", "ment", "al", "ly"]
        words = [root + ending for root in roots for ending in endings] + [f"§ {n}" for n in range(200)]
        weights = [1 / (n + 1) for n in range(len(words))]
        self.texts = [" ".join(rng.choices(words, weights, k=160)) for _ in range(judgments)]
        self.pool, self.length = pool, length

    def terms(self, text: str) -> list[str]:
        """Return the words and paragraphs of a text."""
        return self.word.findall(text.lower())  # here

    def hardest(self, index: int) -> int:
        """Return the judgment with the highest score among some others."""
        others = [(index * 31 + 7 * n) % len(self.texts) for n in range(1, self.pool + 1)]
        documents = [Counter(self.terms(self.texts[other])) for other in others]  # here
        df: Counter[str] = Counter()
        for document in documents:
            df.update(document.keys())  # here
        query, mean = set(self.terms(self.texts[index])), 160.0
        scores: dict[int, float] = defaultdict(float)
        for other, document in zip(others, documents, strict=True):
            size = sum(document.values())
            for term in query:  # here
                tf = document[term]  # here
                idf = math.log(1 + (self.pool - df[term] + 0.5) / (df[term] + 0.5))  # here
                scores[other] += idf * tf * 2.2 / (tf + 1.2 * (0.25 + 0.75 * size / mean))  # here
        return max(scores, key=scores.__getitem__)

    def encode(self, text: str) -> list[int]:
        """Return the numbers of the words of a text."""
        return [sum(map(ord, term)) * 7 % 2000 + 3 for term in self.terms(text)][: self.length]  # here

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        other = self.hardest(index) if index % 2 else index  # here
        half = self.length // 2 - 1
        first, second = self.encode(self.texts[index])[:half], self.encode(self.texts[other])[-half:]
        pair = [1, *first, 2, *second]
        pair += [0] * (self.length - len(pair))
        return {"input_ids": torch.tensor(pair), "labels": torch.tensor(index % 2)}


@labelled(
    gpu="data-bound",
    cpu="data-bound",
    needs=("transformers", "accelerate"),
    adapter=True,
    helpers=(SimilarJudgments,),
)
def reranker_of_similar_judgments(run: AdapterRun, device: str) -> None:
    """The Trainer of transformers teaches an ELECTRA to tell passages, whose negatives BM25 looks for.

    Half of the pairs score 150 passages of 160 words: 24 000 words are split and counted, and 60 terms of
    each passage are scored, more than 7 ms together. A batch has 32 pairs: more than 110 ms. Two layers of
    width 64 with 32 x 64 tokens take less than 25 ms for their step.
    """
    from transformers import ElectraConfig, ElectraForSequenceClassification, Trainer, TrainingArguments

    from hoptui.integrations.transformers import HoptuiCallback

    config = ElectraConfig(
        vocab_size=2048,
        embedding_size=64,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=128,
        max_position_embeddings=64,
    )
    with tempfile.TemporaryDirectory() as output:
        arguments = TrainingArguments(
            output_dir=output,
            max_steps=run.iterations,
            per_device_train_batch_size=32,
            learning_rate=1e-4,
            warmup_steps=20,
            weight_decay=0.01,
            use_cpu=device == "cpu",
            report_to=[],
            disable_tqdm=True,
            save_strategy="no",
            logging_steps=20,
        )
        Trainer(
            model=ElectraForSequenceClassification(config),
            args=arguments,
            train_dataset=SimilarJudgments(6000, pool=150, length=64),
            callbacks=[HoptuiCallback(run.name)],
        ).train()


class HashedClassifier:
    """One logistic regression for each outcome, over hashed pairs of neighbouring words."""

    def __init__(self, outcomes: int, bits: int, device: str) -> None:
        self.mask = (1 << bits) - 1
        self.weights = [torch.zeros(1 << bits, device=device) for _ in range(outcomes)]

    def features(self, words: Tensor) -> Tensor:
        """Return the places of all pairs of words in the tables."""
        pairs = words[:, :-1] * 0x2545F491 + words[:, 1:] * 0x9E3779B1
        return (pairs.bitwise_xor_(pairs >> 17) & self.mask).int()

    @torch.no_grad()
    def learn(self, words: Tensor, won: Tensor, lr: float) -> Tensor:
        """Learn from some decisions, and return the mean error."""
        at = self.features(words)
        documents, pairs = at.shape
        flat, errors = at.flatten(), []
        for table, label in zip(self.weights, won.unbind(1), strict=True):
            logit = table.index_select(0, flat).view(documents, pairs).sum(1)
            error = torch.sigmoid(logit) - label
            table.index_add_(0, flat, error[:, None].expand(-1, pairs).reshape(-1), alpha=-lr)
            errors.append(error.abs().mean())
        return torch.stack(errors).mean()


@labelled(gpu="memory-latency-bound", cpu="healthy")
def outcomes_by_hashed_pairs_of_words(run: hoptui.Run, device: str) -> None:
    """The outcomes of appeals are learned from hashed pairs of words, in one pass over the decisions.

    On a GPU: eight tables of 2 to the 29th weights are 17 GB. A batch has 32 768 decisions with 512 pairs: 17
    million places, each of which is read and changed in eight tables. Eight batches are 2.1 billion random
    places of four bytes: more than 55 ms at 38 billion a second. What is read or written in order is some 5
    GB a batch: 40 GB, less than 10 ms. On the CPU: tables of 2 to the 20th weights and 256 decisions.
    """
    cpu = device == "cpu"
    decisions, length, bits, batches = (256, 513, 20, 1) if cpu else (32_768, 513, 29, 8)
    classifier = HashedClassifier(8, bits, device)
    while not run.stopping:
        for _ in range(batches):
            words = torch.randint(0, 1 << 24, (decisions, length), device=device)
            won = (words[:, :8] & 1).float()
            error = classifier.learn(words, won, lr=0.02)
        run.log(error=error.item(), samples=batches * decisions)


TAGS = ["O"] + [f"{at}-{kind}" for kind in ("PERSON", "PLACE", "COURT", "DATE", "SUM") for at in ("B", "I")]


def entities(tags: list[str]) -> set[tuple[str, int, int]]:
    """Return the kind and the bounds of each entity in a sequence of tags."""
    found, start, kind = set(), 0, ""
    for n, tag in enumerate([*tags, "O"]):  # here
        prefix, _, label = tag.partition("-")  # here
        if kind and (prefix != "I" or label != kind):  # here
            found.add((kind, start, n))  # here
            kind = ""
        if prefix == "B" or (prefix == "I" and not kind):  # here
            start, kind = n, label  # here
    return found


def scores_of(predicted: Tensor, true: Tensor) -> dict[str, float]:
    """Return the F1 score of each kind of entity and over all of them."""
    hits: Counter[str] = Counter()
    told: Counter[str] = Counter()
    real: Counter[str] = Counter()
    for row, gold in zip(predicted.tolist(), true.tolist(), strict=True):
        guess, truth = entities([TAGS[t] for t in row]), entities([TAGS[t] for t in gold])  # here
        hits.update(kind for kind, _, _ in guess & truth)  # here
        told.update(kind for kind, _, _ in guess)  # here
        real.update(kind for kind, _, _ in truth)  # here
    each = {kind: 2 * hits[kind] / max(told[kind] + real[kind], 1) for kind in real}
    return {**each, "micro": 2 * hits.total() / max(told.total() + real.total(), 1)}


class NameTagger(nn.Module):
    """Tags the words of a file by what stands around them."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.around = nn.Conv1d(width, width, 5, padding=2)
        self.tag = nn.Linear(width, len(TAGS))

    def forward(self, words: Tensor) -> Tensor:
        hidden = F.gelu(self.around(self.embed(words).transpose(1, 2)))
        tags: Tensor = self.tag(hidden.transpose(1, 2))
        return tags


@labelled(gpu="host-bound", cpu="host-bound", helpers=(entities, scores_of))
def anonymiser_with_scores_of_entities(run: hoptui.Run, device: str) -> None:
    """Names in court files are tagged, and the scores of whole entities are computed after each step.

    96 files of 400 words are 38 400 tags, and as many that are predicted. Each is parsed in more than 0.25
    microseconds, and the entities are collected: more than 24 ms. It is done for the files of the step and
    for three windows of files seen before: more than 95 ms. A step with a width of 16 takes less than 9 ms.
    """
    tagger = NameTagger(5000, 16).to(device)
    optimizer = torch.optim.NAdam(tagger.parameters(), lr=2e-3)
    windows: list[tuple[Tensor, Tensor]] = []
    micro = 0.0
    while not run.stopping:
        files = torch.randint(0, 5000, (96, 400), device=device)
        gold = files % len(TAGS)
        logits = tagger(files)
        loss = F.cross_entropy(logits.flatten(0, 1), gold.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        windows = [*windows[-3:], (logits.argmax(-1).cpu(), gold.cpu())]
        per_window = [scores_of(guess, truth) for guess, truth in windows]  # here
        micro = sum(scores["micro"] for scores in per_window) / len(per_window)
        run.log(loss=loss.item(), f1=micro, samples=96)


class HearingEncoder(nn.Module):
    """Encodes the entries of some dockets, and pools those of each docket."""

    def __init__(self, entry: int, width: int) -> None:
        super().__init__()
        self.entry = nn.Linear(entry, width)
        self.weigh = nn.Linear(width, 1)
        self.months = nn.Linear(width, 1)

    def forward(self, entries: Tensor, lengths: tuple[int, ...]) -> Tensor:
        pooled = []
        for docket in torch.relu(self.entry(entries)).split(lengths):
            share = torch.softmax(self.weigh(docket), dim=0)
            pooled.append((share * docket).sum(0) + docket.amax(0))
        months: Tensor = self.months(torch.stack(pooled)).squeeze(-1)
        return months


@labelled(gpu="compiling", cpu="compiling")
def months_until_a_judgment(run: hoptui.Run, device: str) -> None:
    """The duration of proceedings is learned by a compiled encoder that gets the lengths of the dockets.

    The lengths of 6 dockets are numbers of Python between 5 and 60, so that nearly no batch has the lengths
    of an earlier one. With `dynamic=False` each is compiled anew: some 40 operations forward and backward,
    more than 150 ms also with the backend aot_eager. The step with at most 360 entries takes less than 8 ms.
    """
    import torch._dynamo.config as dynamo

    dynamo.recompile_limit = dynamo.accumulated_recompile_limit = 1 << 20
    encoder = HearingEncoder(24, 64).to(device)
    compiled = torch.compile(encoder, dynamic=False, backend="aot_eager")
    optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-3)
    rng = random.Random(12)
    while not run.stopping:
        lengths = tuple(rng.randint(5, 60) for _ in range(6))
        entries = torch.randn(sum(lengths), 24, device=device)
        months = torch.tensor(lengths, device=device) / 3
        loss = F.l1_loss(compiled(entries, lengths), months)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=len(lengths))
