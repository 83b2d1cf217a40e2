"""Trainings on texts and programs: names of functions, topics, grammar, letters, and old words."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import ast
import importlib
import importlib.util
import math
import random
import tempfile
import zlib
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import hoptui
from benchmarks.labelled.catalogue import AdapterRun, labelled

PACKAGE = "lightning" if importlib.util.find_spec("lightning") else "pytorch_lightning"


def written_function(rng: random.Random, lines: int) -> str:
    """Return the source of a function, as a generator of exercises would write it."""
    names = ["total", "row", "key", "count", "item", "left", "right", "size"]
    body = ["def f(row, key):"]
    for _ in range(lines):
        a, b, c = rng.choices(names, k=3)
        body.append(
            rng.choice(
                (
                    f"    {a} = {b} + {c} * {rng.randrange(9)}",
                    f"    if {a} > {b}: {c} = {a}.get({b}, {c})",
                    f"    {a} = [{b} for {b} in {c} if {b} != {rng.randrange(9)}]",
                    f"    {a}.append(({b}, {c}[{rng.randrange(9)}]))",
                )
            )
        )
    return "\n".join([*body, "    return row"])


class PathContexts:
    """Collates functions to bags of paths between the leaves of their syntax trees, as code2vec does."""

    def __init__(self, contexts: int = 128, width: int = 5, length: int = 9, buckets: int = 4096) -> None:
        self.contexts, self.width, self.length, self.buckets = contexts, width, length, buckets

    def leaves(self, node: ast.AST, trail: tuple[ast.AST, ...]) -> list[tuple[str, tuple[ast.AST, ...]]]:
        """Return each leaf below a node, with the nodes above it."""
        found = []
        for child in ast.iter_child_nodes(node):  # here
            if isinstance(child, ast.Name):
                found.append((child.id, (*trail, node)))
            elif isinstance(child, ast.Constant):
                found.append((str(child.value), (*trail, node)))
            else:
                found += self.leaves(child, (*trail, node))  # here
        return found

    def paths(self, source: str) -> list[tuple[int, int, int]]:
        """Return start, path, and end of near pairs of leaves, hashed."""
        leaves, found = self.leaves(ast.parse(source), ()), []  # here
        for i, (start, up) in enumerate(leaves):
            for end, down in leaves[i + 1 : i + 1 + self.width]:
                common = 0
                while common < min(len(up), len(down)) and up[common] is down[common]:  # here
                    common += 1  # here
                nodes = (*reversed(up[common:]), up[common - 1], *down[common:])  # here
                path = [type(n).__name__ for n in nodes]  # here
                if len(path) <= self.length:
                    keys = (start, "^".join(path), end)  # here
                    a, b, c = (zlib.crc32(k.encode()) % self.buckets for k in keys)  # here
                    found.append((a, b, c))
        return found

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, Tensor]:
        bags = [random.choices(self.paths(f["source"]), k=self.contexts) for f in features]  # here
        labels = torch.tensor([f["name"] for f in features])
        return {"contexts": torch.tensor(bags), "labels": labels}


class NameOfFunction(nn.Module):
    """Attends over the contexts of a function."""

    def __init__(self, buckets: int, dim: int, names: int) -> None:
        super().__init__()
        self.tokens, self.routes = nn.Embedding(buckets, dim), nn.Embedding(buckets, dim)
        self.mix, self.query = nn.Linear(3 * dim, dim), nn.Linear(dim, 1, bias=False)
        self.out = nn.Linear(dim, names)

    def forward(self, contexts: Tensor, labels: Tensor) -> dict[str, Tensor]:
        start, path, end = contexts.unbind(-1)
        joined = torch.cat([self.tokens(start), self.routes(path), self.tokens(end)], -1)
        h = torch.tanh(self.mix(joined))
        code = (self.query(h).softmax(1) * h).sum(1)
        logits = self.out(code)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


@labelled(
    gpu="data-bound",
    cpu="data-bound",
    needs=("transformers", "accelerate"),
    adapter=True,
    helpers=(PathContexts,),
)
def code2vec_trainer(run: AdapterRun, device: str) -> None:
    """The Trainer's collator parses functions, and walks over the paths in their syntax trees.

    A function of 50 lines has some 250 leaves and 1200 near pairs of them. A pair takes Python more than 4
    microseconds: with `ast.parse` more than 6 ms for a function, and more than 96 ms for 16. The model
    attends over 16 x 128 contexts of width 32: less than 15 ms with what the Trainer does beside it.
    """
    from transformers import Trainer, TrainingArguments

    from hoptui.integrations.transformers import HoptuiCallback

    rng = random.Random(0)
    corpus = [{"source": written_function(rng, 50), "name": n % 50} for n in range(256)]
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            output_dir=folder,
            max_steps=run.iterations,
            per_device_train_batch_size=16,
            learning_rate=1e-3,
            use_cpu=device == "cpu",
            remove_unused_columns=False,
            report_to=[],
            disable_tqdm=True,
            save_strategy="no",
            logging_steps=20,
        )
        trainer = Trainer(
            model=NameOfFunction(4096, 32, 50),
            args=args,
            train_dataset=corpus,
            data_collator=PathContexts(),
            callbacks=[HoptuiCallback(run.name)],
        )
        trainer.train()


@labelled(gpu="host-bound", cpu="host-bound", needs=(PACKAGE,), adapter=True)
def lit_prod_lda(run: AdapterRun, device: str) -> None:
    """A neural topic model, with a Lightning callback that reports the coherence of the topics.

    The normalised mutual information is computed for 60 topics of 15 words: 6300 pairs, each an intersection
    of two sets of some 1000 documents. It takes more than 20 microseconds: more than 126 ms. A step of the
    autoencoder of 64 documents with 1500 words needs less than 20 ms under Lightning.
    """
    from hoptui.integrations.lightning import HoptuiCallback

    pl: Any = importlib.import_module("lightning.pytorch" if PACKAGE == "lightning" else PACKAGE)
    vocab, topics, documents = 1500, 60, 4000

    class ProdLDA(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(vocab, 64), nn.Softplus())
            self.mu, self.logvar = nn.Linear(64, topics), nn.Linear(64, topics)
            self.beta = nn.Linear(topics, vocab, bias=False)

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            (bow,) = batch
            h = self.encoder(bow)
            mu, logvar = self.mu(h), self.logvar(h)
            theta = (mu + torch.randn_like(mu) * (logvar / 2).exp()).softmax(-1)
            nll = -(bow * self.beta(theta).log_softmax(-1)).sum(-1).mean()
            kld = 0.5 * (mu.square() + logvar.exp() - 1 - logvar).sum(-1).mean()
            elbo: Tensor = nll + kld
            self.log("loss", elbo)
            return elbo

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=2e-3, betas=(0.99, 0.999))

    class TopicCoherence(pl.Callback):  # type: ignore[misc]
        """NPMI of the best words of each topic, over the documents of the corpus."""

        def __init__(self, bow: Tensor, top: int = 15) -> None:
            self.top, self.size = top, len(bow)
            self.where = [set(bow[:, w].nonzero()[:, 0].tolist()) for w in range(bow.shape[1])]

        def npmi(self, first: int, second: int) -> float:
            a, b = self.where[first], self.where[second]
            both = len(a & b) / self.size  # here
            if both == 0:
                return -1.0
            return math.log(both * self.size**2 / (len(a) * len(b))) / -math.log(both + 1e-12)

        def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
            best = module.beta.weight.detach().T.topk(self.top).indices.tolist()
            scores = []
            for words in best:
                pairs = [(a, b) for i, a in enumerate(words) for b in words[i + 1 :]]
                scores.append(sum(self.npmi(a, b) for a, b in pairs) / len(pairs))  # here
            module.log("npmi", sum(scores) / len(scores))

    generator = torch.Generator().manual_seed(0)
    bow = (torch.rand(documents, vocab, generator=generator) < 0.25).float()
    trainer = pl.Trainer(
        accelerator="cpu" if device == "cpu" else "gpu",
        devices=1,
        max_steps=run.iterations,
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[TopicCoherence(bow), HoptuiCallback(run.name)],
    )
    trainer.fit(ProdLDA(), DataLoader(TensorDataset(bow), batch_size=64, shuffle=True))


@labelled(gpu="launch-bound", cpu="healthy", needs=("peft", "transformers"))
def dora_for_learner_errors(run: hoptui.Run, device: str) -> None:
    """Wrong words of learners are tagged by a BERT with DoRA in each of its linear layers.

    On a GPU: 24 layers of width 128 with 2 x 16 tokens. A layer has six linear layers, each with some 20
    operations of DoRA: more than 150 operations forward and 250 backward, so 9000 for the model. They take
    the host more than 8 microseconds each, more than 72 ms, and the GPU less than 3: 27 ms. On the CPU: 3
    layers of width 256 and 16 x 64 tokens.
    """
    from peft import LoraConfig, get_peft_model
    from transformers import BertConfig, BertForTokenClassification

    cpu = device == "cpu"
    width, layers, batch, length = (256, 3, 16, 64) if cpu else (128, 24, 2, 16)
    config = BertConfig(
        vocab_size=2000,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=4 * width,
        max_position_embeddings=128,
        num_labels=5,
    )
    targets = ["query", "key", "value", "dense"]
    lora = LoraConfig(task_type="TOKEN_CLS", r=8, lora_alpha=16, target_modules=targets, use_dora=True)
    model: Any = get_peft_model(BertForTokenClassification(config), lora).to(device)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-4)
    essays = torch.randint(0, 2000, (512, length), device=device)
    tags = (essays % 17 == 0).long() * (essays % 5)
    step = 0
    while not run.stopping:
        at = step * batch % (len(essays) - batch)
        out = model(input_ids=essays[at : at + batch], labels=tags[at : at + batch])
        out.loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        run.log(loss=out.loss.item(), tokens=batch * length)


def zeropower_via_newtonschulz5(g: Tensor, steps: int = 5) -> Tensor:
    """Return the nearest orthogonal matrix, about."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g if g.device.type == "cpu" else g.bfloat16()
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        poly = torch.addmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.addmm(x, poly, x, beta=a)
    return x


class Muon(torch.optim.Optimizer):
    """Momentum whose direction is made orthogonal."""

    def __init__(self, params: Any, lr: float = 0.02, momentum: float = 0.95) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Take a step."""
        for group in self.param_groups:
            for p in group["params"]:
                buf = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
                buf.lerp_(p.grad, 1 - group["momentum"])
                p.add_(zeropower_via_newtonschulz5(buf), alpha=-group["lr"])


class LetterWindow(nn.Module):
    """Predicts a letter from the letters before it, by residual layers without attention."""

    def __init__(self, letters: int, window: int, dim: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(letters, dim // window)
        self.layers = nn.ModuleList(nn.Linear(dim, dim, bias=False) for _ in range(layers))
        self.out = nn.Linear(dim, letters)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x).flatten(1)
        for layer in self.layers:
            h = h + F.relu(layer(F.rms_norm(h, h.shape[-1:]))).square()
        logits: Tensor = self.out(h)
        return logits


@labelled(gpu="compute-bound power-limited", cpu="healthy")
def letters_with_muon(run: hoptui.Run, device: str) -> None:
    """A model of letters without attention is trained by Muon, in bf16.

    On a GPU: six matrices of 8192 x 8192. Newton and Schulz need 15 products for each, of 1.1 TFLOP: 99 TFLOP
    together, more than 100 ms at 989 TFLOPS. The model itself has 512 windows: 1.2 TFLOP. Weights, gradients
    and the matrices of the iteration are read and written for less than 60 GB: 15 ms. On the CPU: three
    matrices of 320 x 320 and 1024 windows.
    """
    cpu = device == "cpu"
    dim, depth, rows, window = (320, 3, 1024, 16) if cpu else (8192, 6, 512, 64)
    with torch.device(device):
        model = LetterWindow(64, window, dim, depth)
        text = torch.randint(0, 64, (100_000,))
    opts = [
        Muon(model.layers.parameters(), lr=1e-3),
        torch.optim.SGD([*model.embed.parameters(), *model.out.parameters()], lr=1e-2),
    ]
    offsets = torch.arange(window + 1, device=device)
    while not run.stopping:
        start = torch.randint(0, len(text) - window - 1, (rows, 1), device=device)
        chunk = text[start + offsets]
        with torch.autocast(device, torch.bfloat16, enabled=not cpu):
            logits = model(chunk[:, :-1])
        loss = F.cross_entropy(logits.float(), chunk[:, -1])
        loss.backward()
        for opt in opts:
            opt.step()
            opt.zero_grad()
        run.log(loss=loss.item(), samples=rows)


@labelled(gpu="save-bound", cpu="save-bound")
def words_of_each_decade(run: hoptui.Run, device: str) -> None:
    """Vectors of words follow a corpus through the decades, and `torch.distributed.checkpoint` keeps each.

    The table has 400 000 x 128 numbers, 205 MB, which are written and synchronised with the disk: more than
    80 ms at 2.5 GB/s. A step of skip-grams looks at 256 x 12 rows with sparse gradients: less than 15 ms.
    """
    dcp: Any = importlib.import_module("torch.distributed.checkpoint")

    words, dim = 400_000, 128
    table = nn.Embedding(words, dim, sparse=True).to(device)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.05)
    with tempfile.TemporaryDirectory() as archive:
        writer = dcp.FileSystemWriter(Path(archive, "decade"), overwrite=True)
        while not run.stopping:
            center = torch.randint(0, words, (256, 1), device=device)
            context = torch.randint(0, words, (256, 11), device=device)
            score = (table(center) * table(context)).sum(-1)
            wanted = torch.zeros_like(score)
            wanted[:, 0] = 1.0
            loss = F.binary_cross_entropy_with_logits(score, wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            dcp.save({"vectors": table.state_dict()}, storage_writer=writer, no_dist=True)  # here
            run.log(loss=loss.item(), samples=256)
