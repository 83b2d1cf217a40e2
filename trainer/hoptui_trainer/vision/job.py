"""The options of `hoptui train vision`, and how they combine with a checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hoptui_trainer.common.applicability import Circumstances, Rule, check_applies
from hoptui_trainer.common.batch import resolve_batch
from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.common.job import (
    THREAD_RULE,
    JobOptions,
    Target,
    UpToEightThousand,
    UpToThousand,
    check_kept,
    check_positive,
    options_given,
    preset,
    refused_by_option,
    resolve,
)
from hoptui_trainer.common.lr_schedule import SCHEDULE_RULES, settle_warm_up
from hoptui_trainer.common.options import KnobValues, option_name
from hoptui_trainer.vision.config import DIGIT_SIZE, IN_MEMORY, LOADING, PRESETS, TUBELET, VisionConfig

SIZES = ("image_size", "patch_size", "frames", "tubelet")
"""Options that a run keeps: its weights would mean something else."""


def _in_memory(where: Circumstances) -> str:
    if where.source not in IN_MEMORY:
        return ""
    return f"the {where.source} images are in memory; those of a folder (--data) are read by workers"


def _not_pinned(where: Circumstances) -> str:
    return "" if where.on_gpu else "it needs a GPU, which copies from that memory"


def _not_ahead(where: Circumstances) -> str:
    return "" if where.config.num_workers else "num_workers 0 reads nothing ahead; num_workers 1 does"


RULES = (
    *SCHEDULE_RULES,
    THREAD_RULE,
    Rule(LOADING, _in_memory),
    Rule(("pin_memory",), _not_pinned),
    Rule(("prefetch_factor",), _not_ahead, by_knob=True),
)
"""When options and knobs have an effect."""


@dataclass(frozen=True, kw_only=True)
class VisionOptions(JobOptions):
    """Options of `hoptui train vision` beside those of every workload.

    Parameters
    ----------
    data
        digits (8 × 8 pixels), synthetic (for speed), or a folder: class/image.jpg, or class/clip/frame.jpg
        with --frames [default: tiny: digits, else synthetic].
    image_size
        Pixels of an image's side, for synthetic images and those in a folder [default: tiny: 8, else 224].
    patch_size
        Pixels of a patch's side, which divides the image's; a patch is a token [default: tiny: 4, vit-g: 14,
        else 16].
    frames
        Frames of a clip, evenly spaced over its files; 1 trains on single images [default: 1].
    tubelet
        Frames that a patch spans, which divide those of a clip [default: 2 with --frames, else 1].
    until_accuracy
        End as soon as so large a part of the held-out images is classified right.
    until_loss
        End as soon as the held-out images have at most so many nats each.
    """

    data: str | None = None
    image_size: UpToEightThousand | None = None
    patch_size: UpToEightThousand | None = None
    frames: UpToThousand | None = None
    tubelet: UpToThousand | None = None
    until_accuracy: float | None = None
    until_loss: float | None = None

    def check(self) -> None:
        if self.until_accuracy is not None and not 0 < self.until_accuracy <= 1:
            raise UsageError(f"--until-accuracy takes a part of 1, not {self.until_accuracy}")
        check_positive(self.targets)
        super().check()

    @property
    def targets(self) -> Mapping[str, Target]:
        found = {}
        if self.until_accuracy is not None:
            found["--until-accuracy"] = Target("accuracy", self.until_accuracy, higher=True)
        if self.until_loss is not None:
            found["--until-loss"] = Target("val_loss", self.until_loss)
        return found

    def sizes(self) -> dict[str, Any]:
        """The options given for the size of images, clips and their patches, by the names of the config."""
        return {name: size for name in SIZES if (size := getattr(self, name)) is not None}


@dataclass(frozen=True)
class VisionPlan:
    """What will be run. `notes` names the source of each knob that two sources disagree on."""

    preset: str
    data: str
    name: str
    seed: int
    config: VisionConfig
    notes: tuple[str, ...] = ()


def resolve_job(
    job: VisionOptions, knobs: KnobValues, saved: Mapping[str, Any] | None, *, world: int, on_gpu: bool
) -> VisionPlan:
    """Command line before checkpoint before preset.

    Raises:
        UsageError: an unknown preset, a value that a knob does not take, an option without effect, or one
            that would make the resumed run another one.
    """
    chosen = job.preset or (saved["preset"] if saved else "vit-b" if on_gpu else "tiny")
    default = VisionConfig(**preset(PRESETS, chosen))
    if saved is None:
        data = job.data or ("digits" if chosen == "tiny" else "synthetic")
        name, seed = job.name or f"vision-{chosen}", job.seed or 0
        tubelet = TUBELET if (job.frames or 1) > 1 else 1
        default = dataclasses.replace(default, **{"tubelet": tubelet, **job.sizes()})
    else:
        data, name, seed = saved["data"], job.name or saved["name"], saved["seed"]
        held = {"frames": 1, "tubelet": 1, **saved["config"]}
        check_kept(
            (
                ("--preset", job.preset, saved["preset"]),
                ("--data", job.data, data),
                ("--seed", job.seed, seed),
                *((option_name(name), size, held[name]) for name, size in job.sizes().items()),
            )
        )
    _check_digits(data, job)
    config, notes = resolve(default, saved["config"] if saved else None, knobs)
    settle_warm_up(config, knobs)
    where = Circumstances(config=config, on_gpu=on_gpu, source=data)
    check_applies(RULES, where, {**options_given(job), **knobs})
    if data == "digits":
        config.image_size = DIGIT_SIZE
    resolve_batch(config, knobs, world, total="batch_size", each=1, of=config.unit)
    with refused_by_option():
        config.check(world)
    return VisionPlan(chosen, data, name, seed, config, notes)


def _check_digits(data: str, job: VisionOptions) -> None:
    """Refuse sizes that digits do not have.

    Raises:
        UsageError: one sentence that begins with the option.
    """
    if data == "digits" and job.image_size not in (None, DIGIT_SIZE):
        raise UsageError(
            f"--image-size {job.image_size}: digits have {DIGIT_SIZE} pixels; --data synthetic or a folder "
            "takes other sizes"
        )
    if data == "digits" and (job.frames or 1) > 1:
        raise UsageError(
            f"--frames {job.frames}: digits are single images; --data synthetic or a folder has clips"
        )
