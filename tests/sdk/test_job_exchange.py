"""The thread that exchanges the records of nodes: nothing that a store does holds up its owner."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec import structs

from hoptui.protocol.messages import JobReading, JobReport, StoredRecord
from hoptui.sdk import job_exchange, rank_store
from hoptui.sdk.job_exchange import JobExchange, NodeRecords
from hoptui.sdk.rank_store import CheckedStore, SharingError, TorchStore
from tests.conftest import until


class MemoryStore:
    """A `RankStore` of one process. `before` is called with each key, and may wait or raise."""

    def __init__(self, rank: int = 0, world: int = 4, values: dict[str, bytes] | None = None) -> None:
        self.rank, self.world = rank, world
        self.values = values if values is not None else {}
        self.before: Callable[[str], object] = lambda _: None
        self.asked: list[str] = []

    def set(self, key: str, value: bytes) -> None:
        self.before(key)
        self.values[key] = value

    def get(self, key: str) -> bytes | None:
        self.before(key)
        self.asked.append(key)
        return self.values.get(key)

    def delete(self, key: str) -> None:
        self.values.pop(key, None)

    def of(self, rank: int) -> MemoryStore:
        """The same keys for another rank."""
        return MemoryStore(rank, self.world, self.values)


class Exchanges:
    """Exchanges that end with the test, and what they have read."""

    def __init__(self) -> None:
        self.made: list[JobExchange] = []
        self.faults: list[Exception] = []

    def __call__(self, store: MemoryStore) -> JobExchange:
        made = JobExchange(store, "0/job/n/", lambda: None, self.faults.append)
        self.made.append(made)
        return made


@pytest.fixture
def exchange() -> Iterator[Exchanges]:
    found = Exchanges()
    yield found
    for each in found.made:
        each.leave(in_order=False)


def reading(exchange: JobExchange) -> JobReading:
    return until(exchange.take, what="a reading")[-1]


def test_the_head_reads_what_has_changed_and_the_others_read_the_head(exchange: Exchanges) -> None:
    store = MemoryStore()
    head, other = exchange(store), exchange(store.of(2))
    other.report(JobReport(number=1, record=b"two", read=True))
    assert structs.replace(reading(other), took_s=0.0) == JobReading(number=1)
    head.report(JobReport(number=1, head=True, record=b"all"))
    assert reading(head).nodes == (StoredRecord(2, b"two"),)
    head.report(JobReport(number=2, head=True))
    assert reading(head).nodes == ()  # nothing has changed
    other.report(JobReport(number=2, read=True))
    assert reading(other).state == b"all"
    other.report(JobReport(number=3, record=b"2", read=True))
    assert reading(other).state is None
    other.leave(in_order=True)
    head.report(JobReport(number=3, head=True))
    assert reading(head).nodes == (StoredRecord(2, b"2", left=True),)
    assert exchange.faults == []


def test_a_store_that_does_not_answer_holds_up_only_its_thread(exchange: Exchanges) -> None:
    store, goes_on = MemoryStore(), threading.Event()
    store.before = lambda _: goes_on.wait(20)
    stuck = exchange(store)
    began = time.monotonic()
    for number in range(100):
        stuck.report(JobReport(number=number, record=b"x"))
        assert stuck.take() == []
    stuck.leave(in_order=True)
    assert time.monotonic() - began < 5
    goes_on.set()


class SlowConnection:
    """A store of torch that takes long to connect to."""

    def __init__(self) -> None:
        self.inside, self.goes_on = threading.Event(), threading.Event()

    def clone(self) -> SlowConnection:
        self.inside.set()
        self.goes_on.wait(20)
        raise RuntimeError("nobody answers")


def test_the_exit_of_the_process_waits_for_a_thread_that_connects_to_a_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # C++ ends the process if the interpreter does while a thread connects.
    stores: list[CheckedStore] = []

    class Kept(CheckedStore):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            stores.append(self)

    monkeypatch.setattr(job_exchange, "CheckedStore", Kept)
    connection = SlowConnection()
    found = JobExchange(TorchStore(connection, 0, 2), "", lambda: None, lambda _: None)
    found.report(JobReport(number=1, record=b"x"))
    assert connection.inside.wait(20)
    (thread,) = (each for each in threading.enumerate() if each.name == "hoptui-job")
    (store,) = stores
    assert store.inside_since(thread.ident) is not None
    connection.goes_on.set()
    store.shut(20)
    assert store.inside_since(thread.ident) is None
    found.leave(in_order=False)


def test_no_store_is_called_once_the_process_exits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even one that a thread has connected to just before. One limit holds for the calls of all."""
    monkeypatch.setattr(rank_store, "_exiting", False)
    monkeypatch.setattr(rank_store, "EXIT_S", 0.2)
    goes_on, inside = threading.Event(), threading.Semaphore(0)

    def wait(_: str) -> None:
        inside.release()
        goes_on.wait(60)

    stores = [MemoryStore() for _ in range(8)]
    for store in stores:
        store.before = wait
    stuck = [CheckedStore(store) for store in stores]
    threads = [threading.Thread(target=store.get, args=("key",), daemon=True) for store in stuck]
    for thread in threads:
        thread.start()
    assert all(inside.acquire(timeout=20) for _ in threads)
    monkeypatch.setattr(rank_store, "_checked", weakref.WeakSet(stuck))
    began = time.monotonic()
    rank_store._shut_all()
    took_s = time.monotonic() - began
    goes_on.set()
    for thread in threads:
        thread.join(20)
    assert 0.2 <= took_s < 1.5, "not once for each of the eight"
    with pytest.raises(SharingError, match="this process exits"):
        CheckedStore(MemoryStore()).get("key")


def test_a_report_that_waited_for_long_is_not_written(
    exchange: Exchanges, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The daemon was suspended while the store did not answer. Its last report would be taken for a new one.
    monkeypatch.setattr(job_exchange, "OLDEST_S", 0.05)
    store, inside, goes_on = MemoryStore(rank=1), threading.Event(), threading.Event()

    def hangs(_: str) -> None:
        inside.set()
        goes_on.wait(20)

    store.before = hangs
    found = exchange(store)
    found.report(JobReport(number=1, record=b"first"))
    assert inside.wait(20)
    found.report(JobReport(number=2, record=b"waits", read=True))
    since = time.monotonic()
    until(lambda: time.monotonic() - since > 0.1, what="the report to be old")
    goes_on.set()
    until(lambda: any(each.number == 2 for each in found.take()), what="the second reading")
    assert store.values["0/job/n/node/1"] == b"\x01first"
    assert store.asked == ["0/job/n/head"]  # it reads none the less
    found.report(JobReport(number=3, record=b"new"))
    reading(found)
    assert store.values["0/job/n/node/1"] == b"\x01new"


def test_a_store_that_fails_is_reported_and_tried_again(
    exchange: Exchanges, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_exchange, "AGAIN_S", (0.05,))
    store = MemoryStore(rank=1)

    def fails(_: str) -> None:
        raise OSError("the folder is gone")

    store.before = fails
    found = exchange(store)
    found.report(JobReport(number=1, record=b"x"))
    assert reading(found).problem == "OSError: the folder is gone"
    store.before = lambda _: None

    def works() -> bool:
        found.report(JobReport(number=2, record=b"x"))
        return any(not each.problem for each in found.take())

    until(works, what="the store to be tried again")
    assert store.values["0/job/n/node/1"] == b"\x01x"
    assert exchange.faults == []


def test_records_are_looked_for_in_turns_and_odd_ones_are_left_out() -> None:
    store = MemoryStore(world=200)
    records = NodeRecords(store, "p/")
    NodeRecords(store.of(150), "p/").write(b"far")
    store.values["p/node/3"] = b"\x01" + bytes(job_exchange.LARGEST)
    found: list[StoredRecord] = []
    for _ in range(4):
        store.asked.clear()
        found += records.read()
        assert len(store.asked) <= job_exchange.LOOKED_AT + 2
    assert found == [StoredRecord(150, b"far")]


def test_torch_stores_number_the_nodes() -> None:
    dist = pytest.importorskip("torch.distributed")
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    stores = [TorchStore(server, rank, 2048) for rank in range(2048)]
    head = NodeRecords(stores[0].clone(), "p/")
    assert head.read() == []
    first, second = NodeRecords(stores[1024].clone(), "p/"), NodeRecords(stores[8].clone(), "p/")
    first.write(b"a")
    second.write(b"b")
    server.add("p/nodes", 1)  # a node that ends before it has written
    assert head.read() == [StoredRecord(0, b"a"), StoredRecord(1, b"b")]
    second.write(b"c", left=True)
    assert head.read() == [StoredRecord(1, b"c", left=True)]


def test_a_node_that_connects_again_keeps_its_place(
    exchange: Exchanges, monkeypatch: pytest.MonkeyPatch
) -> None:
    dist = pytest.importorskip("torch.distributed")
    monkeypatch.setattr(job_exchange, "AGAIN_S", (0.0,))
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    found = JobExchange(TorchStore(server, 1, 2), "p/", lambda: None, exchange.faults.append)
    exchange.made.append(found)
    head = NodeRecords(TorchStore(server, 0, 2), "p/")
    write = NodeRecords.write

    def fails(records: NodeRecords, record: bytes, *, left: bool = False) -> None:
        write(records, record, left=left)
        raise RuntimeError("connection lost")

    found.report(JobReport(number=1, record=b"one"))
    assert not reading(found).problem
    with monkeypatch.context() as patch:
        patch.setattr(NodeRecords, "write", fails)
        found.report(JobReport(number=2, record=b"two"))
        assert reading(found).problem
    found.report(JobReport(number=3, record=b"three"))
    assert not reading(found).problem
    assert head.read() == [StoredRecord(0, b"three")]


def test_a_record_that_has_not_changed_is_returned_again(exchange: Exchanges) -> None:
    # What was returned before may not have reached a daemon: it was killed, or its socket was full.
    store = MemoryStore()
    records = NodeRecords(store, "")
    NodeRecords(store.of(2), "").write(b"two", left=True)
    found = [records.read() for _ in range(2 * job_exchange.REPEATED)]
    again = [number for number, each in enumerate(found, 1) if each]
    assert again == [1, job_exchange.REPEATED, 2 * job_exchange.REPEATED]
    assert set(map(tuple, found)) == {(), (StoredRecord(2, b"two", left=True),)}

    head, other = exchange(store), exchange(store.of(2))
    head.report(JobReport(number=1, head=True, record=b"all"))
    reading(head)
    states = []
    for number in range(job_exchange.REPEATED + 1):
        other.report(JobReport(number=number, read=True))
        states.append(reading(other).state)
    assert states == [b"all", *[None] * (job_exchange.REPEATED - 1), b"all"]
