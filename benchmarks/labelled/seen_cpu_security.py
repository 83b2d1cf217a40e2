"""Trainings for security on the CPU: phishing, malware, intrusions, passwords, and a honeypot."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import asyncio
import gzip
import html.parser
import multiprocessing
import pickle
import random
import re
import tempfile
from collections import Counter, deque
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hoptui
from benchmarks.labelled.catalogue import AdapterRun, labelled


class PageFeatures(html.parser.HTMLParser):
    """Counts tags, targets of links and words of a page."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.counts, self.depth = size, [0.0] * size, 0

    def note(self, what: str) -> None:
        """Count something."""
        self.counts[sum(map(ord, what)) * 31 % self.size] += 1  # here

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.depth += 1
        self.note(tag)  # here
        for name, value in attrs:
            self.note(f"{name}={value}")  # here

    def handle_endtag(self, tag: str) -> None:
        self.depth -= 1

    def handle_data(self, data: str) -> None:
        for word in data.split():
            self.note(word.lower())  # here


def write_pages(folder: Path, pages: int) -> None:
    """Write pages as a crawler keeps them."""
    rng = random.Random(1)
    words = ["account", "verify", "login", "bank", "news", "offer", "password", "garden", "weather", "update"]
    for n in range(pages):
        rows = [
            f'<div class="c{rng.randrange(40)}"><a href="/{rng.choice(words)}/{rng.randrange(99)}">'
            f"{' '.join(rng.choices(words, k=6))}</a></div>"
            for _ in range(60)
        ]
        Path(folder, f"{n}.html.gz").write_bytes(gzip.compress(f"<html>{''.join(rows)}</html>".encode()))


async def page(path: Path) -> list[float]:
    """Read a page, and return its features."""
    blob = await asyncio.to_thread(path.read_bytes)
    parser = PageFeatures(512)
    parser.feed(gzip.decompress(blob).decode())  # here
    return parser.counts


@labelled(cpu="data-bound", helpers=(PageFeatures, page))
def phishing_pages(run: hoptui.Run, device: str) -> None:
    """A classifier of pages in an event loop, which reads the archive of a crawler.

    A batch has 64 pages of 60 links, which Python parses. Measured with a timer, the pages take 94 % of
    an iteration of 0.22 s, and the classifier 2 %.
    """
    model = nn.Sequential(nn.Linear(512, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 2)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    async def train(folder: Path) -> None:
        rng = random.Random(2)
        while not run.stopping:
            chosen = [rng.randrange(100) for _ in range(64)]
            pages = await asyncio.gather(*(page(folder / f"{n}.html.gz") for n in chosen))  # here
            labels = torch.tensor([n % 2 for n in chosen], device=device)
            loss = F.cross_entropy(model(torch.tensor(pages, device=device).log1p()), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss.item(), samples=len(chosen))

    with tempfile.TemporaryDirectory() as name:
        write_pages(Path(name), 100)
        asyncio.run(train(Path(name)))


class MalConv(nn.Module):
    """Gated convolutions over the bytes of a program."""

    def __init__(self, channels: int, window: int, families: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(257, 8, padding_idx=256)
        self.value = nn.Conv1d(8, channels, window, stride=window // 4)
        self.gate = nn.Conv1d(8, channels, window, stride=window // 4)
        self.hidden, self.out = nn.Linear(channels, channels), nn.Linear(channels, families)

    def forward(self, program: Tensor) -> Tensor:
        x = self.embed(program).transpose(1, 2)
        pooled = (self.value(x) * torch.sigmoid(self.gate(x))).amax(-1)
        logits: Tensor = self.out(F.relu(self.hidden(pooled)))
        return logits


@labelled(cpu="healthy")
def malware_families(run: hoptui.Run, device: str) -> None:
    """Families of malware are told from the first bytes of programs, in the manner of MalConv.

    Measured with a timer, 99 % of an iteration of 0.34 s is in the model, its backward pass and its
    optimizer.
    """
    torch.manual_seed(6)
    programs = torch.randint(0, 257, (128, 32_768), dtype=torch.int32)
    families = torch.randint(0, 9, (128,))
    net = MalConv(64, 256, 9).to(device)
    optim = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    epoch = 0
    while not run.stopping:
        for first in range(0, 128, 8):
            x, y = programs[first : first + 8].to(device).long(), families[first : first + 8].to(device)
            optim.zero_grad()
            loss = F.cross_entropy(net(x), y, label_smoothing=0.1)
            loss.backward()
            optim.step()
            run.log(loss=loss.item(), epoch=epoch, samples=8)
            if run.stopping:
                return
        epoch += 1


RULES = [
    re.compile(r"(?:\.\./){2,}"),
    re.compile(r"union\s+(?:all\s+)?select"),
    re.compile(r"<script[^>]*>"),
    re.compile(r"(?:%[0-9a-f]{2}){4,}"),
    re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}:\d{2,5}\b"),
    re.compile(r"(\w+)=\1\b"),
    re.compile(r"cmd(?:\.exe)?\s*/c"),
    re.compile(r"[a-z]+\d+[a-z]+\d+[a-z]+"),
]


def alerts_of(flows: list[str]) -> Counter[int]:
    """Return how often each rule matches."""
    found: Counter[int] = Counter()
    for flow in flows:
        for n, rule in enumerate(RULES):
            found[n] += sum(1 for _ in rule.finditer(flow))  # here
    return found


def _rule_check(flows: list[str]) -> Any:
    """Return a callback of transformers that compares the rules with the model after each step."""
    from transformers import TrainerCallback

    class RuleCheck(TrainerCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.rng, self.history = random.Random(4), deque[Counter[int]](maxlen=50)

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            suspicious = self.rng.sample(flows, 360)
            self.history.append(alerts_of(suspicious))  # here

    return RuleCheck()


@labelled(
    cpu="host-bound", needs=("transformers", "accelerate"), adapter=True, helpers=(alerts_of, _rule_check)
)
def intrusion_alerts(run: AdapterRun, device: str) -> None:
    """A small BERT reads flows under the Trainer. A callback asks the rules of a firewall about some flows.

    Eight rules go over 360 flows. Measured with a timer, they take 81 % of an iteration of 0.08 s, and
    the model 12 %.
    """
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    from hoptui.integrations.transformers import HoptuiCallback

    rng = random.Random(8)
    words = [
        "get",
        "/index",
        "../",
        "select",
        "id=7",
        "user=user",
        "%3c%2f%41%42",
        "10.0.0.7:443",
        "ab1cd2ef",
        "ok",
    ]
    flows = [" ".join(rng.choices(words, k=70)) for _ in range(400)]
    rows = [
        {"input_ids": [rng.randrange(100) for _ in range(24)], "labels": rng.randrange(2)} for _ in range(256)
    ]
    config = BertConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64
    )
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            output_dir=folder,
            max_steps=run.iterations,
            per_device_train_batch_size=8,
            use_cpu=device == "cpu",
            report_to=[],
            disable_tqdm=True,
            save_strategy="no",
            logging_steps=50,
            seed=1,
        )
        trainer = Trainer(
            model=BertForSequenceClassification(config),
            args=args,
            train_dataset=rows,
            callbacks=[_rule_check(flows), HoptuiCallback(run.name)],
        )
        trainer.train()


def batches(vocab: int, rows: int, length: int) -> Any:
    """Yield batches of passwords for ever."""
    generator = torch.Generator().manual_seed(12)
    while True:
        yield torch.randint(0, vocab, (rows, length + 1), generator=generator)


def keep(path: Path, **state: Any) -> None:
    """Write a state that a later run can go on from."""
    part = path.with_suffix(".part")
    with gzip.open(part, "wb", compresslevel=3) as file:
        pickle.dump(state, file)  # here
    part.replace(path)


@labelled(cpu="save-bound", helpers=(keep,))
def password_guesser(run: hoptui.Run, device: str) -> None:
    """An LSTM guesses the next letter of passwords. What a later run needs is kept after each step.

    Weights and moments of 2 MB are packed by gzip. Measured with a timer, this takes 82 % of an iteration
    of 0.13 s, and the network 16 %.
    """
    torch.manual_seed(7)
    model = nn.ModuleDict(
        {"embed": nn.Embedding(96, 64), "lstm": nn.LSTM(64, 160, batch_first=True), "out": nn.Linear(160, 96)}
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    with tempfile.TemporaryDirectory() as folder:
        for step, letters in enumerate(batches(96, 32, 12)):
            hidden, _ = model["lstm"](model["embed"](letters[:, :-1].to(device)))
            loss = F.cross_entropy(model["out"](hidden).flatten(0, 1), letters[:, 1:].flatten().to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            weights = {name: value.cpu().numpy() for name, value in model.state_dict().items()}
            moments = [(s["exp_avg"].numpy(), s["exp_avg_sq"].numpy()) for s in optimizer.state.values()]
            keep(Path(folder, "last.gz"), step=step, weights=weights, moments=moments)  # here
            run.log(loss=loss.item(), samples=len(letters))
            if run.stopping:
                break


class Shell:
    """A shell that an intruder sees, with a tree of files that looks used."""

    def __init__(self, files: int, seed: int) -> None:
        self.rng = random.Random(seed)
        self.files = {f"/srv/{n % 37}/{n}.log": self.rng.randrange(1 << 20) for n in range(files)}
        self.interest = 1.0

    def act(self, action: int) -> tuple[list[float], float, bool]:
        """Answer a command in one of some ways, and return what the intruder does then."""
        shown = 0
        for name, size in self.files.items():  # here
            folder, _, rest = name.rpartition("/")  # here
            key = (len(folder) * 7 + size + action) % 11  # here
            shown += key < 4 and not rest.startswith("9")  # here
        fresh = f"/srv/{self.rng.randrange(37)}/{self.rng.randrange(1 << 30)}.log"
        self.files.pop(next(iter(self.files)))
        self.files[fresh] = self.rng.randrange(1 << 20)
        self.interest = 0.95 * self.interest + 0.05 * self.rng.random() * (1 + action)
        over = self.interest < 0.05 or self.rng.random() < 0.02
        seen = [shown / len(self.files), self.interest, action / 4, self.rng.random()]
        return seen, self.interest, over


def shell_process(pipe: Connection, files: int) -> None:
    """Serve a shell in a process of its own."""
    shell = Shell(files, seed=3)
    while (action := pipe.recv()) is not None:
        pipe.send(shell.act(action))  # here


@labelled(cpu="env-bound", helpers=(Shell, shell_process))
def honeypot_dqn(run: hoptui.Run, device: str) -> None:
    """DQN keeps an intruder interested. The shell is in another process, as in a container of its own.

    An answer goes over 12 000 files in Python, and an iteration has 16 answers. Measured with a timer,
    the loop waits for them for 83 % of an iteration of 0.13 s, and the networks take 7 %.
    """
    spawn = multiprocessing.get_context("spawn")
    pipe, other = spawn.Pipe()
    env = spawn.Process(target=shell_process, args=(other, 12_000), daemon=True)
    env.start()
    q = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 4)).to(device)
    target = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 4)).to(device)
    target.load_state_dict(q.state_dict())
    optimizer = torch.optim.Adam(q.parameters(), lr=1e-3)
    memory: deque[tuple[list[float], int, float, list[float], bool]] = deque(maxlen=5000)
    rng, state = random.Random(0), [0.0] * 4
    while not run.stopping:
        total = 0.0
        for _ in range(16):
            with torch.no_grad():
                best = int(q(torch.tensor(state, device=device)).argmax())
            action = rng.randrange(4) if rng.random() < 0.1 else best
            pipe.send(action)
            after, reward, over = pipe.recv()  # here
            memory.append((state, action, reward, after, over))
            state, total = ([0.0] * 4 if over else after), total + reward
        s, a, r, n, d = zip(*rng.choices(memory, k=64), strict=True)
        with torch.no_grad():
            bootstrap = target(torch.tensor(n, device=device)).amax(1) * (
                1 - torch.tensor(d, dtype=torch.float)
            )
        chosen = q(torch.tensor(s, device=device)).gather(1, torch.tensor(a, device=device)[:, None])[:, 0]
        loss = F.smooth_l1_loss(chosen, torch.tensor(r, device=device) + 0.95 * bootstrap.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for slow, fast in zip(target.parameters(), q.parameters(), strict=True):
            slow.data.lerp_(fast.data, 0.01)
        run.log(loss=loss.item(), reward=total / 16, env_steps=16)
    pipe.send(None)
    env.join(5)
