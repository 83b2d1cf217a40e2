"""Training loops that rank and recommend, in the manner of public repositories."""

# The names are those that the authors of such repositories use.
# ruff: noqa: N803, N806

from __future__ import annotations

import math
import random
from collections.abc import Callable
from multiprocessing import Process, Queue
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import hoptui
from benchmarks.labelled.catalogue import labelled

Array = npt.NDArray[Any]

# SASRec


def random_neq(popularity: Array, s: set[int]) -> int:
    t = np.random.choice(len(popularity), p=popularity) + 1
    while t in s:
        t = np.random.choice(len(popularity), p=popularity) + 1
    return int(t)


def sample_function(
    user_train: dict[int, list[int]], usernum: int, itemnum: int, batch_size: int, maxlen: int,
    result_queue: Queue[Any], seed: int,
) -> None:  # fmt: skip
    def sample() -> tuple[int, Array, Array, Array]:
        user = np.random.randint(1, usernum + 1)
        seq, pos, neg = (np.zeros([maxlen], dtype=np.int32) for _ in range(3))
        nxt, idx = user_train[user][-1], maxlen - 1
        ts = set(user_train[user])
        for i in reversed(user_train[user][:-1]):
            seq[idx] = i
            pos[idx] = nxt
            neg[idx] = random_neq(popularity, ts)
            nxt = i
            idx -= 1
            if idx == -1:
                break
        return user, seq, pos, neg

    popularity = 1.0 / np.arange(10, itemnum + 10)
    popularity /= popularity.sum()
    np.random.seed(seed)
    while True:
        one_batch = [sample() for _ in range(batch_size)]
        result_queue.put(list(zip(*one_batch, strict=True)))


class WarpSampler:
    """Batches that other processes draw."""

    def __init__(
        self, User: dict[int, list[int]], usernum: int, itemnum: int, batch_size: int, maxlen: int,
        n_workers: int = 1,
    ) -> None:  # fmt: skip
        self.result_queue: Queue[Any] = Queue(maxsize=n_workers * 10)
        self.processors = []
        for _ in range(n_workers):
            args = (
                User,
                usernum,
                itemnum,
                batch_size,
                maxlen,
                self.result_queue,
                np.random.randint(2 * 10**9),
            )
            self.processors.append(Process(target=sample_function, args=args))
            self.processors[-1].daemon = True
            self.processors[-1].start()

    def next_batch(self) -> Any:
        return self.result_queue.get()  # here

    def close(self) -> None:
        for p in self.processors:
            p.terminate()
            p.join()


class SASRec(nn.Module):
    def __init__(self, item_num: int, hidden_units: int, maxlen: int) -> None:
        super().__init__()
        self.item_emb = nn.Embedding(item_num + 1, hidden_units, padding_idx=0)
        self.pos_emb = nn.Embedding(maxlen, hidden_units)
        self.attention_layer = nn.MultiheadAttention(hidden_units, 1, batch_first=True)
        self.forward_layer = nn.Linear(hidden_units, hidden_units)

    def forward(self, log_seqs: Tensor, pos_seqs: Tensor, neg_seqs: Tensor) -> tuple[Tensor, Tensor]:
        length = log_seqs.shape[1]
        seqs = self.item_emb(log_seqs) + self.pos_emb(torch.arange(length, device=log_seqs.device))
        mask = torch.ones((length, length), dtype=torch.bool, device=log_seqs.device).triu(1)
        log_feats = self.attention_layer(seqs, seqs, seqs, attn_mask=mask, need_weights=False)[0]
        log_feats = seqs + F.relu(self.forward_layer(log_feats))
        pos_logits = (log_feats * self.item_emb(pos_seqs)).sum(dim=-1)
        return pos_logits, (log_feats * self.item_emb(neg_seqs)).sum(dim=-1)


@labelled(gpu="data-bound", cpu="data-bound", helpers=(WarpSampler,))
def sasrec_warp_sampler(run: hoptui.Run, device: str) -> None:
    """In the manner of SASRec.pytorch's main.py: one process draws negatives by popularity."""
    usernum, itemnum, maxlen = 2000, 3000, 50
    user_train = {u: np.random.randint(1, itemnum + 1, 60).tolist() for u in range(1, usernum + 1)}
    sampler = WarpSampler(user_train, usernum, itemnum, batch_size=128, maxlen=maxlen)
    model = SASRec(itemnum, 16, maxlen).to(device)
    adam_optimizer = torch.optim.Adam(model.parameters(), lr=0.001, betas=(0.9, 0.98))
    try:
        while not run.stopping:
            _, seq, pos, neg = sampler.next_batch()  # here
            seq, pos, neg = (torch.from_numpy(np.array(part)).long().to(device) for part in (seq, pos, neg))
            pos_logits, neg_logits = model(seq, pos, neg)
            adam_optimizer.zero_grad()
            loss = F.softplus(-pos_logits).mean() + F.softplus(neg_logits).mean()
            loss.backward()
            adam_optimizer.step()
            run.log(loss=loss.item(), samples=len(seq))
    finally:
        sampler.close()


# DeepCTR


def log_loss(y_true: Array, y_pred: Array) -> float:
    total = 0.0
    for y, p in zip(y_true, y_pred, strict=True):  # here
        p = min(max(p, 1e-7), 1 - 1e-7)  # here
        total -= math.log(p) if y == 1 else math.log(1 - p)  # here
    return total / len(y_true)


def roc_auc_score(y_true: Array, y_pred: Array) -> float:
    pairs = sorted(zip(y_pred.tolist(), y_true.tolist(), strict=True))  # here
    rank_sum, positives = 0.0, 0
    for rank, (_, y) in enumerate(pairs, 1):  # here
        if y == 1:  # here
            rank_sum += rank  # here
            positives += 1  # here
    negatives = len(pairs) - positives
    return (rank_sum - positives * (positives + 1) / 2) / max(positives * negatives, 1)


def gauc(y_true: Array, y_pred: Array, users: Array) -> float:
    """The mean AUC of the users, by their numbers of impressions."""
    groups: dict[int, list[int]] = {}
    for i, user in enumerate(users.tolist()):
        groups.setdefault(user, []).append(i)  # here
    total, impressions = 0.0, 0
    for rows in groups.values():
        labels = y_true[rows]
        if 0 < labels.sum() < len(rows):  # here
            total += roc_auc_score(labels, y_pred[rows]) * len(rows)  # here
            impressions += len(rows)
    return total / max(impressions, 1)


class DeepFM(nn.Module):
    def __init__(self, fields: int, vocabulary: int, embedding_dim: int = 4) -> None:
        super().__init__()
        self.embedding_dict = nn.ModuleList(nn.Embedding(vocabulary, embedding_dim) for _ in range(fields))
        self.linear_model = nn.ModuleList(nn.Embedding(vocabulary, 1) for _ in range(fields))
        self.dnn = nn.Sequential(nn.Linear(fields * embedding_dim, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, X: Tensor) -> Tensor:
        embeddings = torch.stack([emb(X[:, i]) for i, emb in enumerate(self.embedding_dict)], dim=1)
        logit = torch.cat([emb(X[:, i]) for i, emb in enumerate(self.linear_model)], dim=1).sum(1)
        square_of_sum, sum_of_square = embeddings.sum(1).square(), embeddings.square().sum(1)
        logit = logit + 0.5 * (square_of_sum - sum_of_square).sum(1)
        return torch.sigmoid(logit + self.dnn(embeddings.flatten(1)).squeeze(1))


@labelled(gpu="host-bound", cpu="host-bound", helpers=(log_loss, roc_auc_score, gauc))
def deepctr_metrics(run: hoptui.Run, device: str) -> None:
    """In the manner of DeepCTR-Torch's BaseModel.fit with verbose=1: every step computes its metrics."""
    x = torch.randint(100, (65_536, 2))
    users = np.random.randint(0, 1500, 65_536)
    y = (torch.rand(65_536) < 0.25).float()
    model = DeepFM(2, 100).to(device)
    optim = torch.optim.Adam(model.parameters())
    metrics: dict[str, Callable[[Array, Array], float]] = {
        "binary_crossentropy": log_loss, "auc": roc_auc_score,
    }  # fmt: skip
    while not run.stopping:
        train_result: dict[str, list[float]] = {}
        for start in range(0, len(x), 16_384):
            rows = slice(start, start + 16_384)
            y_train = y[rows].to(device)
            y_pred = model(x[rows].to(device))
            optim.zero_grad()
            loss = F.binary_cross_entropy(y_pred, y_train, reduction="sum")
            loss.backward()
            optim.step()
            y_cpu, y_pred_cpu = y_train.cpu().numpy(), y_pred.detach().cpu().numpy().astype("float64")
            for name, metric_fun in metrics.items():
                train_result.setdefault(name, []).append(metric_fun(y_cpu, y_pred_cpu))  # here
            train_result.setdefault("gauc", []).append(gauc(y_cpu, y_pred_cpu, users[rows]))  # here
            run.log(loss=loss.item(), auc=train_result["auc"][-1], samples=len(y_cpu))
            if run.stopping:
                break


# LambdaRank


def lambdas_of_query(y_pred: Array, rel: Array) -> Array:
    """Return the gradient of the scores of the documents of one query."""
    rank_order = np.empty(len(rel), dtype=int)
    rank_order[np.argsort(-y_pred)] = np.arange(1, len(rel) + 1)
    ideal = np.sort(rel)[::-1]
    N = 1.0 / max(float(((2.0**ideal - 1) / np.log2(np.arange(2, len(rel) + 2))).sum()), 1e-9)
    grad = np.zeros(len(rel), np.float32)
    for i in range(len(rel)):
        gain_diff = 2.0 ** rel[i] - 2.0**rel  # here
        decay_diff = 1.0 / np.log2(rank_order[i] + 1) - 1.0 / np.log2(rank_order + 1)  # here
        pushes = N / (1.0 + np.exp(np.sign(gain_diff) * (y_pred[i] - y_pred)))  # here
        grad[i] = -(np.sign(gain_diff) * pushes * np.abs(gain_diff * decay_diff)).sum()  # here
    return grad


@labelled(gpu="host-bound", cpu="host-bound", helpers=(lambdas_of_query,))
def lambdarank_queries(run: hoptui.Run, device: str) -> None:
    """In the manner of LambdaRank.py of public rankers: NumPy makes the gradients, document by document."""
    net = nn.Sequential(nn.Linear(136, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)
    queries = [(torch.randn(n, 136).to(device), np.random.randint(0, 5, n)) for n in range(60, 100)]
    while not run.stopping:
        y_preds = [net(x).squeeze(1) for x, _ in queries[:24]]
        grads, total = [], 0.0
        for y_pred, (_, rel) in zip(y_preds, queries, strict=False):
            lambdas = lambdas_of_query(y_pred.detach().cpu().numpy(), rel)  # here
            grads.append(torch.from_numpy(lambdas).to(device))
            total += float(np.abs(lambdas).sum())
        optimizer.zero_grad()
        torch.autograd.backward(y_preds, grads)
        optimizer.step()
        random.shuffle(queries)
        run.log(loss=total, samples=24)


# RotatE


class KGEModel(nn.Module):
    def __init__(self, nentity: int, nrelation: int, hidden_dim: int, gamma: float = 12.0) -> None:
        super().__init__()
        self.gamma, self.embedding_range = gamma, (gamma + 2.0) / hidden_dim
        self.entity_embedding = nn.Parameter(torch.empty(nentity, hidden_dim * 2))
        self.relation_embedding = nn.Parameter(torch.empty(nrelation, hidden_dim))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -self.embedding_range, self.embedding_range)

    def forward(self, head: Tensor, relation: Tensor, tail: Tensor) -> Tensor:
        head = self.entity_embedding.index_select(0, head).unsqueeze(1)
        phase = (
            self.relation_embedding.index_select(0, relation).unsqueeze(1) * math.pi / self.embedding_range
        )
        negative = self.entity_embedding.index_select(0, tail.view(-1)).view(*tail.shape, -1)
        re_head, im_head = torch.chunk(head, 2, dim=2)
        re_tail, im_tail = torch.chunk(negative, 2, dim=2)
        re_score = re_head * torch.cos(phase) - im_head * torch.sin(phase) - re_tail
        im_score = re_head * torch.sin(phase) + im_head * torch.cos(phase) - im_tail
        score: Tensor = self.gamma - torch.stack([re_score, im_score], dim=0).norm(dim=0).sum(dim=2)
        return score


@labelled(gpu="memory-bandwidth-bound", cpu="healthy")
def rotate_on_a_large_graph(run: hoptui.Run, device: str) -> None:
    """In the manner of KnowledgeGraphEmbedding's run.py: all entities have a gradient, and Adam."""
    nentity, batch, negatives = (2_000, 128, 64) if device == "cpu" else (24_000_000, 1024, 64)
    kge_model = KGEModel(nentity, 1000, 32).to(device)
    optimizer = torch.optim.Adam(kge_model.parameters(), lr=1e-4)
    while not run.stopping:
        head = torch.randint(nentity, (batch,), device=device)
        relation = torch.randint(1000, (batch,), device=device)
        tail = torch.randint(nentity, (batch, negatives), device=device)
        optimizer.zero_grad()
        score = kge_model(head, relation, tail)
        positive_score, negative_score = score[:, :1], score[:, 1:]
        loss = -F.logsigmoid(positive_score).mean() - F.logsigmoid(-negative_score).mean()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=batch)
