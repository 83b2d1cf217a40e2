"""Loads of the second lot that was held out once: self-play, a search, and old games as input."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
import torch.nn.functional as functional
from torch import nn

import hoptui
from benchmarks.labelled.catalogue import labelled


@dataclass
class FourInARow:
    """The game in which four stones in a row win."""

    columns: list[list[int]] = field(default_factory=lambda: [[] for _ in range(7)])
    mover: int = 1

    def legal_moves(self) -> list[int]:
        return [i for i, column in enumerate(self.columns) if len(column) < 6]  # here

    def stone(self, column: int, row: int) -> int:
        inside = 0 <= column < 7 and 0 <= row < len(self.columns[column])  # here
        return self.columns[column][row] if inside else 0  # here

    def won(self, column: int) -> bool:
        """Whether the stone that fell into this column last completes a row."""
        row = len(self.columns[column]) - 1
        for dx, dy in ((1, 0), (0, 1), (1, 1), (1, -1)):
            line = [self.stone(column + i * dx, row + i * dy) == self.mover for i in range(-3, 4)]  # here
            if any(all(line[i : i + 4]) for i in range(4)):  # here
                return True
        return False

    def play_move(self, column: int) -> bool:
        """Drop a stone, and say whether the game is over."""
        self.columns[column].append(self.mover)
        over = self.won(column) or not self.legal_moves()
        self.mover = -self.mover
        return over

    def squares(self) -> bytes:
        """The stones of all squares as the mover sees them: 0 for another's, 1 for none, 2 for one's own."""
        return bytes([1 + self.stone(x, y) * self.mover for x in range(7) for y in range(6)])  # here


@labelled(gpu="env-bound", cpu="env-bound", helpers=(FourInARow,))
def four_in_a_row_against_itself(run: hoptui.Run, device: str) -> None:
    """Self-play: 150 games side by side, whose rules are Python. The net sees them as one tensor."""
    net = nn.Sequential(nn.Linear(42, 64), nn.ReLU(), nn.Linear(64, 7)).to(device)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    games = [FourInARow() for _ in range(150)]
    while not run.stopping:
        seen, moves, outcomes = [], [], []
        for _ in range(8):
            stones = bytearray().join(game.squares() for game in games)
            squares = torch.frombuffer(stones, dtype=torch.uint8).view(-1, 42).to(device).float() - 1
            with torch.no_grad():
                wanted = net(squares).softmax(-1).multinomial(7).tolist()
            outcome = []
            for i, game in enumerate(games):
                open_columns = game.legal_moves()
                move = next(column for column in wanted[i] if column in open_columns)
                over = game.play_move(move)
                outcome.append(float(over))
                moves.append(move)
                if over:
                    games[i] = FourInARow()
            seen.append(squares)
            outcomes.extend(outcome)
        losses = functional.cross_entropy(
            net(torch.cat(seen)), torch.tensor(moves, device=device), reduction="none"
        )
        loss = (losses * torch.tensor(outcomes, device=device)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(finished=sum(outcomes), samples=1200)


class Hex:
    """A board of hexagons. The first player joins left and right, the second one top and bottom."""

    def __init__(self, size: int = 7) -> None:
        self.size = size

    def winner(self, stones: list[int]) -> int:
        """Who has joined the edges of a full board."""
        todo = [i * self.size for i in range(self.size) if stones[i * self.size] == 1]
        reached = set(todo)
        while todo:
            y, x = divmod(todo.pop(), self.size)  # here
            if x == self.size - 1:
                return 1
            for dy, dx in ((0, 1), (0, -1), (1, 0), (-1, 0), (1, -1), (-1, 1)):  # here
                there = (y + dy) * self.size + x + dx  # here
                inside = 0 <= y + dy < self.size and 0 <= x + dx < self.size  # here
                if inside and stones[there] == 1 and there not in reached:  # here
                    reached.add(there)  # here
                    todo.append(there)  # here
        return -1

    def playout(self, stones: list[int]) -> int:
        """Fill the board at random, and return who won."""
        free = [i for i, stone in enumerate(stones) if stone == 0]  # here
        random.shuffle(free)  # here
        filled = stones.copy()
        for turn, i in enumerate(free):
            filled[i] = 1 if turn % 2 else -1  # here
        return self.winner(filled)


@labelled(gpu="env-bound host-bound", cpu="env-bound host-bound", helpers=(Hex,))
def tree_search_of_hex(run: hoptui.Run, device: str) -> None:
    """Monte Carlo search: the target of the policy is found by random games."""
    board = Hex()
    net = nn.Sequential(nn.Linear(49, 96), nn.ReLU(), nn.Linear(96, 49)).to(device)
    optimizer = torch.optim.SGD(net.parameters(), 0.05)

    def search(stones: list[int], prior: list[float]) -> list[float]:
        visits, wins = [1] * 49, [0.5] * 49
        for count in range(500):
            bound = math.sqrt(count + 1)
            urgent = [w / v + p * bound / v for w, v, p in zip(wins, visits, prior, strict=True)]  # here
            move = max((i for i in range(49) if stones[i] == 0), key=urgent.__getitem__)  # here
            tried = [*stones[:move], 1, *stones[move + 1 :]]
            visits[move] += 1
            wins[move] += board.playout(tried) > 0
        return [v / sum(visits) for v in visits]

    while not run.stopping:
        stones = [random.choice((-1, 0, 0, 1)) for _ in range(48)] + [0]
        logits = net(torch.tensor(stones, device=device).float())
        target = search(stones, logits.softmax(0).tolist())
        loss = -(torch.tensor(target, device=device) * logits.log_softmax(0)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=1)


def update_board(board: dict[str, str], move: str) -> None:
    """Play a move such as `e2e4`."""
    board[move[2:4]] = board.pop(move[:2], "P")  # here


def planes(board: dict[str, str]) -> bytes:
    """A board as twelve planes of 64 squares."""
    squares = [file + rank for rank in "12345678" for file in "abcdefgh"]  # here
    return bytes(board.get(square) == piece for piece in "PNBRQKpnbrqk" for square in squares)  # here


def positions(games: list[str]) -> Iterator[tuple[bytes, float]]:
    """Replay games for ever, and give each position with the result of its game."""
    while True:
        moves, _, result = random.choice(games).rpartition(" ")
        board = {f"{file}2": "P" for file in "abcdefgh"} | {f"{file}7": "p" for file in "abcdefgh"}
        for move in moves.split():
            update_board(board, move)
            yield planes(board), float(result == "1-0")


@labelled(gpu="data-bound", cpu="data-bound", helpers=(update_board, planes))
def positions_of_old_games(run: hoptui.Run, device: str) -> None:
    """Chess: a network learns who wins from written games, which are replayed move by move."""
    rng = random.Random(9)
    squares = [file + rank for rank in "12345678" for file in "abcdefgh"]
    games = [" ".join(map("".join, zip(rng.choices(squares, k=60), rng.choices(squares, k=60), strict=True)))]
    games = [f"{game} {result}" for game in games for result in ("1-0", "0-1")]
    net = nn.Sequential(nn.Linear(768, 64), nn.ReLU(), nn.Linear(64, 1), nn.Sigmoid()).to(device)
    optimizer, replayed = torch.optim.Adam(net.parameters(), 1e-3), positions(games)
    while not run.stopping:
        boards, results = zip(*(next(replayed) for _ in range(256)), strict=True)
        seen = torch.frombuffer(bytearray().join(boards), dtype=torch.uint8).view(-1, 768)
        loss = functional.mse_loss(net(seen.to(device).float())[:, 0], torch.tensor(results).to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), positions=256, samples=256)
