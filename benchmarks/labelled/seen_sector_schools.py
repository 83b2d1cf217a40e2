"""Trainings for schools: answers to exercises, essays, pages written by hand, lessons, and a test."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import math
import random
from collections import deque
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import hoptui
from benchmarks.labelled.catalogue import AdapterRun, labelled


class KnowledgeMemory(nn.Module):
    """Dynamic key-value memory: what a pupil masters of each concept is written after each answer."""

    def __init__(self, exercises: int, concepts: int, width: int) -> None:
        super().__init__()
        self.question = nn.Embedding(exercises, width)
        self.answer = nn.Embedding(2 * exercises, width)
        self.keys = nn.Parameter(torch.randn(concepts, width) / width**0.5)
        self.start = nn.Parameter(torch.zeros(concepts, width))
        self.erase, self.add = nn.Linear(width, width), nn.Linear(width, width)
        self.summary, self.predict = nn.Linear(2 * width, width), nn.Linear(width, 1)

    def forward(self, exercise: Tensor, right: Tensor) -> Tensor:
        memory = self.start.expand(len(exercise), -1, -1)
        logits = []
        for step in range(exercise.shape[1]):
            asked = self.question(exercise[:, step])
            weight = torch.softmax(asked @ self.keys.T, -1).unsqueeze(-1)
            known = (weight * memory).sum(1)
            summary = torch.tanh(self.summary(torch.cat([known, asked], -1)))
            logits.append(self.predict(summary))
            given = self.answer(2 * exercise[:, step] + right[:, step])
            erase = torch.sigmoid(self.erase(given)).unsqueeze(1)
            memory = memory * (1 - weight * erase) + weight * torch.tanh(self.add(given)).unsqueeze(1)
        return torch.cat(logits, 1)


@labelled(gpu="launch-bound", cpu="healthy")
def knowledge_traced_by_a_memory(run: hoptui.Run, device: str) -> None:
    """What pupils know is traced through their answers, one answer after another.

    On a GPU: 220 answers with some 28 kernels forward and more than 40 backward, on at most 24 x 16 x 32
    numbers: more than 14 000 launches of more than 5 microseconds for the host, and of about 2.5 for the
    GPU. On the CPU: 8 answers of 192 pupils, with 48 concepts of 96 numbers.
    """
    pupils, answers, concepts, width = (192, 8, 48, 96) if device == "cpu" else (24, 220, 16, 32)
    tracer = KnowledgeMemory(500, concepts, width).to(device)
    optimizer = torch.optim.Adam(tracer.parameters(), lr=3e-3, betas=(0.9, 0.99))
    while not run.stopping:
        skill = torch.randn(pupils, 1, device=device)
        exercise = torch.randint(0, 500, (pupils, answers), device=device)
        right = (skill + torch.randn(pupils, answers, device=device) > exercise / 500).long()
        loss = F.binary_cross_entropy_with_logits(tracer(exercise, right), right.float())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(tracer.parameters(), 10.0)
        optimizer.step()
        run.log(loss=loss.item(), samples=pupils)


@labelled(
    gpu="compute-bound power-limited", cpu="healthy", needs=("transformers", "accelerate"), adapter=True
)
def essays_with_accumulated_gradients(run: AdapterRun, device: str) -> None:
    """Essays are marked by a wide BERT with accelerate, in bf16 and in four parts for each step.

    On a GPU: 8 layers of width 2560 have 0.63 billion weights. A part of 32 x 512 tokens needs 6 x 0.63
    billion x 16 384 = 62 TFLOP: more than 62 ms at 989 TFLOPS, and some 100 ms at what is reached. A tensor
    of 16 384 x 2560 numbers in bf16 is 84 MB. A layer reads or writes less than 180 of them with its
    gradients, where norms in fp32 count twice: 120 GB in all, less than 30 ms. On the CPU: 2
    layers of width 128 and 4 x 64 tokens.
    """
    from accelerate import Accelerator
    from transformers import BertConfig, BertForSequenceClassification

    from hoptui.integrations.accelerate import HoptuiTracker

    cpu = device == "cpu"
    accelerator = Accelerator(
        cpu=cpu,
        mixed_precision="no" if cpu else "bf16",
        gradient_accumulation_steps=4,
        log_with=HoptuiTracker(),
    )
    batch, tokens = (4, 64) if cpu else (32, 512)
    config = BertConfig(
        vocab_size=8000,
        hidden_size=128 if cpu else 2560,
        num_hidden_layers=2 if cpu else 8,
        num_attention_heads=4 if cpu else 20,
        intermediate_size=512 if cpu else 10_240,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        problem_type="regression",
        num_labels=1,
    )
    with torch.device(accelerator.device):
        model: Any = BertForSequenceClassification(config)
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=2e-5, fused=not cpu)
    essays = TensorDataset(torch.randint(0, 8000, (512, tokens)), 6 * torch.rand(512))
    loader: Any = DataLoader(essays, batch_size=batch, shuffle=True, drop_last=True, pin_memory=not cpu)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    accelerator.init_trackers(run.name)
    tracked, step, total = accelerator.get_tracker("hoptui").tracker, 0, 0.0
    while step < run.iterations and not tracked.stopping:
        for essay, mark in loader:
            with accelerator.accumulate(model):
                loss = model(input_ids=essay, labels=mark).loss
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            total = loss.detach() / 4 + total
            if accelerator.sync_gradients:
                step += 1
                accelerator.log({"loss": float(total)}, step=step)
                total = 0.0
                if step >= run.iterations or tracked.stopping:
                    break
    accelerator.end_training()


class ExerciseBooks(Dataset[tuple[Tensor, int]]):
    """Pages of exercise books: lines of writing on squared paper, photographed at an angle."""

    def __init__(self, pages: int) -> None:
        self.pages = pages

    def __len__(self) -> int:
        return self.pages

    def written(self, rng: random.Random) -> Any:
        """Return a page with squares and lines of writing."""
        from PIL import Image, ImageDraw

        page = Image.new("L", (620, 877), 250)
        pen = ImageDraw.Draw(page)
        for at in range(0, 877, 15):
            pen.line((0, at, 620, at), fill=200)
        for at in range(0, 620, 15):
            pen.line((at, 0, at, 877), fill=200)
        for line in range(24):
            x, y = 30.0, 45.0 + 33 * line
            stroke = []
            for _ in range(160):
                x += rng.uniform(1, 5)
                stroke.append((x, y + rng.gauss(0, 4)))
            pen.line(stroke, fill=40, width=2, joint="curve")  # here
        return page

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        from PIL import Image, ImageFilter, ImageOps

        rng = random.Random(index)
        page = self.written(rng).rotate(rng.uniform(-4, 4), Image.Resampling.BICUBIC, fillcolor=250)  # here
        page = page.filter(ImageFilter.GaussianBlur(rng.uniform(1, 2)))  # here
        page = ImageOps.autocontrast(page, cutoff=1).filter(ImageFilter.MedianFilter(3))  # here
        small = page.resize((96, 128), Image.Resampling.LANCZOS)  # here
        return torch.from_numpy(np.asarray(small).copy())[None], index % 9


@labelled(gpu="data-bound", cpu="data-bound", needs=("PIL",), helpers=(ExerciseBooks,))
def grades_of_exercise_books(run: hoptui.Run, device: str) -> None:
    """The grade of a pupil is read from photographs of pages, which three workers prepare.

    A page of 620 x 877 points is written, rotated, blurred and filtered: more than 30 ms. A batch has 24 of
    them: more than 240 ms with three workers. Two convolutions with a stride of 4 on 128 x 96 points take
    less than 10 ms for their step.
    """
    net = nn.Sequential(
        nn.Conv2d(1, 8, 7, stride=4, padding=3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 5, stride=4),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 9),
    ).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    pages = DataLoader(ExerciseBooks(4800), batch_size=24, num_workers=3, pin_memory=device != "cpu")
    while not run.stopping:
        for page, grade in pages:  # here
            ink = 1 - page.to(device, non_blocking=True).float() / 255
            loss = F.cross_entropy(net(ink), grade.to(device, non_blocking=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss.item(), samples=len(page))
            if run.stopping:
                break


class Turn(NamedTuple):
    """What happened in one lesson."""

    before: list[float]
    topic: int
    gained: float
    after: list[float]


class Classroom:
    """Pupils learn and forget topics that build on each other."""

    def __init__(self, pupils: int, topics: int, seed: int) -> None:
        self.rng = random.Random(seed)
        self.pupils, self.topics = pupils, topics
        self.needed = [[n for n in range(t) if (n * 7 + t) % 3 == 0] for t in range(topics)]
        self.reset()

    def reset(self) -> list[float]:
        """Begin a school year."""
        self.known = [[self.rng.random() * 0.1 for _ in range(self.topics)] for _ in range(self.pupils)]
        self.talent = [self.rng.uniform(0.05, 0.3) for _ in range(self.pupils)]
        self.lesson = 0
        return self.look()

    def look(self) -> list[float]:
        """Return how well each topic is known in the class."""
        return [sum(column) / self.pupils for column in zip(*self.known, strict=True)]

    def teach(self, topic: int) -> tuple[list[float], float]:
        """Hold a lesson, and return what is known afterwards and how much more that is."""
        before = sum(map(sum, self.known))
        for pupil, known in enumerate(self.known):  # here
            ready = 1.0
            for other in self.needed[topic]:  # here
                ready *= 0.6 + 0.4 * known[other]  # here
            known[topic] += self.talent[pupil] * ready * (1 - known[topic])
            for other in range(self.topics):  # here
                if other != topic:  # here
                    known[other] *= 1 - 0.004 * math.exp(-2 * known[other])  # here
        self.lesson += 1
        gained = sum(map(sum, self.known)) - before
        return self.look(), gained / self.pupils


@labelled(gpu="env-bound", cpu="env-bound", helpers=(Classroom,))
def lessons_by_q_learning(run: hoptui.Run, device: str) -> None:
    """Q-learning with a memory of lessons chooses what four simulated classes learn next.

    A lesson changes 30 topics of 300 pupils in Python, more than 0.1 microseconds each, and adds them up:
    more than 0.9 ms. 40 lessons of four classes take more than 140 ms. The network is asked 40 times, less
    than 0.3 ms each, and four updates with 128 lessons take less than 10 ms.
    """
    topics = 30
    classes = [Classroom(300, topics, seed) for seed in range(4)]

    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(topics, 64), nn.ReLU(), nn.Linear(64, topics)).to(device)

    value, slow = make(), make()
    slow.load_state_dict(value.state_dict())
    optimizer = torch.optim.Adam(value.parameters(), lr=1e-3)
    memory: deque[Turn] = deque(maxlen=20_000)
    seen, epsilon = [room.look() for room in classes], 1.0
    while not run.stopping:
        for _ in range(40):
            with torch.no_grad():
                best = value(torch.tensor(seen, device=device)).argmax(-1).tolist()
            for n, room in enumerate(classes):
                topic = random.randrange(topics) if random.random() < epsilon else best[n]
                after, gained = room.teach(topic)  # here
                memory.append(Turn(seen[n], topic, gained, after))
                seen[n] = room.reset() if room.lesson >= 200 else after
        epsilon = max(0.05, 0.98 * epsilon)
        for _ in range(4):
            states, topic_of, gains, later = zip(*random.sample(memory, 128), strict=True)
            before = torch.tensor(states, device=device)
            with torch.no_grad():
                future = slow(torch.tensor(later, device=device)).amax(-1)
            goal = torch.tensor(gains, device=device) + 0.95 * future
            told = value(before).gather(1, torch.tensor(topic_of, device=device)[:, None]).squeeze(1)
            loss = F.smooth_l1_loss(told, goal)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            for old, new in zip(slow.parameters(), value.parameters(), strict=True):
                old.lerp_(new, 0.02)
        run.log(loss=loss.item(), epsilon=epsilon, env_steps=160)


class FourParameterLogistic(nn.Module):
    """A model of item response theory with guessing and slipping."""

    def __init__(self, pupils: int, items: int) -> None:
        super().__init__()
        self.ability = nn.Parameter(torch.zeros(pupils, 1))
        self.difficulty = nn.Parameter(torch.zeros(items))
        self.discrimination = nn.Parameter(torch.zeros(items))
        self.guess = nn.Parameter(torch.full((items,), -2.0))
        self.slip = nn.Parameter(torch.full((items,), -3.0))

    def forward(self) -> Tensor:
        masters = torch.sigmoid(self.discrimination.exp() * (self.ability - self.difficulty))
        low, high = torch.sigmoid(self.guess), 1 - torch.sigmoid(self.slip)
        return low + (high - low) * masters


@labelled(gpu="memory-bandwidth-bound", cpu="healthy")
def items_of_a_national_test(run: hoptui.Run, device: str) -> None:
    """The items of a test are fitted to all answers of a country at once, with Adam.

    On a GPU: 200 000 pupils and 4000 items are 800 million answers, 3.2 GB in float32. The operations read or
    write such a tensor some 28 times forward and more than 32 times backward: 190 GB, more than 40 ms at 4.8
    TB/s. They are less than 150 launches, and no product of matrices. It needs less than 80 GB. On the CPU:
    2000 pupils and 400 items.
    """
    pupils, items = (2000, 400) if device == "cpu" else (200_000, 4000)
    with torch.device(device):
        model = FourParameterLogistic(pupils, items)
        right = (torch.rand(pupils, items) < 0.6).float()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    epoch = 0
    while not run.stopping:
        chance = model().clamp(1e-4, 1 - 1e-4)
        likelihood = right * chance.log() + (1 - right) * torch.log1p(-chance)
        prior = model.ability.square().mean() + 0.1 * model.discrimination.square().mean()
        loss = prior - likelihood.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        epoch += 1
        run.log(loss=loss.item(), epoch=epoch, samples=pupils)
