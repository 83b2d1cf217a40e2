"""Gymnasium's environments behind the interface of our own."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary
from torch import Tensor

from hoptui.diagnosis.advice import advise
from hoptui.diagnosis.window import ObservationWindow
from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.common.ranks import ALONE, RankGroup
from hoptui_trainer.ppo.envs import gym, physics
from hoptui_trainer.ppo.envs.gym import LONGEST_EPISODE, GymEnv, GymTask, gym_task
from hoptui_trainer.ppo.envs.registry import PHYSICS, find_task, make_env
from hoptui_trainer.ppo.envs.vector import VectorEnv
from hoptui_trainer.ppo.episodes import Episodes
from hoptui_trainer.ppo.job import PPOOptions
from hoptui_trainer.ppo.train import train
from tests.run_state import run_state
from tests.trainer.small import Steered, small_job, trained
from tests.trainer.warm import server

pytestmark = pytest.mark.slow


class Counting(gymnasium.Env):  # type: ignore[misc]
    """Shows the number of its episode and the steps in it; ends at `ends`, is cut off at `cut`, keeps its
    last action."""

    action_space: Any = Discrete(3, start=5)

    def __init__(self, ends: int = 3, cut: int = 99) -> None:
        self.ends, self.cut = ends, cut
        self.observation_space = Box(0, 255, (2, 1), np.uint8)
        self.episode = 0
        self.action: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self.episode, self.steps = self.episode + 1, 0
        return self._shown(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        assert self.action_space.contains(action), action
        self.action, self.steps = action, self.steps + 1
        return self._shown(), float(self.steps), self.steps >= self.ends, self.steps >= self.cut, {}

    def _shown(self) -> Any:
        return np.array([[self.episode], [self.steps]], np.uint8)


class Steering(Counting):
    """Takes real numbers, in a shape and in a precision of its own, with different limits."""

    action_space = Box(np.array([[-1, -2]]), np.array([[1, 0.5]]), (1, 2), np.float64)


class Endless(Counting):
    """Never ends by itself."""

    def __init__(self) -> None:
        super().__init__(ends=1 << 40, cut=1 << 40)


class Odd(Counting):
    """Has spaces that cannot be used."""

    def __init__(self, observation: Any = None, action: Any = None) -> None:
        super().__init__()
        self.observation_space = observation or self.observation_space
        self.action_space = action or self.action_space


@pytest.fixture(autouse=True, scope="module")
def _registered() -> Iterator[None]:
    made: dict[str, Any] = {
        "Counting-v0": {"entry_point": Counting},
        "Cut-v0": {"entry_point": Counting, "kwargs": {"cut": 3, "ends": 3}},
        "Limited-v0": {"entry_point": Counting, "max_episode_steps": 2},
        "Early-v0": {"entry_point": Counting, "kwargs": {"cut": 2}, "max_episode_steps": 50},
        "Steering-v0": {"entry_point": Steering},
        "Endless-v0": {"entry_point": Endless},
        "Slow-v0": {"entry_point": Endless, "max_episode_steps": 100},
        "Map-v0": {"entry_point": Odd, "kwargs": {"observation": Dict(x=Discrete(2))}},
        "Switches-v0": {"entry_point": Odd, "kwargs": {"action": MultiBinary(3)}},
        "Counts-v0": {"entry_point": Odd, "kwargs": {"action": Box(0, 9, (2,), np.int64)}},
        "Vector-v0": {"vector_entry_point": "nowhere:Nothing"},
    }
    for name, options in made.items():
        gymnasium.register(name, **options)
    yield
    for name in made:
        del gymnasium.registry[name]


def made(
    name: str,
    num_envs: int = 2,
    *,
    seed: int = 0,
    ranks: RankGroup = ALONE,
    staggered: bool = False,
    workers: int = 0,
) -> Any:
    return closing(GymEnv(gym_task(name), num_envs, seed, ranks=ranks, staggered=staggered, workers=workers))


def choices(env: GymEnv, value: int = 0) -> Tensor:
    return torch.full((env.num_envs,), value)


def test_the_steps_of_an_episode_are_all_its_own() -> None:
    with made("Counting-v0") as env:
        assert env.observation().tolist() == [[1, 0], [1, 0]]
        assert env.first.tolist() == [True, True]
        rewards = []
        for episode in (1, 2):
            for t in (1, 2, 3):
                step = env.step(choices(env))
                ended = t == 3
                rewards.append(float(step.reward[0]))
                assert step.final_obs.tolist() == [[episode, t]] * 2
                assert step.obs.tolist() == ([[episode + 1, 0]] if ended else [[episode, t]]) * 2
                assert torch.equal(step.obs, env.observation())
                assert step.terminated.tolist() == [ended] * 2
                assert step.truncated.tolist() == [False] * 2
                assert env.first.tolist() == [ended] * 2
        assert rewards == [1, 2, 3, 1, 2, 3]
        assert int(env.counter) == 6
        assert step.reward.dtype == step.obs.dtype == torch.float32


def test_one_that_ends_does_not_disturb_the_others() -> None:
    with made("Counting-v0") as env:
        env.age[0] = LONGEST_EPISODE - 1
        given = env.observation()
        step = env.step(choices(env))
        assert step.truncated.tolist() == [True, False]
        assert step.obs.tolist() == [[2, 0], [1, 1]]
        assert step.final_obs.tolist() == [[1, 1], [1, 1]]
        assert given.tolist() == [[1, 0], [1, 0]]
        assert env.step(choices(env)).obs.tolist() == [[2, 1], [1, 2]]


@pytest.mark.parametrize(
    ("name", "steps", "truncated"),
    [("Limited-v0", 2, True), ("Early-v0", 2, True), ("Cut-v0", 3, False), ("Counting-v0", 3, False)],
)
def test_an_episode_is_truncated_by_a_limit_unless_its_task_ended(
    name: str, steps: int, truncated: bool
) -> None:
    with made(name) as env:
        for _ in range(2):
            for t in range(1, steps + 1):
                step = env.step(choices(env))
                assert step.truncated.tolist() == [truncated and t == steps] * 2
                assert step.terminated.tolist() == [not truncated and t == steps] * 2


def test_staggered_starts_cut_the_first_episodes_off_and_no_others() -> None:
    with made("Slow-v0", 20, staggered=True) as env:
        ages = env.age.clone()
        assert len(set(ages.tolist())) > 12
        lengths: list[list[int]] = [[] for _ in range(20)]
        for _ in range(250):
            step = env.step(choices(env))
            for i in torch.nonzero(step.truncated).flatten().tolist():
                lengths[i].append(int(step.final_obs[i, 1]))
        assert [length[0] for length in lengths] == [100 - age for age in ages.tolist()]
        assert {length for rest in lengths for length in rest[1:]} == {100}


def test_an_environment_without_a_limit_gets_one() -> None:
    assert gym_task("Endless-v0").max_episode_steps == LONGEST_EPISODE


def test_choices_may_begin_anywhere() -> None:
    with made("Counting-v0") as env:
        assert env.task.actions == physics.Discrete(3)
        env.step(torch.tensor([0, 2]))
        assert [copy.unwrapped.action for copy in env._envs.envs] == [5, 7]


def test_real_actions_are_clipped_to_the_limits_and_shaped() -> None:
    with made("Steering-v0") as env:
        assert env.task.actions == physics.Continuous(2)
        env.step(torch.tensor([[0.25, -9.0], [9.0, 9.0]]))
        taken = [copy.unwrapped.action for copy in env._envs.envs]
        assert [action.tolist() for action in taken] == [[[0.25, -2.0]], [[1.0, 0.5]]]
        assert taken[0].dtype == np.float64


def test_a_place_on_a_map_is_one_of_as_many_numbers() -> None:
    with made("FrozenLake-v1") as env:
        assert env.task.observation_size == 16
        assert env.task.actions == physics.Discrete(4)
        obs = env.step(choices(env)).obs
        assert obs.shape == (2, 16)
        assert obs.sum(-1).tolist() == [1, 1]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("Nothing-v0", "--env Nothing-v0: .*Nothing.*doesn't exist"),
        ("CartPole-v99", "--env CartPole-v99: .*v99"),
        ("nowhere_at_all:Name-v0", "--env nowhere_at_all:Name-v0: .*nowhere_at_all"),
        ("Vector-v0", "--env Vector-v0: "),
        (":", "--env :: Empty"),
        ("Map-v0", r"--env Map-v0: its observations are Dict\(.*only Box and Discrete"),
        ("Switches-v0", r"--env Switches-v0: its actions are MultiBinary\(3\); only real Box and Discrete"),
        ("Counts-v0", r"--env Counts-v0: its actions are Box\(0, 9, .*int64\); only real"),
    ],
)
def test_what_cannot_be_used_is_named_in_one_sentence(name: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence) as raised:
        gym_task(name)
    assert "\n" not in str(raised.value)


def test_ours_come_before_gymnasiums_and_gymnasiums_can_be_asked_for() -> None:
    cpu = torch.device("cpu")
    assert find_task("CartPole-v1") is PHYSICS["CartPole-v1"]
    ours = make_env(find_task("CartPole-v1"), 3, 0, cpu, staggered=True)
    assert isinstance(ours, VectorEnv)
    assert ours.capturable
    task = find_task("gymnasium:CartPole-v1")
    assert isinstance(task, GymTask)
    assert task.max_episode_steps == 500
    with closing(make_env(task, 3, 0, cpu, staggered=True)) as theirs:
        assert isinstance(theirs, GymEnv)
        assert not theirs.capturable
    with pytest.raises(UsageError, match=r"--env gymnasium:CartPole-v1: .*--rollout-device cpu"):
        make_env(task, 3, 0, torch.device("cuda"), staggered=True)


@pytest.mark.parametrize("name", ["CartPole-v1", "Acrobot-v1"])
def test_gymnasium_and_ours_play_the_same_episode_from_the_same_state(name: str) -> None:
    """Also through resets: ours is put where Gymnasium's begins."""
    with made(f"gymnasium:{name}", 1) as theirs:
        ours = VectorEnv(PHYSICS[name], 1, seed=0, staggered=False)
        generator = torch.Generator().manual_seed(0)
        ended = 0
        for _ in range(1100):
            if theirs.first:
                state = theirs._envs.envs[0].unwrapped.state
                ours.state = torch.as_tensor(np.array(state), dtype=torch.float64)[None]
            torch.testing.assert_close(ours.observation(), theirs.observation().double(), rtol=0, atol=1e-5)
            action = torch.randint(PHYSICS[name].actions.choices, (1,), generator=generator)  # type: ignore[union-attr]
            mine, its = ours.step(action), theirs.step(action)
            torch.testing.assert_close(mine.final_obs, its.final_obs.double(), rtol=0, atol=1e-5)
            assert torch.equal(mine.terminated, its.terminated)
            assert torch.equal(mine.truncated, its.truncated)
            assert torch.equal(ours.first, theirs.first)
            assert float(mine.reward) == float(its.reward)
            ended += int(theirs.first)
        assert ended > 1


def played(env: GymEnv, steps: int) -> Tensor:
    """The observations (steps, N, O) under actions that depend on them alone."""
    seen = []
    for _ in range(steps):
        seen.append(env.observation())
        env.step((seen[-1] * 1e4).sum(-1).to(torch.int64) % 2)
    return torch.stack(seen)


def test_ranks_hold_the_environments_that_one_process_would_hold() -> None:
    with made("gymnasium:CartPole-v1", 6, staggered=True) as env:
        whole = played(env, 60)
    for rank in range(2):
        with made("gymnasium:CartPole-v1", 3, ranks=RankGroup(rank, 2, rank, 2), staggered=True) as part:
            assert part.index.tolist() == [rank, rank + 2, rank + 4]
            assert torch.equal(played(part, 60), whole[:, rank::2])


def test_the_seed_decides_everything() -> None:
    runs = []
    for seed in (0, 1, 0):
        with made("gymnasium:CartPole-v1", 4, seed=seed, staggered=True) as env:
            runs.append(played(env, 40))
    assert torch.equal(runs[0], runs[2])
    assert not torch.equal(runs[0], runs[1])


def test_after_a_change_of_number_all_begin_anew_and_elsewhere() -> None:
    with made("gymnasium:CartPole-v1", 3) as env:
        starts = env.observation()
        episodes = Episodes(env)
        for _ in range(3):
            episodes.follow(env.step(choices(env)))
        assert env.resize(4) == 3
        episodes.resize(env)
        assert env.first.all()
        assert env.index.tolist() == [0, 1, 2, 3]
        assert int(env.counter) == 3
        assert env.observation().shape == (4, 4)
        assert not torch.equal(env.observation()[:3], starts)
        assert env.resize(4) == 0  # those that have not begun are no loss
        env.age.zero_()
        episodes.resize(env)
        ended = 0
        while not ended:
            step = env.step(choices(env))
            episodes.follow(step)
            ended = int(step.terminated.sum())
        assert float(episodes.take()[0]) == ended * (int(env.counter) - 3)


def test_a_resumed_run_begins_new_episodes_at_the_saved_place_of_the_counter() -> None:
    with made("gymnasium:CartPole-v1", 3) as env, made("gymnasium:CartPole-v1", 2) as other:
        played(env, 5)
        other.load_state_dict(env.state_dict())
        assert other.num_envs == 3
        assert int(other.counter) == 5
        assert other.first.all()
        starts = other.observation()
        other.load_state_dict(env.state_dict())
        assert torch.equal(other.observation(), starts)


@pytest.fixture
def warm() -> None:
    """Workers begin with torch imported."""
    server()


@pytest.mark.usefixtures("warm")
def test_workers_are_processes_that_play_the_same_and_end_with_it() -> None:
    with made("gymnasium:CartPole-v1", 2, staggered=True) as env:
        expected = played(env, 30)
    with made("gymnasium:CartPole-v1", 2, staggered=True, workers=1) as env:
        processes = [psutil.Process(process.pid) for process in env._envs.processes]
        assert len(processes) == 2
        # Ctrl-C and torchrun's SIGTERM go to the trainer's whole group: they ask the trainer to stop, not
        # these.
        assert not {os.getpgid(process.pid) for process in processes} & {os.getpgid(0), 0}
        assert torch.equal(played(env, 30), expected)
    assert not any(process.is_running() for process in processes)


@pytest.mark.usefixtures("warm")
def test_a_worker_that_is_killed_leaves_no_other_and_hides_no_error() -> None:
    with made("gymnasium:CartPole-v1", 2, staggered=True, workers=1) as env:
        processes = [psutil.Process(process.pid) for process in env._envs.processes]
        processes[0].kill()
        processes[0].wait(10)
        with pytest.raises((EOFError, OSError)):
            played(env, 2)
    assert not any(process.is_running() for process in processes)


@pytest.mark.usefixtures("warm")
def test_the_number_of_workers_changes_while_episodes_go_on() -> None:
    with made("gymnasium:CartPole-v1", 3, staggered=True) as env:
        expected = played(env, 24)
    with made("gymnasium:CartPole-v1", 3, staggered=True, workers=1) as env:
        found, processes = [], env._envs.processes
        for workers in (2, 8, 1):
            found.append(played(env, 8))
            assert env.employ(workers) is None
            assert env.workers == min(workers, 3)
            assert env._permits is not None
            assert env._permits.semaphore.get_value() == workers
        assert env._envs.processes is processes
        assert torch.equal(torch.cat(found), expected)


@pytest.mark.usefixtures("warm")
def test_from_and_to_no_worker_all_episodes_begin_anew() -> None:
    with made("gymnasium:CartPole-v1", 2) as env:
        played(env, 3)
        assert env.employ(0) is None
        before = env._envs
        assert env.employ(1) == 2
        assert before.closed
        assert (env.workers, env.num_envs, int(env.counter)) == (1, 2, 3)
        assert env.first.all()
        processes = [psutil.Process(process.pid) for process in env._envs.processes]
        played(env, 2)
        assert env.employ(0) == 2
        assert env.workers == 0
        assert not any(process.is_running() for process in processes)
        played(env, 2)


def test_workers_that_cannot_be_started_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_process(*_: Any) -> None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    with made("gymnasium:CartPole-v1", 2) as env, made("gymnasium:CartPole-v1", 2) as other:
        played(env, 3)
        with monkeypatch.context() as patch:
            patch.setattr(gym, "vectorised", no_process)
            with pytest.raises(OSError, match=os.strerror(errno.EAGAIN)):
                env.employ(2)
        assert env.workers == 0
        played(other, 3)
        assert torch.equal(played(env, 5), played(other, 5))


@pytest.mark.usefixtures("warm")
def test_a_run_turns_its_workers_and_says_what_became_of_the_episodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def ask(workers: int) -> Callable[[Steered], None]:
        return lambda run: run.ask("set", knob="env_workers", value=workers)

    steered = Steered(monkeypatch, {1: ask(1), 2: ask(2)})
    result, _ = trained(small_job(env="gymnasium:CartPole-v1", knobs={"num_envs": 3}))
    assert result.iterations == 4
    assert [(o.stage, o.effective) for o in steered.finished()] == [("applied", 1), ("applied", 2)]
    [note] = [text for text in steered.notes() if text.startswith("env_workers")]
    assert note.startswith("env_workers 0 → 1: all episodes began anew, ")
    knob = run_state(steered.run).declarations.knobs["env_workers"]
    window = ObservationWindow(t=0, seconds=20, iterations=9, knobs=(knob.state(),), cpus=8)
    [advice] = advise("env-bound", window)
    assert (advice.knob, advice.direction, advice.value) == ("env_workers", "up", 4)


def test_environments_of_our_own_have_no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    steered = Steered(monkeypatch, {})
    trained(small_job(iterations=1))
    assert "env_workers" not in run_state(steered.run).declarations.knobs


def test_ppo_trains_on_one_and_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    job = PPOOptions(
        env="gymnasium:Pendulum-v1",
        iterations=2,
        evaluate_every=0,
        threads=1,
        checkpoint_dir=tmp_path,
        knobs={"num_envs": 4, "rollout_len": 8, "minibatch_size": 16, "epochs": 1},
    )
    assert train(job, lambda _: None).env_steps == 64
    more = PPOOptions(resume=tmp_path, iterations=3, evaluate_every=0, threads=1, knobs={"num_envs": 6})
    assert train(more, lambda _: None).env_steps == 64 + 6 * 8
