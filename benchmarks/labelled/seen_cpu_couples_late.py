"""Trainings of two processes on the CPU, of which one keeps the other waiting."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import random
import tempfile
import time
import xml.etree.ElementTree as ET
import zipfile
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import hoptui
from benchmarks.labelled.catalogue import labelled


def write_timetable(path: Path, trains: int, seed: int) -> None:
    """Write trains with their calls as XML."""
    rng = random.Random(seed)
    root = ET.Element("timetable")
    for n in range(trains):
        train = ET.SubElement(root, "train", number=str(n), category=rng.choice(("ICE", "RE", "S")))
        minute = rng.randrange(300, 1200)
        for _ in range(20):
            stop = ET.SubElement(train, "call", station=f"S{rng.randrange(400):03d}")
            minute += rng.randrange(4, 30)
            ET.SubElement(stop, "arrival").text = f"{minute // 60 % 24:02d}:{minute % 60:02d}"
            ET.SubElement(stop, "platform").text = f"{rng.randrange(1, 20)}{rng.choice('ab')}"
        ET.SubElement(train, "delay").text = str(rng.randrange(0, 30))
    ET.ElementTree(root).write(path, encoding="utf-8")


def parsed_trains(path: Path) -> Iterator[tuple[list[list[float]], float]]:
    """Yield the calls of each train of a timetable, and how late it is."""
    for train in ET.parse(path).getroot().iterfind("train"):  # here
        calls = []
        for call in train.iterfind("call"):  # here
            hour, minute = (call.findtext("arrival") or "0:0").split(":")  # here
            platform = int((call.findtext("platform") or "0a")[:-1])  # here
            station = int(call.attrib["station"][1:])  # here
            calls.append([int(hour) / 24, int(minute) / 60, platform / 20, station / 400])  # here
        yield calls, float(train.findtext("delay") or 0) / 30  # here


class Timetables(IterableDataset[tuple[Tensor, Tensor]]):
    """Timetables of a railway. One railway has tensors, the other one still sends XML."""

    def __init__(self, folder: Path, files: int, as_xml: bool) -> None:
        self.as_xml = as_xml
        self.paths = [folder / f"timetable{n}.xml" for n in range(files)]
        for n, path in enumerate(self.paths):
            write_timetable(path, 150, n)
            if not as_xml:
                calls, delays = zip(*parsed_trains(path), strict=True)
                torch.save((torch.tensor(calls)[:, -6:], torch.tensor(delays)), path.with_suffix(".pt"))

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            for path in self.paths:
                if self.as_xml:
                    for calls, delay in parsed_trains(path):  # here
                        yield torch.tensor(calls[-6:]), torch.tensor(delay)
                else:
                    yield from zip(*torch.load(path.with_suffix(".pt")), strict=True)


@labelled(cpu="straggler", ranks=2, late=1, helpers=(parsed_trains, Timetables))
def timetables_of_two_railways(run: hoptui.Run, device: str) -> None:
    """Two railways learn together how late trains are. The second one parses its timetables from XML.

    A batch has 400 trains of 20 calls. Measured with a timer and one thread, they take 85 to 88 % of an
    iteration of 0.08 to 0.13 s on the second rank, and 4 to 6 % on the first one.
    """
    torch.manual_seed(31)

    class Delay(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.out = nn.GRU(4, 24, batch_first=True), nn.Linear(24, 1)

        def forward(self, calls: Tensor) -> Tensor:
            late: Tensor = self.out(self.rnn(calls)[0][:, -1])[:, 0]
            return late

    model = DistributedDataParallel(Delay().to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with tempfile.TemporaryDirectory() as folder:
        trains = Timetables(Path(folder), 2, as_xml=dist.get_rank() == 1)
        for calls, delays in DataLoader(trains, batch_size=400):  # here
            loss = F.l1_loss(model(calls.to(device)), delays.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss.item(), samples=len(delays))
            if run.stopping:
                break


def kendall_tau(a: list[float], b: list[float]) -> float:
    """Return how well two orders agree, over all pairs."""
    agree = differ = 0
    for i in range(len(a)):
        for j in range(i):  # here
            sign = (a[i] - a[j]) * (b[i] - b[j])  # here
            if sign > 0:  # here
                agree += 1  # here
            elif sign < 0:
                differ += 1  # here
    return (agree - differ) / max(agree + differ, 1)


@labelled(cpu="straggler", ranks=2, late=0, helpers=(kendall_tau,))
def tickets_of_two_cities(run: hoptui.Run, device: str) -> None:
    """Demand for tickets is ranked in two cities. The first rank prints how well its order agrees.

    It compares 1100 values with each other. Measured with a timer and one thread, this takes 87 to 91 %
    of an iteration of 0.05 s on the first rank. The second one has nothing of it.
    """
    torch.manual_seed(32)
    net = nn.Sequential(nn.Linear(20, 48), nn.SiLU(), nn.Linear(48, 24), nn.SiLU(), nn.Linear(24, 1))
    model = DistributedDataParallel(net.to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    rank = dist.get_rank()
    torch.manual_seed(320 + rank)
    lines = torch.randn(3000, 20, device=device)
    demand = lines[:, :4].sum(1) + 0.3 * torch.randn(3000, device=device)
    best, tau = -1.0, 0.0
    while not run.stopping:
        batch = torch.randint(0, 3000, (1100,), device=device)
        score = model(lines[batch])[:, 0]
        first, second = score.view(2, -1)
        wanted = demand[batch].view(2, -1)
        loss = F.margin_ranking_loss(first, second, (wanted[0] - wanted[1]).sign(), margin=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            tau = kendall_tau(score.tolist(), demand[batch].tolist())  # here
            best = max(best, tau)
        run.log(loss=loss.item(), tau=tau, best=best, samples=len(batch))


class QuotaClient:
    """Asks a service for documents, and keeps to the quota that it has been given."""

    def __init__(self, per_second: float, seed: int) -> None:
        self.per_second, self.next = per_second, time.monotonic()
        generator = torch.Generator().manual_seed(seed)
        self.pages = torch.randint(0, 2000, (300, 50), generator=generator)

    def fetch(self, document: int) -> Tensor:
        """Return a document, as soon as the quota allows."""
        now = time.monotonic()
        if now < self.next:
            time.sleep(self.next - now)  # here
        self.next = max(now, self.next) + 1 / self.per_second
        return self.pages[document % 300]


class Minutes(Dataset[tuple[Tensor, int]]):
    """Minutes of a council, which are fetched when they are asked for."""

    def __init__(self, client: QuotaClient) -> None:
        self.client = client

    def __len__(self) -> int:
        return 6000

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return self.client.fetch(i), i % 7  # here


@labelled(cpu="straggler", ranks=2, late=1, helpers=(QuotaClient, Minutes))
def minutes_of_two_councils(run: hoptui.Run, device: str) -> None:
    """Topics of councils are learned from their minutes. The service of the second one has a small quota.

    It is 120 documents a second there. Measured with a timer and one thread, the second rank sleeps for
    96 % of an iteration of 0.13 s, and the first one reads for less than 1 %.
    """
    torch.manual_seed(33)
    rank = dist.get_rank()
    net = nn.Sequential(nn.EmbeddingBag(2000, 32), nn.Dropout(0.2), nn.Linear(32, 7))
    model = DistributedDataParallel(net.to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    loader = DataLoader(Minutes(QuotaClient(120 if rank else 1e6, rank)), batch_size=16, shuffle=True)
    while not run.stopping:
        for words, topics in loader:  # here
            loss = F.cross_entropy(model(words.to(device)), topics.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss.item(), samples=len(topics))
            if run.stopping:
                break


class Shelf:
    """Keeps the last recipes of a training as zipped members, with the moments of the optimizer."""

    def __init__(self, folder: str, keep: int) -> None:
        self.folder, self.keep, self.saved = Path(folder), keep, 0

    def put(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Save one version and forget the oldest."""
        path = self.folder / f"recipes{self.saved:06d}.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, value in model.state_dict().items():
                archive.writestr(f"model/{name}", value.cpu().numpy().tobytes())  # here
            for n, state in optimizer.state_dict()["state"].items():
                for name, value in state.items():
                    archive.writestr(f"optimizer/{n}/{name}", value.cpu().numpy().tobytes())  # here
        self.saved += 1
        for old in sorted(self.folder.glob("*.zip"))[: -self.keep]:
            old.unlink()


@labelled(cpu="straggler", ranks=2, late=0, helpers=(Shelf,))
def recipes_of_two_kitchens(run: hoptui.Run, device: str) -> None:
    """Two kitchens learn which ingredients go together. The first rank saves zipped weights after each step.

    Weights and moments have 2.8 MB. Measured with a timer and one thread, packing takes 90 to 92 % of an
    iteration of 0.1 s on the first rank. The second one has nothing of it.
    """
    torch.manual_seed(34)
    rank = dist.get_rank()
    net = nn.Sequential(nn.EmbeddingBag(1200, 96), nn.ReLU(), nn.Linear(96, 1200))
    model = DistributedDataParallel(net.to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    torch.manual_seed(340 + rank)
    recipes = torch.randint(0, 1200, (2000, 9), device=device)
    with tempfile.TemporaryDirectory() as folder:
        shelf = Shelf(folder, keep=3)
        while not run.stopping:
            chosen = recipes[torch.randint(0, 2000, (16,), device=device)]
            loss = F.cross_entropy(model(chosen[:, :-1]), chosen[:, -1])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if rank == 0:
                shelf.put(net, optimizer)  # here
            run.log(loss=loss.item(), samples=len(chosen))


@torch.no_grad()
def validate(net: nn.Module, loader: DataLoader[tuple[Tensor, ...]], device: str) -> tuple[float, float]:
    """Return loss and accuracy over a whole validation set."""
    net.eval()
    total = right = seen = 0.0
    for boards, results in loader:  # here
        scores = net(boards.to(device))  # here
        total += F.cross_entropy(scores, results.to(device), reduction="sum").item()  # here
        right += (scores.argmax(1) == results.to(device)).sum().item()  # here
        seen += len(results)
    net.train()
    return total / seen, right / seen


@labelled(cpu="straggler", ranks=2, late=0, helpers=(validate,))
def games_of_two_clubs(run: hoptui.Run, device: str) -> None:
    """Results of draughts are learned from boards of two clubs. The first rank validates after each step.

    The validation set has 3000 boards. Measured with a timer and one thread, it takes 86 % of an
    iteration of 0.05 s on the first rank. The second one has nothing of it.
    """
    torch.manual_seed(35)
    rank = dist.get_rank()
    net = nn.Sequential(
        nn.Conv2d(4, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(1024, 3),
    ).to(device)  # fmt: skip
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    validation = TensorDataset(torch.rand(3000, 4, 8, 8), torch.randint(0, 3, (3000,)))
    loader = DataLoader(validation, batch_size=100)
    torch.manual_seed(350 + rank)
    boards = torch.rand(4000, 4, 8, 8, device=device)
    results = torch.randint(0, 3, (4000,), device=device)
    validation_loss, accuracy = 0.0, 0.0
    while not run.stopping:
        rows = torch.randint(0, 4000, (24,), device=device)
        loss = F.cross_entropy(model(boards[rows]), results[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            validation_loss, accuracy = validate(net, loader, device)  # here
        run.log(loss=loss.item(), validation_loss=validation_loss, accuracy=accuracy, samples=len(rows))
