"""Loads of the second lot that was held out once: they wait for their own Python."""

from __future__ import annotations

import heapq
import io
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as functional
from PIL import Image, ImageDraw
from torch import Tensor, nn

import hoptui
from benchmarks.labelled.catalogue import labelled


def batch_hard_triplets(apart: Any, names: list[int]) -> list[tuple[int, int, int]]:
    """For each face, the least similar one of the same person and the most similar one of another."""
    triplets = []
    for anchor, row in enumerate(apart):
        same = other = anchor
        far, near = -1.0, math.inf
        for i, distance in enumerate(row):  # here
            if names[i] == names[anchor]:  # here
                if distance > far:  # here
                    same, far = i, distance  # here
            elif distance < near:  # here
                other, near = i, distance  # here
        triplets.append((anchor, same, other))
    return triplets


@labelled(gpu="host-bound", cpu="host-bound", helpers=(batch_hard_triplets,))
def faces_in_hard_triplets(run: hoptui.Run, device: str) -> None:
    """Metric learning: the triplets of the loss are mined by loops in Python."""
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16)).to(device)
    optimizer = torch.optim.Adam(net.parameters(), 1e-4)
    faces, names = torch.randn(480, 64, device=device), [random.randrange(40) for _ in range(480)]
    while not run.stopping:
        embedded = functional.normalize(net(faces))
        with torch.no_grad():
            apart = torch.cdist(embedded, embedded).cpu().numpy()
        anchors, same, other = torch.tensor(batch_hard_triplets(apart, names), device=device).T
        loss = functional.triplet_margin_loss(embedded[anchors], embedded[same], embedded[other], margin=0.2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=480)


class Prototypes:
    """Centres of what a network has seen, moved by Lloyd's method."""

    def __init__(self, count: int, width: int) -> None:
        self.centres = np.random.default_rng(0).normal(size=(count, width))

    def nearest(self, points: Any) -> Any:
        squares = ((points[:, None] - self.centres[None]) ** 2).sum(-1)  # here
        return squares.argmin(1)

    def refine(self, points: Any, rounds: int) -> Any:
        for _ in range(rounds):
            owner = self.nearest(points)
            for i in np.unique(owner):
                self.centres[i] = points[owner == i].mean(0)
        return self.nearest(points)


@labelled(gpu="host-bound", cpu="host-bound", helpers=(Prototypes,))
def pseudo_labels_by_clusters(run: hoptui.Run, device: str) -> None:
    """Deep clustering: k-means in numpy gives each step its labels."""
    body, head = nn.Sequential(nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 32)), nn.Linear(32, 30)
    body.to(device), head.to(device)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], 0.05)
    prototypes, x = Prototypes(30, 32), torch.randn(2000, 48, device=device)
    while not run.stopping:
        features = body(x)
        with run.phase("regroup"):
            owner = prototypes.refine(features.detach().cpu().double().numpy(), rounds=4)
        loss = functional.cross_entropy(head(features), torch.from_numpy(owner).to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), groups=len(set(owner.tolist())), samples=2000)


def log_likelihood(emitted: list[list[float]], moved: list[list[float]]) -> float:
    """Of a sequence under a hidden Markov model, by the forward algorithm."""

    def total(values: list[float]) -> float:
        most = max(values)  # here
        return most + math.log(sum([math.exp(value - most) for value in values]))  # here

    states = range(len(moved))
    ahead = emitted[0]
    for now in emitted[1:]:
        ahead = [now[to] + total([ahead[at] + moved[at][to] for at in states]) for to in states]  # here
    return total(ahead)


@labelled(gpu="host-bound", cpu="host-bound", helpers=(log_likelihood,))
def likelihood_of_proteins(run: hoptui.Run, device: str) -> None:
    """Biology: a segmenter of sequences. How likely its output is under a Markov model, is logged."""
    net = nn.Sequential(nn.Embedding(21, 32), nn.Conv1d(32, 32, 1), nn.Linear(32, 8))
    table, head = net[0].to(device), net[2].to(device)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    proteins = torch.randint(0, 21, (16, 90), device=device)
    moved = torch.randn(8, 8).log_softmax(1).tolist()
    while not run.stopping:
        with run.phase("learn"):
            logits = head(table(proteins))
            loss = functional.cross_entropy(logits.flatten(0, 1), proteins.flatten() % 8)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with run.phase("judge"):
            emitted = logits.detach().log_softmax(-1).tolist()
            likely = [log_likelihood(each, moved) for each in emitted]
        run.log(loss=loss.item(), likelihood=sum(likely) / 16, samples=16)


Hypothesis = tuple[float, list[int]]


def extend(beam: list[Hypothesis], scores: list[float]) -> Iterator[Hypothesis]:
    """Each hypothesis with each of the next words. A word that was used already costs more."""
    for score, words in beam:
        for word, gain in enumerate(scores):  # here
            yield score + gain - 0.5 * words.count(word), [*words, word]  # here


def best_texts(table: list[list[float]], width: int) -> list[Hypothesis]:
    """The most likely texts, by a search with a beam of this width."""
    beam: list[Hypothesis] = [(0.0, [])]
    for scores in table:
        beam = heapq.nlargest(width, extend(beam, scores))  # here
    return beam


@labelled(gpu="host-bound", cpu="host-bound", helpers=(extend, best_texts))
def risk_of_the_best_texts(run: hoptui.Run, device: str) -> None:
    """Captions: the loss is the expected error of the texts that a beam search finds."""
    gru, out = nn.GRU(24, 48, batch_first=True).to(device), nn.Linear(48, 120).to(device)
    optimizer = torch.optim.Adam([*gru.parameters(), *out.parameters()], 5e-4)
    images = torch.randn(4, 12, 24, device=device)

    def training_step() -> Tensor:
        likely = out(gru(images)[0]).log_softmax(-1)
        risks = []
        for table, scores in zip(likely.tolist(), likely, strict=True):
            texts = torch.tensor([words for _, words in best_texts(table, 12)], device=device)
            score = scores.gather(1, texts.T).sum(0)
            risks.append((score.softmax(0) * (texts % 2).float().mean(1)).sum())
        return torch.stack(risks).mean()

    while not run.stopping:
        with run.phase("think"):
            risk = training_step()
        optimizer.zero_grad()
        risk.backward()
        optimizer.step()
        run.log(risk=risk.item(), samples=4)


def shape(rewards: list[float], heights: list[float], gamma: float = 0.99) -> list[float]:
    """Add potentials to rewards, and average the returns of one to sixty steps."""
    shaped = [r + gamma * b - a for r, a, b in zip(rewards, heights, [*heights[1:], 0.0], strict=True)]
    returns = []
    for start in range(len(shaped)):
        total, sums, factor = 0.0, 0.0, 1.0
        for reward in shaped[start : start + 60]:  # here
            total += factor * reward  # here
            factor *= gamma  # here
            sums += total  # here
        returns.append(sums / 60)
    return returns


class OfflineLearner:
    """Learns values from games that were recorded long ago."""

    def __init__(self, device: str) -> None:
        self.value = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
        self.optimizer = torch.optim.Adam(self.value.parameters())
        self.states, self.rewards = torch.randn(16, 400, 16, device=device), torch.randn(16, 400).tolist()

    def run_epoch(self) -> float:
        values = self.value(self.states)[..., 0]
        wanted = [shape(*each) for each in zip(self.rewards, values.tolist(), strict=True)]
        loss = functional.smooth_l1_loss(values, torch.tensor(wanted, device=values.device))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


@labelled(gpu="host-bound", cpu="host-bound", helpers=(shape,))
def shaped_rewards_of_old_games(run: hoptui.Run, device: str) -> None:
    """Offline learning: the states are on the device, and the targets are made in Python from the values."""
    learner = OfflineLearner(device)
    while not run.stopping:
        run.log(loss=learner.run_epoch(), samples=6400)


def eisner(scores: list[list[float]]) -> float:
    """The score of the best projective tree of a sentence, by dynamic programming."""
    n = len(scores)
    left, right = [[0.0] * n for _ in range(n)], [[0.0] * n for _ in range(n)]
    to_left, to_right = [[0.0] * n for _ in range(n)], [[0.0] * n for _ in range(n)]
    for width in range(1, n):
        for i in range(n - width):
            j = i + width
            joined = max([right[i][k] + left[k + 1][j] for k in range(i, j)])  # here
            to_left[i][j], to_right[i][j] = joined + scores[j][i], joined + scores[i][j]
            left[i][j] = max([left[i][k] + to_left[k][j] for k in range(i, j)])  # here
            right[i][j] = max([to_right[i][k] + right[k][j] for k in range(i + 1, j + 1)])  # here
    return right[0][n - 1]


@labelled(gpu="host-bound", cpu="host-bound", helpers=(eisner,))
def margins_of_parse_trees(run: hoptui.Run, device: str) -> None:
    """Parsing: the margin of the loss of a sentence depends on its best tree."""
    words = torch.randn(6, 40, 32, device=device)
    heads, parts = nn.Linear(32, 24).to(device), nn.Linear(32, 24).to(device)
    optimizer = torch.optim.Adam([*heads.parameters(), *parts.parameters()], 1e-3)
    while not run.stopping:
        scores = heads(words) @ parts(words).transpose(1, 2)
        best = torch.tensor([eisner(each) for each in scores.tolist()], device=device)
        chain = scores.diagonal(1, 1, 2).sum(1)
        loss = functional.relu(1 + best / 40 - chain / 40).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(hinge=loss.item(), samples=6)


class Chart:
    """A callback that draws what each unit does, as a picture for a web page."""

    def __init__(self) -> None:
        self.page: dict[int, bytes] = {}

    def on_step_end(self, step: int, units: list[list[float]]) -> None:
        picture = Image.new("RGB", (960, 720), "white")
        pen = ImageDraw.Draw(picture)
        for i, unit in enumerate(units):
            curve = [(4 * x, 11 * i + 10 * value) for x, value in enumerate(unit)]  # here
            pen.line(curve, fill=(3 * i, 90, 200), width=2)  # here
        file = io.BytesIO()
        picture.save(file, "PNG")  # here
        self.page[step % 5] = file.getvalue()


def train(net: nn.Module, x: Tensor, run: hoptui.Run, callbacks: list[Callable[[int, Any], None]]) -> None:
    """Train an autoencoder, and tell the callbacks of each step."""
    optimizer, step = torch.optim.SGD(net.parameters(), 0.1), 0
    while not run.stopping:
        guess = net(x).sigmoid()
        loss = functional.mse_loss(guess, x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for callback in callbacks:
            callback(step, guess.detach().tolist())
        step += 1
        run.log(loss=loss.item(), samples=len(x))


@labelled(gpu="host-bound", cpu="host-bound", helpers=(Chart,))
def curves_drawn_by_a_callback(run: hoptui.Run, device: str) -> None:
    """Monitoring: a chart of all outputs is drawn after each step, and kept in memory."""
    net = nn.Sequential(nn.Linear(240, 32), nn.Linear(32, 240)).to(device)
    train(net, torch.rand(64, 240, device=device), run, [Chart().on_step_end])
