"""Loops in the manner of public scripts that are held back by the GPU, its launches or the copies to it."""

# ruff: noqa: N806
from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from itertools import count, pairwise
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import hoptui
from benchmarks.labelled.catalogue import labelled


# Copies
class VideoMAE(nn.Module):
    """An encoder of the visible tubes of a video, and a decoder of all."""

    def __init__(self, dim: int, tubes: int) -> None:
        super().__init__()
        self.patch_embed = nn.Conv3d(3, dim, (2, 16, 16), (2, 16, 16))
        self.pos_embed = nn.Parameter(torch.zeros(1, tubes, dim))
        self.blocks = nn.TransformerEncoderLayer(dim, 4, 4 * dim, dropout=0.0, batch_first=True)
        self.head = nn.Linear(dim, 3)

    def forward(self, x: Tensor, visible: Tensor) -> Tensor:
        x = self.patch_embed(x).flatten(2).transpose(1, 2) + self.pos_embed
        return self.head(self.blocks(x[:, visible]))  # type: ignore[no-any-return]


@labelled(gpu="transfer-bound")
def videomae_clips(run: hoptui.Run, device: str) -> None:
    """In the manner of engine_for_pretraining.py of VideoMAE: float clips come from pageable memory."""
    data_loader = [torch.rand(16, 3, 32, 224, 224) for _ in range(3)]
    model = VideoMAE(192, 16 * 196).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.5e-4, betas=(0.9, 0.95))
    while not run.stopping:
        for videos in data_loader:
            videos = videos.to(device, non_blocking=True)  # here
            bool_masked_pos = torch.randperm(16 * 196, device=device)[:314]
            outputs = model(videos, bool_masked_pos)
            loss = F.mse_loss(outputs, videos.mean((2, 3, 4))[:, None].expand_as(outputs))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss, samples=len(videos))
            if run.stopping:
                break


class AlignDevicesHook:
    """Moves a module to the device for its forward, and back afterwards."""

    def __init__(self, execution_device: str) -> None:
        self.execution_device = execution_device

    def pre_forward(self, module: nn.Module, args: Any) -> None:
        module.to(self.execution_device)  # here

    def post_forward(self, module: nn.Module, args: Any, output: Any) -> None:
        module.to("cpu")  # here


@labelled(gpu="transfer-bound", helpers=(AlignDevicesHook,))
def offloaded_backbone(run: hoptui.Run, device: str) -> None:
    """In the manner of the cpu_offload of accelerate: the layers of a frozen language model come and go."""
    width = 2048
    layer = nn.TransformerEncoderLayer(width, 16, 4 * width, dropout=0.0, batch_first=True)
    backbone = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).layers.requires_grad_(False)
    hook = AlignDevicesHook(device)
    for layer in backbone:
        layer.register_forward_pre_hook(hook.pre_forward)
        layer.register_forward_hook(hook.post_forward)
    score = nn.Linear(width, 2).to(device)
    optimizer = torch.optim.AdamW(score.parameters(), lr=1e-3)
    embeds = torch.randn(2, 256, width, device=device)
    labels = torch.tensor([0, 1], device=device)
    while not run.stopping:
        with torch.no_grad():
            hidden_states = embeds
            for layer in backbone:
                hidden_states = layer(hidden_states)
        loss = F.cross_entropy(score(hidden_states[:, -1]), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=loss, samples=len(labels))


class FCNHead(nn.Module):
    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 64, 8, 8), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU()
        )
        self.conv_seg = nn.Conv2d(64, num_classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv_seg(self.backbone(x))  # type: ignore[no-any-return]


@labelled(gpu="transfer-bound")
def segmentation_logits(run: hoptui.Run, device: str) -> None:
    """In the manner of scripts for ADE20K that keep the logits of the last batches, on the host."""
    num_classes, size = 150, 512
    model = FCNHead(num_classes).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    image = torch.rand(4, 3, size, size, device=device)
    target = torch.randint(0, num_classes, (4, size // 8, size // 8), device=device)
    results: deque[Tensor] = deque(maxlen=2)
    while not run.stopping:
        output = model(image)
        loss = F.cross_entropy(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            seg_logits = F.interpolate(output, size=(size, size), mode="bilinear", align_corners=False)
        results.append(seg_logits.cpu())  # here
        run.log(loss=loss, samples=len(image))


# Launches
class ODEFunc(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 50), nn.Tanh(), nn.Linear(50, 2))

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        return self.net(y**3)  # type: ignore[no-any-return]


def odeint(func: Callable[[Tensor, Tensor], Tensor], y0: Tensor, t: Tensor, substeps: int) -> Tensor:
    """Integrate with the method of Runge and Kutta."""
    ys, y = [y0], y0
    for t0, t1 in pairwise(t):
        h = (t1 - t0) / substeps
        for i in range(substeps):
            now = t0 + i * h
            k1 = func(now, y)
            k2 = func(now + h / 2, y + h / 2 * k1)
            k3 = func(now + h / 2, y + h / 2 * k2)
            k4 = func(now + h, y + h * k3)
            y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        ys.append(y)
    return torch.stack(ys)


@labelled(gpu="launch-bound", cpu="healthy")
def neural_ode_spiral(run: hoptui.Run, device: str) -> None:
    """In the manner of ode_demo.py of torchdiffeq: a spiral is fitted through an ODE solver."""
    data_size, batch_time, batch_size = 400, 10, 20
    t = torch.linspace(0.0, 25.0, data_size, device=device)
    true_A = torch.tensor([[-0.1, 2.0], [-2.0, -0.1]], device=device)
    with torch.no_grad():
        true_y = odeint(lambda _, y: torch.mm(y**3, true_A), torch.tensor([[2.0, 0.0]], device=device), t, 1)
    func = ODEFunc().to(device)
    optimizer = torch.optim.RMSprop(func.parameters(), lr=1e-3)
    while not run.stopping:
        optimizer.zero_grad()
        s = torch.randperm(data_size - batch_time, device=device)[:batch_size]
        batch_y = torch.stack([true_y[s + i] for i in range(batch_time)])
        pred_y = odeint(func, batch_y[0], t[:batch_time], 6)
        loss = torch.mean(torch.abs(pred_y - batch_y))
        loss.backward()
        optimizer.step()
        run.log(loss=loss, samples=batch_size)


class Learner(nn.Module):
    """Layers whose weights may be given."""

    def __init__(self, n_way: int) -> None:
        super().__init__()
        shapes = [(16, 1, 3, 3), (16,), (16, 16, 3, 3), (16,), (16, 16, 3, 3), (16,), (n_way, 64), (n_way,)]
        self.vars = nn.ParameterList([0.1 * torch.randn(shape) for shape in shapes])

    def forward(self, x: Tensor, fast_weights: list[Tensor] | None = None) -> Tensor:
        w = list(self.vars) if fast_weights is None else fast_weights
        for i in range(0, 6, 2):
            x = F.relu(F.conv2d(x, w[i], w[i + 1], stride=2, padding=1))
        return F.linear(x.flatten(1), w[6], w[7])


@labelled(gpu="launch-bound", cpu="healthy")
def maml_omniglot(run: hoptui.Run, device: str) -> None:
    """In the manner of MAML-Pytorch: each task takes some steps of its own, before the step of all."""
    n_way, k_spt, k_qry, task_num, update_step, update_lr = 5, 1, 5, 4, 4, 0.4
    net = Learner(n_way).to(device)
    meta_optim = torch.optim.Adam(net.parameters(), lr=1e-3)
    y_spt = torch.arange(n_way, device=device).repeat_interleave(k_spt)
    y_qry = torch.arange(n_way, device=device).repeat_interleave(k_qry)
    while not run.stopping:
        x_spt = torch.rand(task_num, n_way * k_spt, 1, 16, 16, device=device)
        x_qry = torch.rand(task_num, n_way * k_qry, 1, 16, 16, device=device)
        losses_q, corrects = [], torch.zeros((), device=device)
        for i in range(task_num):
            fast_weights: list[Tensor] = list(net.vars)
            for _ in range(update_step):
                loss = F.cross_entropy(net(x_spt[i], fast_weights), y_spt)
                grad = torch.autograd.grad(loss, fast_weights, create_graph=True)
                fast_weights = [p - update_lr * g for p, g in zip(fast_weights, grad, strict=True)]
            logits_q = net(x_qry[i], fast_weights)
            losses_q.append(F.cross_entropy(logits_q, y_qry))
            with torch.no_grad():
                corrects += torch.eq(logits_q.argmax(1), y_qry).sum()
        loss_q = torch.stack(losses_q).sum() / task_num
        meta_optim.zero_grad()
        loss_q.backward()
        meta_optim.step()
        run.log(loss=loss_q, samples=task_num)


class EncoderRNN(nn.Module):
    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.embedding, self.gru = nn.Embedding(input_size, hidden_size), nn.GRU(hidden_size, hidden_size)

    def forward(self, word: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        output, hidden = self.gru(self.embedding(word).view(1, 1, -1), hidden)
        return output, hidden


class AttnDecoderRNN(nn.Module):
    def __init__(self, hidden_size: int, output_size: int, max_length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(output_size, hidden_size)
        self.attn = nn.Linear(hidden_size * 2, max_length)
        self.attn_combine = nn.Linear(hidden_size * 2, hidden_size)
        self.gru, self.out = nn.GRU(hidden_size, hidden_size), nn.Linear(hidden_size, output_size)

    def forward(self, word: Tensor, hidden: Tensor, encoder_outputs: Tensor) -> tuple[Tensor, Tensor]:
        embedded = self.embedding(word).view(1, 1, -1)
        attn_weights = F.softmax(self.attn(torch.cat((embedded[0], hidden[0]), 1)), dim=1)
        attn_applied = torch.bmm(attn_weights.unsqueeze(0), encoder_outputs.unsqueeze(0))
        output = F.relu(self.attn_combine(torch.cat((embedded[0], attn_applied[0]), 1)).unsqueeze(0))
        output, hidden = self.gru(output, hidden)
        return F.log_softmax(self.out(output[0]), dim=1), hidden


@labelled(gpu="launch-bound", cpu="healthy")
def translation_word_by_word(run: hoptui.Run, device: str) -> None:
    """In the manner of the seq2seq tutorial of PyTorch: a sentence at a time, and a word at a time."""
    hidden_size, vocabulary, max_length = 256, 1000, 40
    encoder = EncoderRNN(vocabulary, hidden_size).to(device)
    decoder = AttnDecoderRNN(hidden_size, vocabulary, max_length).to(device)
    encoder_optimizer = torch.optim.SGD(encoder.parameters(), lr=0.01)
    decoder_optimizer = torch.optim.SGD(decoder.parameters(), lr=0.01)
    criterion = nn.NLLLoss()
    training_pairs = torch.randint(0, vocabulary, (64, 2, max_length, 1), device=device)

    def train(input_tensor: Tensor, target_tensor: Tensor) -> Tensor:
        encoder_hidden = torch.zeros(1, 1, hidden_size, device=device)
        encoder_optimizer.zero_grad()
        decoder_optimizer.zero_grad()
        encoder_outputs = torch.zeros(max_length, hidden_size, device=device)
        loss = torch.zeros((), device=device)
        for ei in range(len(input_tensor)):
            encoder_output, encoder_hidden = encoder(input_tensor[ei], encoder_hidden)
            encoder_outputs[ei] = encoder_output[0, 0]
        decoder_input, decoder_hidden = torch.zeros(1, dtype=torch.long, device=device), encoder_hidden
        for di in range(len(target_tensor)):
            decoder_output, decoder_hidden = decoder(decoder_input, decoder_hidden, encoder_outputs)
            loss = loss + criterion(decoder_output, target_tensor[di])
            decoder_input = target_tensor[di]  # Teacher forcing
        loss.backward()
        encoder_optimizer.step()
        decoder_optimizer.step()
        return loss.detach() / len(target_tensor)

    while not run.stopping:
        input_tensor, target_tensor = random.choice(training_pairs)
        run.log(loss=train(input_tensor, target_tensor), samples=1)


class PINN(nn.Module):
    def __init__(self, layers: list[int]) -> None:
        super().__init__()
        self.linears = nn.ModuleList([nn.Linear(a, b) for a, b in pairwise(layers)])

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        a = torch.cat([x, t], dim=1)
        for linear in self.linears[:-1]:
            a = torch.tanh(linear(a))
        return self.linears[-1](a)  # type: ignore[no-any-return]


@labelled(gpu="launch-bound", cpu="healthy")
def burgers_equation(run: hoptui.Run, device: str) -> None:
    """In the manner of the PyTorch versions of PINNs: the Burgers equation, with a small network."""
    dnn = PINN([2, 20, 20, 20, 20, 20, 20, 20, 20, 1]).to(device)
    optimizer = torch.optim.Adam(dnn.parameters(), lr=1e-3)
    nu = 0.01 / math.pi
    x_u, t_u = torch.rand(100, 1, device=device) * 2 - 1, torch.zeros(100, 1, device=device)
    u = -torch.sin(math.pi * x_u)

    def net_f(x: Tensor, t: Tensor) -> Tensor:
        u = dnn(x, t)
        u_t = torch.autograd.grad(u, t, torch.ones_like(u), retain_graph=True, create_graph=True)[0]
        u_x = torch.autograd.grad(u, x, torch.ones_like(u), retain_graph=True, create_graph=True)[0]
        u_xx = torch.autograd.grad(u_x, x, torch.ones_like(u_x), retain_graph=True, create_graph=True)[0]
        f: Tensor = u_t + u * u_x - nu * u_xx
        return f

    while not run.stopping:
        x_f = (torch.rand(10_000, 1, device=device) * 2 - 1).requires_grad_()
        t_f = torch.rand(10_000, 1, device=device).requires_grad_()
        loss_u = torch.mean((u - dnn(x_u, t_u)) ** 2)
        loss_f = torch.mean(net_f(x_f, t_f) ** 2)
        loss = loss_u + loss_f
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss, samples=10_000)


# Arithmetic
class CausalSelfAttention(nn.Module):
    def __init__(self, n_embd: int, n_head: int) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.n_head = n_head

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.size()
        q, k, v = (y.view(B, T, self.n_head, -1).transpose(1, 2) for y in self.c_attn(x).split(C, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))  # type: ignore[no-any-return]


class Block(nn.Module):
    def __init__(self, n_embd: int, n_head: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.attn = CausalSelfAttention(n_embd, n_head)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))  # type: ignore[no-any-return]


class GPT(nn.Module):
    def __init__(self, vocab_size: int, n_embd: int, n_layer: int, n_head: int) -> None:
        super().__init__()
        self.wte, self.lm_head = nn.Embedding(vocab_size, n_embd), nn.Linear(n_embd, vocab_size, bias=False)
        self.h = nn.ModuleList([Block(n_embd, n_head) for _ in range(n_layer)])

    def forward(self, idx: Tensor, targets: Tensor) -> Tensor:
        x = self.wte(idx)
        for block in self.h:
            x = block(x)
        logits = self.lm_head(x)
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


@labelled(gpu="compute-bound", cpu="healthy")
def nanogpt_wide(run: hoptui.Run, device: str) -> None:
    """In the manner of train.py of nanoGPT: bfloat16 and a wide model on a GPU, or else a baby GPT."""
    on_gpu = device != "cpu"
    n_embd, n_layer, n_head = (4096, 4, 32) if on_gpu else (256, 3, 4)
    batch_size, block_size, vocab_size = (16, 1024, 8192) if on_gpu else (8, 128, 256)
    ctx = torch.autocast("cuda", dtype=torch.bfloat16) if on_gpu else nullcontext()
    model = GPT(vocab_size, n_embd, n_layer, n_head).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-5, betas=(0.9, 0.95), fused=on_gpu)
    data = torch.randint(0, vocab_size, (100_000,))

    def get_batch() -> tuple[Tensor, Tensor]:
        ix = torch.randint(len(data) - block_size - 1, (batch_size,)).tolist()
        x = torch.stack([data[i : i + block_size] for i in ix])
        y = torch.stack([data[i + 1 : i + 1 + block_size] for i in ix])
        if on_gpu:
            return x.pin_memory().to(device, non_blocking=True), y.pin_memory().to(device, non_blocking=True)
        return x, y

    X, Y = get_batch()
    while not run.stopping:
        with ctx:
            loss = model(X, Y)
        X, Y = get_batch()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        run.log(loss=loss, samples=batch_size)


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, (dim // heads) ** -0.5
        self.to_qkv, self.to_out = nn.Linear(dim, dim * 3, bias=False), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q, k, v = (y.view(b, n, self.heads, -1).transpose(1, 2) for y in self.to_qkv(x).chunk(3, dim=-1))
        attn = (torch.matmul(q, k.transpose(-1, -2)) * self.scale).softmax(-1)
        return self.to_out(torch.matmul(attn, v).transpose(1, 2).reshape(b, n, -1))  # type: ignore[no-any-return]


def feed_forward(dim: int) -> nn.Sequential:
    return nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))


class ViT(nn.Module):
    def __init__(self, patch: int, num_classes: int, dim: int, depth: int, heads: int) -> None:
        super().__init__()
        self.to_patch_embedding = nn.Conv2d(3, dim, patch, patch)
        attns = [nn.Sequential(nn.LayerNorm(dim), Attention(dim, heads)) for _ in range(depth)]
        self.attns = nn.ModuleList(attns)
        self.ffs = nn.ModuleList([feed_forward(dim) for _ in range(depth)])
        self.mlp_head = nn.Linear(dim, num_classes)

    def forward(self, img: Tensor) -> Tensor:
        x = self.to_patch_embedding(img).flatten(2).transpose(1, 2)
        for attn, ff in zip(self.attns, self.ffs, strict=True):
            x = attn(x) + x
            x = ff(x) + x
        return self.mlp_head(x.mean(dim=1))  # type: ignore[no-any-return]


@labelled(gpu="compute-bound", cpu="healthy")
def vit_in_float32(run: hoptui.Run, device: str) -> None:
    """In the manner of the cats-and-dogs example of vit-pytorch: float32, as it is by default."""
    on_gpu = device != "cpu"
    v = ViT(16, 2, 1024, 6, 16) if on_gpu else ViT(16, 2, 128, 3, 4)
    v = v.to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(v.parameters(), lr=3e-5)
    batch_size, size = (48, 256) if on_gpu else (8, 128)
    data = torch.rand(batch_size, 3, size, size, device=device)
    label = torch.arange(batch_size, device=device) % 2
    while not run.stopping:
        output = v(data)
        loss = criterion(output, label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        acc = (output.argmax(dim=1) == label).float().mean()
        run.log(loss=loss, acc=acc, samples=batch_size)


# Memory
def update_ema(target_params: Any, source_params: Any, rate: float = 0.999) -> None:
    for targ, src in zip(target_params, source_params, strict=True):
        targ.detach().mul_(rate).add_(src.detach(), alpha=1 - rate)


@labelled(gpu="memory-bandwidth-bound")
def tab_ddpm_wide(run: hoptui.Run, device: str) -> None:
    """In the manner of tab-ddpm: a wide perceptron, small batches, and averages of all weights."""
    d_in, width, num_timesteps, batch_size = 64, 8192 if device != "cpu" else 512, 1000, 32
    layers: list[nn.Module] = [nn.Linear(d_in + 1, width), nn.ReLU()]
    for _ in range(10):
        layers += [nn.Linear(width, width), nn.ReLU()]
    denoise_fn = nn.Sequential(*layers, nn.Linear(width, d_in)).to(device)
    ema_params = [p.detach().clone() for p in denoise_fn.parameters()]
    optimizer = torch.optim.AdamW(denoise_fn.parameters(), lr=1e-4, weight_decay=0.0)
    x = torch.randn(batch_size, d_in, device=device)
    while not run.stopping:
        optimizer.zero_grad()
        t = torch.randint(0, num_timesteps, (batch_size, 1), device=device) / num_timesteps
        noise = torch.randn_like(x)
        x_t = (1 - t).sqrt() * x + t.sqrt() * noise
        loss = F.mse_loss(denoise_fn(torch.cat([x_t, t], 1)), noise)
        loss.backward()
        optimizer.step()
        update_ema(ema_params, denoise_fn.parameters())
        run.log(loss=loss, samples=batch_size)


@labelled(gpu="memory-latency-bound")
def random_walk_neighbours(run: hoptui.Run, device: str) -> None:
    """In the manner of PinSage and of Node2Vec in PyG: random walks on the GPU choose the neighbours."""
    num_nodes, degree, batch_size, walks = 100_000_000, 16, 16_384, 1024
    if device == "cpu":
        num_nodes, batch_size, walks = 1000, 64, 8
    col = torch.randint(0, num_nodes, (num_nodes, degree), device=device)
    x = torch.randn(min(num_nodes, 1_000_000), 32, device=device)
    conv, head = nn.Linear(64, 64).to(device), nn.Linear(64, 8).to(device)
    optimizer = torch.optim.Adam([*conv.parameters(), *head.parameters()], lr=0.01)

    def random_walk(start: Tensor, walk_length: int) -> Tensor:
        cur = start
        for _ in range(walk_length):
            cur = col[cur, torch.randint(0, degree, cur.shape, device=device)]
        return cur

    while not run.stopping:
        start = torch.randint(0, num_nodes, (batch_size,), device=device)
        visited = random_walk(start.repeat_interleave(walks), walk_length=40).view(batch_size, walks)
        neighbours = x[visited[:, :8] % len(x)].mean(1)
        h = F.relu(conv(torch.cat([x[start % len(x)], neighbours], 1)))
        loss = F.cross_entropy(head(h), start % 8)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss, samples=batch_size)


# Compiler
class ConformerLayer(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.ffn1, self.ffn2 = feed_forward(dim), feed_forward(dim)
        self.norm, self.depthwise = nn.LayerNorm(dim), nn.Conv1d(dim, dim, 15, padding=7, groups=dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.5 * self.ffn1(x)
        x = x + F.silu(self.depthwise(self.norm(x).transpose(1, 2))).transpose(1, 2)
        return x + 0.5 * self.ffn2(x)  # type: ignore[no-any-return]


@labelled(gpu="compiling", cpu="compiling")
def conformer_lengths(run: hoptui.Run, device: str) -> None:
    """In the manner of recipes that sort speech by its length, with torch.compile and `dynamic=False`."""
    layers = [ConformerLayer(64) for _ in range(3)]
    model = nn.Sequential(nn.Linear(40, 64), *layers, nn.Linear(64, 30)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with torch._dynamo.config.patch(cache_size_limit=100_000, accumulated_cache_size_limit=100_000):
        compiled = torch.compile(model, dynamic=False, backend="aot_eager")
        for length in count(100):
            feats = torch.randn(1, length, 40, device=device)
            log_probs = compiled(feats).log_softmax(-1)  # here
            loss = -log_probs[..., 0].mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            run.log(loss=loss, samples=1)
            if run.stopping:
                break


# Devices
class RNNModel(nn.Module):
    def __init__(self, ntoken: int, ninp: int, nhid: int, nlayers: int) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Embedding(ntoken, ninp), nn.Linear(nhid, ntoken)
        self.rnn = nn.LSTM(ninp, nhid, nlayers)

    def forward(self, input: Tensor, hidden: Any) -> tuple[Tensor, Any]:  # noqa: A002
        output, hidden = self.rnn(self.encoder(input), hidden)  # here
        return self.decoder(output).flatten(0, 1), hidden  # here


@labelled(gpu="wrong-device", cpu="healthy", helpers=(RNNModel,))
def word_language_model(run: hoptui.Run, device: str) -> None:
    """In the manner of word_language_model/main.py of pytorch/examples, called without `--cuda`."""
    args_cuda = False
    device = "cuda" if args_cuda else "cpu"
    ntokens, bptt, batch_size = 5000, 35, 20
    model = RNNModel(ntokens, 400, 400, 2).to(device)
    criterion = nn.CrossEntropyLoss()
    train_data = torch.randint(0, ntokens, (bptt * 50 + 1, batch_size)).to(device)
    hidden: Any = None
    i = 0
    while not run.stopping:
        data, targets = train_data[i : i + bptt], train_data[i + 1 : i + 1 + bptt].flatten()
        model.zero_grad()
        hidden = None if hidden is None else tuple(h.detach() for h in hidden)
        output, hidden = model(data, hidden)  # here
        loss = criterion(output, targets)  # here
        loss.backward()  # here
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)  # here
        for p in model.parameters():
            if p.grad is not None:
                p.data.add_(p.grad, alpha=-20)  # here
        i = (i + bptt) % (bptt * 50)
        run.log(loss=loss, samples=batch_size)


@labelled(gpu="wrong-device", cpu="healthy")
def distillation_teacher(run: hoptui.Run, device: str) -> None:
    """In the manner of scripts for distillation: the student is moved to the device, the teacher is not."""
    teacher = nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 128, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(128, 256, 3, stride=2, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(256, 10),
    )  # fmt: skip
    student = nn.Sequential(
        nn.Conv2d(3, 16, 4, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)
    ).to(device)
    optimizer = torch.optim.Adam(student.parameters(), lr=1e-3)
    T, soft_target_loss_weight, ce_loss_weight = 2, 0.25, 0.75
    train_loader = [(torch.rand(128, 3, 32, 32), torch.randint(0, 10, (128,))) for _ in range(8)]
    teacher.eval()
    while not run.stopping:
        for inputs, labels in train_loader:
            with torch.no_grad():
                teacher_logits = teacher(inputs)  # here
            inputs, labels = inputs.to(device), labels.to(device)
            student_logits = student(inputs)
            soft_targets = F.softmax(teacher_logits.to(device) / T, dim=-1)
            soft_prob = F.log_softmax(student_logits / T, dim=-1)
            soft_targets_loss = F.kl_div(soft_prob, soft_targets, reduction="batchmean") * T**2
            label_loss = F.cross_entropy(student_logits, labels)
            loss = soft_target_loss_weight * soft_targets_loss + ce_loss_weight * label_loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss, samples=len(inputs))
            if run.stopping:
                break


# Ranks
def average_gradients(model: nn.Module) -> None:
    """Average the gradients of all ranks."""
    size = float(dist.get_world_size())
    for param in model.parameters():
        if param.grad is not None:
            dist.all_reduce(param.grad.data, op=dist.ReduceOp.SUM)  # here
            param.grad.data /= size


@labelled(cpu="communication-bound", ranks=2, helpers=(average_gradients,))
def averaged_gradients(run: hoptui.Run, device: str) -> None:
    """In the manner of the tutorial on distributed applications: each gradient is reduced by itself."""
    torch.manual_seed(1234)
    layers = [part for _ in range(80) for part in (nn.Linear(256, 256), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(256, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    data, target = torch.randn(8, 256, device=device), torch.randint(0, 10, (8,), device=device)
    stopping = torch.zeros(1)
    while not stopping.item():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data), target)
        loss.backward()
        average_gradients(model)
        optimizer.step()
        run.log(loss=loss, samples=2 * len(data))
        stopping.fill_(run.stopping)
        dist.all_reduce(stopping, op=dist.ReduceOp.MAX)
