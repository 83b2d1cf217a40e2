"""Stack samples in a recording: what is kept, what is left out, and what a hostile file cannot do."""

from __future__ import annotations

import random
import sqlite3
import zlib
from pathlib import Path

import msgspec
import pytest

from hoptui.domain.hot_lines import sampled
from hoptui.domain.stacks import StackFrame, StackSamples, pack, unpack
from hoptui.recording import Recording, RecordingError, stack_minutes
from hoptui.recording.ingest import MAX_MINUTES, Boot
from hoptui.recording.stack_minutes import MINUTE_BYTES, MOST_RANKS, MOST_RAW, MOST_STORED, decode, encode

SECOND = 1_000_000_000
MINUTE = 60 * SECOND
MAIN = StackFrame("/home/me/train.py", "main", 12, 12, 4, 30)
ITEM = StackFrame("/home/me/train.py", "step", 40, 40, 8, 20, "item")
LOAD = StackFrame("/home/me/data.py", "load", 7)
BOOT = Boot("boot", 10**18, MINUTE)


def part(t: int, counts: dict[tuple[StackFrame, ...], int], left_out: int = 0) -> StackSamples:
    return pack(counts, t - 2 * SECOND, t, left_out=left_out, cost=0.0005)


def noise(seed: int, t: int, stacks: int = 200) -> StackSamples:
    """Samples that nothing can compress well."""
    rng = random.Random(seed)
    counts = {
        tuple(
            StackFrame(f"/x/{rng.random()}.py", f"f{rng.random()}", rng.randrange(9999)) for _ in range(9)
        ): 1
        for _ in range(stacks)
    }
    return pack(counts, t - 2 * SECOND, t, most_bytes=1 << 20)


def test_the_parts_of_each_rank_come_back_as_one() -> None:
    t = 5 * MINUTE
    parts = {
        0: [part(t - 2 * SECOND, {(MAIN, ITEM): 3, (MAIN, LOAD): 1}, 2), part(t, {(MAIN, ITEM): 4})],
        3: [part(t, {(MAIN, LOAD): 9})],
    }
    found = decode(encode(parts, t), t)
    assert found.ranks_left_out == 0
    assert unpack(found.ranks[0]) == {(MAIN, ITEM): 7, (MAIN, LOAD): 1}
    assert unpack(found.ranks[3]) == {(MAIN, LOAD): 9}
    zero = found.ranks[0]
    assert (zero.began, zero.ended, zero.left_out) == (t - 4 * SECOND, t, 2)
    assert zero.cost == pytest.approx(0.0005)


def test_the_packages_of_files_come_back() -> None:
    library = StackFrame("/opt/libs/accelerate/other.py", "save", 439, package_at=10)
    parts = {
        0: [part(MINUTE, {(MAIN, LOAD): 1}), part(MINUTE, {(MAIN, library): 1})],
        1: [part(MINUTE, {(MAIN, library): 1})],
    }
    found = decode(encode(parts, MINUTE), MINUTE)
    assert unpack(found.ranks[0]) == {(MAIN, LOAD): 1, (MAIN, library): 1}
    assert unpack(found.ranks[1]) == {(MAIN, library): 1}
    raw = msgspec.msgpack.decode(zlib.decompress(encode(parts, MINUTE)))
    before = zlib.compress(msgspec.msgpack.encode(raw[:-1]))  # as older versions write it
    assert unpack(decode(before, MINUTE).ranks[1]) == {(MAIN, library._replace(package_at=0)): 1}


@pytest.mark.parametrize("ranks", [1, 8, 64])
def test_a_minute_has_a_limit_and_no_sample_vanishes(ranks: int) -> None:
    parts = {rank: [noise(rank, MINUTE)] for rank in range(ranks)}
    body = encode(parts, MINUTE)
    assert len(body) <= MINUTE_BYTES
    found = decode(body, MINUTE)
    assert found.ranks_left_out == 0
    assert {rank: sampled(each) for rank, each in found.ranks.items()} == dict.fromkeys(range(ranks), 200)
    assert found.ranks[0].counts
    assert any(each.left_out for each in found.ranks.values())


def test_ranks_beyond_the_limit_are_counted() -> None:
    parts = {rank: [part(MINUTE, {(MAIN, ITEM): 1})] for rank in range(MOST_RANKS + 5)}
    found = decode(encode(parts, MINUTE), MINUTE)
    assert sorted(found.ranks) == list(range(MOST_RANKS))
    assert found.ranks_left_out == 5


def test_few_bytes_leave_the_number_of_samples() -> None:
    parts = {rank: [noise(rank, MINUTE)] for rank in range(64)}
    body = encode(parts, MINUTE, 300)
    assert len(body) <= 300
    found = decode(body, MINUTE)
    assert len(found.ranks) + found.ranks_left_out == 64
    assert all(sampled(each) == 200 for each in found.ranks.values())


def add(recording: Recording, t: int, count: int = 5) -> None:
    recording.stacks(t, encode({0: [part(t, {(MAIN, ITEM): count})]}, t), count)


def test_waiting_and_written_minutes_are_read_alike(tmp_path: Path) -> None:
    path = tmp_path / "r.hoptui"
    with Recording.create(path, boot=BOOT) as recording:
        for minute in (1, 2, 3):
            add(recording, minute * MINUTE, minute)
        assert recording.unwritten == 6
        before = recording.minutes()
        assert before == ([MINUTE, 2 * MINUTE, 3 * MINUTE], 0)
        assert recording.flush()
        assert recording.unwritten == 0
        assert recording.minutes() == before
    with Recording.open(path) as recording:
        assert recording.minutes(2 * MINUTE) == ([2 * MINUTE, 3 * MINUTE], 0)
        found = recording.minute(2 * MINUTE)
        assert found is not None
        assert unpack(found.ranks[0]) == {(MAIN, ITEM): 2}
        assert recording.minute(7) is None


def test_stamps_of_a_later_boot_are_on_one_clock(tmp_path: Path) -> None:
    path = tmp_path / "r.hoptui"
    with Recording.create(path, boot=BOOT) as recording:
        add(recording, 2 * MINUTE)
    later = Boot("later", BOOT.wall_offset_ns + 10 * MINUTE, MINUTE)
    with Recording.create(path, boot=later) as recording:
        add(recording, MINUTE)
    with Recording.open(path) as recording:
        assert recording.minutes()[0] == [2 * MINUTE, 11 * MINUTE]
        found = recording.minute(11 * MINUTE)
        assert found is not None
        assert found.ranks[0].ended == 11 * MINUTE


def test_what_waits_is_bounded_and_counted(tmp_path: Path) -> None:
    with Recording.create(tmp_path / "r.hoptui", boot=BOOT) as recording:
        for minute in range(1, MAX_MINUTES + 3):
            add(recording, minute * MINUTE)
        assert recording.dropped == 10
        recording.flush()
        assert recording.missing == 10
        assert len(recording.minutes()[0]) == MAX_MINUTES


def write(path: Path, key: str, value: object) -> None:
    with Recording.create(path, boot=BOOT):
        pass
    with sqlite3.connect(path) as db:
        db.execute("INSERT INTO meta (key, value) VALUES (?, ?)", (key, value))
    db.close()


NAMES, FRAME = ("", "f"), (0, 1, 0, 1, 0, -1, -1)


def packed(
    names: object = NAMES, frames: object = (FRAME,), stacks: object = ((0,),), ranks: object = ()
) -> bytes:
    return zlib.compress(msgspec.msgpack.encode((names, frames, stacks, ranks, 0)))


def rank(**changed: object) -> tuple[object, ...]:
    fields: dict[str, object] = {
        "rank": 0, "began": 2000, "ended": 0, "stacks": (0,), "counts": (1,), "left_out": 0, "cost": 500,
    }  # fmt: skip
    return tuple((fields | changed).values())


HOSTILE: dict[str, object] = {
    "a text": "stacks",
    "no zlib": b"stacks",
    "empty": b"",
    "cut off": encode({0: [part(MINUTE, {(MAIN, ITEM): 1})]}, MINUTE)[:-9],
    "too large": random.Random(1).randbytes(MOST_STORED + 1),
    "a bomb": zlib.compress(bytes(50 * MOST_RAW)),
    "no msgpack": zlib.compress(b"\xc1"),
    "nested": zlib.compress(b"\x91" * 100_000),
    "another form": zlib.compress(msgspec.msgpack.encode({"names": 1})),
    "no name": packed(frames=((9, 0, 0, 1, 0, -1, -1),), ranks=(rank(),)),
    "no frame": packed(stacks=((-1,),), ranks=(rank(),)),
    "no stack": packed(ranks=(rank(stacks=(1,)),)),
    "a deep stack": packed(stacks=((0,) * 129,), ranks=(rank(),)),
    "a stack twice": packed(ranks=(rank(stacks=(0, 0), counts=(1, 1)),)),
    "a rank twice": packed(ranks=(rank(), rank())),
    "many ranks": packed(ranks=tuple(rank(rank=n) for n in range(MOST_RANKS + 1))),
    "a negative rank": packed(ranks=(rank(rank=-1),)),
    "a negative count": packed(ranks=(rank(counts=(-1,)),)),
    "a count too few": packed(ranks=(rank(counts=()),)),
    "an end before the start": packed(ranks=(rank(began=0, ended=5),)),
    "a long minute": packed(ranks=(rank(began=1 << 60),)),
    "a cost above all": packed(ranks=(rank(cost=1_000_001),)),
    "negative samples": packed(ranks=(rank(left_out=-1),)),
}


@pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_samples_are_refused_with_the_name_of_the_file(tmp_path: Path, value: object) -> None:
    path = tmp_path / "r.hoptui"
    write(path, stack_minutes.key(MINUTE), value)
    with Recording.open(path) as recording:
        assert recording.minutes() == ([MINUTE], 0)
        with pytest.raises(RecordingError, match="damaged"):
            recording.minute(MINUTE)


def test_the_samples_that_the_hostile_ones_differ_from_are_read() -> None:
    assert sampled(decode(packed(ranks=(rank(),)), MINUTE).ranks[0]) == 1


@pytest.mark.parametrize("key", ["stacks/", "stacks/x", "stacks/-0000000000000000001", "stacks/" + "9" * 20])
def test_keys_without_a_stamp_are_counted(tmp_path: Path, key: str) -> None:
    path = tmp_path / "r.hoptui"
    write(path, key, b"")
    with Recording.open(path) as recording:
        stamps, odd = recording.minutes(-(1 << 62))
        assert (stamps, odd) == ([], int(key >= stack_minutes.key(0)))
