"""Tokens that stay on disk are those that a device would hold, bit for bit."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.lm import streamed_sampler as module
from hoptui_trainer.lm.sequence_sampler import CHUNK, BlockOrder, SequenceSampler, widened
from hoptui_trainer.lm.streamed_sampler import StreamedSampler
from hoptui_trainer.lm.token_shards import Shard, TokenShards, TokenType

CPU = torch.device("cpu")


def shards_of(
    folder: Path, sizes: list[int], dtype: TokenType = "uint16", vocabulary: int = 1 << 16
) -> TokenShards:
    """Files of the numbers from 0 on, each with three bytes before them."""
    shards, first = [], 0
    for number, size in enumerate(sizes):
        path = folder / f"{number}.bin"
        path.write_bytes(b"xyz" + np.arange(first, first + size).astype(dtype).tobytes())
        shards.append(Shard(path, 3, size))
        first += size
    return TokenShards(shards, dtype, vocabulary)


@pytest.mark.parametrize(("dtype", "last"), [("uint16", 65_535), ("uint32", 4_000_000_000)])
def test_shards_are_read_over_their_ends(tmp_path: Path, dtype: TokenType, last: int) -> None:
    shards = shards_of(tmp_path, [5, 1, 7], dtype, last + 1)
    assert (len(shards), shards.nbytes) == (13, 13 * np.dtype(dtype).itemsize)
    out = np.empty(20, shards.numpy)
    shards.read(11, out)
    assert out.tolist() == [(11 + n) % 13 for n in range(20)]
    assert widened(shards.load(CPU)).tolist() == list(range(13))
    assert widened(shards.head(4)).tolist() == [0, 1, 2, 3]
    np.array([last], dtype).tofile(tmp_path / "large.bin")
    assert (
        widened(TokenShards([Shard(tmp_path / "large.bin", 0, 1)], dtype, last + 1).load(CPU)).item() == last
    )


def test_more_files_than_may_stay_open_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hoptui_trainer.lm.token_shards.OPEN_FILES", 2)
    shards = shards_of(tmp_path, [3] * 6)
    for _ in range(2):
        assert widened(shards.load(CPU)).tolist() == list(range(18))
    assert len(shards._files) == 2


def test_a_file_that_is_lost_or_shorter_is_told(tmp_path: Path) -> None:
    shards = shards_of(tmp_path, [50])
    (tmp_path / "0.bin").write_bytes(b"")
    with pytest.raises(UsageError, match=r"0\.bin has become shorter"):
        shards.load(CPU)
    (tmp_path / "0.bin").unlink()
    with pytest.raises(UsageError, match=r"0\.bin: No such file"):
        TokenShards(shards.shards, "uint16", 1 << 16).load(CPU)


def test_an_error_that_passes_does_not_end_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = shards_of(tmp_path, [50])
    monkeypatch.setattr("hoptui_trainer.lm.token_shards.PAUSE_S", 0.0)
    errors, preadv = [errno.EIO, errno.ESTALE], os.preadv

    def flaky(file: int, buffers: list[memoryview], offset: int) -> int:
        if errors:
            raise OSError(errors[-1], os.strerror(errors.pop()))
        return preadv(file, [buffers[0][:7]], offset)  # and no more at once

    monkeypatch.setattr(os, "preadv", flaky)
    assert widened(shards.load(CPU)).tolist() == list(range(50))
    assert len(shards._given_up) == 2
    errors[:] = [errno.EIO] * 6
    with pytest.raises(UsageError, match=r"0\.bin: Input/output error"):
        shards.load(CPU)
    assert errors == []


@pytest.fixture
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "UNIT", 48)
    monkeypatch.setattr(module, "AHEAD", 3)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.integers(1, 150), min_size=1, max_size=4).filter(lambda sizes: sum(sizes) > 1),
    block=st.integers(1, 64),
    seed=st.integers(0, 5),
    start=st.integers(0, 2_000),
    cuts=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 40)), min_size=1, max_size=6),
    dtype=st.sampled_from(["uint16", "uint32"]),
)
def test_it_is_bit_for_bit_the_stream_of_a_device(
    tmp_path: Path,
    small_units: None,
    sizes: list[int],
    block: int,
    seed: int,
    start: int,
    cuts: list[tuple[int, int]],
    dtype: TokenType,
) -> None:
    shards = shards_of(tmp_path, sizes, dtype)
    resident = SequenceSampler(shards.load(CPU), seed, block)
    streamed = StreamedSampler(shards, seed, block, CPU)
    assert (streamed.block, streamed.epoch_tokens) == (resident.block, resident.epoch_tokens)
    position = start
    for sequences, length in cuts:
        stride = sequences * length
        streamed.expect(range(position, position + stride), stride)
        for found, wanted in zip(
            streamed.take(position, sequences, length),
            resident.take(position, sequences, length),
            strict=True,
        ):
            assert found.dtype == torch.int64
            assert torch.equal(found, wanted)
        position += stride


def test_ranks_micro_batches_and_lengths_neither_skip_nor_repeat(tmp_path: Path, small_units: None) -> None:
    """Steps whose size, length, ranks and pieces change; each rank has a sampler of its own."""
    shards = shards_of(tmp_path, [400, 600])
    ranks = [StreamedSampler(shards, 0, 10, CPU) for _ in range(3)]
    inputs: list[int] = []
    for world, length, samples, piece in ((1, 10, 6, 6), (2, 10, 7, 2), (3, 25, 5, 1), (2, 5, 40, 3)) * 3:
        position = len(inputs)
        for rank in range(world):
            first, last = rank * samples // world, (rank + 1) * samples // world
            share = range(position + first * length, position + last * length)
            ranks[rank].expect(share, samples * length)
            for sample in range(first, last, piece):
                count = min(piece, last - sample)
                found, _ = ranks[rank].take(position + sample * length, count, length)
                inputs += found.flatten().tolist()
    whole, _ = SequenceSampler(shards.load(CPU), 0, 10).take(0, 1, len(inputs))
    assert inputs == whole.flatten().tolist()
    assert sorted(inputs[:1000]) == list(range(1000))  # an epoch has each token once


def test_the_next_steps_are_read_ahead_and_no_more(tmp_path: Path, small_units: None) -> None:
    """Units of 48 tokens, steps of 100 of which this rank takes 50."""
    sampler = StreamedSampler(shards_of(tmp_path, [5000]), 0, 16, CPU)
    assert sampler._unit == 48
    sampler.expect(range(50, 100), 100)
    assert list(sampler._units) == [1, 2, 3]  # 48 … 144, of which 2 ends this share, and 3 begins the next
    before = sampler._units[3]
    sampler.expect(range(150, 200), 100)
    assert list(sampler._units) == [3, 4, 5]
    assert sampler._units[3] is before
    sampler.take(1000, 1, 8)  # what nobody has announced
    assert 1000 // 48 in sampler._units
    assert len(sampler._units) <= 3


def test_a_step_that_is_taken_again_is_the_same(tmp_path: Path, small_units: None) -> None:
    """As after memory ran out: in smaller pieces, from its beginning."""
    sampler = StreamedSampler(shards_of(tmp_path, [5000]), 0, 16, CPU)
    sampler.expect(range(640), 640)
    first, _ = sampler.take(0, 40, 16)
    again = torch.cat([sampler.take(place, 1, 16)[0] for place in range(0, 640, 16)])
    assert torch.equal(first, again)


def test_a_token_beyond_the_vocabulary_is_refused_before_it_is_used(tmp_path: Path) -> None:
    shards = shards_of(tmp_path, [1000], vocabulary=990)
    sampler = StreamedSampler(shards, 0, 16, CPU)
    with pytest.raises(UsageError, match=r"^--vocab-size 990: .*0\.bin holds the token 99\d"):
        sampler.take(0, 1, 992)
    with pytest.raises(UsageError, match=r"^--vocab-size 990"):
        shards.load(CPU)


def test_what_cannot_be_read_is_told_where_it_is_needed(tmp_path: Path) -> None:
    shards = shards_of(tmp_path, [1000])
    sampler = StreamedSampler(shards, 0, 16, CPU)
    (tmp_path / "0.bin").unlink()
    with pytest.raises(UsageError, match=r"0\.bin: No such file"):
        sampler.expect(range(16), 16)


def test_the_readers_end_with_their_sampler(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    sampler = StreamedSampler(shards_of(tmp_path, [1000]), 0, 16, CPU)
    sampler.expect(range(992), 992)
    readers = set(threading.enumerate()) - before
    assert readers
    del sampler
    for thread in readers:
        thread.join(10)
        assert not thread.is_alive()


def test_the_order_takes_the_same_memory_for_any_corpus() -> None:
    """A million million tokens: as a table, their blocks would take 8 GB."""
    order = BlockOrder(10**12, 0, 1024)
    places = order.starts(0, 64)
    assert len(set(places.tolist())) == 64
    far = order.starts(order.blocks - 2, order.blocks + 2)  # over the end of an epoch
    assert torch.equal(far[:2], order.starts(order.blocks - 2, order.blocks))
    assert int(far.max()) < 10**12
    for block in range(0, order.blocks, order.blocks // 50):
        order.starts(block, block + 3)
    kept: list[Any] = list(order._chunks.values())
    assert sum(len(chunk) for chunk in kept) <= 4 * CHUNK
