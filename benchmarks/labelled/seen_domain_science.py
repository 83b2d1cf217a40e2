"""Training loops of the sciences, of music and of memory, in the manner of public repositories."""

# The names are those that the authors of such repositories use.
# ruff: noqa: N803, N806

from __future__ import annotations

import math
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import hoptui
from benchmarks.labelled.catalogue import labelled

Array = npt.NDArray[Any]

# QM9


class Data:
    """A molecule, or a batch of them."""

    def __init__(self, x: Tensor, pos: Tensor, edge_index: Tensor, edge_attr: Tensor, y: Tensor) -> None:
        self.x, self.pos, self.edge_index, self.edge_attr, self.y = x, pos, edge_index, edge_attr, y
        self.batch = torch.zeros(len(x), dtype=torch.long)

    def to(self, device: str) -> Data:
        for key, value in self.__dict__.items():
            setattr(self, key, value.to(device))
        return self


class Complete:
    """Joins each atom with all others."""

    def __call__(self, data: Data) -> Data:
        num_nodes = len(data.x)
        row = torch.arange(num_nodes).view(-1, 1).repeat(1, num_nodes).view(-1)  # here
        col = torch.arange(num_nodes).repeat(num_nodes)  # here
        idx = data.edge_index[0] * num_nodes + data.edge_index[1]  # here
        edge_attr = data.edge_attr.new_zeros((num_nodes * num_nodes, data.edge_attr.size(1)))  # here
        edge_attr[idx] = data.edge_attr  # here
        mask = row != col  # here
        edge_index = torch.stack([row, col], dim=0)[:, mask]  # here
        return Data(data.x, data.pos, edge_index, edge_attr[mask], data.y)  # here


class Distance:
    """Adds the lengths of the bonds."""

    def __call__(self, data: Data) -> Data:
        (row, col), pos = data.edge_index, data.pos  # here
        dist = torch.norm(pos[col] - pos[row], p=2, dim=-1).view(-1, 1)  # here
        data.edge_attr = torch.cat([data.edge_attr, dist], dim=-1)  # here
        return data


class QM9(Dataset[Data]):
    def __init__(self, data_list: list[Data]) -> None:
        self.data_list = data_list
        self.transform = (Complete(), Distance())

    def __len__(self) -> int:
        return len(self.data_list)

    def __getitem__(self, idx: int) -> Data:
        data = self.data_list[idx]
        for transform in self.transform:
            data = transform(data)  # here
        return data


def from_data_list(data_list: list[Data]) -> Data:
    cumsum, edge_indices = 0, []
    for data in data_list:
        edge_indices.append(data.edge_index + cumsum)
        cumsum += len(data.x)
    x, pos, edge_attr, y = (
        torch.cat([getattr(data, key) for data in data_list]) for key in ("x", "pos", "edge_attr", "y")
    )
    batch = Data(x, pos, torch.cat(edge_indices, dim=1), edge_attr, y)
    lengths = torch.tensor([len(data.x) for data in data_list])
    batch.batch = torch.repeat_interleave(torch.arange(len(data_list)), lengths)
    return batch


class Net(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.lin0, self.message = nn.Linear(11, dim), nn.Linear(dim + 5, dim)
        self.gru, self.lin1 = nn.GRUCell(dim, dim), nn.Linear(dim, 1)

    def forward(self, data: Data) -> Tensor:
        out = F.relu(self.lin0(data.x))
        row, col = data.edge_index
        m = F.relu(self.message(torch.cat((out[row], data.edge_attr), dim=1)))
        out = self.gru(torch.zeros_like(out).index_add(0, col, m), out)
        pooled = torch.zeros(len(data.y), out.size(1), device=out.device).index_add(0, data.batch, out)
        prediction: Tensor = self.lin1(pooled).view(-1)
        return prediction


@labelled(gpu="data-bound", cpu="data-bound", helpers=(QM9, Complete, Distance))
def qm9_nn_conv(run: hoptui.Run, device: str) -> None:
    """In the manner of PyG's qm9_nn_conv.py: each molecule becomes a complete graph when it is read."""
    data_list = []
    for _ in range(1536):
        n = random.randint(6, 12)
        edge_index = torch.stack((torch.arange(n - 1), torch.arange(1, n)))
        edge_attr = torch.eye(4)[torch.randint(4, (n - 1,))]
        data_list.append(Data(torch.rand(n, 11), torch.randn(n, 3), edge_index, edge_attr, torch.randn(1)))
    train_loader = DataLoader(QM9(data_list), batch_size=384, shuffle=True, collate_fn=from_data_list)
    model = Net(16).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    while not run.stopping:
        for data in train_loader:  # here
            data = data.to(device)
            optimizer.zero_grad()
            loss = F.mse_loss(model(data), data.y)
            loss.backward()
            optimizer.step()
            run.log(loss=loss.item(), samples=len(data.y))
            if run.stopping:
                break


# N-BEATS


class TimeseriesSampler:
    """Windows of random series, each up to a random point."""

    def __init__(
        self, timeseries: list[Array], insample_size: int, outsample_size: int, batch_size: int
    ) -> None:
        self.timeseries = timeseries
        self.window_sampling_limit = 10 * outsample_size
        self.insample_size, self.outsample_size, self.batch_size = insample_size, outsample_size, batch_size

    def __iter__(self) -> Iterator[tuple[Array, Array, Array, Array]]:
        while True:
            insample = np.zeros((self.batch_size, self.insample_size), np.float32)
            insample_mask = np.zeros((self.batch_size, self.insample_size), np.float32)
            outsample = np.zeros((self.batch_size, self.outsample_size), np.float32)
            outsample_mask = np.zeros((self.batch_size, self.outsample_size), np.float32)
            sampled_ts_indices = np.random.randint(len(self.timeseries), size=self.batch_size)
            for i, sampled_index in enumerate(sampled_ts_indices):
                sampled_timeseries = self.timeseries[sampled_index]  # here
                cut_point = np.random.randint(  # here
                    low=max(1, len(sampled_timeseries) - self.window_sampling_limit),  # here
                    high=len(sampled_timeseries),
                    size=1,
                )[0]
                start = max(0, cut_point - self.insample_size)
                insample_window = sampled_timeseries[start:cut_point]  # here
                insample[i, -len(insample_window) :] = insample_window  # here
                insample_mask[i, -len(insample_window) :] = 1.0  # here
                outsample_window = sampled_timeseries[cut_point : cut_point + self.outsample_size]  # here
                outsample[i, : len(outsample_window)] = outsample_window  # here
                outsample_mask[i, : len(outsample_window)] = 1.0  # here
            yield insample, insample_mask, outsample, outsample_mask


class NBeatsBlock(nn.Module):
    def __init__(self, insample_size: int, outsample_size: int, layer_size: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(insample_size, layer_size), nn.ReLU(), nn.Linear(layer_size, layer_size), nn.ReLU()
        )
        self.backcast, self.forecast = (nn.Linear(layer_size, n) for n in (insample_size, outsample_size))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        block_input = self.layers(x)
        return self.backcast(block_input), self.forecast(block_input)


@labelled(gpu="data-bound", cpu="data-bound", helpers=(TimeseriesSampler,))
def nbeats_m4_sampler(run: hoptui.Run, device: str) -> None:
    """In the manner of N-BEATS' experiments for M4: a sampler copies windows one by one."""
    timeseries = [np.random.rand(random.randint(40, 300)).astype(np.float32) for _ in range(2000)]
    training_set = iter(TimeseriesSampler(timeseries, 36, 18, 4096))
    blocks = nn.ModuleList(NBeatsBlock(36, 18, 32) for _ in range(2)).to(device)
    optimizer = torch.optim.Adam(blocks.parameters(), lr=1e-3)
    while not run.stopping:
        x, x_mask, y, y_mask = (torch.from_numpy(array).to(device) for array in next(training_set))  # here
        optimizer.zero_grad()
        residuals, forecast = x, torch.zeros_like(y)
        for block in blocks:
            backcast, block_forecast = block(residuals)
            residuals = (residuals - backcast) * x_mask
            forecast = forecast + block_forecast
        loss = (((forecast - y).abs() * y_mask) / (y.abs() + 1)).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(blocks.parameters(), 1.0)
        optimizer.step()
        run.log(loss=loss.detach(), samples=len(x))


# Differential privacy


def _log_add(logx: float, logy: float) -> float:
    a, b = min(logx, logy), max(logx, logy)
    if a == -math.inf:  # here
        return b
    return math.log1p(math.exp(a - b)) + b  # here


def _log_sub(logx: float, logy: float) -> float:
    if logy == -math.inf:  # here
        return logx
    return math.log(max(math.expm1(max(logx - logy, 0.0)), 1e-300)) + logy  # here


def _log_erfc(x: float) -> float:
    if x < 5:  # here
        return math.log(math.erfc(x))  # here
    return -(x**2) - math.log(x * math.sqrt(math.pi))  # here


def _compute_log_a_for_int_alpha(q: float, sigma: float, alpha: int) -> float:
    log_a = -math.inf
    for i in range(alpha + 1):
        log_coef_i = math.log(math.comb(alpha, i)) + i * math.log(q) + (alpha - i) * math.log(1 - q)  # here
        log_a = _log_add(log_a, log_coef_i + (i * i - i) / (2 * sigma**2))  # here
    return log_a


def _compute_log_a_for_frac_alpha(q: float, sigma: float, alpha: float) -> float:
    log_a0, log_a1, i, coef = -math.inf, -math.inf, 0, 1.0
    z0 = sigma**2 * math.log(1 / q - 1) + 0.5
    while True:
        log_coef, j = math.log(abs(coef)), alpha - i  # here
        log_t0 = log_coef + i * math.log(q) + j * math.log(1 - q)  # here
        log_t1 = log_coef + j * math.log(q) + i * math.log(1 - q)  # here
        log_e0 = math.log(0.5) + _log_erfc((i - z0) / (math.sqrt(2) * sigma))  # here
        log_e1 = math.log(0.5) + _log_erfc((z0 - j) / (math.sqrt(2) * sigma))  # here
        log_s0 = log_t0 + (i * i - i) / (2 * sigma**2) + log_e0  # here
        log_s1 = log_t1 + (j * j - j) / (2 * sigma**2) + log_e1  # here
        combine = _log_add if coef > 0 else _log_sub
        log_a0, log_a1 = combine(log_a0, log_s0), combine(log_a1, log_s1)  # here
        coef *= (alpha - i) / (i + 1)
        i += 1
        if max(log_s0, log_s1) < -30 or i > 400:  # here
            return _log_add(log_a0, log_a1)


class RDPAccountant:
    """Keeps what was released, and says how much privacy that has cost."""

    DEFAULT_ALPHAS = [1 + x / 10.0 for x in range(1, 100)] + list(range(12, 64))

    def __init__(self, history: list[tuple[float, float, int]]) -> None:
        self.history = history

    def step(self, noise_multiplier: float, sample_rate: float) -> None:
        if self.history and self.history[-1][:2] == (noise_multiplier, sample_rate):
            self.history[-1] = (noise_multiplier, sample_rate, self.history[-1][2] + 1)
        else:
            self.history.append((noise_multiplier, sample_rate, 1))

    def compute_rdp(self, q: float, sigma: float, steps: int, alpha: float) -> float:
        if float(alpha).is_integer():
            log_a = _compute_log_a_for_int_alpha(q, sigma, int(alpha))  # here
        else:
            log_a = _compute_log_a_for_frac_alpha(q, sigma, alpha)  # here
        return log_a / (alpha - 1) * steps

    def get_epsilon(self, delta: float) -> float:
        best = math.inf
        for alpha in self.DEFAULT_ALPHAS:
            rdp = sum(self.compute_rdp(q, sigma, steps, alpha) for sigma, q, steps in self.history)  # here
            best = min(best, rdp - (math.log(delta) + math.log(alpha)) / (alpha - 1))
        return best


HELPERS = (
    RDPAccountant, _compute_log_a_for_frac_alpha, _compute_log_a_for_int_alpha, _log_add, _log_sub, _log_erfc,
)  # fmt: skip


@labelled(gpu="host-bound", cpu="host-bound", helpers=HELPERS)
def opacus_epsilon(run: hoptui.Run, device: str) -> None:
    """In the manner of Opacus' cifar10.py: the accountant computes epsilon anew in each iteration."""
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
    params = {name: p.detach() for name, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    max_per_sample_grad_norm, sigma, sample_rate = 1.0, 1.5, 0.04
    accountant = RDPAccountant([(noise, sample_rate, 500) for noise in (2.4, 2.1, 1.9, 1.7)])

    def compute_loss(parameters: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        output = torch.func.functional_call(model, parameters, (image[None],))
        return F.cross_entropy(output, label[None])

    per_sample = torch.func.vmap(torch.func.grad(compute_loss), in_dims=(None, 0, 0))
    images, target = torch.randn(64, 64, device=device), torch.randint(10, (64,), device=device)
    while not run.stopping:
        grad_samples = per_sample(params, images, target)
        flat = torch.cat([g.flatten(1) for g in grad_samples.values()], dim=1)
        clip = (max_per_sample_grad_norm / (flat.norm(dim=1) + 1e-6)).clamp(max=1.0)
        for name, p in model.named_parameters():
            summed_grad = torch.einsum("i,i...->...", clip, grad_samples[name])
            p.grad = (summed_grad + sigma * torch.randn_like(summed_grad)) / len(images)
        optimizer.step()
        accountant.step(sigma, sample_rate)
        loss = F.cross_entropy(model(images), target)
        epsilon = accountant.get_epsilon(delta=1e-5)  # here
        run.log(loss=loss.item(), epsilon=epsilon, samples=len(images))


# Piano transcription


def extract_notes(onsets: Tensor, frames: Tensor, velocity: Tensor) -> tuple[Array, Array, Array]:
    onsets, frames, velocity = (onsets > 0.5).cpu(), (frames > 0.5).cpu(), velocity.cpu()
    onset_diff = torch.cat([onsets[:1], onsets[1:] & ~onsets[:-1]], dim=0)
    pitches, intervals, velocities = [], [], []
    for nonzero in onset_diff.nonzero():
        frame, pitch = nonzero[0].item(), nonzero[1].item()  # here
        onset = offset = int(frame)
        pitch, velocity_samples = int(pitch), []
        while onsets[offset, pitch].item() or frames[offset, pitch].item():  # here
            if onsets[offset, pitch].item():  # here
                velocity_samples.append(velocity[offset, pitch].item())  # here
            offset += 1
            if offset == onsets.shape[0]:
                break
        if offset > onset:
            pitches.append(pitch)
            intervals.append([onset, offset])
            velocities.append(np.mean(velocity_samples) if velocity_samples else 0)  # here
    return np.array(pitches), np.array(intervals), np.array(velocities)


@labelled(gpu="host-bound", cpu="host-bound", helpers=(extract_notes,))
def onsets_and_frames_notes(run: hoptui.Run, device: str) -> None:
    """In the manner of onsets-and-frames' train.py: the notes of each batch are read frame by frame."""
    batch_size, sequence_length, bins = 4, 320, 88
    onset_label = torch.zeros(batch_size, sequence_length, bins)
    frame_label = torch.zeros(batch_size, sequence_length, bins)
    for b in range(batch_size):
        for _ in range(40):
            start, pitch = random.randrange(sequence_length - 20), random.randrange(bins)
            onset_label[b, start, pitch] = 1
            frame_label[b, start : start + random.randint(5, 20), pitch] = 1
    velocity_label = torch.rand(batch_size, sequence_length, bins)
    mel = torch.randn(batch_size, sequence_length, 64).to(device)
    label = torch.cat((onset_label, frame_label), dim=2).to(device)
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 2 * bins)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=6e-4)
    while not run.stopping:
        predictions = model(mel)
        loss = F.binary_cross_entropy_with_logits(predictions, label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        onset_pred, frame_pred = torch.sigmoid(predictions.detach()).chunk(2, dim=2)
        hits = 0
        for b in range(batch_size):
            p_ref, i_ref, _ = extract_notes(onset_label[b], frame_label[b], velocity_label[b])  # here
            p_est, i_est, _ = extract_notes(onset_pred[b], frame_pred[b], velocity_label[b])  # here
            reference = {(int(p), int(i[0])) for p, i in zip(p_ref, i_ref, strict=True)}
            hits += sum((int(p), int(i[0])) in reference for p, i in zip(p_est, i_est, strict=True))
        run.log(loss=loss.item(), hits=hits, samples=batch_size)


# DeepXDE


def save_best_state(x: Tensor, y_pred: Tensor, fname: Path) -> None:
    test = np.hstack((x.detach().cpu().numpy(), y_pred.detach().cpu().numpy()))
    np.savetxt(fname, test, header="x, t, y_pred")  # here


@labelled(gpu="save-bound", cpu="save-bound", helpers=(save_best_state,))
def deepxde_saves_fields(run: hoptui.Run, device: str) -> None:
    """In the manner of DeepXDE's heat.py: a callback writes the field as text after each iteration."""
    net = nn.Sequential(nn.Linear(2, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 1)).to(
        device
    )
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    grid = torch.linspace(0, 1, 140, device=device)
    X_test = torch.cartesian_prod(grid, grid)
    with tempfile.TemporaryDirectory() as output_dir:
        while not run.stopping:
            X = torch.rand(128, 2, device=device, requires_grad=True)
            y = net(X)
            (dy,) = torch.autograd.grad(y.sum(), X, create_graph=True)
            (dy_xx,) = torch.autograd.grad(dy[:, 0].sum(), X, create_graph=True)
            loss_ic = (net(X * X.new_tensor([1, 0])) - torch.sin(math.pi * X[:, :1])).square().mean()
            loss = (dy[:, 1] - 0.4 * dy_xx[:, 0]).square().mean() + loss_ic
            opt.zero_grad()
            loss.backward()
            opt.step()
            with torch.no_grad():
                y_pred = net(X_test)
            save_best_state(X_test, y_pred, Path(output_dir) / "test.dat")  # here
            run.log(loss=loss.item(), samples=len(X))


# WeatherBench


class PeriodicConv2D(nn.Module):
    def __init__(self, c_in: int, c_out: int, kernel_size: int) -> None:
        super().__init__()
        self.padding, self.conv = kernel_size // 2, nn.Conv2d(c_in, c_out, kernel_size)

    def forward(self, x: Tensor) -> Tensor:
        padded = F.pad(x, (self.padding, self.padding, 0, 0), mode="circular")
        out: Tensor = self.conv(F.pad(padded, (0, 0, self.padding, self.padding)))
        return out


@labelled(gpu="transfer-bound")
def weatherbench_fields(run: hoptui.Run, device: str) -> None:
    """In the manner of train_nn_pytorch.py for WeatherBench: fields of the globe go to the GPU as float32."""
    height, width, levels = (72, 144, 40) if device == "cpu" else (721, 1440, 40)
    data = torch.randn(8, levels, height, width)
    model = nn.Sequential(PeriodicConv2D(levels, 2, 3), nn.ELU(), PeriodicConv2D(2, 2, 3)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    iteration = 0
    while not run.stopping:
        start = 2 * (iteration % 3)
        batch = data[start : start + 3]
        x = batch.to(device)  # here
        loss = F.mse_loss(model(x[:-1]), x[1:, :2])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        iteration += 1
        run.log(loss=loss.item(), samples=2)


# TracIn


def flatten_grad(grad: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([vec.detach().flatten() for vec in grad])


@labelled(gpu="transfer-bound")
def tracin_gradients(run: hoptui.Run, device: str) -> None:
    """In the manner of TracIn during training: the gradient of each step is kept on the host."""
    width = 512 if device == "cpu" else 6144
    net = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()).to(device)
    linear = nn.Linear(width, 10).to(device)
    params = [*net.parameters(), *linear.parameters()]
    optimizer = torch.optim.SGD(params, lr=1e-3)
    images, labels = torch.randn(32, width, device=device), torch.randint(10, (32,), device=device)
    grads: list[Tensor] = []
    while not run.stopping:
        loss = F.cross_entropy(linear(net(images)), labels)
        grad = torch.autograd.grad(loss, params)
        grads = [*grads[-3:], flatten_grad(grad).cpu()]  # here
        for p, g in zip(params, grad, strict=True):
            p.grad = g
        optimizer.step()
        run.log(loss=loss.item(), samples=32)


# APPNP


def propagate(x: Tensor, row: Tensor, col: Tensor, norm: Tensor, K: int, alpha: float) -> Tensor:
    h = x
    for _ in range(K):
        messages = norm.view(-1, 1) * x.index_select(0, row)
        x = torch.zeros_like(h).index_add_(0, col, messages) * (1 - alpha) + alpha * h
    return x


@labelled(gpu="memory-latency-bound", cpu="healthy")
def appnp_on_a_web_graph(run: hoptui.Run, device: str) -> None:
    """In the manner of PyG's appnp: two classes are spread along random edges of a large graph."""
    nodes, edges = (20_000, 200_000) if device == "cpu" else (30_000_000, 60_000_000)
    row, col = torch.randint(nodes, (edges,), device=device), torch.randint(nodes, (edges,), device=device)
    norm = torch.rand(edges, device=device)
    features, y = torch.randn(nodes, 8, device=device), torch.randint(2, (nodes,), device=device)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    train_mask = torch.arange(min(nodes, 100_000), device=device)
    while not run.stopping:
        optimizer.zero_grad()
        out = propagate(model(features), row, col, norm, K=5, alpha=0.1)
        loss = F.cross_entropy(out[train_mask], y[train_mask])
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=len(train_mask))


# Neural Turing machines


class NTMHead(nn.Module):
    """A head that reads, or reads and writes."""

    def __init__(self, M: int, controller_size: int, writes: bool) -> None:
        super().__init__()
        self.M, self.writes = M, writes
        self.fc = nn.Linear(controller_size, M + 6 + (2 * M if writes else 0))

    def address(self, memory: Tensor, o: Tensor, w_prev: Tensor) -> Tensor:
        k, beta, g = o[:, : self.M], F.softplus(o[:, self.M]), torch.sigmoid(o[:, self.M + 1])
        s, gamma = F.softmax(o[:, self.M + 2 : self.M + 5], dim=1), 1 + F.softplus(o[:, self.M + 5])
        similarity = F.cosine_similarity(memory + 1e-16, k.unsqueeze(1) + 1e-16, dim=-1)
        wc = F.softmax(beta.unsqueeze(1) * similarity, dim=1)
        wg = g.unsqueeze(1) * wc + (1 - g.unsqueeze(1)) * w_prev
        shifted = sum(s[:, i : i + 1] * torch.roll(wg, i - 1, dims=1) for i in range(3))
        w = torch.as_tensor(shifted) ** gamma.unsqueeze(1)
        return w / (w.sum(dim=1, keepdim=True) + 1e-16)

    def forward(self, memory: Tensor, embeddings: Tensor, w_prev: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        o = self.fc(embeddings)
        w = self.address(memory, o, w_prev)
        if self.writes:
            e, a = torch.sigmoid(o[:, self.M + 6 : 2 * self.M + 6]), o[:, 2 * self.M + 6 :]
            memory = memory * (1 - w.unsqueeze(-1) * e.unsqueeze(1)) + w.unsqueeze(-1) * a.unsqueeze(1)
        return torch.matmul(w.unsqueeze(1), memory).squeeze(1), memory, w


@labelled(gpu="launch-bound", cpu="healthy")
def ntm_copy_task(run: hoptui.Run, device: str) -> None:
    """In the manner of pytorch-ntm's train.py: a sequence is copied bit by bit, one sequence at a time."""
    N, M, width = 128, 20, 8
    controller = nn.LSTMCell(width + 1 + M, 100).to(device)
    read_head, write_head = NTMHead(M, 100, False).to(device), NTMHead(M, 100, True).to(device)
    output = nn.Linear(100 + M, width).to(device)
    params = nn.ModuleList((controller, read_head, write_head, output)).parameters()
    optimizer = torch.optim.RMSprop(list(params), momentum=0.9, alpha=0.95, lr=1e-4)
    while not run.stopping:
        seq_len = random.randint(8, 16)
        Y = torch.bernoulli(torch.full((seq_len, 1, width), 0.5, device=device))
        X = torch.cat((Y, torch.zeros(seq_len, 1, 1, device=device)), dim=2)
        memory = torch.full((1, N, M), 0.01, device=device)
        read, state = torch.zeros(1, M, device=device), (torch.zeros(1, 100, device=device),) * 2
        w_read = w_write = torch.full((1, N), 1 / N, device=device)
        y_out = []
        for i in range(2 * seq_len):
            x = X[i] if i < seq_len else torch.zeros(1, width + 1, device=device)
            state = controller(torch.cat((x, read), dim=1), state)
            read, memory, w_read = read_head(memory, state[0], w_read)
            _, memory, w_write = write_head(memory, state[0], w_write)
            if i >= seq_len:
                y_out.append(torch.sigmoid(output(torch.cat((state[0], read), dim=1))))
        loss = F.binary_cross_entropy(torch.stack(y_out), Y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(controller.parameters(), 10)
        optimizer.step()
        run.log(loss=loss.detach(), samples=1)
