"""The cost of an exchange is found in the iterations of two ranks, and its requests are counted."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest

from benchmarks.job_store_cost import Account, Block, CountedStore, figures

SECOND, STEP_NS = 1_000_000_000, 4_000_000
BLOCK_S, PAIRS = 2, 60


def accounts(cost_ns: int) -> list[Account]:
    """Two ranks in lock-step. Each exchange of either makes one iteration longer."""
    dice = random.Random(5)
    ends, blocks, t = [0], [], 0
    reports: list[dict[str, list[int]]] = [{"on": [], "off": []}, {"on": [], "off": []}]
    due = [SECOND // 3, SECOND]
    for number in range(2 * PAIRS):
        on, began, count = number % 2 == 0, t, len(ends)
        while t < began + BLOCK_S * SECOND:
            end = t + int(STEP_NS * dice.uniform(0.97, 1.03))
            for rank in range(2):
                if t <= due[rank] < end:
                    reports[rank]["on" if on else "off"].append(due[rank])
                    due[rank] += int(SECOND * dice.uniform(0.95, 1.1))
                    end += cost_ns if on else 0
            ends.append(end)
            t = end
        exchange_s = 0.001 * BLOCK_S if on else 0.0
        blocks.append(Block(on, began, t, len(ends) - count, exchange_s, 0.002))
    return [Account(ends, blocks, each, 3 * len(each["on"]), 700, 300) for each in reports]


@pytest.mark.parametrize("cost_ns", [0, 2_000_000])
def test_the_cost_of_an_exchange_is_found(cost_ns: int) -> None:
    found = figures(accounts(cost_ns))
    around = found["around an exchange"]
    assert around["microseconds"] == pytest.approx(cost_ns / 1e3, abs=150)
    assert around["percent"] == pytest.approx(2 * cost_ns / 1e7, rel=0.1, abs=0.03)
    assert found["around a report without exchange"]["microseconds"] == pytest.approx(0, abs=150)
    assert found["change of the rate, percent"] == pytest.approx(-2 * cost_ns / 1e7, abs=0.1)
    assert (found["interval"][1] < 0) == bool(cost_ns)


def test_the_account_of_a_rank_is_of_the_time_with_exchanges() -> None:
    own = figures(accounts(0))["own_account"]["head"]
    assert own["thread, percent of a core"] == pytest.approx(0.1, rel=0.01)
    assert own["requests_per_s"] == pytest.approx(3 * own["exchanges_per_s"], abs=0.1)


class Store:
    """A store of torch, as far as an exchange uses it."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def set(self, key: str, value: bytes) -> None:
        self.values[key] = value

    def get(self, key: str) -> bytes:
        return self.values[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)

    def add(self, key: str, amount: int) -> int:
        return amount

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return [self.values[key] for key in keys]

    def clone(self) -> Store:
        return self

    def set_timeout(self, timeout: timedelta) -> None:
        pass


def test_requests_of_each_connection_are_counted() -> None:
    counted = CountedStore(Store())
    own = counted.clone()
    own.set("key", b"12345")
    assert own.check(["key"])
    assert own.get("key") == b"12345"
    assert own.multi_get(["key", "key"]) == [b"12345"] * 2
    assert own.add("n", 1) == 1
    assert (counted.requests, counted.sent_bytes, counted.received_bytes) == (
        5,
        3 + 5 + 3 + 3 + 6 + 1 + 8,
        1 + 5 + 10 + 8,
    )
