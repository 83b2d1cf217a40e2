from __future__ import annotations

from dataclasses import dataclass

import pytest

from hoptui_trainer.common.auto_settings import AUTOMATIC, AutoSettings
from hoptui_trainer.common.batch import largest_share, piece_for, piece_sizes, pieces, resolve_batch
from hoptui_trainer.common.errors import UsageError


@dataclass
class Config:
    tokens: int = 160
    micro_batch: int = 4
    grad_accum: int = 0
    precision: str = "auto"
    compile: str = "off"

    @property
    def samples(self) -> int:
        return self.tokens // 10


@pytest.mark.parametrize(("world", "share", "cut"), [(1, 16, 4), (3, 6, 2), (16, 1, 1)])
def test_the_largest_share_says_how_often_a_batch_is_cut(world: int, share: int, cut: int) -> None:
    config = Config()
    assert (largest_share(config, world), pieces(config, world)) == (share, cut)
    for count in range(1, share + 1):
        config.micro_batch = piece_for(config, count, world)
        assert pieces(config, world) <= count
        assert config.micro_batch * count >= share


def test_pieces_have_at_most_two_sizes_a_share() -> None:
    assert piece_sizes(4, [16]) == {4}
    assert piece_sizes(5, [16, 17]) == {5, 1, 2}
    assert piece_sizes(8, [3]) == {3}


def test_what_was_typed_says_how_large_a_batch_is() -> None:
    config = Config()
    resolve_batch(config, {}, 2, total="tokens", each=10, of="words")
    assert config == Config()
    resolve_batch(config, {"grad_accum": 4}, 2, total="tokens", each=10, of="words")
    assert config == Config(micro_batch=2)
    resolve_batch(config, {"grad_accum": 4, "micro_batch": 2}, 3, total="tokens", each=10, of="words")
    assert config == Config(micro_batch=2, tokens=240)
    given = {"grad_accum": 4, "micro_batch": 2, "tokens": 240}
    with pytest.raises(UsageError, match=r"^--tokens 240: 2 words × 4 pieces × 1 ranks are 80$"):
        resolve_batch(config, given, 1, total="tokens", each=10, of="words")


def test_pieces_of_a_batch_that_is_left_open_wait_for_its_size() -> None:
    config = Config(tokens=0, grad_accum=4)
    resolve_batch(config, {"grad_accum": 4, "tokens": 0}, 2, total="tokens", each=10, of="words")
    assert config == Config(tokens=0, grad_accum=4, micro_batch=0)
    given = {"grad_accum": 4, "micro_batch": 2, "tokens": 0}
    config.micro_batch = 2
    resolve_batch(config, given, 2, total="tokens", each=10, of="words")
    assert config.tokens == 160  # both say how large it is


def test_what_somebody_chose_is_theirs_until_they_leave_it_open_again() -> None:
    left = AutoSettings(Config(micro_batch=0))
    assert left.values() == {"micro_batch": 0, "precision": "auto"}
    left.choose("precision", "bf16")
    left.choose("compile", AUTOMATIC["compile"])
    assert left.names == {"micro_batch", "compile"}
    with left.kept():
        left.choose("micro_batch", 8)
        assert "micro_batch" not in left.names
    assert "micro_batch" in left.names
