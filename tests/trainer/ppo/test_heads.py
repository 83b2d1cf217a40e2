from __future__ import annotations

import pytest
import torch

from hoptui_trainer.common import counter_rng
from hoptui_trainer.ppo.envs.physics import Continuous, Discrete
from hoptui_trainer.ppo.policies.heads import Categorical, Gaussian, make_head

INDEX = torch.arange(40_000)
KEY = counter_rng.key(0, "test")


def test_the_head_fits_the_kind_of_action() -> None:
    assert isinstance(make_head(Discrete(3)), Categorical)
    assert isinstance(make_head(Continuous(2)), Gaussian)


def test_categorical_log_probs_and_entropies_are_those_of_torch() -> None:
    head = Categorical(Discrete(5))
    logits = torch.randn(7, 64, 5, generator=torch.Generator().manual_seed(1)) * 3
    action, log_prob = head.sample(logits, head.noise(KEY, INDEX[: 7 * 64].view(7, 64), 0))
    judged, entropy = head.judge(logits, action)
    known = torch.distributions.Categorical(logits=logits)
    for ours in (log_prob, judged):
        torch.testing.assert_close(ours, known.log_prob(action))  # type: ignore[no-untyped-call]
    torch.testing.assert_close(entropy, known.entropy())  # type: ignore[no-untyped-call]


def test_gaussian_log_probs_and_entropies_are_those_of_torch() -> None:
    head = Gaussian(Continuous(3))
    with torch.no_grad():
        head.log_std.copy_(torch.tensor([-0.7, 0.0, 0.4]))
    mean = torch.randn(7, 64, 3, generator=torch.Generator().manual_seed(1))
    action, log_prob = head.sample(mean, head.noise(KEY, INDEX[: 7 * 64].view(7, 64), 0))
    judged, entropy = head.judge(mean, action)
    known = torch.distributions.Normal(mean, head.log_std.exp())
    for ours in (log_prob, judged):
        torch.testing.assert_close(ours, known.log_prob(action).sum(-1))  # type: ignore[no-untyped-call]
    torch.testing.assert_close(entropy, known.entropy().sum(-1))  # type: ignore[no-untyped-call]


def test_actions_are_drawn_with_their_probabilities() -> None:
    head = Categorical(Discrete(3))
    logits = torch.tensor([0.0, 1.0, -0.5])
    action, _ = head.sample(logits.expand(len(INDEX), 3), head.noise(KEY, INDEX, 7))
    drawn = action.bincount(minlength=3) / len(INDEX)
    torch.testing.assert_close(drawn, logits.softmax(-1), rtol=0, atol=0.01)


@pytest.mark.parametrize("smallest", [0.0, 2.0**-24, 1 - 2.0**-24])
def test_the_ends_of_the_noise_give_an_action_and_never_an_impossible_one(smallest: float) -> None:
    head = Categorical(Discrete(2))
    noise = torch.tensor([[smallest, 0.5], [smallest, smallest]])
    logits = torch.tensor([[float("-inf"), 0.0], [0.0, float("-inf")]])
    action, log_prob = head.sample(logits, noise)
    assert action[0] == 1
    assert log_prob[0] == 0
    assert log_prob.isfinite().all()


def test_continuous_actions_have_their_mean_and_deviation() -> None:
    head = Gaussian(Continuous(1))
    with torch.no_grad():
        head.log_std.fill_(-1.0)
        action, _ = head.sample(torch.full((len(INDEX), 1), 2.0), head.noise(KEY, INDEX, 7))
    assert float(action.mean()) == pytest.approx(2, abs=0.01)
    assert float(action.std()) == pytest.approx(torch.tensor(-1.0).exp().item(), abs=0.01)


def test_an_environment_draws_alone_what_it_draws_among_others() -> None:
    for head in (Categorical(Discrete(2)), Gaussian(Continuous(2))):
        assert torch.equal(head.noise(KEY, INDEX[5:6], 3)[0], head.noise(KEY, INDEX[:9], 3)[5])
        assert not torch.equal(head.noise(KEY, INDEX[:9], 3), head.noise(KEY, INDEX[:9], 4))


def test_the_best_action_is_the_most_probable_one() -> None:
    said = torch.tensor([[0.0, 2.0, 1.0], [3.0, 2.0, 1.0]])
    assert Categorical(Discrete(3)).best(said).tolist() == [1, 0]
    assert torch.equal(Gaussian(Continuous(3)).best(said), said)
