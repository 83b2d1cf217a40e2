"""PPO of Stable-Baselines3 on CartPole, with rollouts and minibatches that are small.

The knobs are those of the adapter. All of them change what is learned, so the tuner has to be allowed to.
"""

from __future__ import annotations

import sys

from benchmarks.loops.script import Script, options

try:
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    from hoptui.integrations.sb3 import HoptuiCallback
except ImportError as error:
    sys.exit(f"this loop needs stable-baselines3 and gymnasium: {error}")


def main(script: Script) -> None:
    """Train until stopped."""
    env = make_vec_env("CartPole-v1", n_envs=8, seed=script.seed)
    model = PPO("MlpPolicy", env, n_steps=64, batch_size=32, seed=script.seed, device=script.device)
    model.learn(total_timesteps=1_000_000_000, callback=HoptuiCallback(script.name))


if __name__ == "__main__":
    options(main)
