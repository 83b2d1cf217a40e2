"""FSDP2 (`fully_shard`) on two processes: a small transformer whose parameters are sharded.

torchrun --nproc_per_node 2 examples/fsdp2.py
hoptui set fsdp2 lr=1e-3
"""

from __future__ import annotations

from argparse import Namespace

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import hoptui  # hoptui

args = Namespace(steps=100, batch=16, micro_batch=8, seq=32, vocab=128, dropout=0.0, clip=1.0)

dist.init_process_group("gloo")  # "nccl" on GPUs
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(args.vocab, 64)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(64, 4, 128, args.dropout, batch_first=True, norm_first=True)
            for _ in range(2)
        )
        self.head = nn.Linear(64, args.vocab)
        self.register_buffer(
            "mask", nn.Transformer.generate_square_subsequent_mask(args.seq), persistent=False
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        h = self.embed(tokens[:, :-1])
        for block in self.blocks:
            h = block(h, src_mask=self.mask, is_causal=True)
        return nn.functional.cross_entropy(self.head(h).flatten(0, 1), tokens[:, 1:].flatten())


model = Model()
mesh = init_device_mesh("cpu", (world,))
for block in model.blocks:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1, betas=(0.9, 0.95))
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=20)


def set_dropout(p: float) -> None:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = p
        elif isinstance(module, nn.MultiheadAttention):
            module.dropout = p


def save() -> str:
    weights, moments = get_state_dict(model, optimizer)  # a collective: every rank comes here
    dcp.save({"model": weights, "optimizer": moments}, checkpoint_id="fsdp2_checkpoint")
    return "fsdp2_checkpoint"


run = hoptui.connect("fsdp2", total=args.steps)  # hoptui
run.bind(  # hoptui
    args,  # hoptui
    micro_batch=hoptui.Knob(1, 16, scale="pow2", effect="speed", keeps="batch"),  # hoptui
    dropout=(0.0, 0.9),  # hoptui
    clip=(0.1, 100.0, "log"),  # hoptui
    apply={"dropout": set_dropout},  # hoptui
)  # hoptui
run.optimizer(optimizer, scheduler)  # hoptui
run.on_checkpoint(save)  # hoptui

data = torch.Generator().manual_seed(rank)
for step in run.iterations(args.steps):  # hoptui
    start = torch.randint(args.vocab, (args.batch, 1), generator=data)
    tokens = (start + 3 * torch.arange(args.seq + 1)) % args.vocab
    loss = torch.zeros(())
    parts = tokens.split(args.micro_batch)
    for i, part in enumerate(parts):
        model.set_requires_gradient_sync(i == len(parts) - 1)
        part_loss = model(part) * len(part) / args.batch
        part_loss.backward()
        loss += part_loss.detach()
    nn.utils.clip_grad_norm_(model.parameters(), args.clip)
    optimizer.step()
    optimizer.zero_grad()
    scheduler.step()
    run.log(loss=loss, tokens=args.batch * args.seq * world)  # hoptui
    if rank == 0 and step % 50 == 0:
        print(f"step {step}: loss {loss:.3f}")

save()
run.close()  # hoptui
dist.destroy_process_group()
