from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.lm.corpus import Corpus, Pass, find_corpus
from hoptui_trainer.lm.documents import Reading, documents

DOCUMENTS = [f"document number {n}\n".encode() for n in range(400)]


def folder_of(root: Path, documents: list[bytes]) -> Path:
    for number, document in enumerate(documents):
        path = root / str(number % 7) / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(document)
    return root


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return folder_of(tmp_path / "texts", DOCUMENTS)


def parts(corpus: Corpus) -> tuple[list[bytes], list[bytes]]:
    """What is trained on, and what is held out."""
    found = list(Pass(corpus).documents())
    return [d for d, held in found if not held], [d for d, held in found if held]


def test_about_a_twentieth_of_the_documents_is_held_out_and_no_document_is_lost(folder: Path) -> None:
    train, held_out = parts(find_corpus(folder))
    assert sorted(train + held_out) == sorted(DOCUMENTS)
    assert 8 <= len(held_out) <= 40


def test_copies_are_one_document_and_a_new_document_moves_no_other_one(folder: Path) -> None:
    train, held_out = parts(find_corpus(folder))
    for number in range(3):
        (folder / f"copy {number}").write_bytes(DOCUMENTS[number])
    (folder / "one more").write_bytes(b"one more")
    reading = Pass(find_corpus(folder))
    found = list(reading.documents())
    assert reading.left_out == {"copies": 3}
    # A copy may come before the file that it is one of.
    assert sorted(d for d, held in found if held and d != b"one more") == sorted(held_out)
    others = [d for d, _ in found if d not in (b"one more", *DOCUMENTS[:3])]
    assert [d for d in others if d in train] == [d for d in train if d not in DOCUMENTS[:3]]


def test_a_limit_reads_the_beginning_of_the_same_order_and_no_more(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = [d for d, _ in Pass(find_corpus(folder)).documents()]
    opened: list[Path] = []

    def seen(reading: Reading, text_field: str | None, *, whole: bool) -> Iterator[bytes]:
        opened.append(reading.path)
        return documents(reading, text_field, whole=whole)

    monkeypatch.setattr("hoptui_trainer.lm.corpus.documents", seen)
    reading = Pass(find_corpus(folder, limit_mb=0.004))
    part = [d for d, _ in reading.documents()]
    assert whole[: len(part)] == part
    assert 4000 <= sum(map(len, part)) == reading.read < 4100
    assert len(opened) <= len(part) + 1
    assert reading.done == 1.0


def test_a_folder_gives_its_texts_wherever_they_lie_and_nothing_else(folder: Path) -> None:
    (folder / "0" / "picture").write_bytes(b"\xff\xfe\x00")
    (folder / "0" / "binary").write_bytes(b"text\0text")
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "x.txt").write_text("never")
    os.mkfifo(folder / "pipe")  # reading it would wait for ever
    reading = Pass(find_corpus(folder))
    assert sorted(d for d, _ in reading.documents()) == sorted(DOCUMENTS)
    assert reading.left_out == {"no text": 2}
    assert reading.done == pytest.approx(1.0, abs=0.05)


def test_a_few_long_texts_are_cut_so_that_some_is_held_out(tmp_path: Path) -> None:
    line = "a line of a book, number {}\n"
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text("".join(line.format((number, n)) for n in range(20_000)))
    train, held_out = parts(find_corpus(tmp_path))
    assert len(train) > 60
    assert held_out


def test_files_and_folders_without_permission_are_counted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_path, scandir = Path.open, os.scandir

    def opened(path: Path, *given: object, **more: object) -> object:
        if path.name == "3.txt":
            raise PermissionError(13, "Permission denied", str(path))
        return open_path(path, *given, **more)  # type: ignore[call-overload]

    def listed(path: str) -> object:
        if str(path).endswith("texts/5"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(Path, "open", opened)  # the tests may run as root, whom nothing is denied
    monkeypatch.setattr(os, "scandir", listed)
    reading = Pass(find_corpus(folder))
    found = [d for d, _ in reading.documents()]
    assert reading.left_out == {"cannot be read": 1, "folders that cannot be read": 1}
    assert sorted(found) == sorted(d for n, d in enumerate(DOCUMENTS) if n != 3 and n % 7 != 5)


def test_the_key_changes_with_a_file_its_name_and_how_it_is_read(folder: Path) -> None:
    keys = {find_corpus(folder).key, find_corpus(folder, limit_mb=1.0).key}
    assert find_corpus(folder).key in keys
    (folder / "0" / "0.txt").write_bytes(b"document number X\n")  # as long as before
    keys.add(find_corpus(folder).key)
    os.utime(folder / "0" / "7.txt", ns=(1, 1))
    keys.add(find_corpus(folder).key)
    (folder / "0" / "7.txt").rename(folder / "0" / "8.txt")
    keys.add(find_corpus(folder).key)
    assert len(keys) == 5


def test_the_librarys_sources_are_there_without_any_download() -> None:
    train, held_out = parts(find_corpus(None, limit_mb=1.0))
    assert sum(map(len, train)) > 800_000
    assert sum(map(len, held_out)) > 1_000


def test_what_is_no_corpus_is_told_by_its_option(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(UsageError, match=r"^--corpus .*missing"):
        find_corpus(tmp_path / "missing")
    with pytest.raises(UsageError, match=r"^--text-field body"):
        find_corpus(folder, text_field="body")
