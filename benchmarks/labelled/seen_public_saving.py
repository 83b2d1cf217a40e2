"""Loops in the manner of public scripts that wait for the files they write."""

# ruff: noqa: N806
from __future__ import annotations

import copy
import pickle
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import hoptui
from benchmarks.labelled.catalogue import labelled


# Adversarial networks
def save_image(tensor: Tensor, path: Path, nrow: int = 8) -> None:
    """Write a grid of pictures."""
    from PIL import Image

    tensor = F.pad(tensor.detach().mul(127.5).add(127.5).clamp(0, 255), (1, 1, 1, 1)).byte()
    grid = torch.cat([torch.cat(list(row), 2) for row in tensor.split(nrow)], 1)
    ndarr = grid.permute(1, 2, 0).cpu().numpy()
    Image.fromarray(ndarr).save(path)  # here


@labelled(gpu="save-bound", cpu="save-bound", helpers=(save_image,))
def dcgan_samples(run: hoptui.Run, device: str) -> None:
    """In the manner of dcgan/main.py of pytorch/examples: samples and networks are saved, here each time."""
    nz, ngf, batch_size = 32, 4, 64
    netG = nn.Sequential(
        nn.ConvTranspose2d(nz, ngf * 4, 4, 4), nn.BatchNorm2d(ngf * 4), nn.ReLU(True),
        nn.ConvTranspose2d(ngf * 4, ngf, 4, 4), nn.ReLU(True), nn.ConvTranspose2d(ngf, 3, 4, 4), nn.Tanh(),
    ).to(device)  # fmt: skip
    netD = nn.Sequential(
        nn.Conv2d(3, ngf, 4, 4), nn.LeakyReLU(0.2, inplace=True), nn.Conv2d(ngf, ngf * 4, 4, 4),
        nn.LeakyReLU(0.2, inplace=True), nn.Conv2d(ngf * 4, 1, 4), nn.Sigmoid(), nn.Flatten(0),
    ).to(device)  # fmt: skip
    criterion = nn.BCELoss()
    optimizerD = torch.optim.Adam(netD.parameters(), lr=0.0002, betas=(0.5, 0.999))
    optimizerG = torch.optim.Adam(netG.parameters(), lr=0.0002, betas=(0.5, 0.999))
    fixed_noise = torch.randn(batch_size, nz, 1, 1, device=device)
    real = torch.rand(batch_size, 3, 64, 64, device=device) * 2 - 1
    ones, zeros = torch.ones(batch_size, device=device), torch.zeros(batch_size, device=device)
    with tempfile.TemporaryDirectory() as folder:
        outf = Path(folder)
        while not run.stopping:
            # (1) Update D network
            netD.zero_grad()
            errD_real = criterion(netD(real), ones)
            errD_real.backward()
            fake = netG(torch.randn(batch_size, nz, 1, 1, device=device))
            errD_fake = criterion(netD(fake.detach()), zeros)
            errD_fake.backward()
            optimizerD.step()
            # (2) Update G network
            netG.zero_grad()
            errG = criterion(netD(fake), ones)
            errG.backward()
            optimizerG.step()
            run.log(loss=errD_real.detach() + errD_fake.detach(), loss_g=errG, samples=batch_size)

            save_image(real, outf / "real_samples.png")
            with torch.no_grad():
                fake = netG(fixed_noise)
            save_image(fake, outf / "fake_samples.png")
            torch.save(netG.state_dict(), outf / "netG.pth")  # here
            torch.save(netD.state_dict(), outf / "netD.pth")  # here


# Diffusion
class EMAModel:
    """Averages of the weights over time."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.averaged_model = copy.deepcopy(model).requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def step(self, model: nn.Module) -> None:
        for s_param, param in zip(self.averaged_model.parameters(), model.parameters(), strict=True):
            s_param.lerp_(param, 1 - self.decay)


class UNet2DConditionModel(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv_in = nn.Conv2d(4, channels // 4, 4, 4)
        self.down = nn.Conv2d(channels // 4, channels, 4, 4)
        self.mid = nn.Conv2d(channels, channels, 3, padding=1)
        self.up = nn.ConvTranspose2d(channels, channels // 4, 4, 4)
        self.conv_out = nn.ConvTranspose2d(channels // 4, 4, 4, 4)

    def forward(self, sample: Tensor, timestep: Tensor, encoder_hidden_states: Tensor) -> Tensor:
        h = F.silu(self.conv_in(sample) + timestep[:, None, None, None])
        h = F.silu(self.down(h)) + encoder_hidden_states.mean(1)[:, :, None, None]
        h = F.silu(self.up(F.silu(self.mid(h))))
        return self.conv_out(h)  # type: ignore[no-any-return]


class Accelerator:
    """Saves everything that it was given."""

    def __init__(self) -> None:
        self._objects: dict[str, Any] = {}

    def prepare(self, **objects: Any) -> None:
        self._objects.update(objects)

    def save_state(self, output_dir: Path) -> None:
        output_dir.mkdir()
        for name, obj in self._objects.items():
            torch.save(obj.state_dict(), output_dir / f"{name}.bin")  # here
        states = {"random_state": random.getstate(), "torch": torch.get_rng_state()}
        (output_dir / "random_states_0.pkl").write_bytes(pickle.dumps(states))


@labelled(gpu="save-bound", cpu="save-bound", helpers=(Accelerator,))
def dreambooth_save_state(run: hoptui.Run, device: str) -> None:
    """In the manner of train_dreambooth.py of diffusers with few `--checkpointing_steps`: all is saved."""
    checkpoints_total_limit = 2
    text_encoder = nn.Sequential(nn.Embedding(49408, 512), nn.Linear(512, 128)).to(device)
    text_encoder.requires_grad_(False)
    unet = UNet2DConditionModel(128).to(device)
    ema_unet = EMAModel(unet, decay=0.999)
    optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-4)
    accelerator = Accelerator()
    accelerator.prepare(unet=unet, text_encoder=text_encoder, optimizer=optimizer)
    accelerator.prepare(unet_ema=ema_unet.averaged_model)
    latents = torch.randn(1, 4, 64, 64, device=device)
    input_ids = torch.randint(0, 49408, (1, 77), device=device)
    global_step = 0
    with tempfile.TemporaryDirectory() as folder:
        output_dir = Path(folder)
        while not run.stopping:
            noise = torch.randn_like(latents)
            timesteps = torch.rand(len(latents), device=device)
            noisy_latents = torch.lerp(latents, noise, timesteps[:, None, None, None])
            model_pred = unet(noisy_latents, timesteps, text_encoder(input_ids))
            loss = F.mse_loss(model_pred, noise)
            loss.backward()
            nn.utils.clip_grad_norm_(unet.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            ema_unet.step(unet)
            global_step += 1
            # _before_ saving state, check if this save would set us over the `checkpoints_total_limit`
            checkpoints = sorted(output_dir.iterdir(), key=lambda x: int(x.name.split("-")[1]))
            for removing in checkpoints[: max(0, len(checkpoints) - checkpoints_total_limit + 1)]:
                shutil.rmtree(removing)  # here
            accelerator.save_state(output_dir / f"checkpoint-{global_step}")
            run.log(loss=loss, samples=len(latents))


# Planning
class GameHistory:
    """A game that was played, with what the search found at each step."""

    def __init__(self, length: int) -> None:
        self.observation_history = [np.random.rand(8).astype(np.float32) for _ in range(length)]
        self.action_history = [random.randrange(4) for _ in range(length)]
        self.reward_history = [random.random() for _ in range(length)]
        self.child_visits = [[random.random() for _ in range(4)] for _ in range(length)]
        self.root_values = [random.random() for _ in range(length)]


class MuZeroNetwork(nn.Module):
    def __init__(self, observation: int, actions: int, hidden: int) -> None:
        super().__init__()
        self.representation = nn.Sequential(nn.Linear(observation, hidden), nn.ELU())
        self.dynamics = nn.Sequential(nn.Linear(hidden + actions, hidden), nn.ELU())
        self.prediction_policy, self.prediction_value = nn.Linear(hidden, actions), nn.Linear(hidden, 1)

    def recurrent_inference(self, hidden: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.dynamics(torch.cat([hidden, F.one_hot(action, 4).float()], 1))
        return hidden, self.prediction_policy(hidden), self.prediction_value(hidden)[:, 0]


class Trainer:
    def __init__(self, device: str, num_unroll_steps: int = 5) -> None:
        self.device, self.num_unroll_steps = device, num_unroll_steps
        self.model = MuZeroNetwork(8, 4, 64).to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.02)

    def update_weights(self, games: list[GameHistory]) -> Tensor:
        k = self.num_unroll_steps
        starts = [random.randrange(len(game.root_values) - k) for game in games]
        pairs = list(zip(games, starts, strict=True))
        observation = torch.tensor(np.stack([game.observation_history[i] for game, i in pairs]))
        actions = torch.tensor([game.action_history[i : i + k] for game, i in pairs]).to(self.device)
        values = torch.tensor([game.root_values[i : i + k] for game, i in pairs]).to(self.device)
        policies = torch.tensor([game.child_visits[i : i + k] for game, i in pairs]).to(self.device)
        hidden = self.model.representation(observation.to(self.device))
        loss = torch.zeros((), device=self.device)
        for i in range(k):
            hidden, policy_logits, value = self.model.recurrent_inference(hidden, actions[:, i])
            loss = loss + F.mse_loss(value, values[:, i])
            loss = loss - (policies[:, i] * F.log_softmax(policy_logits, 1)).sum(1).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


@labelled(gpu="save-bound", cpu="save-bound")
def muzero_replay_buffer(run: hoptui.Run, device: str) -> None:
    """In the manner of muzero-general: the buffer of games is pickled, here after each training step."""
    buffer = {i: GameHistory(100) for i in range(150)}
    trainer, training_step = Trainer(device), 0
    with tempfile.TemporaryDirectory() as results_path:
        path = Path(results_path) / "replay_buffer.pkl"
        while not run.stopping:
            loss = trainer.update_weights(random.choices(list(buffer.values()), k=64))
            training_step += 1
            buffer[len(buffer)] = GameHistory(100)
            del buffer[min(buffer)]
            buffer = dict(enumerate(buffer.values()))
            torch.save(trainer.model.state_dict(), Path(results_path) / "model.checkpoint")  # here
            with path.open("wb") as f:
                pickle.dump({"buffer": buffer, "num_played_games": len(buffer)}, f)  # here
            run.log(loss=loss, samples=64)
