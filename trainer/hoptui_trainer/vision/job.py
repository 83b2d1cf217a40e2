"""The options of `hoptui train vision`, and how they combine with a checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hoptui_trainer.common.batch import resolve_batch
from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.common.job import AtLeastOne, JobOptions, check_kept, check_sizes, preset, resolve
from hoptui_trainer.common.options import KnobValues
from hoptui_trainer.vision.config import PRESETS, VisionConfig


@dataclass(frozen=True, kw_only=True)
class VisionOptions(JobOptions):
    """Options of `hoptui train vision` beside those of every workload.

    Parameters
    ----------
    data
        digits (8 × 8 pixels), synthetic (for speed), or a folder of images [default: tiny: digits, else
        synthetic].
    image_size
        Pixels of an image's side, for synthetic images and those in a folder [default: tiny: 8, else 224].
    until_accuracy
        End as soon as so large a part of the held-out images is classified right.
    """

    data: str | None = None
    image_size: AtLeastOne | None = None
    until_accuracy: float | None = None

    def check(self) -> None:
        super().check()
        if self.until_accuracy is not None and not 0 < self.until_accuracy <= 1:
            raise UsageError(f"--until-accuracy takes a part of 1, not {self.until_accuracy}")
        if self.until_accuracy is not None and not self.evaluate_every:
            raise UsageError("--until-accuracy needs evaluations: --evaluate-every must not be 0")


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
        UsageError: an unknown preset, a value that a knob does not take, or an option that would make the
            resumed run another one.
    """
    chosen = job.preset or (saved["preset"] if saved else "vit-b" if on_gpu else "tiny")
    default = VisionConfig(**preset(PRESETS, chosen))
    if saved is None:
        data = job.data or ("digits" if chosen == "tiny" else "synthetic")
        name, seed = job.name or f"vision-{chosen}", job.seed or 0
        default = dataclasses.replace(default, image_size=job.image_size or default.image_size)
    else:
        data, name, seed = saved["data"], job.name or saved["name"], saved["seed"]
        check_kept(
            (
                ("--preset", job.preset, saved["preset"]),
                ("--data", job.data, data),
                ("--seed", job.seed, seed),
                ("--image-size", job.image_size, saved["config"]["image_size"]),
            )
        )
    config, notes = resolve(default, saved["config"] if saved else None, knobs)
    resolve_batch(config, knobs, world, total="batch_size", each=1, of="images")
    check_sizes(config, world)
    return VisionPlan(chosen, data, name, seed, config, notes)
