"""What the tuner may turn of each workload once knobs of learning are allowed: not what is there for learning
alone."""

from __future__ import annotations

import pytest

from hoptui.domain.tuning import Limits, may_turn
from hoptui.sdk.knob_declarations import knob_spec
from hoptui_trainer.common.options import declared
from hoptui_trainer.lm.config import LMConfig
from hoptui_trainer.ppo.config import PPOConfig
from hoptui_trainer.vision.config import VisionConfig

ALLOWED = {
    PPOConfig: {"num_envs", "env_workers", "rollout_len", "minibatch_size", "precision"},
    LMConfig: {"batch_tokens", "seq_len", "optimizer"},
    VisionConfig: {"batch_size", "optimizer"},
}


@pytest.mark.parametrize("config", ALLOWED)
def test_allowing_what_changes_learning_allows_what_changes_speed_as_well(config: type) -> None:
    specs = [knob_spec(knob, name, getattr(config(), name)) for name, _, knob in declared(config)]
    learning = [spec for spec in specs if spec.effect == "learning"]
    assert {spec.name for spec in learning if may_turn(spec, Limits(learning=("*",)))} == ALLOWED[config]
    assert not [spec for spec in learning if may_turn(spec, Limits())]
