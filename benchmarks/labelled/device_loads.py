"""Loads that move data between host and GPU, compile, evaluate, or compute on the wrong device."""

from __future__ import annotations

import torch

import hoptui
from benchmarks.labelled.catalogue import labelled
from benchmarks.labelled.models import mlp, synchronize, trainer

WIDTH = 256


@labelled(gpu="transfer-bound")
def uploads_pageable_memory(run: hoptui.Run, device: str) -> None:
    host = torch.randn(1 << 26)
    while not run.stopping:
        x = host.to(device)  # here
        run.log(value=x.mean(), samples=1)


@labelled(gpu="transfer-bound")
def uploads_in_get_batch(run: hoptui.Run, device: str) -> None:
    host = torch.randn(1 << 16, 1024)
    step = trainer(mlp(device, 1024, 2))

    def get_batch() -> torch.Tensor:
        return host.cuda()[:4096]  # here

    while not run.stopping:
        run.log(loss=step(get_batch()), samples=4096)


@labelled(gpu="transfer-bound")
def downloads_activations(run: hoptui.Run, device: str) -> None:
    x = torch.randn(1 << 26, device=device)
    while not run.stopping:
        x.mul_(1.01)
        kept = x.cpu()  # here
        run.log(value=float(kept[0]), samples=1)


@labelled(gpu="transfer-bound")
def offloads_weights(run: hoptui.Run, device: str) -> None:
    host = [torch.randn(4096, 4096) for _ in range(8)]
    x = torch.randn(512, 4096, device=device)
    while not run.stopping:
        for weight in host:
            x = torch.tanh(x @ weight.to(device))  # here
        run.log(value=x[0, 0].item(), samples=512)


@labelled(gpu="compiling")
def shapes_that_always_change(run: hoptui.Run, device: str) -> None:
    import torch._dynamo as dynamo

    dynamo.config.cache_size_limit = dynamo.config.recompile_limit = 1 << 20
    length = 64
    while not run.stopping:
        model = torch.compile(lambda x: (x.sin() @ x.T).softmax(-1).sum(), dynamic=False)
        length += 1
        value = model(torch.randn(length, 64, device=device))  # here
        run.log(value=value, samples=1)


@labelled(gpu="wrong-device", cpu="healthy")
def model_that_was_not_moved(run: hoptui.Run, device: str) -> None:
    step, x = trainer(mlp("cpu", 1024, 4)), torch.randn(256, 1024)
    unused = torch.zeros(1, device=device)
    while not run.stopping:
        run.log(loss=step(x), unused=unused[0], samples=256)


@labelled(gpu="wrong-device", cpu="healthy")
def training_that_never_saw_a_gpu(run: hoptui.Run, device: str) -> None:
    del device
    step, x = trainer(mlp("cpu", 1024, 4)), torch.randn(256, 1024)
    while not run.stopping:
        run.log(loss=step(x), samples=256)


@labelled(gpu="launch-bound healthy", cpu="healthy")
def evaluates_often(run: hoptui.Run, device: str) -> None:
    model = mlp(device, 64, 8)
    step, x = trainer(model), torch.randn(64, 64, device=device)

    def evaluate() -> float:
        with torch.no_grad():
            return sum(float(model(x).mean()) for _ in range(20))

    while not run.stopping:
        for _ in range(10):
            loss = step(x)
        with run.phase("evaluate"):
            score = evaluate()
        run.log(loss=loss, score=score, samples=640)


@labelled(gpu="launch-bound", cpu="healthy")
def phases_with_many_names(run: hoptui.Run, device: str) -> None:
    model = mlp(device, 64, 6)
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.randn(64, 64, device=device)
    while not run.stopping:
        with run.phase("fwd"):
            loss = (model(x) - x).square().mean()
        with run.phase("bwd"):
            optimizer.zero_grad()
            loss.backward()
        with run.phase("apply"):
            optimizer.step()
            synchronize(device)
        run.log(loss=loss.detach(), samples=64)
