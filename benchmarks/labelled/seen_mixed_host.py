"""Trainings that wait for code of their script between the steps, or for a checkpoint."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import importlib
import importlib.util
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader, TensorDataset

import hoptui
from benchmarks.labelled.catalogue import AdapterRun, labelled

PACKAGE = "lightning" if importlib.util.find_spec("lightning") else "pytorch_lightning"


class HungarianMatcher:
    """Assigns queries to boxes, picture by picture, as DETR does."""

    @torch.no_grad()
    def __call__(self, boxes: Tensor, targets: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
        from scipy.optimize import linear_sum_assignment

        indices = []
        for predicted, wanted in zip(boxes, targets, strict=True):
            cost = torch.cdist(predicted, wanted, p=1).cpu().numpy()
            i, j = linear_sum_assignment(cost)  # here
            indices.append((torch.as_tensor(i), torch.as_tensor(j)))
        return indices


@labelled(gpu="host-bound", cpu="host-bound", needs=("scipy",), helpers=(HungarianMatcher,))
def detr_of_crowded_scenes(run: hoptui.Run, device: str) -> None:
    """DETR's set loss with very many queries: scipy assigns 700 queries to 600 boxes in each of 4 pictures.

    An assignment takes more than 20 ms, so a step has more than 80 ms of it. The decoder is a perceptron
    on 4 x 700 queries: less than 25 ms with the distances.
    """
    num_queries, num_boxes = 700, 600
    query_embed = nn.Embedding(num_queries, 64).to(device)
    bbox_embed = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4), nn.Sigmoid()).to(device)
    optimizer = torch.optim.AdamW([*query_embed.parameters(), *bbox_embed.parameters()], lr=1e-4)
    matcher = HungarianMatcher()
    while not run.stopping:
        memory = torch.randn(4, 1, 64, device=device)
        targets = [torch.rand(num_boxes, 4, device=device) for _ in range(4)]
        outputs = bbox_embed(query_embed.weight + memory)
        indices = matcher(outputs, targets)
        src = torch.cat([out[i] for out, (i, _) in zip(outputs, indices, strict=True)])
        dst = torch.cat([t[j] for t, (_, j) in zip(targets, indices, strict=True)])
        loss_bbox = F.l1_loss(src, dst)
        optimizer.zero_grad()
        loss_bbox.backward()
        optimizer.step()
        run.log(loss=loss_bbox.item(), samples=4)


@labelled(gpu="host-bound", cpu="host-bound", needs=(PACKAGE, "torchmetrics"), adapter=True)
def lit_transcripts_by_edit_distance(run: AdapterRun, device: str) -> None:
    """A LightningModule logs torchmetrics' character error rate of the training batch after each step.

    torchmetrics computes edit distances in Python: 8 transcripts of 250 letters are 500 000 cells, more
    than 100 ms. The step of a small classifier of frames needs less than 25 ms under Lightning.
    """
    from torchmetrics.text import CharErrorRate

    from hoptui.integrations.lightning import HoptuiCallback

    pl: Any = importlib.import_module("lightning.pytorch" if PACKAGE == "lightning" else PACKAGE)
    letters = "abcdefghijklmnopqrstuvwxyz "

    class Transcriber(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, len(letters)))
            self.cer = CharErrorRate()

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            feats, chars = batch
            logits = self.net(feats)
            loss = F.cross_entropy(logits.flatten(0, 1), chars.flatten())
            hyps = ["".join(letters[c] for c in row) for row in logits.argmax(-1).tolist()]
            refs = ["".join(letters[c] for c in row) for row in chars.tolist()]
            self.log("train_cer", self.cer(hyps, refs))  # here
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=1e-3)

    data = TensorDataset(torch.randn(64, 250, 40), torch.randint(0, len(letters), (64, 250)))
    trainer = pl.Trainer(
        accelerator="cpu" if device == "cpu" else "gpu",
        devices=1,
        max_steps=run.iterations,
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[HoptuiCallback(run.name)],
    )
    trainer.fit(Transcriber(), DataLoader(data, batch_size=8, shuffle=True))


@labelled(gpu="host-bound", cpu="host-bound", needs=("scipy",))
def pinn_by_scipy_minimize(run: hoptui.Run, device: str) -> None:
    """A network for Poisson's equation is trained by `scipy.optimize.minimize` on the host.

    L-BFGS-B keeps 50 pairs of vectors of 0.9 million numbers in float64, and goes over them several times
    for a step: 2 x 50 x 7 MB read twice or more, more than 150 ms. The loss with 16 points is some
    products with 0.9 million weights, and the vectors are converted to float64 and back: less than 40 ms.
    """
    from scipy.optimize import minimize

    net = nn.Sequential(nn.Linear(2, 900), nn.Tanh(), nn.Linear(900, 1000), nn.Tanh(), nn.Linear(1000, 1)).to(
        device
    )
    points = torch.rand(16, 2, device=device)
    source = (points * 3.14).sin().prod(1)
    last = [0.0]

    def closure(theta: Any) -> tuple[float, Any]:
        vector_to_parameters(torch.from_numpy(theta).float().to(device), net.parameters())
        net.zero_grad()
        loss = F.mse_loss(net(points)[:, 0], source)
        loss.backward()
        flat = torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])
        last[0] = loss.item()
        return last[0], flat.cpu().numpy().astype(np.float64)

    def callback(theta: Any) -> None:
        run.log(loss=last[0], samples=16)
        if run.stopping:
            raise StopIteration

    options = {"maxcor": 50, "maxiter": 10_000, "ftol": 0.0, "gtol": 0.0, "maxfun": 10**6}
    while not run.stopping:
        source = torch.rand(16, device=device)
        theta0 = parameters_to_vector(net.parameters()).detach().cpu().numpy().astype(np.float64)
        minimize(closure, theta0, jac=True, method="L-BFGS-B", callback=callback, options=options)  # here


@labelled(gpu="save-bound", cpu="save-bound", needs=("peft", "transformers"))
def adapter_with_embeddings_saved(run: hoptui.Run, device: str) -> None:
    """LoRA with new tokens: the embeddings and the head are saved with the adapter after each step.

    `modules_to_save` are two tables of 60 000 x 512 numbers: 245 MB for each `save_pretrained`, more than
    200 ms. Only the LoRA matrices are trained, with 2 x 8 tokens and a loss of the last one: less than 50
    ms.
    """
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=60_000,
        n_positions=64,
        n_embd=512,
        n_layer=1,
        n_head=8,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    lora = LoraConfig(
        r=8,
        target_modules=["c_attn"],
        modules_to_save=["wte", "lm_head"],
        task_type="CAUSAL_LM",
        fan_in_fan_out=True,
    )
    model: Any = get_peft_model(GPT2LMHeadModel(config), lora).to(device)
    for name, p in model.named_parameters():
        p.requires_grad_("lora_" in name)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    with tempfile.TemporaryDirectory() as output_dir:
        while not run.stopping:
            ids = torch.randint(0, 60_000, (2, 8), device=device)
            logits = model(input_ids=ids, logits_to_keep=1).logits[:, -1]
            loss = F.cross_entropy(logits, ids[:, 0])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            model.save_pretrained(output_dir, save_embedding_layers=False)  # here
            run.log(loss=loss.item(), samples=2)


class BackgroundSaver:
    """Saves in a thread. A new save waits for the one before."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.thread: threading.Thread | None = None

    def write(self, state: dict[str, Any]) -> None:
        """Write a state, in the thread."""
        torch.save(state, self.path)  # here

    def save(self, state: dict[str, Any]) -> None:
        """Begin to save a state."""
        self.wait()
        self.thread = threading.Thread(target=self.write, args=(state,), daemon=True)
        self.thread.start()

    def wait(self) -> None:
        """Wait until what was begun is written."""
        if self.thread is not None:
            self.thread.join()  # here


@labelled(gpu="save-bound", cpu="save-bound", helpers=(BackgroundSaver,))
def background_saver_is_awaited(run: hoptui.Run, device: str) -> None:
    """A thread writes a checkpoint for each step, and the next one waits until it is written.

    Vectors of 60 million numbers stay on the host: 240 MB, more than 150 ms. The step of a projection of
    64 of them needs less than 10 ms.
    """
    vectors = torch.randn(940_000, 64)
    projection = nn.Linear(64, 64).to(device)
    optimizer = torch.optim.SGD(projection.parameters(), lr=0.01)
    with tempfile.TemporaryDirectory() as folder:
        saver = BackgroundSaver(Path(folder, "state.pt"))
        while not run.stopping:
            rows = torch.randint(0, len(vectors), (64,))
            x = vectors[rows].to(device)
            loss = F.mse_loss(projection(x), x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            saver.save({"vectors": vectors, "projection": projection.state_dict()})
            run.log(loss=loss.item(), samples=64)
        saver.wait()
