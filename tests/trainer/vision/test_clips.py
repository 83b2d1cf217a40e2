"""Clips: cut into tubelets, read from folders of frames, learned from, and named wherever images are."""

from __future__ import annotations

import multiprocessing
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.vision import images as rooms
from hoptui_trainer.vision.augmentation import Augmentation, distorted
from hoptui_trainer.vision.config import VisionConfig, many_patches, preset_config
from hoptui_trainer.vision.image_folder import FileImages, Files, find, frame_files
from hoptui_trainer.vision.images import Loading, synthetic
from hoptui_trainer.vision.job import VisionOptions, resolve_job
from hoptui_trainer.vision.loader import Folder
from hoptui_trainer.vision.model import Shape, ViT, patches
from hoptui_trainer.vision.sampler import ImageSampler
from tests.golden import Golden
from tests.run_state import run_state
from tests.trainer.printed import MEASURED, printed
from tests.trainer.vision.conftest import SteeredVision, assert_equal, saved

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")

CPU = torch.device("cpu")
CLIP_SHAPE = Shape(
    image_size=8,
    channels=3,
    classes=5,
    patch_size=4,
    d_model=32,
    layers=2,
    heads=2,
    mlp_width=128,
    frames=6,
    tubelet=2,
)
FRAMES = 4


@pytest.fixture
def clip_folder(tmp_path: Path) -> Path:
    """24 clips of 6 frames that grow brighter or darker, and 8 held-out ones: only the order of frames tells
    the classes apart."""
    root, draw = tmp_path / "clips", np.random.default_rng(0)
    for part, count in (("train", 24), ("val", 8)):
        for number in range(count):
            levels = np.sort(draw.integers(0, 256, 6))[:: 1 if number % 2 else -1]
            folder = root / part / ("darker", "brighter")[number % 2] / f"{number:02}"
            folder.mkdir(parents=True)
            for at, level in enumerate(levels):
                np.save(folder / f"frame{at}.npy", np.full((8, 8), level, np.uint8))
    return root


def numbered(folder: Path, count: int) -> Path:
    """A clip of 3 × 3 pixels whose frames are their numbers."""
    folder.mkdir(parents=True)
    for at in range(count):
        np.save(folder / f"{at:03}.npy", np.full((3, 3), at, np.uint8))
    return folder


def test_a_tubelet_holds_its_square_of_every_channel_of_its_frames() -> None:
    generator = torch.Generator().manual_seed(0)
    clips = torch.randint(0, 256, (2, 6, 3, 8, 8), dtype=torch.uint8, generator=generator)
    cut = patches(clips.flatten(1, 2), 4, steps=3)
    assert cut.shape == (2, 3 * 4, 2 * 3 * 16)
    tubelet = clips[1, 2:4, :, 4:8, 0:4]  # second step, third place: second row, first column
    assert torch.allclose(cut[1, 4 + 2].view(2, 3, 4, 4), tubelet.float() / 127.5 - 1)


def test_the_order_of_frames_matters() -> None:
    model = ViT(CLIP_SHAPE, seed=0)
    with torch.no_grad():
        model.head.weight.normal_(generator=torch.Generator().manual_seed(1))
    clip = torch.randint(0, 256, (1, 6, 3, 8, 8), dtype=torch.uint8)
    swapped = clip[:, [4, 5, 2, 3, 0, 1]]  # whole tubelets, so that only their positions differ
    assert not torch.allclose(model(clip.flatten(1, 2)), model(swapped.flatten(1, 2)), atol=1e-2)
    assert model.positions().shape == (12, 32)


def test_the_cost_of_a_clip_counts_each_tubelet_once() -> None:
    shape = replace(CLIP_SHAPE, layers=1)
    dense = 6 * 12 * (12 * 32**2 + 96 * 32)  # 12 tokens: the block, and patches of 2 · 3 · 4² values
    assert ViT(shape, seed=0).flops_per_sample() == dense + 12 * 32 * 12**2 + 6 * 32 * 5


def test_torch_counts_as_many_flops_forward_as_a_third_of_the_cost() -> None:
    for shape in (CLIP_SHAPE, replace(CLIP_SHAPE, frames=1, tubelet=1)):
        model, samples = ViT(shape, seed=0), 3
        pixels = torch.zeros(samples, 3 * shape.frames, 8, 8, dtype=torch.uint8)
        plain = sdpa_kernel(SDPBackend.MATH)  # torch does not count the attention kernel of the CPU
        with FlopCounterMode(display=False) as counter, plain, torch.no_grad():
            model(pixels)
        assert counter.get_total_flops() == pytest.approx(samples * model.flops_per_sample() / 3)


def test_frames_that_cannot_be_cut_are_told() -> None:
    with pytest.raises(ValueError, match="clips of 6 frames cannot be cut into tubelets of 4"):
        replace(CLIP_SHAPE, tubelet=4)


def test_all_frames_of_a_clip_are_distorted_alike() -> None:
    image = torch.randint(0, 256, (5, 3, 9, 9), dtype=torch.uint8)
    most = Augmentation(turn=0.3, zoom=0.2, shift=0.1, flip=True)
    found = distorted(image.repeat(1, 4, 1, 1), torch.arange(5), 7, most)
    assert torch.equal(found, distorted(image, torch.arange(5), 7, most).repeat(1, 4, 1, 1))


@pytest.mark.parametrize(
    ("count", "taken"), [(8, [1, 3, 5, 7]), (9, [1, 3, 5, 7]), (4, [0, 1, 2, 3]), (2, [0, 0, 1, 1])]
)
def test_frames_are_taken_evenly_from_the_whole_clip(tmp_path: Path, count: int, taken: list[int]) -> None:
    clip = numbered(tmp_path / "clip", count)
    (clip / "notes.txt").touch()
    assert [int(path.stem) for path in frame_files(clip, FRAMES)] == taken
    into = torch.empty(1, 3 * FRAMES, 3, 3, dtype=torch.uint8)
    FileImages(Files(tmp_path, [("clip", 0)]), 3, FRAMES).read([0], into)
    assert into.view(FRAMES, 3, 9)[:, 0, 0].tolist() == taken


def test_clips_are_folders_in_that_of_their_class(tmp_path: Path) -> None:
    numbered(tmp_path / "cat" / "one", 2)
    numbered(tmp_path / "dog" / "two", 2)
    (tmp_path / "dog" / "empty").mkdir()
    np.save(tmp_path / "cat" / "image.npy", np.zeros((3, 3), np.uint8))
    classes, train, held_out = find(tmp_path, frames=2)
    paths = [part.path(i) for part in (train, held_out) for i in range(len(part))]
    assert classes == ["cat", "dog"]
    assert sorted(paths) == [tmp_path / "cat" / "one", tmp_path / "dog" / "two"]
    assert len(find(tmp_path)[1]) + len(find(tmp_path)[2]) == 5  # with single frames they are images


def test_a_folder_without_clips_is_refused(tmp_path: Path, image_folder: Path) -> None:
    with pytest.raises(UsageError, match=r"no clip to train on \(.* class/clip/frame\.jpg\)"):
        find(image_folder, frames=2)
    clip = numbered(tmp_path / "gone", 1)
    (clip / "000.npy").unlink()
    with pytest.raises(UsageError, match="gone: there are no frames in this clip"):
        frame_files(clip, 2)
    clip.rmdir()
    with pytest.raises(UsageError, match="gone: this clip cannot be read"):
        frame_files(clip, 2)


@pytest.mark.parametrize("frames", [4, 40])
def test_workers_read_clips_in_their_order(clip_folder: Path, frames: int) -> None:
    source = Folder(clip_folder, 8, frames)
    feed = source.feed(3, 0, 1, Loading(num_workers=2, prefetch_factor=2, pin_memory=False), CPU)
    wanted = ImageSampler(3, source.count, "cpu").images(range(30)).tolist()
    try:
        batch = feed.take(range(30))
    finally:
        feed.close()
    into = torch.empty(30, 3 * frames, 8, 8, dtype=torch.uint8)
    source._train.read(wanted, into)
    assert torch.equal(batch.images, into)
    assert batch.labels.tolist() == source._train.labels(wanted)
    assert not multiprocessing.active_children()


@pytest.mark.slow
def test_clips_are_learned_and_judged(
    clip_folder: Path, steered_vision: SteeredVision, golden: Golden
) -> None:
    result = steered_vision.train(
        data=str(clip_folder),
        frames=FRAMES,
        image_size=8,
        iterations=60,
        evaluate_every=60,
        knobs={"batch_size": 24, "micro_batch": 12, "layers": 1, "num_workers": 1},
    )
    assert result.accuracy is not None
    assert result.accuracy >= 0.9
    assert (result.frames, result.samples) == (FRAMES, 60 * 24)
    assert run_state(steered_vision.run).declarations.units["samples_per_s"] == "clips/s"
    assert not multiprocessing.active_children()
    golden(
        printed(steered_vision.lines),
        normalize={re.escape(str(clip_folder)): "DIR", r"loss 0\.\d+": "loss N", **MEASURED},
    )


def test_a_resumed_run_keeps_its_clips(
    tmp_path: Path, steered_vision: SteeredVision, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rooms, "POOL_BYTES", 1 << 14)
    clips = {"data": "synthetic", "image_size": 8, "frames": FRAMES, "tubelet": 1}
    steered_vision.train(tmp_path / "whole", iterations=4, **clips)
    assert saved(tmp_path / "whole")["model"]["time_position"].shape == (FRAMES, 64)
    steered_vision.train(tmp_path / "half", iterations=4, checkpoint_every=2, **clips)
    (tmp_path / "half" / "vision-000000004.ckpt").unlink()
    steered_vision.train(tmp_path / "rest", iterations=4, resume=tmp_path / "half")
    assert_equal(tmp_path / "whole", tmp_path / "rest")
    with pytest.raises(UsageError, match="--frames 2: the checkpoint's run has 4, and keeps it"):
        steered_vision.train(resume=tmp_path / "whole", frames=2)


def test_a_checkpoint_from_before_clips_is_one_of_images() -> None:
    later = {"frames", "tubelet", "mlp_ratio", "checkpointing"}
    old = {name: value for name, value in vars(preset_config("tiny")).items() if name not in later}
    found = {"preset": "tiny", "data": "digits", "name": "a", "seed": 0, "config": old}
    plan = resolve_job(VisionOptions(), {}, found, world=1, on_gpu=False)
    assert (plan.config.frames, plan.config.unit, plan.config.checkpointing) == (1, "images", False)
    with pytest.raises(UsageError, match="--frames 4: the checkpoint's run has 1, and keeps it"):
        resolve_job(VisionOptions(frames=4), {}, found, world=1, on_gpu=False)


def test_frames_that_do_not_fit_are_refused_by_their_option(steered_vision: SteeredVision) -> None:
    with pytest.raises(UsageError, match="--frames 8: digits are single images"):
        steered_vision.train(frames=8)
    with pytest.raises(UsageError, match="--frames: frames = 5 must be a multiple of tubelet = 2"):
        steered_vision.train(data="synthetic", frames=5)
    with pytest.raises(UsageError, match="--frames: frames = 1 must be a multiple of tubelet = 2"):
        steered_vision.train(data="synthetic", tubelet=2)


def test_synthetic_clips_take_no_more_memory_than_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "POOL_BYTES", 1 << 14)
    source = synthetic(16, CPU, frames=8)
    assert (source.count, source.frames, source.channels) == (2, 8, 3)


def test_clips_of_many_patches_name_both_remedies() -> None:
    assert many_patches(VisionConfig(frames=32, tubelet=2)) == ""  # 3,136 patches
    assert many_patches(VisionConfig(frames=64, tubelet=2)) == (
        "6,272 patches a clip: attention takes 58% of the FLOPs; --patch-size 28 makes 2,048 and 31%; "
        "--tubelet 4 makes 3,136 and 40%"
    )
