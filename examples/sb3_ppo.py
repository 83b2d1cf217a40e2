"""PPO of Stable-Baselines3 on CartPole. One import and one argument are hoptui's.

python examples/sb3_ppo.py
hoptui set sb3-ppo n_epochs=5
"""

from __future__ import annotations

from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from hoptui.integrations.sb3 import HoptuiCallback  # hoptui


def main() -> None:
    env = make_vec_env("CartPole-v1", n_envs=8, seed=0)
    model = PPO("MlpPolicy", env, n_steps=128, batch_size=256, n_epochs=10, seed=0, device="cpu")
    model.learn(
        total_timesteps=50_000,
        callback=HoptuiCallback("sb3-ppo"),  # hoptui
    )
    mean, std = evaluate_policy(model, make_vec_env("CartPole-v1", seed=1), n_eval_episodes=10)
    print(f"return {mean:.0f} ± {std:.0f}")


if __name__ == "__main__":
    main()
