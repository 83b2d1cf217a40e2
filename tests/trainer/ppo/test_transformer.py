from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor
from torch._inductor.utils import run_and_get_code
from torch.nn.functional import scaled_dot_product_attention

from hoptui_trainer.common import counter_rng
from hoptui_trainer.common.init_rng import stream
from hoptui_trainer.ppo.config import PPOConfig
from hoptui_trainer.ppo.envs.cartpole import CartPole
from hoptui_trainer.ppo.policies import transformer
from hoptui_trainer.ppo.policies.memory import AttentionCache
from hoptui_trainer.ppo.policies.policy import Batch
from hoptui_trainer.ppo.policies.registry import make_policy
from hoptui_trainer.ppo.policies.transformer import Transformer, Widths

ENVS, CONTEXT, STEPS = 6, 5, 14
SMALL = Widths(d_model=16, heads=2, layers=3, ff=24)


def small(context: int = CONTEXT, widths: Widths = SMALL) -> Transformer:
    policy = Transformer(CartPole(), widths, context, stream(0, "policy weights"))
    with torch.no_grad():
        policy.actor.weight.mul_(100)  # away from the uniform policy of the start
    return policy


def seen(rows: int, *, begins: float = 0.15) -> tuple[Tensor, Tensor]:
    """Observations (rows, ENVS, 4) and where episodes begin (rows, ENVS)."""
    g = torch.Generator().manual_seed(3)
    return torch.randn(rows, ENVS, 4, generator=g), torch.rand(rows, ENVS, generator=g) < begins


@torch.no_grad()
def played(policy: Transformer, obs: Tensor, first: Tensor) -> Batch:
    """What the policy does step by step after its memory was refilled; the values take the place of the
    targets."""
    prefix, length = policy.context - 1, len(obs) - policy.context + 1
    memory = policy.memory(ENVS)
    policy.refill(memory, obs[:prefix], first[:prefix])
    key, index = counter_rng.key(0, "test"), torch.arange(ENVS)
    did = [
        policy.act(obs[prefix + t], first[prefix + t], memory, policy.noise(key, index, t))
        for t in range(length)
    ]
    action, log_prob, value = (torch.stack(field, 1) for field in zip(*did, strict=True))
    return Batch(obs.transpose(0, 1), first.T, action, log_prob, torch.zeros_like(value), value)


@pytest.mark.parametrize("context", [1, 2, CONTEXT, 30])  # 30: longer than all that is played
@pytest.mark.parametrize("begins", [0.0, 0.15, 1.0])
def test_it_is_judged_as_it_was_when_it_acted(context: int, begins: float) -> None:
    policy = small(context)
    batch = played(policy, *seen(context - 1 + STEPS, begins=begins))
    assert batch.log_prob.shape == (ENVS, STEPS)
    judged = policy.judge(batch)
    torch.testing.assert_close(judged.log_prob.detach(), batch.log_prob, rtol=0, atol=1e-5)
    torch.testing.assert_close(judged.value.detach(), batch.target, rtol=0, atol=1e-5)
    assert float(batch.log_prob.std()) > 0.1


def test_a_long_sequence_that_is_rounded_up_is_read_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = small()
    obs, first = (field.transpose(0, 1) for field in seen(79))
    with torch.no_grad():
        found = policy._read(obs, first)
        monkeypatch.setattr(transformer, "ROUND", 1)
        exactly = policy._read(obs, first)
    assert found.shape == exactly.shape == (ENVS, 79, SMALL.d_model)
    torch.testing.assert_close(found, exactly, rtol=0, atol=1e-5)


def changed_by(policy: Transformer, obs: Tensor, first: Tensor, row: int) -> list[int]:
    """The rows whose values change with the observation in `row`."""
    zeros = torch.zeros(ENVS, len(obs) - policy.context + 1)
    batch = Batch(obs.transpose(0, 1), first.T, zeros.long(), zeros, zeros, zeros)
    other = batch.obs.clone()
    other[:, row] += 1
    with torch.no_grad():
        before, after = policy.judge(batch).value, policy.judge(batch._replace(obs=other)).value
    differ = ((after - before).abs() > 1e-6).any(0)
    return [int(t) + policy.context - 1 for t in differ.nonzero()]


def test_a_step_sees_its_window_in_every_layer_and_nothing_later() -> None:
    obs, first = seen(CONTEXT - 1 + STEPS, begins=0.0)
    one_layer = small(widths=Widths(16, 2, 1, 24))
    assert changed_by(one_layer, obs, first, 6) == list(range(6, 6 + CONTEXT))
    assert changed_by(small(context=1), *seen(STEPS, begins=0.0), 6) == [6]
    assert changed_by(small(), obs, first, 6) == list(range(6, CONTEXT - 1 + STEPS))
    deep = small(widths=Widths(16, 2, 2, 24))
    assert changed_by(deep, obs, first, 6) == list(range(6, 6 + 2 * (CONTEXT - 1) + 1))


def test_no_step_sees_another_episode() -> None:
    obs, first = seen(CONTEXT - 1 + STEPS, begins=0.0)
    first[9] = True
    assert changed_by(small(), obs, first, 6) == [6, 7, 8]
    assert changed_by(small(), obs, first, 9)[0] == 9


def test_the_order_of_observations_matters() -> None:
    policy = small()
    obs, first = seen(CONTEXT, begins=0.0)
    swapped = obs.clone()
    swapped[[1, 2]] = obs[[2, 1]]
    with torch.no_grad():
        values = [policy.value(o.transpose(0, 1), first.T) for o in (obs, swapped)]
    assert float((values[0] - values[1]).abs().max()) > 1e-3


def test_a_refilled_memory_holds_nothing_of_before() -> None:
    policy = small()
    obs, first = seen(CONTEXT - 1, begins=0.15)
    noise = torch.rand(ENVS, 2)
    with torch.no_grad():
        used, fresh = policy.memory(ENVS), policy.memory(ENVS)
        for row in seen(20)[0]:
            policy.act(row, first[0], used, noise)
        done = []
        for memory in (used, fresh):
            policy.refill(memory, obs, first)
            done.append([policy.act(row, first[0], memory, noise) for row in seen(9)[0]])
    for one, other in zip(*done, strict=True):
        torch.testing.assert_close(one.value, other.value, rtol=0, atol=0)


def test_a_value_is_that_of_the_next_step_of_a_refilled_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = small()
    obs, first = seen(CONTEXT)
    first[-1] = False
    with torch.no_grad():
        memory = policy.memory(ENVS)
        policy.refill(memory, obs[:-1], first[:-1])
        next_step = policy.act(obs[-1], first[-1], memory, None)
        torch.testing.assert_close(
            policy.value(obs.transpose(0, 1), first.T), next_step.value, rtol=0, atol=1e-5
        )
        monkeypatch.setattr(transformer, "CHUNK", 2 * CONTEXT)  # in three pieces
        torch.testing.assert_close(
            policy.value(obs.transpose(0, 1), first.T), next_step.value, rtol=0, atol=1e-5
        )
        policy.refill(memory, obs[:-1], first[:-1])
        again = policy.act(obs[-1], first[-1], memory, None)
        torch.testing.assert_close(again.value, next_step.value, rtol=0, atol=1e-5)


def test_under_autocast_the_memory_is_bfloat16_and_what_is_said_float32() -> None:
    policy = small()
    obs, first = seen(CONTEXT - 1 + STEPS)
    with torch.autocast("cpu", torch.bfloat16):
        memory = policy.memory(ENVS)
        assert all(held.dtype == torch.bfloat16 for held in (*memory.keys, *memory.values))
        batch = played(policy, obs, first)
        judged = policy.judge(batch)
    for said in (batch.log_prob, batch.target, *judged):
        assert said.dtype == torch.float32
    torch.testing.assert_close(judged.log_prob.detach(), batch.log_prob, rtol=0, atol=0.05)
    exact = played(policy, obs, first).target
    assert float((batch.target - exact).abs().max()) > 1e-4  # it did compute in bfloat16
    torch.testing.assert_close(batch.target, exact, rtol=0, atol=0.1)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 0.02)])
def test_one_query_finds_compiled_what_attention_finds(dtype: torch.dtype, tolerance: float) -> None:
    g = torch.Generator().manual_seed(4)
    q, k, v = (torch.randn(ENVS, 2, n, 8, generator=g).to(dtype) for n in (1, CONTEXT, CONTEXT))
    looks_at = torch.rand(ENVS, 1, 1, CONTEXT, generator=g) < 0.5
    looks_at[..., 2] = True
    k[~looks_at.expand(ENVS, 2, 1, CONTEXT)[:, :, 0]] = 1e4  # would outweigh all others
    written_out = torch.compile(transformer._looked, backend="eager", fullgraph=True)
    found = written_out(q, k, v, looks_at)
    torch.compiler.reset()
    known = scaled_dot_product_attention(q.float(), k.float(), v.float(), attn_mask=looks_at)
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), known, rtol=0, atol=tolerance)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # raised while inductor is imported
def test_compiled_acting_copies_no_memory() -> None:
    """What the compiler cannot change in place it copies, as large as it is: at every step, and silently."""
    memory = AttentionCache(2, ENVS, 2, 61, 8, torch.float32, torch.device("cpu"))
    first, new = torch.ones(ENVS, dtype=torch.bool), torch.randn(ENVS, 2, 1, 8)

    @torch.no_grad()
    def looked(query: Tensor) -> Tensor:
        slot, seen = memory.advance(first)
        for layer in memory.layers(slot):
            keys, values = (held.index_copy_(2, slot, query) for held in (layer.keys, layer.values))
            query = scaled_dot_product_attention(query, keys, values, attn_mask=seen)
        return query

    torch.compiler.reset()
    found, (code,) = run_and_get_code(torch.compile(looked, fullgraph=True), new)
    torch.compiler.reset()
    assert torch.equal(memory.keys[0][:, :, :1], new)
    torch.testing.assert_close(found, new)  # all that there was to look at
    allocated = re.findall(r"empty_strided_cpu\((\([^)]*\))", code)
    assert allocated
    assert str((ENVS, 2, 61, 8)) not in allocated


def test_of_the_sizes_of_a_memory_only_the_number_of_environments_is_unknown_to_the_compiler() -> None:
    """Division by an unknown size is what an attention kernel would spend most of its time with."""
    policy, first = small(), torch.zeros(ENVS, dtype=torch.bool)
    memory, obs = policy.memory(ENVS), torch.randn(ENVS, 4)
    sizes: set[str] = set()

    def read(graph: torch.fx.GraphModule, _: list[Tensor]) -> torch.fx.GraphModule:
        for node in graph.graph.find_nodes(op="placeholder"):
            held = node.meta["example_value"]
            sizes.update(map(str, held.shape if isinstance(held, Tensor) else ()))
        return graph

    torch.compiler.reset()
    with torch.no_grad():
        torch.compile(policy.act, backend=read, fullgraph=True, dynamic=True)(obs, first, memory, None)
    torch.compiler.reset()
    unknown = {size for size in sizes if not size.isdigit()}
    assert len(unknown) == 1, sizes
    assert str(policy.context) in sizes


def test_one_seed_means_the_same_weights_and_the_global_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    config = PPOConfig(policy="tiny", context=4)
    first, again, other = (make_policy(config, CartPole(), seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    for name, weight in first.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name])
    assert not torch.equal(first.get_parameter("embed.weight"), other.get_parameter("embed.weight"))
    assert first.context == 4


@pytest.mark.parametrize(
    ("name", "millions"), [("tiny", 0.017), ("h100-before", 3.15), ("h100-after", 100.69)]
)
def test_the_sizes_have_the_parameters_that_are_said_of_them(name: str, millions: float) -> None:
    policy = make_policy(PPOConfig(policy=name), CartPole(), 0)
    assert sum(p.numel() for p in policy.parameters()) / 1e6 == pytest.approx(millions, rel=0.02)


def test_a_size_that_is_given_wins_over_that_of_the_name() -> None:
    policy = make_policy(PPOConfig(policy="tiny", d_model=48, layers=3, heads=4), CartPole(), 0)
    assert isinstance(policy, Transformer)
    assert policy.widths == Widths(d_model=48, heads=4, layers=3, ff=64)
    assert policy.get_parameter("blocks.2.up.weight").shape == (64, 48)


def test_the_first_policy_is_nearly_uniform() -> None:
    policy = make_policy(PPOConfig(policy="tiny", context=1), CartPole(), 0)
    none = torch.zeros(100, 1)
    batch = Batch(torch.randn(100, 1, 4), none.bool(), none.long(), none, none, none)
    assert float(policy.judge(batch).entropy.min().detach()) > 0.68


def test_how_large_a_small_observation_is_makes_a_difference() -> None:
    """A pole that leans by 0.01 is not one that leans by 0.05, though both lean the same way."""
    policy = make_policy(PPOConfig(policy="tiny", context=1), CartPole(), 0)
    obs = torch.randn(100, 1, 4, generator=torch.Generator().manual_seed(0))
    first = torch.zeros(100, 1, dtype=torch.bool)
    with torch.no_grad():
        little, less, nothing = (policy.value(size * obs, first) for size in (0.05, 0.01, 0.0))
    ratio = (little - nothing) / (less - nothing)
    assert float(ratio.median()) == pytest.approx(5, rel=0.1)
