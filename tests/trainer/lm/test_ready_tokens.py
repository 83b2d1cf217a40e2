"""Files of tokens that other programs have written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.lm.ready_tokens import ReadyTokens, read_ready, ready_files
from hoptui_trainer.lm.sequence_sampler import widened

TOKENS = np.arange(4000) * 7 % 1000


def written(path: Path, tokens: Any = TOKENS, dtype: str = "uint16", header: list[int] | None = None) -> Path:
    """A file as nanoGPT writes it, or with a header as llm.c does."""
    begin = np.zeros(256 if header else 0, "<i4")
    begin[: len(header or ())] = header or ()
    path.write_bytes(begin.tobytes() + np.asarray(tokens).astype(dtype).tobytes())
    return path


def read(
    path: Path, dtype: Any = None, vocabulary: int = 1024, mb: float = 0.0, evaluated: int = 50
) -> ReadyTokens:
    return read_ready(ready_files(path), dtype, vocabulary, mb, evaluated)


def trained(found: ReadyTokens) -> list[int]:
    return widened(found.train.load(torch.device("cpu"))).tolist()


@pytest.mark.parametrize(
    ("dtype", "said", "header"),
    [
        ("uint16", None, None),
        ("uint16", "uint16", None),
        ("uint32", "uint32", None),
        ("uint16", None, [20240520, 1, 4000]),
        ("uint32", None, [20240801, 7, 4000]),
        ("uint32", "uint32", [20240801, 7, 4000]),
    ],
)
def test_a_file_is_read_where_it_is_and_its_end_is_held_out(
    tmp_path: Path, dtype: str, said: str | None, header: list[int] | None
) -> None:
    found = read(written(tmp_path / "a.bin", dtype=dtype, header=header), said)
    assert found.train.dtype == dtype
    assert trained(found) == TOKENS[:-51].tolist()
    assert widened(found.held_out).tolist() == TOKENS[-51:].tolist()
    found = read(tmp_path / "a.bin", said, evaluated=1 << 20)
    assert len(found.held_out) == 200  # a twentieth
    assert trained(found) == TOKENS[:-200].tolist()


def test_a_folder_is_read_in_the_order_of_names_and_val_is_held_out(tmp_path: Path) -> None:
    for number in (2, 0, 1):
        written(tmp_path / f"fineweb_train_00000{number}.bin", TOKENS + number, header=[20240520, 1, 4000])
    written(tmp_path / "fineweb_val_000000.bin", TOKENS[::-1], header=[20240520, 1, 4000])
    (tmp_path / "README.md").write_text("words")
    (tmp_path / ".hidden.bin").write_text("words")
    found = read(tmp_path)
    assert trained(found) == [*TOKENS, *(TOKENS + 1), *(TOKENS + 2)]
    assert widened(found.held_out).tolist() == TOKENS[::-1][:51].tolist()


def test_which_paths_are_tokens(tmp_path: Path) -> None:
    assert ready_files(None) == ready_files(tmp_path) == ready_files(tmp_path / "missing") == ()
    firmware = written(tmp_path / "firmware.bin")
    assert ready_files(firmware) == ready_files(tmp_path) == (firmware,)
    (tmp_path / "text.txt").write_text("words")
    assert ready_files(tmp_path) == ready_files(tmp_path / "text.txt") == ()
    train, _ = written(tmp_path / "train.bin"), written(tmp_path / "val.bin")
    assert train in ready_files(tmp_path)


def test_a_limit_leaves_the_beginning(tmp_path: Path) -> None:
    written(tmp_path / "train_0.bin")
    written(tmp_path / "train_1.bin")
    found = read(tmp_path, mb=0.01)  # 5,000 tokens, of which 51 are held out
    assert trained(found) == [*TOKENS, *TOKENS[: 1000 - 51]]


def test_the_digest_is_of_the_content_alone(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    one = read(written(tmp_path / "a.bin")).digest
    assert read(written(tmp_path / "other" / "b.bin")).digest == one
    assert read(written(tmp_path / "c.bin", TOKENS + 1), vocabulary=1025).digest != one
    assert read(written(tmp_path / "d.bin", TOKENS[:-2])).digest != one


def test_a_large_file_is_named_by_samples_of_it(tmp_path: Path) -> None:
    path = tmp_path / "large.bin"
    with path.open("wb") as file:
        file.truncate(3 << 30)  # no disk is used
    found = read(path)
    assert len(found.train) == (3 << 29) - 51
    with path.open("r+b") as file:
        file.seek(2 << 20)
        file.write(b"\1\1" * 30_000_000)
    assert read(path, vocabulary=1 << 16).digest != found.digest


REFUSED: tuple[tuple[str, dict[str, Any], dict[str, Any], str], ...] = (
    ("empty", {"tokens": []}, {}, "the file is empty"),
    ("one token", {"tokens": [1]}, {}, "too few tokens"),
    ("odd", {"tokens": [1] * 9, "dtype": "uint8"}, {}, "9 bytes, is no whole number of uint16 tokens"),
    ("half", {}, {"dtype": "uint32", "vocabulary": 1024}, "--vocab-size 1024: .* holds the token"),
    ("wide", {"dtype": "uint32"}, {}, "every second token is 0.*--token-dtype"),
    (
        "large",
        {"tokens": [*range(900), 1024, *range(900)]},
        {},
        "--vocab-size 1024: .* holds the token 1,024",
    ),
    ("header", {"header": [20240520, 1, 4001]}, {}, "says 4,001 tokens, and it holds 4,000"),
    ("other type", {"header": [20240520, 1, 4000]}, {"dtype": "uint32"}, "--token-dtype uint32: the header"),
)


@pytest.mark.parametrize(("name", "content", "options", "said"), REFUSED, ids=[case[0] for case in REFUSED])
def test_a_file_that_is_none_is_told(
    tmp_path: Path, name: str, content: dict[str, Any], options: dict[str, Any], said: str
) -> None:
    path = written(tmp_path / "a.bin", **content)
    with pytest.raises(UsageError, match=said) as caught:
        read(path, **options)
    assert str(caught.value).startswith("--")
    assert "\n" not in str(caught.value)


def test_folders_of_two_kinds_or_without_training_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path / "val.bin")
    with pytest.raises(UsageError, match=r"all of its \.bin files are for validation"):
        read(tmp_path)
    written(tmp_path / "train.bin", dtype="uint32", header=[20240801, 7, 4000])
    with pytest.raises(UsageError, match="some files hold uint16 and some uint32"):
        read(tmp_path)

    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(UsageError, match=r"train\.bin: Permission denied"):
        read(tmp_path)
