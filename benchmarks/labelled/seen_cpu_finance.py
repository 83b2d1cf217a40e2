"""Trainings for finance on the CPU: books of orders, options, auctions, fraud, and ratings."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import bisect
import functools
import importlib
import importlib.util
import math
import random
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import hoptui
from benchmarks.labelled.catalogue import AdapterRun, labelled

PACKAGE = "lightning" if importlib.util.find_spec("lightning") else "pytorch_lightning"
MESSAGE = struct.Struct("<QcIIB")


def record_session(path: Path, messages: int, seed: int) -> None:
    """Write the messages of an exchange: orders that come, go and are filled."""
    rng, live, now = random.Random(seed), [0], 0
    with path.open("wb") as file:
        for order in range(1, messages):
            now += rng.randrange(1, 5000)
            kind = rng.choices("AXE", weights=(5, 2, 2))[0] if len(live) > 50 else "A"
            which = order if kind == "A" else rng.choice(live[-50:])
            if kind == "A":
                live.append(order)
            price = 10_000 + rng.randrange(-40, 40)
            file.write(MESSAGE.pack(now, kind.encode(), which, price, rng.randrange(1, 100)))


class OrderBook:
    """Both sides of a book, rebuilt from messages."""

    def __init__(self) -> None:
        self.orders: dict[int, tuple[int, int]] = {}
        self.levels: dict[int, int] = {}
        self.prices: list[int] = []

    def apply(self, kind: bytes, order: int, price: int, size: int) -> None:
        """Change the book by one message."""
        if kind == b"A":
            self.orders[order] = price, size  # here
            if price not in self.levels:  # here
                bisect.insort(self.prices, price)  # here
                self.levels[price] = 0
            self.levels[price] += size  # here
        elif order in self.orders:
            price, left = self.orders.pop(order)  # here
            self.levels[price] -= left  # here
            if self.levels[price] <= 0:
                del self.levels[price]
                self.prices.remove(price)  # here

    def top(self, depth: int) -> list[float]:
        """Return the sizes around the middle."""
        middle = len(self.prices) // 2
        near = self.prices[max(0, middle - depth) : middle + depth]  # here
        sizes = [math.log1p(self.levels[price]) for price in near]  # here
        return sizes + [0.0] * (2 * depth - len(sizes))


def snapshots(paths: list[Path], batch: int, every: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield books and whether the best price rose after them."""
    rows, rose = [], []
    while True:
        for path in paths:
            book, last = OrderBook(), 0
            for n, (_, kind, order, price, size) in enumerate(MESSAGE.iter_unpack(path.read_bytes())):  # here
                book.apply(kind, order, price, size)  # here
                if n % every == 0 and n > 200:
                    rows.append(book.top(10))  # here
                    middle = book.prices[len(book.prices) // 2]
                    rose.append(float(middle > last))
                    last = middle
                    if len(rows) == batch:
                        yield torch.tensor(rows), torch.tensor(rose)
                        rows, rose = [], []


@labelled(cpu="data-bound", helpers=(OrderBook, snapshots))
def books_of_orders(run: hoptui.Run, device: str) -> None:
    """The next move of a price is foreseen from books, which are rebuilt from the messages of an exchange.

    A batch needs 51 200 messages. Measured with a timer, they take 92 % of an iteration of 0.08 s, and the
    network 7 %.
    """
    torch.manual_seed(41)
    net = nn.Sequential(nn.Linear(20, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 1)).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, f"session{n}.bin") for n in range(4)]
        for n, path in enumerate(paths):
            record_session(path, 40_000, n)
        stream = snapshots(paths, batch=256, every=200)
        while not run.stopping:
            books, rose = next(stream)  # here
            loss = F.binary_cross_entropy_with_logits(net(books.to(device))[:, 0], rose.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss.item(), samples=len(rose))


@labelled(cpu="healthy", needs=(PACKAGE,), adapter=True)
def implied_volatilities(run: AdapterRun, device: str) -> None:
    """Under Lightning: a transformer over the columns of options learns their implied volatilities.

    Measured with a timer, 97 % of an iteration of 0.14 s is in the model, its backward pass and its
    optimizer.
    """
    from hoptui.integrations.lightning import HoptuiCallback

    pl: Any = importlib.import_module("lightning.pytorch" if PACKAGE == "lightning" else PACKAGE)

    class ColumnTransformer(pl.LightningModule):  # type: ignore[misc]
        def __init__(self, columns: int, width: int) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.randn(columns, width) * 0.1)
            self.shift = nn.Parameter(torch.zeros(columns, width))
            layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
            self.head = nn.Linear(width, 1)

        def forward(self, x: Tensor) -> Tensor:
            tokens = self.encoder(x[..., None] * self.scale + self.shift)
            return F.softplus(self.head(tokens.mean(1))[:, 0])

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            x, volatility = batch
            loss = F.smooth_l1_loss(self(x), volatility)
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=3e-4, weight_decay=0.01)
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10_000)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    pl.seed_everything(42, verbose=False)
    options = torch.randn(20_000, 16)
    surface = TensorDataset(options, options[:, :3].square().mean(1).sqrt())
    trainer = pl.Trainer(
        accelerator="cpu" if device == "cpu" else "gpu",
        devices=1,
        max_steps=run.iterations,
        max_epochs=-1,
        logger=False,
        gradient_clip_val=1.0,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[HoptuiCallback(run.name)],
    )
    trainer.fit(ColumnTransformer(16, 64), DataLoader(surface, batch_size=256, shuffle=True))


class DoubleAuction:
    """Buyers and sellers who meet for some rounds. Beside two learners there are many who bid at random."""

    def __init__(self, traders: int, seed: int) -> None:
        self.rng, self.traders = random.Random(seed), traders
        self.last = 0.5

    def clear(self, bid: float, ask: float) -> tuple[float, float]:
        """Match the orders of a round, and return what the two learners earn."""
        buys, sells = [(bid, 0)], [(ask, 0)]
        for n in range(1, self.traders):
            buys.append((self.rng.gauss(self.last, 0.1), n))  # here
            sells.append((self.rng.gauss(self.last, 0.1), n))  # here
        buys.sort(reverse=True)  # here
        sells.sort()  # here
        bought, sold, price = False, False, self.last
        for (high, buyer), (low, seller) in zip(buys, sells, strict=True):  # here
            if high < low:  # here
                break
            price = (high + low) / 2  # here
            bought, sold = bought or buyer == 0, sold or seller == 0  # here
        self.last += 0.1 * (price - self.last) + self.rng.gauss(0, 0.005)
        return (0.6 - price) * bought, (price - 0.4) * sold


@labelled(cpu="env-bound", helpers=(DoubleAuction,))
def bidders_of_an_auction(run: hoptui.Run, device: str) -> None:
    """A buyer and a seller learn from each other in an auction with 2499 others on each side.

    The orders of 20 rounds are drawn and sorted in Python. Measured with a timer, this takes 75 % of an
    iteration of 0.18 s, and the networks 13 %.
    """
    torch.manual_seed(43)

    def trader() -> nn.Module:
        return nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2)).to(device)

    players = {"buyer": trader(), "seller": trader()}
    optimizers = {name: torch.optim.Adam(net.parameters(), lr=3e-3) for name, net in players.items()}
    market = DoubleAuction(2500, 43)
    while not run.stopping:
        log_p: dict[str, list[Tensor]] = {name: [] for name in players}
        gains: dict[str, list[float]] = {name: [] for name in players}
        for turn in range(20):
            state, offers = torch.tensor([market.last, turn / 20], device=device), []
            for name, net in players.items():
                mean, spread = net(state)
                choice = torch.distributions.Normal(mean, F.softplus(spread) + 0.01)
                offer = choice.sample()
                log_p[name].append(choice.log_prob(offer))
                offers.append(offer.item())
            earned = market.clear(*offers)  # here
            for name, gain in zip(players, earned, strict=True):
                gains[name].append(gain)
        losses = {}
        for name in players:
            earnings = torch.tensor(gains[name], device=device)
            loss = -(torch.stack(log_p[name]) * (earnings - earnings.mean())).mean()
            optimizers[name].zero_grad()
            loss.backward()
            optimizers[name].step()
            losses[name] = loss.item()
        run.log(loss=losses["buyer"], other=losses["seller"], reward=sum(gains["buyer"]), env_steps=20)


@labelled(cpu="healthy", needs=("torch_geometric",))
def fraud_among_accounts(run: hoptui.Run, device: str) -> None:
    """Transformers of PyG over all transfers between accounts find those that are used for fraud.

    Measured with a timer, 95 % of an iteration of 0.11 s is in the model, its backward pass and its
    optimizer.
    """
    from torch_geometric.nn import TransformerConv
    from torch_geometric.utils import dropout_edge

    torch.manual_seed(44)
    accounts, transfers = 3000, 15_000
    edges = torch.randint(0, accounts, (2, transfers), device=device)
    amounts = torch.randn(transfers, 4, device=device)
    x, fraud = torch.randn(accounts, 24, device=device), (torch.rand(accounts, device=device) < 0.05).long()
    known = torch.rand(accounts, device=device) < 0.6

    class Fraud(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = TransformerConv(24, 16, heads=4, edge_dim=4)
            self.norm = nn.LayerNorm(64)
            self.second = TransformerConv(64, 16, heads=4, edge_dim=4)
            self.out = nn.Linear(64, 2)

        def forward(self, x: Tensor, edges: Tensor, amounts: Tensor) -> Tensor:
            h = self.norm(self.first(x, edges, amounts)).relu()
            scores: Tensor = self.out(self.second(h, edges, amounts).relu())
            return scores

    model = Fraud().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, weight_decay=5e-4)
    weight = torch.tensor([1.0, 12.0], device=device)
    best = 0.0
    while not run.stopping:
        model.train()
        kept, mask = dropout_edge(edges, p=0.2)
        scores = model(x, kept, amounts[mask])
        loss = F.cross_entropy(scores[known], fraud[known], weight)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found = scores.detach().argmax(1)[~known]
        best = max(best, (found == fraud[~known]).float().mean().item())
        run.log(loss=loss.item(), best=best, samples=accounts)


def kept(folder: Path, every: int, last: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that keeps what a step returns, and the last few of them."""
    joblib: Any = importlib.import_module("joblib")

    def decorate(step: Callable[..., Any]) -> Callable[..., Any]:
        count = 0

        @functools.wraps(step)
        def wrapped(*args: Any) -> Any:
            nonlocal count
            figures, state = step(*args)
            count += 1
            if count % every == 0:
                joblib.dump(state, folder / f"{count:06d}.joblib", compress=("zlib", 6))  # here
                for old in sorted(folder.glob("*.joblib"))[:-last]:
                    old.unlink()
            return figures

        return wrapped

    return decorate


@labelled(cpu="save-bound", needs=("joblib",), helpers=(kept,))
def ratings_of_issuers(run: hoptui.Run, device: str) -> None:
    """Ratings are predicted by a residual perceptron. A decorator keeps the state after each step.

    Weights of 1 MB are packed by joblib. Measured with a timer, this takes 77 % of an iteration of 0.09 s,
    and the network 19 %.
    """
    torch.manual_seed(45)
    wide = [nn.Sequential(nn.Linear(256, 256), nn.SELU(), nn.AlphaDropout(0.05)) for _ in range(4)]
    model = nn.Sequential(nn.Linear(40, 256), *wide, nn.Linear(256, 10)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
    issuers, ratings = torch.randn(5000, 40, device=device), torch.randint(0, 10, (5000,), device=device)
    with tempfile.TemporaryDirectory() as folder:

        @kept(Path(folder), every=1, last=3)
        def step(chosen: Tensor) -> tuple[dict[str, float], dict[str, Any]]:
            loss = F.cross_entropy(model(issuers[chosen]), ratings[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            weights = {name: value.cpu().numpy() for name, value in model.state_dict().items()}
            return {"loss": loss.item()}, {
                "weights": weights,
                "groups": optimizer.state_dict()["param_groups"],
            }

        while not run.stopping:
            figures = step(torch.randint(0, 5000, (128,), device=device))  # here
            run.log(**figures, samples=128)
