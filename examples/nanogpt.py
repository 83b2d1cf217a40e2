"""A GPT in the style of nanoGPT's train.py: settings are globals, batches are fetched one ahead.

    python examples/nanogpt.py
    hoptui set nanogpt learning_rate=5e-4

Start it with torchrun to train with DDP.
"""

from __future__ import annotations

import math
import os
import time
from contextlib import nullcontext

import numpy as np
import torch
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

import hoptui  # hoptui

# -----------------------------------------------------------------------------
out_dir = "out-nanogpt"
eval_interval = 100
eval_iters = 10
log_interval = 50
# data
gradient_accumulation_steps = 4  # micro-batches of one step
batch_size = 8  # the micro-batch
block_size = 64
# model
n_layer = 2
n_head = 4
n_embd = 64
dropout = 0.0
# adamw optimizer
learning_rate = 1e-3
max_iters = 200
weight_decay = 1e-1
beta1 = 0.9
beta2 = 0.99
grad_clip = 1.0
# learning rate decay settings
decay_lr = True
warmup_iters = 20
lr_decay_iters = 200
min_lr = 1e-4
# -----------------------------------------------------------------------------
config_keys = [
    k for k, v in globals().items() if not k.startswith("_") and isinstance(v, int | float | bool | str)
]
config = {k: globals()[k] for k in config_keys}

ddp = int(os.environ.get("RANK", -1)) != -1
if ddp:
    init_process_group("gloo")
    ddp_rank, ddp_world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    gradient_accumulation_steps //= ddp_world_size
else:
    ddp_rank, ddp_world_size = 0, 1
master_process = ddp_rank == 0
torch.manual_seed(1337 + ddp_rank)
ctx = nullcontext()

text = open(__file__).read() * 20
chars = sorted(set(text))
tokens = np.array([chars.index(c) for c in text], dtype=np.int64)
train_data, val_data = tokens[: int(0.9 * len(tokens))], tokens[int(0.9 * len(tokens)) :]


def get_batch(split):
    data = train_data if split == "train" else val_data
    ix = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([torch.from_numpy(data[i : i + block_size]) for i in ix])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + block_size]) for i in ix])
    return x, y


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))
        self.resid_dropout = nn.Dropout(dropout)
        self.dropout = dropout

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (
            t.view(B, T, n_head, C // n_head).transpose(1, 2) for t in self.c_attn(self.ln_1(x)).chunk(3, -1)
        )
        p = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        x = x + self.resid_dropout(self.c_proj(y.transpose(1, 2).reshape(B, T, C)))
        return x + self.resid_dropout(self.mlp(self.ln_2(x)))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(len(chars), n_embd), nn.Embedding(block_size, n_embd)
        self.h = nn.ModuleList(Block() for _ in range(n_layer))
        self.ln_f, self.lm_head = nn.LayerNorm(n_embd), nn.Linear(n_embd, len(chars), bias=False)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


torch.manual_seed(1337)
model = GPT()
torch.manual_seed(1337 + ddp_rank)
optimizer = torch.optim.AdamW(
    model.parameters(), lr=learning_rate, betas=(beta1, beta2), weight_decay=weight_decay
)
if ddp:
    model = DDP(model)
raw_model = model.module if ddp else model


@torch.no_grad()
def estimate_loss():
    out = {}
    model.eval()
    for split in ["train", "val"]:
        losses = torch.zeros(eval_iters)
        for k in range(eval_iters):
            X, Y = get_batch(split)
            _, loss = raw_model(X, Y)
            losses[k] = loss.item()
        out[split] = losses.mean()
    model.train()
    return out


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    if it > lr_decay_iters:
        return min_lr
    decay_ratio = (it - warmup_iters) / (lr_decay_iters - warmup_iters)
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * decay_ratio)) * (learning_rate - min_lr)


def save_checkpoint():
    path = os.path.join(out_dir, "ckpt.pt")
    if master_process:
        os.makedirs(out_dir, exist_ok=True)
        torch.save(
            {"model": raw_model.state_dict(), "optimizer": optimizer.state_dict(), "iter_num": iter_num}, path
        )
    return path


def set_dropout(p):
    for module in raw_model.modules():
        if isinstance(module, nn.Dropout):
            module.p = p
        elif isinstance(module, Block):
            module.dropout = p


# The first three change what is learned. gradient_accumulation_steps does, too: in nanoGPT a step has
# gradient_accumulation_steps * batch_size samples, and neither follows the other.
run = hoptui.connect("nanogpt", total=max_iters)  # hoptui
knobs = run.bind(  # hoptui
    globals(),  # hoptui
    learning_rate=(1e-6, 1e-1, "log"),  # hoptui
    grad_clip=(0.0, 10.0),  # hoptui
    dropout=(0.0, 0.9),  # hoptui
    gradient_accumulation_steps=(1, 64),  # hoptui
    batch_size=(1, 256),  # hoptui
    eval_interval=hoptui.Knob(10, 100_000, effect="speed"),  # hoptui
    apply={"dropout": set_dropout, "batch_size": lambda _: refetch()},  # hoptui
)  # hoptui
run.on_checkpoint(save_checkpoint)  # hoptui
run.metric("tokens_per_s", unit="tok/s", headline=True)  # hoptui


def refetch():  # hoptui
    """The batch that was fetched ahead has the old size. Another one replaces it."""  # hoptui
    global X, Y  # hoptui
    X, Y = get_batch("train")  # hoptui


# training loop
iter_num = 0
X, Y = get_batch("train")  # fetch the very first batch
t0 = time.time()
while run.boundary(iter_num):  # hoptui
    # determine and set the learning rate for this iteration
    lr = get_lr(iter_num) if decay_lr else learning_rate
    for param_group in optimizer.param_groups:
        param_group["lr"] = lr

    if iter_num % eval_interval == 0 and master_process:
        with run.phase("eval"):  # hoptui
            losses = estimate_loss()
        run.log(train_loss=losses["train"], val_loss=losses["val"])  # hoptui
        print(f"step {iter_num}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}")
        if iter_num > 0:
            save_checkpoint()

    counted = 0  # hoptui
    for micro_step in range(gradient_accumulation_steps):
        if ddp:
            model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
        with ctx:
            logits, loss = model(X, Y)
            loss = loss / gradient_accumulation_steps
        counted += X.numel() * ddp_world_size  # hoptui
        # immediately prefetch the next batch while the model is doing the forward pass on the GPU
        X, Y = get_batch("train")
        loss.backward()
    if grad_clip != 0.0:
        torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    run.log(tokens=counted, loss=loss.detach() * gradient_accumulation_steps, lr=lr)  # hoptui

    if iter_num % log_interval == 0 and master_process:
        t1 = time.time()
        print(f"iter {iter_num}: loss {loss.item() * gradient_accumulation_steps:.4f}, time {t1 - t0:.2f}s")
    iter_num += 1
    if iter_num > max_iters:
        break

run.close()  # hoptui
if ddp:
    destroy_process_group()
