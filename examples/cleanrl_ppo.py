"""PPO in a single file, in the style of CleanRL. It needs gymnasium with the classic control environments.

    python examples/cleanrl_ppo.py
    hoptui set cleanrl-ppo update_epochs=6

The loop counts environment steps, not iterations, so `num_envs` may change while it trains.
"""

from __future__ import annotations

import argparse
import random
import time

import gymnasium as gym
import numpy as np
import torch
from torch import nn, optim
from torch.distributions.categorical import Categorical

import hoptui  # hoptui


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--exp-name", default="cleanrl-ppo")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--env-id", default="CartPole-v1")
    parser.add_argument("--total-timesteps", type=int, default=60_000)
    parser.add_argument("--learning-rate", type=float, default=2.5e-4)
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--num-steps", type=int, default=128)
    parser.add_argument("--num-minibatches", type=int, default=4)
    parser.add_argument("--update-epochs", type=int, default=4)
    parser.add_argument("--gamma", type=float, default=0.99)
    parser.add_argument("--gae-lambda", type=float, default=0.95)
    parser.add_argument("--clip-coef", type=float, default=0.2)
    parser.add_argument("--ent-coef", type=float, default=0.01)
    parser.add_argument("--vf-coef", type=float, default=0.5)
    parser.add_argument("--max-grad-norm", type=float, default=0.5)
    return parser.parse_args()


def make_env(env_id: str):
    return lambda: gym.wrappers.RecordEpisodeStatistics(gym.make(env_id))


def layer_init(layer: nn.Linear, std: float = np.sqrt(2), bias_const: float = 0.0) -> nn.Linear:
    nn.init.orthogonal_(layer.weight, std)
    nn.init.constant_(layer.bias, bias_const)
    return layer


class Agent(nn.Module):
    def __init__(self, envs: gym.vector.VectorEnv) -> None:
        super().__init__()
        size = int(np.prod(envs.single_observation_space.shape))
        self.critic = nn.Sequential(
            layer_init(nn.Linear(size, 64)),
            nn.Tanh(),
            layer_init(nn.Linear(64, 64)),
            nn.Tanh(),
            layer_init(nn.Linear(64, 1), std=1.0),
        )
        self.actor = nn.Sequential(
            layer_init(nn.Linear(size, 64)),
            nn.Tanh(),
            layer_init(nn.Linear(64, 64)),
            nn.Tanh(),
            layer_init(nn.Linear(64, envs.single_action_space.n), std=0.01),
        )

    def get_value(self, x):
        return self.critic(x)

    def get_action_and_value(self, x, action=None):
        probs = Categorical(logits=self.actor(x))
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(x)


def main() -> None:
    args = parse_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    envs = gym.vector.SyncVectorEnv([make_env(args.env_id) for _ in range(args.num_envs)])
    agent = Agent(envs)
    optimizer = optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)

    def storage():
        shape = (args.num_steps, args.num_envs)
        obs = torch.zeros(shape + envs.single_observation_space.shape)
        actions = torch.zeros(shape + envs.single_action_space.shape)
        return obs, actions, *(torch.zeros(shape) for _ in range(4))

    def start():
        return torch.Tensor(envs.reset(seed=args.seed)[0]), torch.zeros(args.num_envs)

    obs, actions, logprobs, rewards, dones, values = storage()
    next_obs, next_done = start()

    def resize(num_envs: int) -> None:  # hoptui
        nonlocal envs, obs, actions, logprobs, rewards, dones, values, next_obs, next_done  # hoptui
        envs.close()  # hoptui
        envs = gym.vector.SyncVectorEnv([make_env(args.env_id) for _ in range(num_envs)])  # hoptui
        obs, actions, logprobs, rewards, dones, values = storage()  # hoptui
        next_obs, next_done = start()  # hoptui

    per_iteration = args.num_envs * args.num_steps
    run = hoptui.connect(args.exp_name, total=args.total_timesteps // per_iteration)  # hoptui
    run.bind(  # hoptui
        args,  # hoptui
        apply={"num_envs": resize},  # hoptui
        num_envs=hoptui.Knob(1, 256, scale="pow2", cost="rebuild"),  # hoptui
        num_minibatches=[1, 2, 4, 8],  # hoptui
        update_epochs=(1, 32),  # hoptui
        clip_coef=(0.01, 1.0),  # hoptui
        ent_coef=(0.0, 0.1),  # hoptui
        learning_rate=(1e-6, 1e-1, "log"),  # hoptui
    )  # hoptui
    run.metric("env_steps_per_s", unit="steps/s", headline=True)  # hoptui

    global_step, iteration = 0, 0
    start_time = time.time()
    while global_step < args.total_timesteps and run.boundary(iteration):  # hoptui
        iteration += 1
        batch_size = args.num_envs * args.num_steps
        run.plan(iteration + (args.total_timesteps - global_step) // batch_size)  # hoptui

        # Annealing the learning rate
        optimizer.param_groups[0]["lr"] = (1.0 - global_step / args.total_timesteps) * args.learning_rate

        run.enter("rollout")  # hoptui
        for step in range(args.num_steps):
            global_step += args.num_envs
            obs[step] = next_obs
            dones[step] = next_done
            with torch.no_grad():
                action, logprob, _, value = agent.get_action_and_value(next_obs)
                values[step] = value.flatten()
            actions[step] = action
            logprobs[step] = logprob
            step_obs, reward, terminations, truncations, infos = envs.step(action.numpy())
            rewards[step] = torch.tensor(reward).view(-1)
            next_obs, next_done = torch.Tensor(step_obs), torch.Tensor(terminations | truncations)
            if "episode" in infos:
                episodes = infos["episode"]["r"][infos["_episode"]]
                run.log(episodic_return=episodes.mean())  # hoptui
        run.leave()  # hoptui

        # Bootstrap value if not done
        with torch.no_grad():
            next_value = agent.get_value(next_obs).reshape(1, -1)
            advantages = torch.zeros_like(rewards)
            lastgaelam = 0
            for t in reversed(range(args.num_steps)):
                last = t == args.num_steps - 1
                nextnonterminal = 1.0 - (next_done if last else dones[t + 1])
                nextvalues = next_value if last else values[t + 1]
                delta = rewards[t] + args.gamma * nextvalues * nextnonterminal - values[t]
                advantages[t] = lastgaelam = (
                    delta + args.gamma * args.gae_lambda * nextnonterminal * lastgaelam
                )
            returns = advantages + values

        # Flatten the batch
        b_obs = obs.reshape((-1, *envs.single_observation_space.shape))
        b_logprobs = logprobs.reshape(-1)
        b_actions = actions.reshape((-1, *envs.single_action_space.shape))
        b_advantages = advantages.reshape(-1)
        b_returns = returns.reshape(-1)

        # Optimizing the policy and value network
        run.enter("update")  # hoptui
        b_inds = np.arange(batch_size)
        minibatch_size = batch_size // args.num_minibatches
        for _ in range(args.update_epochs):
            np.random.shuffle(b_inds)
            for first in range(0, batch_size, minibatch_size):
                mb_inds = b_inds[first : first + minibatch_size]
                _, newlogprob, entropy, newvalue = agent.get_action_and_value(
                    b_obs[mb_inds], b_actions.long()[mb_inds]
                )
                logratio = newlogprob - b_logprobs[mb_inds]
                ratio = logratio.exp()
                mb_advantages = b_advantages[mb_inds]
                mb_advantages = (mb_advantages - mb_advantages.mean()) / (mb_advantages.std() + 1e-8)

                pg_loss1 = -mb_advantages * ratio
                pg_loss2 = -mb_advantages * torch.clamp(ratio, 1 - args.clip_coef, 1 + args.clip_coef)
                pg_loss = torch.max(pg_loss1, pg_loss2).mean()
                v_loss = 0.5 * ((newvalue.view(-1) - b_returns[mb_inds]) ** 2).mean()
                entropy_loss = entropy.mean()
                loss = pg_loss - args.ent_coef * entropy_loss + v_loss * args.vf_coef

                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
                optimizer.step()
        run.leave()  # hoptui
        run.log(  # hoptui
            env_steps=batch_size,  # hoptui
            value_loss=v_loss,  # hoptui
            policy_loss=pg_loss,  # hoptui
            entropy=entropy_loss,  # hoptui
            lr=optimizer.param_groups[0]["lr"],  # hoptui
        )  # hoptui
        if iteration % 20 == 0:
            print(f"step {global_step}: {int(global_step / (time.time() - start_time))} steps/s")

    envs.close()


if __name__ == "__main__":
    main()
