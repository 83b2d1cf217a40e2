"""Other data workers give the same batches. One process, without viewers."""

from __future__ import annotations

import functools
import os
import random
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)
from transformers import TrainerCallback

import hoptui
from hoptui.integrations import data_loaders, dataset_processes
from hoptui.integrations.accelerate import HoptuiTracker
from hoptui.integrations.data_loaders import LoaderKnobs, obstacle, pinning_obstacle, size_in_bytes
from hoptui.integrations.dataset_processes import OneProcessError
from hoptui.integrations.transformers import HoptuiCallback
from tests.integrations.test_recomputation import model, trainer_of

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(120)]
NUMBERS = TensorDataset(torch.arange(20))
READ: dict[str, Any] = {"batch_size": 4, "num_workers": 1}


class Knob:
    """A declared knob of a run that nobody steers."""

    def __init__(self, **declared: Any) -> None:
        self.declared, self.held = declared, 0

    def holds(self) -> None:
        self.held += 1


class Declared:
    """Takes the declarations of a run."""

    def __init__(self) -> None:
        self.knobs: dict[str, Knob] = {}
        self.declined: dict[str, str] = {}

    def knob(self, name: str, value: int, **declared: Any) -> Knob:
        return self.knobs.setdefault(name, Knob(value=value, **declared))

    def decline(self, name: str, reason: str) -> None:
        self.declined[name] = reason


@pytest.fixture(autouse=True)
def without_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPTUI", "off")


def offered(loader: Any, **options: Any) -> tuple[LoaderKnobs, Declared]:
    declared = Declared()
    options = {"next_epoch": lambda: True} | options
    return LoaderKnobs(declared, loader, **options), declared  # type: ignore[arg-type]


def apply(declared: Declared, name: str, value: int) -> object:
    return declared.knobs[name].declared["apply"](value)


def read(declared: Declared, name: str) -> object:
    return declared.knobs[name].declared["read"]()


# what a loader reads ----------------------------------------------------------------------------------------


def order(
    changes: dict[int, dict[str, int]], sampler: str, workers: int = 1
) -> tuple[list[Any], torch.Tensor]:
    """The samples of three epochs, of which each is left before its end, and what torch draws after them."""
    torch.manual_seed(0)
    loader: Any = DataLoader(
        NUMBERS,
        batch_size=4,
        num_workers=workers,
        shuffle=sampler == "shuffled" or None,
        sampler=WeightedRandomSampler([1.0] * 20, 20) if sampler == "weighted" else None,
    )
    assert obstacle(loader) == ""
    knobs, declared = offered(loader)
    found = []
    for epoch in range(3):
        for index, (batch,) in enumerate(loader):
            if index == 0:
                knobs.begin_epoch()
            found.append(batch.tolist())
            if index == 3:
                break
        for name, value in changes.get(epoch, {}).items():
            assert apply(declared, name, value) is hoptui.LATER
            assert read(declared, name) != value
    last = {name: value for change in changes.values() for name, value in change.items()}
    assert all(read(declared, name) == value for name, value in last.items())
    return found, torch.rand(4)


@pytest.mark.parametrize("sampler", ["in order", "shuffled", "weighted"])
def test_the_samples_and_the_random_numbers_of_the_loop_stay(sampler: str) -> None:
    samples, drawn = order({}, sampler)
    assert len(samples) == 12
    again, drawn_again = order({0: {"num_workers": 2, "prefetch_factor": 5}, 1: {"num_workers": 1}}, sampler)
    assert again == samples
    assert torch.equal(drawn, drawn_again)


@pytest.mark.parametrize("sampler", ["in order", "shuffled", "weighted"])
def test_workers_read_what_the_loop_read_itself(sampler: str) -> None:
    samples, drawn = order({}, sampler, workers=0)
    changes = {0: {"num_workers": 2}, 1: {"num_workers": 0}}
    again, drawn_again = order(changes, sampler, workers=0)
    assert again == samples
    assert torch.equal(drawn, drawn_again)


class Forever(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        return iter([1])


class Curriculum(Sampler):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        return iter(range(20))


@pytest.mark.parametrize(
    ("loader", "reason"),
    [
        (lambda: DataLoader(Forever(), num_workers=1), "IterableDataset"),
        (lambda: DataLoader(NUMBERS, num_workers=1, persistent_workers=True), "persistent"),
        (lambda: DataLoader(NUMBERS, num_workers=1, in_order=False), "any order"),
        (lambda: DataLoader(NUMBERS, num_workers=1, sampler=Curriculum()), "Curriculum"),
        (
            lambda: DataLoader(
                NUMBERS, num_workers=1, sampler=RandomSampler(NUMBERS, generator=torch.Generator())
            ),
            "generator",
        ),
        (lambda: [DataLoader(NUMBERS, num_workers=1)], "list"),
    ],
)
def test_a_loader_whose_batches_could_change_is_declined(loader: Any, reason: str) -> None:
    _, declared = offered(loader())
    assert not declared.knobs
    assert set(declared.declined) == {"num_workers", "prefetch_factor", "pin_memory"}
    assert reason in declared.declined["num_workers"]
    assert reason in declared.declined["prefetch_factor"]


def test_a_generator_of_a_sampler_depends_on_how_far_workers_read() -> None:
    """Why such a loader is declined: the order of the second epoch differs."""

    def second(workers: int, ahead: int) -> list[Any]:
        generator = torch.Generator().manual_seed(0)
        loader: Any = DataLoader(
            NUMBERS, 4, sampler=RandomSampler(NUMBERS, generator=generator), num_workers=workers,
            prefetch_factor=ahead,
        )  # fmt: skip
        next(iter(loader))
        return [batch.tolist() for (batch,) in loader]

    assert second(1, 1) != second(2, 8)


# bounds and refusals ----------------------------------------------------------------------------------------


def test_the_knobs_are_for_speed_within_the_cores_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    _, declared = offered(DataLoader(NUMBERS, **READ), prefix="dataloader_", local_ranks=4)
    assert set(declared.knobs) == {"dataloader_num_workers", "dataloader_prefetch_factor"}
    for name, value, most in (("num_workers", 1, 4), ("prefetch_factor", 2, data_loaders.MOST_AHEAD)):
        given = declared.knobs[f"dataloader_{name}"].declared
        assert (given["value"], given["min"], given["max"]) == (value, 1, most)
        assert (given["effect"], given["cost"]) == ("speed", "rebuild")


def test_a_value_of_the_past_is_in_effect_at_once() -> None:
    loader: Any = DataLoader(NUMBERS, **READ)
    knobs, declared = offered(loader)
    assert apply(declared, "num_workers", 3) is hoptui.LATER
    assert apply(declared, "num_workers", 1) is None
    knobs.begin_epoch()
    assert (loader.num_workers, declared.knobs["num_workers"].held) == (1, 0)


def test_nothing_changes_in_the_last_epoch() -> None:
    loader: Any = DataLoader(NUMBERS, **READ)
    _, declared = offered(loader, next_epoch=lambda: False)
    with pytest.raises(ValueError, match="last epoch"):
        apply(declared, "num_workers", 2)
    assert loader.num_workers == 1


def test_batches_that_do_not_fit_into_shared_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    loader: Any = DataLoader(NUMBERS, **READ)
    knobs, declared = offered(loader)
    knobs.batch = {"input_ids": torch.zeros(1 << 18), "more": [torch.zeros(1 << 18)]}
    assert size_in_bytes(knobs.batch) == 2 << 20
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=64 << 8, f_frsize=4096))  # 64 MiB
    assert apply(declared, "num_workers", 8) is hoptui.LATER  # 14 more batches of 2 MiB
    with pytest.raises(ValueError, match="shared memory"):
        apply(declared, "prefetch_factor", 3)
    assert (loader.num_workers, loader.prefetch_factor) == (8, 2)


def test_the_seeds_of_workers_follow_their_number() -> None:
    def seed(worker: int, num_workers: int, rank: int) -> None:
        """As Trainer's: the seeds of two ranks differ."""

    begin = functools.partial(seed, num_workers=1, rank=2)
    loader: Any = DataLoader(NUMBERS, worker_init_fn=begin, **READ)
    _, declared = offered(loader)
    apply(declared, "num_workers", 4)
    assert loader.worker_init_fn.keywords == {"num_workers": 4, "rank": 2}


# pinned memory ----------------------------------------------------------------------------------------------


def accelerated(monkeypatch: pytest.MonkeyPatch, kind: str = "cuda") -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device(kind))


@pytest.mark.parametrize("workers", [0, 1])
def test_pinning_changes_at_the_next_epoch(monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    accelerated(monkeypatch)
    loader: Any = DataLoader(NUMBERS, num_workers=workers, pin_memory=True)
    knobs, declared = offered(loader)
    given = declared.knobs["pin_memory"].declared
    assert (given["value"], given["effect"], given["cost"]) == (True, "speed", "rebuild")
    for on in (False, True):
        assert apply(declared, "pin_memory", on) is hoptui.LATER
        assert read(declared, "pin_memory") is not on
        knobs.begin_epoch()
        assert (read(declared, "pin_memory"), loader.pin_memory) == (on, on)
    assert declared.knobs["pin_memory"].held == 2


def test_a_sampler_that_workers_could_disturb_may_be_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    accelerated(monkeypatch)
    _, declared = offered(DataLoader(NUMBERS, num_workers=1, sampler=Curriculum(), pin_memory=True))
    assert set(declared.knobs) == {"pin_memory"}


def test_pinning_is_refused_in_the_last_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    accelerated(monkeypatch)
    loader: Any = DataLoader(NUMBERS, pin_memory=True)
    _, declared = offered(loader, next_epoch=lambda: False)
    with pytest.raises(ValueError, match="last epoch"):
        apply(declared, "pin_memory", False)
    assert loader.pin_memory is True


@pytest.mark.parametrize(
    ("loader", "reason"),
    [
        (lambda: DataLoader(NUMBERS), "start with pin_memory=True"),
        (lambda: DataLoader(NUMBERS, num_workers=1, pin_memory=True, persistent_workers=True), "persistent"),
        (lambda: [1], "list"),
    ],
)
def test_pinning_that_cannot_change_is_declined(
    monkeypatch: pytest.MonkeyPatch, loader: Any, reason: str
) -> None:
    accelerated(monkeypatch)
    _, declared = offered(loader())
    assert reason in declared.declined["pin_memory"]


def test_pinning_is_declined_without_an_accelerator_that_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    loader: Any = DataLoader(NUMBERS, pin_memory=True)
    accelerated(monkeypatch, "mps")
    assert "no accelerator" in pinning_obstacle(loader)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    assert "no accelerator" in pinning_obstacle(loader)


# a dataset that no worker has read --------------------------------------------------------------------------


class Mapped(Dataset):  # type: ignore[type-arg]
    """Samples by a function that may be a local one, or any other attribute."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        function = self.__dict__.get("function")
        return function(index) if function else torch.tensor(index)


def with_workers(dataset: Any, **options: Any) -> object:
    """Ask for two workers of a loader that has none. Return what the knob answers."""
    torch.manual_seed(0)
    loader: Any = DataLoader(dataset, batch_size=4, **options)
    _, declared = offered(loader)
    next(iter(loader))
    before = torch.get_rng_state()
    try:
        answer = apply(declared, "num_workers", 2)
    except OneProcessError:
        assert (loader.num_workers, loader.prefetch_factor) == (0, None)
        raise
    assert torch.equal(torch.get_rng_state(), before)
    assert (loader.num_workers, loader.prefetch_factor) == (2, 2)
    return answer


def test_the_knobs_of_a_loader_without_workers_begin_at_0() -> None:
    _, declared = offered(DataLoader(NUMBERS))
    given = {name: knob.declared for name, knob in declared.knobs.items()}
    assert [(each["value"], each["min"]) for each in given.values()] == [(0, 0), (2, 1)]


@pytest.mark.parametrize(
    "dataset",
    [
        lambda: NUMBERS,
        lambda: Subset(NUMBERS, [3, 4, 5, 6]),
        lambda: Mapped(function=lambda index: index + 1),
        lambda: Mapped(classes=[type("Local", (), {})()]),
    ],
)
def test_a_dataset_that_workers_can_read_gets_some(dataset: Any) -> None:
    assert with_workers(dataset()) is hoptui.LATER


def counted() -> Any:
    found: Any = Mapped(count=0)

    def read(index: int) -> torch.Tensor:
        found.count += 1
        return torch.tensor(index)

    found.function = read
    return found


def in_this_process(index: int, pid: int) -> int:
    if os.getpid() != pid:
        raise OSError("another process")
    return index


@pytest.mark.parametrize(
    ("dataset", "reason"),
    [
        (counted, "changes while it is read"),
        (lambda: ConcatDataset([counted(), NUMBERS]), "changes while it is read"),
        (lambda: Mapped(file=Path(__file__).open()), "bound to its process"),  # noqa: SIM115
        (lambda: Mapped(parts=[{"lock": threading.Lock()}]), "bound to its process"),
        (lambda: Mapped(table=torch.empty(1, device="meta")), "tensor of the GPU"),
        (lambda: Mapped(generator=random.Random(1)), "random generator"),
        (lambda: Mapped(augment={"generator": torch.Generator()}), "random generator"),
        (
            lambda: Mapped(function=functools.partial(in_this_process, pid=os.getpid())),
            "cannot read the dataset: OSError: another process",
        ),
    ],
)
def test_a_dataset_that_is_bound_to_its_process_gets_no_workers(dataset: Any, reason: str) -> None:
    with pytest.raises(OneProcessError, match=reason):
        with_workers(dataset())


def test_a_dataset_of_too_many_objects_gets_no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset_processes, "INSPECTION_S", 0.0)
    with pytest.raises(OneProcessError, match="more than 0 s"):
        with_workers(Mapped(samples=[str(number) * 100 for number in range(10_000)]))


# in a Trainer -----------------------------------------------------------------------------------------------


class Change(TrainerCallback):  # type: ignore[misc]
    """Sets other data workers after some steps, as a command would."""

    def __init__(self, callback: HoptuiCallback, changes: dict[int, dict[str, int]]) -> None:
        self._callback, self._changes = callback, changes

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        for name, value in self._changes.get(state.global_step, {}).items():
            assert self._callback._loader is not None
            assert self._callback._loader._apply(name, value) is hoptui.LATER


@pytest.mark.parametrize("workers", [0, 1])
def test_a_trainer_with_dropout_trains_the_same_weights(tmp_path: Path, workers: int) -> None:
    found = []
    cases: list[dict[int, dict[str, int]]] = [{}, {3: {"num_workers": 2, "prefetch_factor": 4}}]
    for changes in cases:
        callback = HoptuiCallback("read")
        trainer = trainer_of(
            tmp_path, model(0.3), [callback, Change(callback, changes)], max_steps=20,
            dataloader_num_workers=workers,
        )  # fmt: skip
        trainer.train()
        loader = trainer.callback_handler.train_dataloader.base_dataloader
        assert (loader.num_workers, loader.prefetch_factor) == (
            (2, 4) if changes else (workers, 2 if workers else None)
        )
        found.append(
            (
                [parameter.detach().clone() for parameter in trainer.model.parameters()],
                [entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
            )
        )
    assert found[0][1] == found[1][1]
    assert all(torch.equal(a, b) for a, b in zip(found[0][0], found[1][0], strict=True))


# in a loop with accelerate ----------------------------------------------------------------------------------


def loop(changes: dict[int, dict[str, int]], workers: int) -> tuple[list[Any], HoptuiTracker]:
    """The samples of three epochs, and the tracker. Changes are made in the step of this number."""
    torch.manual_seed(0)
    tracker = HoptuiTracker("read")
    accelerator = Accelerator(cpu=True, log_with=tracker)
    trained = torch.nn.Linear(1, 1)
    loader: Any = DataLoader(NUMBERS, batch_size=4, shuffle=True, num_workers=workers)
    prepared, optimizer, loader = accelerator.prepare(
        trained, torch.optim.SGD(trained.parameters(), lr=0.1), loader
    )
    accelerator.init_trackers("read")
    found, step = [], 0
    for _ in range(3):
        for (x,) in loader:
            found.append(x.tolist())
            for name, value in changes.get(step, {}).items():
                readers = tracker._readers
                assert readers is not None
                assert readers._apply(name, value) is hoptui.LATER
            accelerator.backward(prepared(x.float()[:, None]).square().mean())
            optimizer.step()
            optimizer.zero_grad()
            step += 1
    return found, tracker


@pytest.mark.parametrize("workers", [0, 1])
def test_the_workers_of_a_prepared_loader_change_at_the_next_epoch(workers: int) -> None:
    samples, tracker = loop({}, workers)
    tracker.finish()
    again, tracker = loop({2: {"num_workers": 2, "prefetch_factor": 3}}, workers)
    assert again == samples
    assert len(samples) == 15
    readers = tracker._readers
    assert readers is not None
    assert readers._in_effect == {"num_workers": 2, "prefetch_factor": 3}
    assert readers._loader.num_workers == 2
    assert readers.batch is None
    tracker.finish()


def test_a_generator_that_is_made_equal_before_each_epoch_may_be_in_the_sampler() -> None:
    generator = torch.Generator()
    loader: Any = DataLoader(NUMBERS, sampler=RandomSampler(NUMBERS, generator=generator))
    assert "generator" in obstacle(loader)
    assert obstacle(loader, generator) == ""
