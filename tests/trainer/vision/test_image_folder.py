from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.vision.image_folder import FileImages, Files, find, read_image


def save_array(path: Path, values: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, values)
    return path


def test_paths_come_back_as_they_were(tmp_path: Path) -> None:
    names = [("a/1.npy", 0), ("", 1), ("b/ü\udcff.npy", 2)]
    files = Files(tmp_path, names)
    assert [files.path(i) for i in range(3)] == [tmp_path / name for name, _ in names]
    assert list(files.labels) == [0, 1, 2]


def test_a_folder_is_split_by_name_and_a_new_file_moves_no_other(image_folder: Path) -> None:
    classes, train, held_out = find(image_folder)
    assert classes == ["even", "odd"]
    assert len(train) + len(held_out) == 100
    assert 1 <= len(held_out) <= 15
    apart = {held_out.path(i) for i in range(len(held_out))}
    save_array(image_folder / "even" / "000a.npy", np.zeros((8, 8), np.uint8))
    _, more, still = find(image_folder)
    assert apart <= {still.path(i) for i in range(len(still))}
    assert len(more) + len(still) == 101


def test_train_and_val_are_taken_where_they_are(tmp_path: Path) -> None:
    for part, count in (("train", 3), ("val", 2)):
        for number in range(count):
            save_array(tmp_path / part / "cat" / f"{number}.npy", np.zeros((4, 4), np.uint8))
    (tmp_path / "train" / "dog").mkdir()
    classes, train, held_out = find(tmp_path)
    assert (classes, len(train), len(held_out)) == (["cat", "dog"], 3, 2)


def test_what_is_missing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"nowhere: there is no such folder, and it is neither digits nor"):
        find(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="no image to train on"):
        find(tmp_path)
    for part, name in (("train", "cat"), ("val", "dog")):
        save_array(tmp_path / part / name / "0.npy", np.zeros((4, 4), np.uint8))
    with pytest.raises(UsageError, match="the class dog is in val and not in train"):
        find(tmp_path)
    (tmp_path / "train" / "cat" / "1.jpg").touch()
    save_array(tmp_path / "train" / "dog" / "0.npy", np.zeros((4, 4), np.uint8))
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UsageError, match="need Pillow"):
        find(tmp_path)


def test_arrays_are_cropped_to_their_middle_and_scaled(tmp_path: Path) -> None:
    wide = np.zeros((4, 8, 3), np.uint8)
    wide[:, 2:6, 1] = 200
    image = read_image(save_array(tmp_path / "wide.npy", wide), 4)
    assert image.dtype == torch.uint8
    assert torch.equal(image, torch.tensor([0, 200, 0], dtype=torch.uint8)[:, None, None].expand(3, 4, 4))
    grey = read_image(save_array(tmp_path / "grey.npy", np.full((6, 6), 7, np.uint8)), 3)
    assert torch.equal(grey, torch.full((3, 3, 3), 7, dtype=torch.uint8))


def test_pictures_are_read_with_pillow(tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    pillow.new("RGB", (20, 10), (250, 128, 3)).save(tmp_path / "a.png")
    image = read_image(tmp_path / "a.png", 5)
    assert torch.equal(image[:, 2, 2], torch.tensor([250, 128, 3], dtype=torch.uint8))
    assert image.shape == (3, 5, 5)


@pytest.mark.parametrize("name", ["broken.npy", "broken.png", "floats.npy", "gone.npy"])
def test_a_file_that_is_no_image_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name.startswith("broken"):
        path.write_bytes(b"not an image")
    elif name == "floats.npy":
        save_array(path, np.zeros((4, 4)))
    with pytest.raises(UsageError, match=f"{name}: this file cannot be read as an image"):
        read_image(path, 4)
    with pytest.raises(UsageError, match=f"{name}: this file"):
        FileImages(Files(tmp_path, [(name, 0)]), 4).read([0], torch.empty(1, 3, 4, 4, dtype=torch.uint8))
