"""Stack samples: packing, unpacking, and what another process may send."""

from __future__ import annotations

import math
from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hoptui.domain.stacks import (
    MOST_BYTES,
    MOST_DEPTH,
    Stack,
    StackFrame,
    StackSamples,
    check,
    merged,
    pack,
    unpack,
    unpack_asleep,
)

names = st.text(max_size=20)
frames = st.builds(
    StackFrame, names, names, *[st.integers(min_value=-1, max_value=100_000)] * 4, call=names | st.just("")
).map(lambda frame: frame._replace(package_at=len(frame.file) // 2))
stacks = st.lists(frames, min_size=1, max_size=10).map(tuple)


@settings(deadline=None)
@given(st.dictionaries(stacks, st.integers(min_value=1, max_value=1000), max_size=8))
def test_what_is_packed_is_unpacked_the_same(counts: dict[tuple[StackFrame, ...], int]) -> None:
    packed = pack(counts, 1, 2, most_bytes=1 << 20)
    check(packed)
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(packed), type=StackSamples)
    assert unpack(sent) == Counter(counts)
    assert packed.left_out == 0


def test_samples_in_which_the_thread_slept_are_sent_beside_the_others() -> None:
    one, other = (StackFrame("f.py", "f", 1),), (StackFrame("f.py", "f", 2),)
    packed = pack({one: 3, other: 5}, 1, 2, asleep={one: 2})
    check(packed)
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(packed), type=StackSamples)
    assert unpack(sent) == {one: 3, other: 5}
    assert unpack_asleep(sent) == {one: 2, other: 0}
    assert unpack_asleep(pack({one: 3}, 1, 2)) is None


def test_the_packages_of_files_are_sent_and_merged() -> None:
    frame = StackFrame("/libs/a/b.py", "f", 1, package_at=6)
    packed = pack({(StackFrame("f.py", "f", 1), frame, frame._replace(line=2)): 3}, 1, 2)
    check(packed)
    assert packed.packages == ((packed.names.index("/libs/a/b.py"), 6),)
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(packed), type=StackSamples)
    assert unpack(sent) == unpack(merged([sent])) == unpack(packed)
    assert [frame.package_at for frame in next(iter(unpack(sent)))] == [0, 6, 6]


def test_samples_of_older_processes_have_no_packages() -> None:
    packed = pack({(StackFrame("/libs/a/b.py", "f", 1, package_at=6),): 3}, 1, 2)
    sent = msgspec.to_builtins(packed)
    del sent["packages"]
    [[frame]] = unpack(msgspec.convert(sent, StackSamples))
    assert frame == StackFrame("/libs/a/b.py", "f", 1)


def test_frequent_stacks_are_kept_and_the_others_counted() -> None:
    counts: dict[Stack, int] = {
        (StackFrame(f"/somewhere/file_{n}.py", f"function_{n}", n),): n for n in range(1, 1000)
    }
    packed = pack(counts, 0, 1, left_out=5)
    assert len(msgspec.msgpack.encode(packed)) < 1.2 * MOST_BYTES
    assert packed.counts[0] == 999
    assert sum(packed.counts) + packed.left_out == sum(counts.values()) + 5


def test_a_stack_that_is_too_large_leaves_room_for_those_after_it() -> None:
    large, small = (StackFrame("x" * 2 * MOST_BYTES, "f", 1),), (StackFrame("f.py", "f", 1),)
    packed = pack({large: 5, small: 3}, 0, 1)
    assert (unpack(packed), packed.left_out) == ({small: 3}, 5)


def test_a_deep_stack_keeps_its_innermost_frames() -> None:
    deep = tuple(StackFrame("f.py", "f", line) for line in range(2 * MOST_DEPTH))
    (stack,) = unpack(pack({deep: 1}, 0, 1))
    assert stack == deep[-MOST_DEPTH:]


def test_several_spans_are_merged_and_weigh_by_their_length() -> None:
    one, other = (StackFrame("f.py", "f", 1),), (StackFrame("f.py", "f", 2),)
    whole = merged(
        [
            pack({one: 3}, 10, 20, left_out=1, cost=0.1),
            pack({one: 1, other: 2}, 20, 50, left_out=2, cost=0.5),
        ]
    )
    assert unpack(whole) == {one: 4, other: 2}
    assert (whole.began, whole.ended, whole.left_out) == (10, 50, 3)
    assert whole.cost == pytest.approx(0.4)
    assert unpack(merged([])) == {}


FRAME = (0, 0, 0, 1, 1, 0, 0)


@pytest.mark.parametrize(
    "fields",
    [
        {"stacks": ((0,),), "counts": ()},
        {"stacks": ((0,),), "counts": (0,), "names": ("a",), "frames": (FRAME,)},
        {"stacks": ((1,),), "counts": (1,), "names": ("a",), "frames": (FRAME,)},
        {"stacks": ((-1,),), "counts": (1,), "names": ("a",), "frames": (FRAME,)},
        {"frames": (FRAME,)},
        {"names": ("a",), "frames": ((0, 0, -1, 1, 1, 0, 0),)},
        {"names": ("ab",), "packages": ((1, 1),)},
        {"names": ("ab",), "packages": ((-1, 1),)},
        {"names": ("ab",), "packages": ((0, 0),)},
        {"names": ("ab",), "packages": ((0, 2),)},
        {"ended": -1},
        {"left_out": -1},
        {"on_cpu": 1.1},
        {"queued": -0.1},
        {"queued": math.nan},
        {"stacks": ((0,),), "counts": (1,), "names": ("a",), "frames": (FRAME,), "asleep": (0, 0)},
        {"stacks": ((0,),), "counts": (1,), "names": ("a",), "frames": (FRAME,), "asleep": (2,)},
        {"stacks": ((0,),), "counts": (1,), "names": ("a",), "frames": (FRAME,), "asleep": (-1,)},
    ],
)
def test_samples_that_do_not_fit_together_are_refused(fields: dict[str, object]) -> None:
    samples = msgspec.structs.replace(StackSamples(began=0, ended=1), **fields)
    with pytest.raises(ValueError, match=r"has|begin"):
        check(samples)
