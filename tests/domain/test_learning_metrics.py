"""What the names of metrics say of a run."""

from __future__ import annotations

import pytest

from hoptui.domain.learning_metrics import acts


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["loss", "env_steps"], True),
        (["rollout/ep_rew_mean"], True),
        (["charts/episodic_return"], True),
        (["meanReward"], False),  # one word: unknown
        (["mean_reward"], True),
        (["loss", "samples", "lr", "portfolio_return", "environment_id"], False),
        ([], False),
    ],
)
def test_a_run_that_logs_what_environments_give_acts(names: list[str], found: bool) -> None:
    assert acts(names) is found
