"""Loops in the manner of public scripts whose metrics, logs and bookkeeping keep the GPU waiting."""

# ruff: noqa: N806
from __future__ import annotations

import random
import struct
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import hoptui
from benchmarks.labelled.catalogue import labelled

Array = npt.NDArray[Any]
Transition = tuple[Array, int, float, Array]


# Prioritized replay
class SumTree:
    """A binary tree whose nodes are the sums of the priorities below."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.tree = np.zeros(2 * capacity - 1)
        self.data: list[Any] = [None] * capacity
        self.write = 0

    def _propagate(self, idx: int, change: float) -> None:  # here
        parent = (idx - 1) // 2  # here
        self.tree[parent] += change  # here
        if parent != 0:  # here
            self._propagate(parent, change)  # here

    def _retrieve(self, idx: int, s: float) -> int:  # here
        left, right = 2 * idx + 1, 2 * idx + 2  # here
        if left >= len(self.tree):  # here
            return idx
        if s <= self.tree[left]:  # here
            return self._retrieve(left, s)  # here
        return self._retrieve(right, s - self.tree[left])  # here

    def total(self) -> float:
        return float(self.tree[0])

    def add(self, p: float, data: Any) -> None:
        self.data[self.write] = data
        self.update(self.write + self.capacity - 1, p)
        self.write = (self.write + 1) % self.capacity

    def update(self, idx: int, p: float) -> None:
        change = p - self.tree[idx]  # here
        self.tree[idx] = p  # here
        self._propagate(idx, change)

    def get(self, s: float) -> tuple[int, float, Any]:
        idx = self._retrieve(0, s)
        return idx, self.tree[idx], self.data[idx - self.capacity + 1]  # here


class Memory:
    """Stored transitions, which are drawn by their errors."""

    e, a, beta = 0.01, 0.6, 0.4

    def __init__(self, capacity: int) -> None:
        self.tree = SumTree(capacity)
        self.capacity = capacity

    def _get_priority(self, error: float) -> float:
        return float((np.abs(error) + self.e) ** self.a)  # here

    def add(self, error: float, sample: Transition) -> None:
        self.tree.add(self._get_priority(error), sample)

    def sample(self, n: int) -> tuple[list[Transition], list[int], Array]:
        batch, idxs, priorities = [], [], []
        segment = self.tree.total() / n
        for i in range(n):
            s = random.uniform(segment * i, segment * (i + 1))  # here
            idx, p, data = self.tree.get(s)
            priorities.append(p)  # here
            batch.append(data)
            idxs.append(idx)
        is_weight = (self.capacity * np.array(priorities) / self.tree.total()) ** -self.beta
        return batch, idxs, is_weight / is_weight.max()

    def update(self, idx: int, error: float) -> None:
        self.tree.update(idx, self._get_priority(error))


@labelled(gpu="host-bound data-bound", cpu="host-bound data-bound", helpers=(SumTree, Memory))
def prioritized_dqn(run: hoptui.Run, device: str) -> None:
    """In the manner of rlcode/per: the sum tree of prioritized replay is walked in Python for each sample."""
    memory, batch_size = Memory(2**20), 4096
    for _ in range(20_000):
        memory.add(random.random(), (np.random.rand(8).astype(np.float32), 1, 0.5, np.zeros(8, np.float32)))
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4)).to(device)
    target_model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    while not run.stopping:
        mini_batch, idxs, is_weights = memory.sample(batch_size)
        states, actions, rewards, next_states = zip(*mini_batch, strict=True)
        pred = model(torch.from_numpy(np.stack(states)).to(device))
        pred = pred.gather(1, torch.tensor(actions, device=device)[:, None]).squeeze(1)
        with torch.no_grad():
            next_pred = target_model(torch.from_numpy(np.stack(next_states)).to(device)).max(1)[0]
        target = torch.tensor(rewards, device=device) + 0.99 * next_pred
        errors = torch.abs(pred - target).detach().cpu().numpy()
        for i in range(batch_size):
            memory.update(idxs[i], errors[i])  # here
        optimizer.zero_grad()
        weights = torch.from_numpy(is_weights).float().to(device)
        loss = (weights * F.mse_loss(pred, target, reduction="none")).mean()
        loss.backward()
        optimizer.step()
        run.log(loss=loss, samples=batch_size)


# Text in pictures
def reconstruct(labels: tuple[int, ...], blank: int = 0) -> tuple[int, ...]:
    """Merge what is repeated, and leave out the blanks."""
    merged = [label for i, label in enumerate(labels) if i == 0 or label != labels[i - 1]]
    return tuple(label for label in merged if label != blank)


def beam_search_decode(emission_log_prob: Array, beam_size: int, threshold: float) -> tuple[int, ...]:
    """Return the most probable text."""
    beams: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    for log_probs in emission_log_prob.tolist():
        new_beams = []
        for prefix, accumulated in beams:
            for c, log_prob in enumerate(log_probs):  # here
                if log_prob > threshold:  # here
                    new_beams.append(((*prefix, c), accumulated + log_prob))  # here
        new_beams.sort(key=lambda x: x[1], reverse=True)  # here
        beams = new_beams[:beam_size]
    total: dict[tuple[int, ...], float] = {}
    for prefix, accumulated in beams:
        labels = reconstruct(prefix)
        total[labels] = float(np.logaddexp(total.get(labels, -np.inf), accumulated))
    return max(total, key=lambda labels: total[labels])


class CRNN(nn.Module):
    def __init__(self, num_class: int, map_to_seq_hidden: int, rnn_hidden: int) -> None:
        super().__init__()
        self.cnn = nn.Sequential(nn.Conv2d(1, 16, 3, (4, 2), 1), nn.ReLU(True), nn.Conv2d(16, 32, (8, 3)))
        self.map_to_seq = nn.Linear(32, map_to_seq_hidden)
        self.rnn = nn.LSTM(map_to_seq_hidden, rnn_hidden, bidirectional=True)
        self.dense = nn.Linear(2 * rnn_hidden, num_class)

    def forward(self, images: Tensor) -> Tensor:
        conv = self.cnn(images).squeeze(2).permute(2, 0, 1)
        recurrent, _ = self.rnn(self.map_to_seq(conv))
        return self.dense(recurrent)  # type: ignore[no-any-return]


@labelled(gpu="host-bound", cpu="host-bound", helpers=(beam_search_decode,))
def crnn_beam_search(run: hoptui.Run, device: str) -> None:
    """In the manner of train.py of crnn-pytorch: each batch is decoded with beam search."""
    num_class, batch_size = 37, 16
    crnn = CRNN(num_class, 32, 32).to(device)
    criterion = nn.CTCLoss(reduction="sum", zero_infinity=True)
    optimizer = torch.optim.RMSprop(crnn.parameters(), lr=0.0005)
    images = torch.rand(batch_size, 1, 32, 128, device=device)
    targets = torch.randint(1, num_class, (batch_size, 10))
    target_lengths = torch.full((batch_size,), 10)
    reals = [tuple(target) for target in targets.tolist()]
    while not run.stopping:
        log_probs = F.log_softmax(crnn(images), dim=2)
        input_lengths = torch.full((batch_size,), log_probs.size(0))
        loss = criterion(log_probs, targets.to(device), input_lengths, target_lengths) / batch_size
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(crnn.parameters(), 5)
        optimizer.step()

        emissions = log_probs.detach().transpose(0, 1).cpu().numpy()
        preds = [beam_search_decode(emission, beam_size=10, threshold=-20.0) for emission in emissions]
        tot_correct = sum(pred == real for pred, real in zip(preds, reals, strict=True))
        run.log(loss=loss, accuracy=tot_correct / batch_size, samples=batch_size)


# Detection
def bbox_iou(box: Array, boxes: Array) -> Array:
    inter_tl = np.maximum(box[:2], boxes[:, :2])  # here
    inter_br = np.minimum(box[2:4], boxes[:, 2:4])  # here
    inter_area = np.prod(np.clip(inter_br - inter_tl + 1, 0, None), axis=1)  # here
    b1_area = np.prod(box[2:4] - box[:2] + 1)  # here
    b2_area = np.prod(boxes[:, 2:4] - boxes[:, :2] + 1, axis=1)  # here
    return np.asarray(inter_area / (b1_area + b2_area - inter_area + 1e-16))  # here


def non_max_suppression(prediction: Array, conf_thres: float = 0.1, nms_thres: float = 0.5) -> list[Array]:
    """Keep the best of the boxes that overlap, image by image."""
    output = []
    for image_pred in prediction:
        detections = image_pred[image_pred[:, 4] >= conf_thres]
        detections = detections[np.argsort(-detections[:, 4])]
        keep_boxes: list[Array] = []
        while len(detections) and len(keep_boxes) < 300:
            large_overlap = bbox_iou(detections[0, :4], detections[:, :4]) > nms_thres
            keep_boxes.append(detections[0])
            detections = detections[~large_overlap]  # here
        output.append(np.stack(keep_boxes) if keep_boxes else np.zeros((0, 6)))
    return output


def get_batch_statistics(outputs: list[Array], targets: Array, iou_threshold: float) -> list[list[Array]]:
    """Compute true positives, scores and labels of each sample."""
    batch_metrics = []
    for sample_i, output in enumerate(outputs):
        true_positives = np.zeros(len(output))
        annotations = targets[targets[:, 0] == sample_i][:, 1:]
        detected_boxes: list[int] = []
        for pred_i, pred_box in enumerate(output):
            ious = bbox_iou(pred_box[:4], annotations[:, 1:])
            box_index = int(ious.argmax())  # here
            if ious[box_index] >= iou_threshold and box_index not in detected_boxes:  # here
                true_positives[pred_i] = 1
                detected_boxes.append(box_index)
        batch_metrics.append([true_positives, output[:, 4], output[:, 5]])
    return batch_metrics


class TinyYOLO(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.module_list = nn.Sequential(
            nn.Conv2d(3, 8, 8, 8), nn.LeakyReLU(0.1), nn.Conv2d(8, 16, 3, 1, 1), nn.LeakyReLU(0.1)
        )
        self.yolo = nn.Conv2d(16, 3 * 6, 1)
        rows, columns = torch.meshgrid(torch.arange(16), torch.arange(16), indexing="ij")
        self.register_buffer("grid", torch.stack([columns, rows], -1).view(-1, 2).repeat(3, 1))

    def forward(self, x: Tensor) -> Tensor:
        out = self.yolo(self.module_list(x)).view(len(x), 3, 6, -1).transpose(2, 3).flatten(1, 2)
        xy, wh = (out[..., :2].sigmoid() + self.grid) * 8, out[..., 2:4].exp() * 6
        return torch.cat([xy - wh / 2, xy + wh / 2, out[..., 4:5].sigmoid(), out[..., 5:]], -1)


@labelled(gpu="host-bound", cpu="host-bound", helpers=(bbox_iou, non_max_suppression, get_batch_statistics))
def yolo_batch_statistics(run: hoptui.Run, device: str) -> None:
    """In the manner of PyTorch-YOLOv3: NMS and statistics of each training batch, on the host."""
    imgs = torch.rand(8, 3, 128, 128, device=device)
    corners = np.random.uniform(0, 100, (64, 2))
    sample_idx, labels = np.repeat(np.arange(8.0), 8)[:, None], np.zeros((64, 1))
    targets = np.concatenate([sample_idx, labels, corners, corners + 20], 1)
    true_boxes = torch.from_numpy(targets[:, 2:]).float().view(8, 8, 4).to(device)
    model = TinyYOLO().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    while not run.stopping:
        outputs = model(imgs)
        box_loss = (outputs[:, ::96, :4] - true_boxes).abs().mean()
        obj_loss = F.binary_cross_entropy(outputs[..., 4], torch.full_like(outputs[..., 4], 0.5))
        loss = box_loss / 100 + obj_loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

        detections = non_max_suppression(outputs.detach().cpu().numpy())
        sample_metrics = get_batch_statistics(detections, targets, iou_threshold=0.5)
        true_positives = np.concatenate([metrics[0] for metrics in sample_metrics])
        run.log(loss=loss, precision=float(true_positives.mean()), samples=len(imgs))


# Captions
Counts = dict[tuple[int, ...], int]


def precook(words: list[int], n: int = 4) -> Counts:
    """Count the n-grams of a sentence."""
    counts: Counts = defaultdict(int)
    for k in range(1, n + 1):
        for i in range(len(words) - k + 1):
            counts[tuple(words[i : i + k])] += 1  # here
    return counts


class CiderScorer:
    """Compares captions with references, with weights for rare n-grams."""

    def __init__(self, document_frequency: Counts, ref_len: float, n: int = 4) -> None:
        self.document_frequency, self.ref_len, self.n = document_frequency, ref_len, n

    def counts2vec(self, cnts: Counts) -> tuple[list[dict[tuple[int, ...], float]], list[float], int]:
        vec: list[dict[tuple[int, ...], float]] = [defaultdict(float) for _ in range(self.n)]
        norm, length = [0.0] * self.n, 0
        for ngram, term_freq in cnts.items():
            df = np.log(max(1.0, self.document_frequency.get(ngram, 0)))  # here
            n = len(ngram) - 1  # here
            vec[n][ngram] = float(term_freq) * (self.ref_len - df)  # here
            norm[n] += pow(vec[n][ngram], 2)  # here
            length += term_freq if n == 1 else 0  # here
        return vec, [float(np.sqrt(x)) for x in norm], length

    def score(self, hypo: list[int], refs: list[list[int]]) -> float:
        vec, norm, length = self.counts2vec(precook(hypo))
        total = 0.0
        for ref in refs:
            vec_ref, norm_ref, length_ref = self.counts2vec(precook(ref))
            for n in range(self.n):
                ours, theirs = vec[n], vec_ref[n]
                val = sum(min(ours[ngram], theirs[ngram]) * theirs[ngram] for ngram in ours)  # here
                if norm[n] and norm_ref[n]:
                    total += val / (norm[n] * norm_ref[n]) * np.exp(-((length - length_ref) ** 2) / 72)
        return total / self.n / len(refs) * 10.0


class CaptionModel(nn.Module):
    def __init__(self, vocab_size: int, size: int) -> None:
        super().__init__()
        self.embed, self.core = nn.Embedding(vocab_size, size), nn.LSTMCell(size, size)
        self.logit = nn.Linear(size, vocab_size)

    def sample(self, fc_feats: Tensor, greedy: bool, seq_length: int = 16) -> tuple[Tensor, Tensor]:
        state = (fc_feats, torch.zeros_like(fc_feats))
        it = torch.zeros(len(fc_feats), dtype=torch.long, device=fc_feats.device)
        seq, seq_logprobs = [], []
        for _ in range(seq_length):
            state = self.core(self.embed(it), state)
            logprobs = F.log_softmax(self.logit(state[0]), dim=1)
            it = logprobs.argmax(1) if greedy else torch.multinomial(logprobs.detach().exp(), 1)[:, 0]
            seq.append(it)
            seq_logprobs.append(logprobs.gather(1, it[:, None])[:, 0])
        return torch.stack(seq, 1), torch.stack(seq_logprobs, 1)


@labelled(gpu="host-bound", cpu="host-bound", helpers=(precook, CiderScorer))
def self_critical_captions(run: hoptui.Run, device: str) -> None:
    """In the manner of ImageCaptioning.pytorch: the reward of self-critical training is CIDEr in Python."""
    vocab_size, batch_size = 200, 128
    data_gts = [[random.choices(range(vocab_size), k=14) for _ in range(5)] for _ in range(batch_size)]
    document_frequency: Counts = defaultdict(int)
    for refs in data_gts:
        for ngram in {ngram for ref in refs for ngram in precook(ref)}:
            document_frequency[ngram] += 1
    CiderD_scorer = CiderScorer(document_frequency, float(np.log(batch_size)))
    model = CaptionModel(vocab_size, 32).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
    fc_feats = torch.randn(batch_size, 32, device=device)

    def get_self_critical_reward(greedy_res: list[list[int]], gen_result: list[list[int]]) -> Array:
        scores = [CiderD_scorer.score(hypo, data_gts[i]) for i, hypo in enumerate(gen_result)]
        baseline = [CiderD_scorer.score(hypo, data_gts[i]) for i, hypo in enumerate(greedy_res)]
        return np.asarray(np.array(scores) - np.array(baseline))

    while not run.stopping:
        with torch.no_grad():
            greedy_res, _ = model.sample(fc_feats, greedy=True)
        gen_result, sample_logprobs = model.sample(fc_feats, greedy=False)
        reward = get_self_critical_reward(greedy_res.tolist(), gen_result.tolist())
        loss = -(sample_logprobs * torch.from_numpy(reward).float().to(device)[:, None]).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.1)
        optimizer.step()
        run.log(loss=loss, reward=float(reward.mean()), samples=batch_size)


# Segmentation
def default_bins() -> Array:
    v, buckets = 1e-12, []
    while v < 1e20:
        buckets.append(v)
        v *= 1.1
    return np.array([-x for x in reversed(buckets)] + [0.0, *buckets])


class SummaryWriter:
    """Writes scalars and histograms to a file, as TensorBoard does."""

    def __init__(self, log_dir: str) -> None:
        self.file = (Path(log_dir) / "events.out").open("wb")
        self.bins = default_bins()

    def add_scalar(self, tag: str, value: float, global_step: int) -> None:
        self.file.write(tag.encode() + struct.pack("<id", global_step, value))

    def add_histogram(self, tag: str, values: Array, global_step: int) -> None:
        values = values.astype(np.float64).reshape(-1)  # here
        counts, limits = np.histogram(values, bins=self.bins)  # here
        nonzero = np.flatnonzero(counts)
        self.file.write(tag.encode() + struct.pack("<id", global_step, values.dot(values)))  # here
        self.file.write(struct.pack("<ddd", values.min(), values.max(), values.sum()))  # here
        self.file.write(counts[nonzero].tobytes() + limits[nonzero].tobytes())

    def close(self) -> None:
        self.file.close()


class UNet(nn.Module):
    def __init__(self, n_channels: int, n_classes: int, width: int) -> None:
        super().__init__()
        self.inc = nn.Conv2d(n_channels, width, 3, padding=1)
        self.down1, self.down2 = nn.Conv2d(width, 4 * width, 4, 4), nn.Conv2d(4 * width, 16 * width, 4, 4)
        self.mid = nn.Conv2d(16 * width, 16 * width, 3, padding=1)
        self.up1 = nn.ConvTranspose2d(16 * width, 4 * width, 4, 4)
        self.up2 = nn.ConvTranspose2d(4 * width, width, 4, 4)
        self.outc = nn.Conv2d(width, n_classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        x1 = F.relu(self.inc(x))
        x2 = F.relu(self.down1(x1))
        x3 = F.relu(self.mid(F.relu(self.down2(x2))))
        x = F.relu(self.up1(x3)) + x2
        return self.outc(F.relu(self.up2(x)) + x1)  # type: ignore[no-any-return]


@labelled(gpu="host-bound", cpu="host-bound", helpers=(SummaryWriter,))
def unet_weight_histograms(run: hoptui.Run, device: str) -> None:
    """In the manner of train.py of Pytorch-UNet: histograms of weights and gradients are written."""
    net = UNet(3, 1, 32).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)
    criterion = nn.BCEWithLogitsLoss()
    global_step = 0
    with tempfile.TemporaryDirectory() as log_dir:
        writer = SummaryWriter(log_dir)
        while not run.stopping:
            with run.phase("train"):
                imgs = torch.rand(1, 3, 32, 32, device=device)
                true_masks = torch.randint(0, 2, (1, 1, 32, 32), device=device).float()
                loss = criterion(net(imgs), true_masks)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            with run.phase("tensorboard"):
                writer.add_scalar("Loss/train", loss.item(), global_step)
                for tag, value in net.named_parameters():
                    tag = tag.replace(".", "/")
                    writer.add_histogram("weights/" + tag, value.data.cpu().numpy(), global_step)
                    if value.grad is not None:
                        writer.add_histogram("grads/" + tag, value.grad.data.cpu().numpy(), global_step)
            global_step += 1
            run.log(loss=loss, samples=len(imgs))
        writer.close()


# Clusters
def preprocess_features(npdata: Array, pca: int) -> Array:
    """Whiten the features and normalize them."""
    npdata = npdata - npdata.mean(0)
    values, vectors = np.linalg.eigh(npdata.T @ npdata / len(npdata))  # here
    npdata = npdata @ vectors[:, -pca:] / np.sqrt(values[-pca:] + 1e-5)  # here
    return np.asarray(npdata / np.linalg.norm(npdata, axis=1)[:, None])


class Kmeans:
    """Clusters features, and lists the images of each cluster."""

    def __init__(self, k: int, niter: int = 20) -> None:
        self.k, self.niter = k, niter

    def cluster(self, data: Array) -> float:
        xb = preprocess_features(data, 16)
        centroids = xb[np.random.choice(len(xb), self.k, replace=False)]
        for _ in range(self.niter):
            distances = ((xb[:, None, :] - centroids[None]) ** 2).sum(2)  # here
            assigned = distances.argmin(1)  # here
            for j in range(self.k):
                if np.any(assigned == j):  # here
                    centroids[j] = xb[assigned == j].mean(0)  # here
        self.images_lists: list[list[int]] = [[] for _ in range(self.k)]
        for i in range(len(data)):
            self.images_lists[assigned[i]].append(i)  # here
        return float(distances.min(1).sum())


@labelled(gpu="host-bound", cpu="host-bound", helpers=(preprocess_features, Kmeans))
def deepcluster_epochs(run: hoptui.Run, device: str) -> None:
    """In the manner of main.py of DeepCluster: the features are clustered with numpy before each epoch."""
    images = torch.randn(1024, 3, 16, 16)
    features = nn.Sequential(
        nn.Conv2d(3, 16, 4, 4), nn.ReLU(), nn.Conv2d(16, 32, 2, 2), nn.ReLU(), nn.Flatten()
    ).to(device)
    top_layer = nn.Linear(128, 64).to(device)
    optimizer = torch.optim.SGD(features.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-5)
    deepcluster = Kmeans(64)

    def compute_features() -> Array:
        with torch.no_grad():
            parts = [features(part.to(device)).cpu().numpy() for part in images.split(256)]
        return np.concatenate(parts)

    while not run.stopping:
        clustering_loss = deepcluster.cluster(compute_features())
        pseudolabels = torch.zeros(len(images), dtype=torch.long)
        for cluster, members in enumerate(deepcluster.images_lists):
            pseudolabels[members] = cluster
        top_layer.reset_parameters()
        optimizer_tl = torch.optim.SGD(top_layer.parameters(), lr=0.05, weight_decay=1e-5)
        for batch in torch.randperm(len(images)).split(256):
            output = top_layer(features(images[batch].to(device)))
            loss = F.cross_entropy(output, pseudolabels[batch].to(device))
            optimizer.zero_grad()
            optimizer_tl.zero_grad()
            loss.backward()
            optimizer.step()
            optimizer_tl.step()
        run.log(loss=loss, clustering_loss=clustering_loss, samples=len(images))
