"""Trainings for linguistics on the CPU: old spellings, translation, a curriculum, and verse."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import random
import tempfile
from collections import defaultdict
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hoptui
from benchmarks.labelled.catalogue import AdapterRun, labelled


class UnigramSegmenter:
    """Cuts words into the most likely pieces."""

    def __init__(self, pieces: dict[str, float]) -> None:
        self.pieces, self.longest = pieces, max(map(len, pieces))
        self.ids = {piece: n + 3 for n, piece in enumerate(sorted(pieces))}

    def cut(self, word: str) -> list[int]:
        """Return the pieces of the best way through a word."""
        best: list[tuple[float, int]] = [(0.0, 0)] + [(-1e9, 0)] * len(word)
        for end in range(1, len(word) + 1):
            for start in range(max(0, end - self.longest), end):  # here
                price = self.pieces.get(word[start:end], -20.0)  # here
                if best[start][0] + price > best[end][0]:  # here
                    best[end] = best[start][0] + price, start  # here
        ids, end = [], len(word)
        while end > 0:
            start = best[end][1]
            ids.append(self.ids.get(word[start:end], 1))  # here
            end = start
        return ids[::-1]

    def __call__(self, rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
        """Return rows of a model for rows of text."""
        ids = []
        for text in rows["text"]:
            row = [i for word in text.split() for i in self.cut(word)]  # here
            ids.append([2, *row][:32])
        length = max(map(len, ids))
        return {
            "input_ids": [row + [0] * (length - len(row)) for row in ids],
            "attention_mask": [[1] * len(row) + [0] * (length - len(row)) for row in ids],
            "labels": rows["century"],
        }


def charters(rng: random.Random, number: int) -> tuple[dict[str, list[Any]], UnigramSegmenter]:
    """Return texts in old spellings and a segmenter for them."""
    parts = ["the", "ch", "ou", "gh", "yn", "th", "er", "ie", "ck", "ed", "wh", "a", "e", "i", "o", "s", "t"]
    pieces = {a + b: -rng.uniform(4, 9) for a in parts for b in parts} | dict.fromkeys(parts, -5.0)
    words = ["".join(rng.choices(parts, k=rng.randrange(3, 7))) for _ in range(3000)]
    texts = [" ".join(rng.choices(words, k=120)) for _ in range(number)]
    return {"text": texts, "century": [rng.randrange(5) for _ in texts]}, UnigramSegmenter(pieces)


@labelled(
    cpu="data-bound",
    needs=("transformers", "accelerate", "datasets"),
    adapter=True,
    helpers=(UnigramSegmenter,),
)
def centuries_of_charters(run: AdapterRun, device: str) -> None:
    """Under the Trainer, a small ELECTRA dates charters. A transform of datasets segments them when read.

    A batch has 32 texts of 120 words. Measured with a timer, the segmenter takes 70 % of an iteration of 0.08
    s, and the model with its optimizer 21 %.
    """
    import datasets
    from transformers import ElectraConfig, ElectraForSequenceClassification, Trainer, TrainingArguments

    from hoptui.integrations.transformers import HoptuiCallback

    table, segmenter = charters(random.Random(51), 400)
    dataset = datasets.Dataset.from_dict(table).with_transform(segmenter)
    config = ElectraConfig(
        vocab_size=400, embedding_size=32, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=64, num_labels=5,
    )  # fmt: skip

    def padded(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
        length = max(len(row["input_ids"]) for row in rows)
        columns: dict[str, list[Any]] = defaultdict(list)
        for row in rows:
            short = length - len(row["input_ids"])
            columns["input_ids"].append(row["input_ids"] + [0] * short)
            columns["attention_mask"].append(row["attention_mask"] + [0] * short)
            columns["labels"].append(row["labels"])
        return {name: torch.tensor(column) for name, column in columns.items()}

    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            output_dir=folder,
            max_steps=run.iterations,
            per_device_train_batch_size=32,
            use_cpu=device == "cpu",
            remove_unused_columns=False,
            report_to=[],
            disable_tqdm=True,
            save_strategy="no",
            logging_steps=20,
            seed=51,
        )
        model = ElectraForSequenceClassification(config)
        callbacks = [HoptuiCallback(run.name)]
        Trainer(
            model=model, args=args, train_dataset=dataset, data_collator=padded, callbacks=callbacks
        ).train()


class Speller(nn.Module):
    """A sequence-to-sequence network with additive attention, as of 2015."""

    def __init__(self, letters: int, width: int) -> None:
        super().__init__()
        self.letters, self.width = nn.Embedding(letters, 64), width
        self.encoder = nn.GRU(64, width, batch_first=True, bidirectional=True)
        self.keys, self.query = nn.Linear(2 * width, width), nn.Linear(width, width)
        self.energy = nn.Linear(width, 1)
        self.cell = nn.GRUCell(64 + 2 * width, width)
        self.out = nn.Linear(3 * width, letters)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        read, _ = self.encoder(self.letters(source))
        keys, h = self.keys(read), read.new_zeros(len(source), self.width)
        scores = []
        for letter in self.letters(target).unbind(1):
            energy = self.energy(torch.tanh(keys + self.query(h)[:, None]))[..., 0]
            context = (energy.softmax(1)[..., None] * read).sum(1)
            h = self.cell(torch.cat((letter, context), 1), h)
            scores.append(self.out(torch.cat((h, context), 1)))
        return torch.stack(scores, 1)


@labelled(cpu="healthy")
def spelling_by_attention(run: hoptui.Run, device: str) -> None:
    """Words are written as they are spoken, by a network that reads them letter by letter.

    Measured with a timer, 99 % of an iteration of 0.15 s is in the model, its backward pass and its
    optimizer.
    """
    torch.manual_seed(52)
    model = Speller(60, 192).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    words, sounds = torch.randint(0, 60, (4096, 18)), torch.randint(0, 60, (4096, 20))
    order = torch.randperm(4096)
    step = 0
    while not run.stopping:
        chosen = order[torch.arange(step * 64, step * 64 + 64) % 4096]
        source, target = words[chosen].to(device), sounds[chosen].to(device)
        scores = model(source, target[:, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1), target[:, 1:].flatten(), label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        run.log(loss=loss.item(), epoch=step // 64, samples=64)


class Difficulty:
    """Remembers how hard each context of words was, for a curriculum."""

    def __init__(self, order: int) -> None:
        self.order, self.mean, self.seen = order, dict[tuple[int, ...], float](), dict[tuple[int, ...], int]()

    def update(self, rows: list[list[int]], losses: list[list[float]]) -> None:
        """Enter the losses of all words of a batch."""
        for row, values in zip(rows, losses, strict=True):
            for at, value in enumerate(values):
                for n in range(1, self.order + 1):  # here
                    context = tuple(row[max(0, at - n) : at + 1])  # here
                    count = self.seen.get(context, 0) + 1  # here
                    old = self.mean.get(context, 0.0)  # here
                    self.seen[context] = count  # here
                    self.mean[context] = old + (value - old) / min(count, 50)  # here

    def of(self, row: list[int]) -> float:
        """Return how hard a row is."""
        contexts = [tuple(row[at : at + self.order]) for at in range(len(row))]  # here
        return sum(self.mean.get(context, 1.0) for context in contexts) / len(row)  # here

    def forget(self, most: int) -> None:
        """Keep the table small."""
        if len(self.mean) > most:
            self.mean.clear()
            self.seen.clear()


@labelled(cpu="host-bound", helpers=(Difficulty,))
def curriculum_of_sentences(run: hoptui.Run, device: str) -> None:
    """A language model is led from easy to hard sentences. Its losses are entered for each context of words.

    A batch has 64 x 32 words with eight contexts each. Measured with a timer, they take 62 % of an iteration
    of 0.1 s, and the network 30 to 34 %.
    """
    torch.manual_seed(53)
    model = nn.ModuleDict(
        {"words": nn.Embedding(300, 24), "gru": nn.GRU(24, 32, batch_first=True), "out": nn.Linear(32, 300)}
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    corpus = (torch.rand(2000, 33).square() * 300).long()
    difficulty, order = Difficulty(8), list(range(2000))
    while not run.stopping:
        candidates = random.sample(order, 128)
        ranked = sorted(candidates, key=lambda n: difficulty.of(corpus[n].tolist()))  # here
        batch = corpus[torch.tensor(ranked[:64])].to(device)
        hidden, _ = model["gru"](model["words"](batch[:, :-1]))
        scores = model["out"](hidden)
        losses = F.cross_entropy(scores.transpose(1, 2), batch[:, 1:], reduction="none")
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()
        difficulty.update(batch[:, 1:].tolist(), losses.tolist())  # here
        difficulty.forget(400_000)
        run.log(loss=losses.mean().item(), samples=64)


class Scansion(nn.Module):
    """Tells the feet of a verse. It reads as many syllables at once as the lesson has."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.reach, self.keep = 1.0, 0.95
        self.inward, self.out = nn.Linear(16, width), nn.Linear(width, 3)
        self.hidden = nn.ModuleList(nn.Linear(width, width) for _ in range(2))

    def forward(self, syllables: Tensor) -> Tensor:
        h = self.inward(syllables * self.reach)
        for layer in self.hidden:
            h = h + F.gelu(layer(F.layer_norm(h, h.shape[-1:]))) * self.keep
        scores: Tensor = self.out(h)
        return scores


@labelled(cpu="compiling")
def feet_of_verses(run: hoptui.Run, device: str) -> None:
    """A compiled network scans verses. A schedule changes two of its numbers at each step.

    The numbers are attributes of the module, so each step traces its code again. Measured with a timer, the
    traced call takes 95 % of an iteration of 0.59 s, and the rest of the step 4 %.
    """
    import torch._dynamo

    torch._dynamo.config.recompile_limit = 10_000
    torch._dynamo.config.accumulated_recompile_limit = 100_000
    torch.manual_seed(54)
    verses, feet = torch.randn(512, 14, 16, device=device), torch.randint(0, 3, (512, 14), device=device)
    model = Scansion(64).to(device)
    fast: Any = torch.compile(model, backend="aot_eager", dynamic=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    step = 0
    while not run.stopping:
        chosen = torch.randint(0, 512, (32,), device=device)
        scores = fast(verses[chosen])
        loss = F.cross_entropy(scores.flatten(0, 1), feet[chosen].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        model.reach = 1.0 + 0.5 * step / (step + 1000)
        model.keep = 0.95 - 0.3 * step / (step + 2000)
        run.log(loss=loss.item(), reach=model.reach, samples=32)
