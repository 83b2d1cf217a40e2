"""How many samples an iteration uses, from real DataLoaders."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import (  # noqa: E402
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    SequentialSampler,
    TensorDataset,
    dataloader,
)

from hoptui.injection.batches import BatchCounts  # noqa: E402

DATA = TensorDataset(torch.arange(10.0), torch.arange(10.0))


class NoPhase:
    """A phase that nobody times."""

    def begin(self) -> None: ...
    def end(self) -> None: ...


class Stream(IterableDataset[Any]):
    """Items without indices."""

    def __init__(self, *items: object) -> None:
        self.items = items

    def __iter__(self) -> Iterator[object]:
        return iter(self.items)


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> BatchCounts:
    base = dataloader._BaseDataLoaderIter
    for name in ("__next__", "_next_index", "_reset"):
        monkeypatch.setattr(base, name, getattr(base, name))  # put back after the test
    found = BatchCounts()
    found.watch(dataloader)
    found.begin(NoPhase(), threading.get_ident(), 1)
    return found


def sizes(counts: BatchCounts, loader: DataLoader[Any]) -> list[int | None]:
    """What each batch of a loader counts."""
    return [counts.take() for _ in loader]


def test_a_batch_counts_its_indices(counts: BatchCounts) -> None:
    assert sizes(counts, DataLoader(DATA, batch_size=4)) == [4, 4, 2]
    assert sizes(counts, DataLoader(DATA, batch_size=4, drop_last=True, shuffle=True)) == [4, 4]
    assert sizes(counts, DataLoader(DATA, batch_size=4, collate_fn=lambda _: torch.zeros(1, 99))) == [4, 4, 2]
    assert sizes(counts, DataLoader(DATA, batch_sampler=[[0], [1, 2, 3], [4, 5]])) == [1, 3, 2]
    order = BatchSampler(SequentialSampler(DATA), 3, False)
    assert sizes(counts, DataLoader(DATA, sampler=order, batch_size=None)) == [3, 3, 3, 1]


def test_batches_that_workers_prepare_count_too(counts: BatchCounts) -> None:
    loader = DataLoader(DATA, batch_size=4, num_workers=2, persistent_workers=True)
    assert sizes(counts, loader) == [4, 4, 2]
    for _ in loader:  # the workers have more in hand
        break
    counts.take()
    assert sizes(counts, loader) == [4, 4, 2]


def test_without_indices_the_leading_dimension_counts_if_it_is_certain(counts: BatchCounts) -> None:
    assert sizes(counts, DataLoader(Stream(*range(10)), batch_size=4)) == [4, 4, 2]
    pair = (torch.zeros(7, 3), torch.zeros(7))
    assert sizes(counts, DataLoader(Stream(pair, {"x": pair}), batch_size=None)) == [7, 7]
    uneven = (torch.zeros(3, 32, 32), torch.zeros(7))
    assert sizes(counts, DataLoader(Stream(torch.zeros(7), uneven, "text"), batch_size=None)) == [None] * 3


def test_an_iteration_counts_the_dataset_that_it_read_last(counts: BatchCounts) -> None:
    training = iter(DataLoader(DATA, batch_size=4))
    next(training)
    next(training)
    assert counts.take() == 8, "two micro-batches"
    for _ in DataLoader(TensorDataset(torch.arange(6)), batch_size=2):
        pass
    next(training)
    assert counts.take() == 2, "the validation does not count"
    assert counts.take() is None


def test_all_ranks_count(counts: BatchCounts) -> None:
    shared: DistributedSampler[Any] = DistributedSampler(DATA, num_replicas=2, rank=0, shuffle=False)
    assert sizes(counts, DataLoader(DATA, batch_size=4, sampler=shared)) == [8, 2]
    counts.begin(NoPhase(), threading.get_ident(), 4)
    assert sizes(counts, DataLoader(DATA, batch_size=5)) == [20, 20]


def test_the_wait_for_a_batch_is_a_phase_once_and_in_the_thread_that_trains(counts: BatchCounts) -> None:
    waits: list[str] = []

    class Nested(Dataset[Any]):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> Any:
            return next(iter(DataLoader(DATA, batch_size=4)))[0]

    class Phase:
        def begin(self) -> None:
            waits.append("in")

        def end(self) -> None:
            waits.append("out")

    counts.phase = Phase()
    loader = DataLoader(Nested(), batch_size=1)
    assert len(list(loader)) == 2
    assert waits == ["in", "out"] * 3, "the third one finds the end"
    waits.clear()
    reader = threading.Thread(target=lambda: list(DataLoader(DATA, batch_size=4)))
    reader.start()
    reader.join(20)
    assert waits == []
