"""Loops in the manner of public scripts of reinforcement learning that wait for environments."""

# ruff: noqa: N802, N803, N806
from __future__ import annotations

import math
import random
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.distributions import Categorical

import hoptui
from benchmarks.labelled.catalogue import labelled

Array = npt.NDArray[Any]
Square = tuple[int, int]


# A grid world
class Grid:
    """Cells with objects, as minigrid has them. An object is its number, and 0 is an empty cell."""

    WALL, GOAL, KEY = 2, 8, 5

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.grid = [0] * (width * height)

    def set(self, i: int, j: int, v: int) -> None:  # here
        self.grid[j * self.width + i] = v  # here

    def get(self, i: int, j: int) -> int:  # here
        return self.grid[j * self.width + i]  # here

    def slice(self, topX: int, topY: int, width: int, height: int) -> Grid:
        grid = Grid(width, height)
        for j in range(height):
            for i in range(width):  # here
                x, y = topX + i, topY + j  # here
                inside = 0 <= x < self.width and 0 <= y < self.height  # here
                grid.set(i, j, self.get(x, y) if inside else Grid.WALL)  # here
        return grid

    def rotate_left(self) -> Grid:
        grid = Grid(self.height, self.width)
        for i in range(self.width):
            for j in range(self.height):  # here
                grid.set(j, grid.height - 1 - i, self.get(i, j))  # here
        return grid

    def process_vis(self, agent_pos: tuple[int, int]) -> Array:
        mask = np.zeros((self.width, self.height), dtype=bool)
        mask[agent_pos] = True
        for j in reversed(range(self.height)):
            for i in (*range(self.width - 1), *reversed(range(1, self.width))):
                if not mask[i, j] or self.get(i, j) == Grid.WALL:  # here
                    continue  # here
                for di in (-1, 0, 1):  # here
                    if 0 <= i + di < self.width:  # here
                        mask[i + di, j] = True  # here
                        mask[i + di, max(j - 1, 0)] = True  # here
        return mask

    def encode(self, vis_mask: Array) -> Array:
        array = np.zeros((self.width, self.height, 3), dtype="uint8")
        for i in range(self.width):
            for j in range(self.height):
                if vis_mask[i, j]:  # here
                    v = self.get(i, j)
                    array[i, j, :] = (v, v % 6, 0)  # here
        return array


class MultiRoomEnv:
    """Rooms with walls between them. The agent sees a part of them."""

    def __init__(self, size: int = 19, agent_view_size: int = 13, max_steps: int = 120) -> None:
        self.size, self.agent_view_size, self.max_steps = size, agent_view_size, max_steps
        self.rng = np.random.default_rng(0)

    def reset(self) -> Array:
        self.grid = Grid(self.size, self.size)
        for k in range(self.size):
            for i, j in ((k, 0), (k, self.size - 1), (0, k), (self.size - 1, k)):
                self.grid.set(i, j, Grid.WALL)
            if k % 5:
                self.grid.set(self.size // 2, k, Grid.WALL)
        self.grid.set(self.size - 2, self.size - 2, Grid.GOAL)
        self.agent_pos, self.agent_dir, self.step_count = (1, 1), 0, 0
        return self.gen_obs()

    def gen_obs(self) -> Array:
        half = self.agent_view_size // 2
        x, y = self.agent_pos
        grid = self.grid.slice(x - half, y - half, self.agent_view_size, self.agent_view_size)
        for _ in range(self.agent_dir + 1):
            grid = grid.rotate_left()
        vis_mask = grid.process_vis((self.agent_view_size // 2, self.agent_view_size - 1))
        return grid.encode(vis_mask)

    def step(self, action: int) -> tuple[Array, float, bool]:
        self.step_count += 1
        reward, done = 0.0, self.step_count >= self.max_steps
        if action == 0:
            self.agent_dir = (self.agent_dir - 1) % 4
        elif action == 1:
            self.agent_dir = (self.agent_dir + 1) % 4
        else:
            di, dj = ((1, 0), (0, 1), (-1, 0), (0, -1))[self.agent_dir]
            fwd = (self.agent_pos[0] + di, self.agent_pos[1] + dj)
            if self.grid.get(*fwd) != Grid.WALL:
                self.agent_pos = fwd
            if self.grid.get(*fwd) == Grid.GOAL:
                reward, done = 1 - 0.9 * self.step_count / self.max_steps, True
        return (self.reset() if done else self.gen_obs()), reward, done


class SyncVectorEnv:
    def __init__(self, num_envs: int) -> None:
        self.envs = [MultiRoomEnv() for _ in range(num_envs)]

    def reset(self) -> Array:
        return np.stack([env.reset() for env in self.envs])

    def step(self, actions: Array) -> tuple[Array, Array, Array]:
        results = [env.step(int(action)) for env, action in zip(self.envs, actions, strict=True)]
        obs, rewards, dones = zip(*results, strict=True)
        return np.stack(obs), np.array(rewards, dtype=np.float32), np.array(dones, dtype=np.float32)


def layer_init(layer: nn.Linear, std: float = math.sqrt(2)) -> nn.Linear:
    nn.init.orthogonal_(layer.weight, std)
    nn.init.constant_(layer.bias, 0.0)
    return layer


class Agent(nn.Module):
    def __init__(self, features: int, actions: int) -> None:
        super().__init__()
        self.network = nn.Sequential(
            layer_init(nn.Linear(features, 64)), nn.Tanh(), layer_init(nn.Linear(64, 64))
        )
        self.actor = layer_init(nn.Linear(64, actions), std=0.01)
        self.critic = layer_init(nn.Linear(64, 1), std=1)

    def get_action_and_value(self, x: Tensor, action: Tensor | None = None) -> tuple[Tensor, ...]:
        hidden = torch.tanh(self.network(x.flatten(1) / 10.0))
        probs = Categorical(logits=self.actor(hidden), validate_args=False)
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(hidden).flatten()


@labelled(gpu="env-bound", cpu="env-bound", helpers=(Grid,))
def ppo_minigrid(run: hoptui.Run, device: str) -> None:
    """In the manner of CleanRL's ppo.py with environments of minigrid in a SyncVectorEnv."""
    num_envs, num_steps, gamma, gae_lambda, clip_coef = 24, 64, 0.99, 0.95, 0.2
    envs = SyncVectorEnv(num_envs)
    agent = Agent(13 * 13 * 3, 3).to(device)
    optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
    obs = torch.zeros((num_steps, num_envs, 13, 13, 3), device=device)
    actions, logprobs, rewards, dones, values = torch.zeros((5, num_steps, num_envs), device=device)
    next_obs, next_done = torch.Tensor(envs.reset()).to(device), torch.zeros(num_envs, device=device)
    while not run.stopping:
        for step in range(num_steps):
            obs[step], dones[step] = next_obs, next_done
            with torch.no_grad():
                action, logprob, _, value = agent.get_action_and_value(next_obs)
            values[step], actions[step], logprobs[step] = value, action, logprob
            observed, reward, done = envs.step(action.cpu().numpy())
            rewards[step] = torch.tensor(reward).to(device).view(-1)
            next_obs, next_done = torch.Tensor(observed).to(device), torch.Tensor(done).to(device)

        with torch.no_grad():
            next_value = agent.get_action_and_value(next_obs)[3]
            advantages, lastgaelam = torch.zeros_like(rewards), torch.zeros(num_envs, device=device)
            for t in reversed(range(num_steps)):
                nextnonterminal = 1.0 - (next_done if t == num_steps - 1 else dones[t + 1])
                nextvalues = next_value if t == num_steps - 1 else values[t + 1]
                delta = rewards[t] + gamma * nextvalues * nextnonterminal - values[t]
                advantages[t] = lastgaelam = delta + gamma * gae_lambda * nextnonterminal * lastgaelam
            returns = advantages + values

        b_obs, b_logprobs, b_actions = obs.flatten(0, 1), logprobs.flatten(), actions.flatten()
        b_advantages, b_returns = advantages.flatten(), returns.flatten()
        for _ in range(2):
            for mb_inds in torch.randperm(len(b_obs), device=device).split(384):
                mb_obs, mb_actions = b_obs[mb_inds], b_actions[mb_inds]
                _, newlogprob, entropy, newvalue = agent.get_action_and_value(mb_obs, mb_actions)
                ratio = (newlogprob - b_logprobs[mb_inds]).exp()
                mb_advantages = b_advantages[mb_inds]
                clipped = torch.clamp(ratio, 1 - clip_coef, 1 + clip_coef)
                pg_loss = torch.max(-mb_advantages * ratio, -mb_advantages * clipped).mean()
                v_loss = 0.5 * ((newvalue - b_returns[mb_inds]) ** 2).mean()
                loss = pg_loss - 0.01 * entropy.mean() + v_loss * 0.5
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
        run.log(loss=loss, samples=num_envs * num_steps)


# Self-play
class Board:
    """A board of Othello. A piece is 1, -1 or 0."""

    __directions = ((1, 1), (1, 0), (1, -1), (0, -1), (-1, -1), (-1, 0), (-1, 1), (0, 1))

    def __init__(self, n: int, pieces: Array | None = None) -> None:
        self.n = n
        self.pieces = np.zeros((n, n), dtype=int) if pieces is None else np.copy(pieces)

    def get_legal_moves(self, color: int) -> list[Square]:
        moves = set()
        for y in range(self.n):
            for x in range(self.n):  # here
                if self.pieces[x][y] == color:  # here
                    moves.update(self.get_moves_for_square((x, y)))  # here
        return list(moves)

    def has_legal_moves(self, color: int) -> bool:
        return len(self.get_legal_moves(color)) > 0

    def get_moves_for_square(self, square: Square) -> list[Square]:  # here
        x, y = square
        color = self.pieces[x][y]
        moves = [self._discover_move(square, color, direction) for direction in self.__directions]  # here
        return [move for move in moves if move]  # here

    def _discover_move(self, origin: Square, color: int, direction: Square) -> Square | None:  # here
        x, y = origin[0] + direction[0], origin[1] + direction[1]  # here
        flips = 0  # here
        while 0 <= x < self.n and 0 <= y < self.n:  # here
            piece = self.pieces[x][y]  # here
            if piece == 0:  # here
                return (x, y) if flips else None  # here
            if piece == color:  # here
                return None  # here
            flips += 1  # here
            x, y = x + direction[0], y + direction[1]  # here
        return None

    def execute_move(self, move: Square, color: int) -> None:
        for dx, dy in self.__directions:
            flips, x, y = [], move[0] + dx, move[1] + dy  # here
            while 0 <= x < self.n and 0 <= y < self.n and self.pieces[x][y] == -color:  # here
                flips.append((x, y))  # here
                x, y = x + dx, y + dy  # here
            if 0 <= x < self.n and 0 <= y < self.n and self.pieces[x][y] == color:  # here
                for i, j in flips:
                    self.pieces[i][j] = color
        self.pieces[move[0]][move[1]] = color


class OthelloGame:
    def __init__(self, n: int) -> None:
        self.n = n

    def getInitBoard(self) -> Array:
        board = np.zeros((self.n, self.n), dtype=int)
        half = self.n // 2
        board[half - 1, half] = board[half, half - 1] = 1
        board[half - 1, half - 1] = board[half, half] = -1
        return board

    def getNextState(self, board: Array, player: int, action: int) -> tuple[Array, int]:
        if action == self.n * self.n:
            return board, -player
        b = Board(self.n, board)
        b.execute_move(divmod(action, self.n), player)
        return b.pieces, -player

    def getValidMoves(self, board: Array, player: int) -> Array:
        valids = np.zeros(self.n * self.n + 1)
        legalMoves = Board(self.n, board).get_legal_moves(player)
        if not legalMoves:
            valids[-1] = 1
        for x, y in legalMoves:
            valids[self.n * x + y] = 1
        return valids

    def getGameEnded(self, board: Array, player: int) -> float:
        b = Board(self.n, board)
        if b.has_legal_moves(player) or b.has_legal_moves(-player):
            return 0
        return 1 if board.sum() * player > 0 else -1


class MCTS:
    """A tree of the states of a game."""

    def __init__(self, game: OthelloGame, nnet: NNetWrapper, numMCTSSims: int, cpuct: float = 1.0) -> None:
        self.game, self.nnet, self.numMCTSSims, self.cpuct = game, nnet, numMCTSSims, cpuct
        self.Qsa: dict[tuple[bytes, int], float] = {}
        self.Nsa: dict[tuple[bytes, int], int] = {}
        self.Ns: dict[bytes, int] = {}
        self.Ps: dict[bytes, Array] = {}
        self.Es: dict[bytes, float] = {}
        self.Vs: dict[bytes, Array] = {}

    def rollout(self, board: Array, player: int = 1) -> float:
        """Play random moves to the end of the game."""
        while True:
            r = self.game.getGameEnded(board, player)
            if r != 0:
                return r * player
            action = np.random.choice(np.flatnonzero(self.game.getValidMoves(board, player)))  # here
            board, player = self.game.getNextState(board, player, int(action))

    def getActionProb(self, canonicalBoard: Array) -> Array:
        self.search(canonicalBoard)
        self.Ps[canonicalBoard.tobytes()] *= self.nnet.predict(canonicalBoard) + 1e-3
        for _ in range(self.numMCTSSims):
            self.search(canonicalBoard)
        s = canonicalBoard.tobytes()
        counts = np.array([self.Nsa.get((s, a), 0) for a in range(self.game.n**2 + 1)], dtype=float)
        return np.asarray(counts / counts.sum())

    def search(self, canonicalBoard: Array) -> float:
        s = canonicalBoard.tobytes()
        if s not in self.Es:
            self.Es[s] = self.game.getGameEnded(canonicalBoard, 1)
        if self.Es[s] != 0:
            return -self.Es[s]
        if s not in self.Ps:
            valids = self.game.getValidMoves(canonicalBoard, 1)
            v = self.rollout(canonicalBoard)
            self.Ps[s] = valids / valids.sum()
            self.Vs[s] = valids
            self.Ns[s] = 0
            return -v

        cur_best, best_act = -float("inf"), -1
        for a in range(self.game.n**2 + 1):  # here
            if self.Vs[s][a]:  # here
                scale = self.cpuct * self.Ps[s][a] * math.sqrt(self.Ns[s] + 1e-8)  # here
                u = self.Qsa.get((s, a), 0) + scale / (1 + self.Nsa.get((s, a), 0))  # here
                if u > cur_best:
                    cur_best, best_act = u, a
        next_s, next_player = self.game.getNextState(canonicalBoard, 1, best_act)
        v = self.search(next_s * next_player)
        n = self.Nsa.get((s, best_act), 0)
        self.Qsa[s, best_act] = (n * self.Qsa.get((s, best_act), 0) + v) / (n + 1)
        self.Nsa[s, best_act] = n + 1
        self.Ns[s] += 1
        return -v


class OthelloNNet(nn.Module):
    def __init__(self, n: int, num_channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, num_channels, 3, padding=1)
        self.conv2 = nn.Conv2d(num_channels, num_channels, 3, stride=2)
        side = (n - 3) // 2 + 1
        self.fc_pi = nn.Linear(num_channels * side * side, n * n + 1)
        self.fc_v = nn.Linear(num_channels * side * side, 1)

    def forward(self, s: Tensor) -> tuple[Tensor, Tensor]:
        s = F.relu(self.conv2(F.relu(self.conv1(s.unsqueeze(1))))).flatten(1)
        return F.log_softmax(self.fc_pi(s), dim=1), torch.tanh(self.fc_v(s))


class NNetWrapper:
    def __init__(self, n: int, device: str) -> None:
        self.nnet = OthelloNNet(n, 16).to(device)
        self.device = device
        self.optimizer = torch.optim.Adam(self.nnet.parameters())

    def predict(self, board: Array) -> Array:
        with torch.no_grad():
            pi, _ = self.nnet(torch.FloatTensor(board).to(self.device)[None])
        return np.asarray(torch.exp(pi)[0].cpu().numpy())

    def train(self, examples: list[tuple[Array, Array, float]], batch_size: int = 64) -> Tensor:
        for _ in range(len(examples) // batch_size):
            sample_ids = np.random.randint(len(examples), size=batch_size)
            boards, pis, vs = zip(*[examples[i] for i in sample_ids], strict=True)
            target_pis = torch.FloatTensor(np.array(pis)).to(self.device)
            target_vs = torch.FloatTensor(vs).to(self.device)
            out_pi, out_v = self.nnet(torch.FloatTensor(np.array(boards)).to(self.device))
            l_pi = -(target_pis * out_pi).sum() / batch_size
            total_loss = l_pi + ((target_vs - out_v.view(-1)) ** 2).mean()
            self.optimizer.zero_grad()
            total_loss.backward()
            self.optimizer.step()
        loss: Tensor = total_loss.detach()
        return loss


class Coach:
    """Plays against itself and learns from it."""

    def __init__(self, game: OthelloGame, nnet: NNetWrapper) -> None:
        self.game, self.nnet = game, nnet

    def executeEpisode(self) -> list[tuple[Array, Array, float]]:
        trainExamples: list[tuple[Array, int, Array]] = []
        mcts = MCTS(self.game, self.nnet, numMCTSSims=6)
        board, curPlayer = self.game.getInitBoard(), 1
        while True:
            canonicalBoard = board * curPlayer
            pi = mcts.getActionProb(canonicalBoard)
            trainExamples.append((canonicalBoard, curPlayer, pi))
            action = int(np.random.choice(len(pi), p=pi))
            board, curPlayer = self.game.getNextState(board, curPlayer, action)
            r = self.game.getGameEnded(board, curPlayer)
            if r != 0:
                return [(b, p, r * (-1) ** (player != curPlayer)) for b, player, p in trainExamples]


@labelled(gpu="env-bound", cpu="env-bound", helpers=(Board, OthelloGame, MCTS))
def self_play_othello(run: hoptui.Run, device: str) -> None:
    """In the manner of alpha-zero-general, with the rollouts of mcts_pure.py of AlphaZero_Gomoku."""
    game = OthelloGame(6)
    nnet = NNetWrapper(6, device)
    coach = Coach(game, nnet)
    history: deque[tuple[Array, Array, float]] = deque(maxlen=2000)
    while not run.stopping:
        history += coach.executeEpisode()
        trainExamples = [*history] * max(1, 64 // len(history) + 1)
        random.shuffle(trainExamples)
        loss = nnet.train(trainExamples[:256])
        run.log(loss=loss, samples=256)


# Control from pixels
class Walker:
    """Limbs that are drawn into a picture."""

    def __init__(self, env_id: str, size: tuple[int, int] = (96, 96), action_repeat: int = 2) -> None:
        self.id, self._size, self._action_repeat = env_id, size, action_repeat
        ys, xs = np.mgrid[0 : size[0], 0 : size[1]]
        self._pixels = np.stack([xs, ys], -1).astype(np.float32)

    def reset(self) -> dict[str, Array]:
        self._qpos, self._qvel = np.random.uniform(-1, 1, 8), np.zeros(8)
        self._t = 0
        return {"image": self.render(), "is_first": np.array(True)}

    def step(self, action: Array) -> tuple[dict[str, Array], float, bool]:
        for _ in range(self._action_repeat * 5):
            torque = np.repeat(action, 2) - 0.1 * self._qvel - np.sin(self._qpos)  # here
            coupling = 0.3 * (np.roll(self._qpos, 1) + np.roll(self._qpos, -1) - 2 * self._qpos)  # here
            self._qvel = self._qvel + 0.01 * (torque + coupling)  # here
            self._qpos = self._qpos + 0.01 * self._qvel  # here
        self._t += 1
        obs = {"image": self.render(), "is_first": np.array(False)}
        return obs, float(np.cos(self._qpos).mean()), self._t >= 100

    def render(self) -> Array:
        image = np.full((*self._size, 3), 60, dtype=np.float32)
        start = np.array([self._size[1] / 2, self._size[0] / 2])
        for i, angle in enumerate(np.cumsum(self._qpos)):
            end = start + 9 * np.array([np.cos(angle), np.sin(angle)])
            along = np.clip(((self._pixels - start) @ (end - start)) / 81, 0, 1)  # here
            nearest = start + along[..., None] * (end - start)  # here
            distance = np.linalg.norm(self._pixels - nearest, axis=-1)  # here
            cover = np.clip(4 - distance, 0, 1)[..., None]  # here
            image = image * (1 - cover) + cover * np.array([40 + 20 * i, 200 - 20 * i, 120])  # here
            start = end
        return image.astype(np.uint8)


def add_to_cache(cache: dict[str, list[Array]], env_id: str, obs: dict[str, Array]) -> None:
    cache.setdefault(env_id, []).append(obs["image"])
    del cache[env_id][:-200]


def simulate(
    agent: WorldAgent,
    envs: list[Walker],
    cache: dict[str, list[Array]],
    steps: int,
    state: tuple[list[dict[str, Array]], Array],
) -> tuple[list[dict[str, Array]], Array]:
    """Step agents and environments in turn, and keep what was seen."""
    obs, done = state
    step = 0
    while step < steps:
        for index in np.flatnonzero(done):
            obs[index] = envs[index].reset()
        action = agent(np.stack([o["image"] for o in obs]))
        results = [e.step(a) for e, a in zip(envs, action, strict=True)]
        obs = [r[0] for r in results]
        done = np.array([r[2] for r in results])
        step += len(envs)
        for result, env in zip(results, envs, strict=True):
            add_to_cache(cache, env.id, result[0])
    return obs, done


class WorldAgent(nn.Module):
    """A small encoder, a recurrent model of the latent state, a decoder and an actor."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 8, 8, 8), nn.ELU(), nn.Flatten(), nn.Linear(8 * 144, 64), nn.ELU()
        )
        self.rssm = nn.GRU(64, 64, batch_first=True)
        self.decoder = nn.Linear(64, 3 * 12 * 12)
        self.actor = nn.Linear(64, 4)
        self.to(device)

    def forward(self, images: Array) -> Array:
        with torch.no_grad():
            x = torch.from_numpy(images).to(self.device).permute(0, 3, 1, 2) / 255.0
            action = torch.tanh(self.actor(self.encoder(x)))
        return action.cpu().numpy()

    def loss(self, images: Tensor) -> Tensor:
        b, t = images.shape[:2]
        x = images.flatten(0, 1).permute(0, 3, 1, 2) / 255.0
        latent, _ = self.rssm(self.encoder(x).view(b, t, -1))
        recon = self.decoder(latent[:, :-1]).view(b, t - 1, 3, 12, 12)
        target = F.avg_pool2d(x, 8).view(b, t, 3, 12, 12)[:, 1:]
        return F.mse_loss(recon, target)


@labelled(gpu="env-bound", cpu="env-bound", helpers=(Walker,))
def dreamer_from_pixels(run: hoptui.Run, device: str) -> None:
    """In the manner of dreamerv3-torch: `simulate` steps environments that render, then it trains."""
    envs = [Walker(f"env{i}") for i in range(4)]
    agent = WorldAgent(device)
    model_opt = torch.optim.Adam(agent.parameters(), lr=1e-4)
    cache: dict[str, list[Array]] = {}
    state: tuple[list[dict[str, Array]], Array] = ([{}] * len(envs), np.ones(len(envs), bool))
    state = simulate(agent, envs, cache, 80, state)
    while not run.stopping:
        state = simulate(agent, envs, cache, 64, state)
        batch = np.stack([np.stack(random.choice(list(cache.values()))[-16:]) for _ in range(4)])
        loss = agent.loss(torch.from_numpy(batch).to(device))
        model_opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(agent.parameters(), 1000.0)
        model_opt.step()
        run.log(loss=loss, samples=64)


# Several agents
class Entity:
    def __init__(self, size: float, movable: bool) -> None:
        self.size, self.movable = size, movable
        self.p_pos, self.p_vel, self.u = np.random.uniform(-1, 1, 2), np.zeros(2), np.zeros(2)


class World:
    """Discs that push each other, as in the multi-agent particle environments."""

    def __init__(self, num_agents: int, num_landmarks: int) -> None:
        self.agents = [Entity(0.15, True) for _ in range(num_agents)]
        self.landmarks = [Entity(0.1, False) for _ in range(num_landmarks)]
        self.dt, self.damping, self.contact_force, self.contact_margin = 0.1, 0.25, 1e2, 1e-3

    @property
    def entities(self) -> list[Entity]:
        return self.agents + self.landmarks

    def step(self) -> None:
        p_force = [entity.u.copy() for entity in self.entities]
        self.apply_environment_force(p_force)
        for i, entity in enumerate(self.entities):
            if entity.movable:
                entity.p_vel = entity.p_vel * (1 - self.damping) + p_force[i] * self.dt
                entity.p_pos = entity.p_pos + entity.p_vel * self.dt

    def apply_environment_force(self, p_force: list[Array]) -> None:
        for a, entity_a in enumerate(self.entities):
            for b, entity_b in enumerate(self.entities):
                if b <= a:
                    continue
                force = self.get_collision_force(entity_a, entity_b)
                p_force[a] = force + p_force[a]  # here
                p_force[b] = -force + p_force[b]  # here

    def get_collision_force(self, entity_a: Entity, entity_b: Entity) -> Array:
        delta_pos = entity_a.p_pos - entity_b.p_pos  # here
        dist = np.sqrt(np.sum(np.square(delta_pos)))  # here
        dist_min = entity_a.size + entity_b.size  # here
        penetration = np.logaddexp(0, -(dist - dist_min) / self.contact_margin) * self.contact_margin  # here
        return np.asarray(self.contact_force * delta_pos / (dist + 1e-8) * penetration)  # here


class MultiAgentEnv:
    def __init__(self, num_agents: int, num_landmarks: int) -> None:
        self.num_agents, self.num_landmarks = num_agents, num_landmarks
        self.reset()

    def reset(self) -> list[Array]:
        self.world = World(self.num_agents, self.num_landmarks)
        return [self.observation(agent) for agent in self.world.agents]

    def observation(self, agent: Entity) -> Array:
        entity_pos = [entity.p_pos - agent.p_pos for entity in self.world.landmarks]  # here
        other_pos = [other.p_pos - agent.p_pos for other in self.world.agents if other is not agent]  # here
        return np.concatenate([agent.p_vel, agent.p_pos, *entity_pos, *other_pos])  # here

    def reward(self) -> float:
        rew = 0.0
        for landmark in self.world.landmarks:
            dists = [np.sqrt(np.sum(np.square(a.p_pos - landmark.p_pos))) for a in self.world.agents]  # here
            rew -= float(min(dists))
        return rew

    def step(self, action_n: list[Array]) -> tuple[list[Array], float]:
        for agent, action in zip(self.world.agents, action_n, strict=True):
            agent.u = action * 5.0
        self.world.step()
        return [self.observation(agent) for agent in self.world.agents], self.reward()


def mlp_network(num_in: int, num_out: int) -> nn.Sequential:
    fc1, fc2, fc3 = nn.Linear(num_in, 64), nn.Linear(64, 64), nn.Linear(64, num_out)
    return nn.Sequential(fc1, nn.ReLU(), fc2, nn.ReLU(), fc3)


@labelled(gpu="env-bound", cpu="env-bound", helpers=(World, MultiAgentEnv))
def maddpg_simple_spread(run: hoptui.Run, device: str) -> None:
    """In the manner of maddpg-pytorch with simple_spread: 16 rollout threads in a DummyVecEnv."""
    n_agents, n_landmarks, n_rollout_threads, episode_length = 3, 6, 16, 25
    envs = [MultiAgentEnv(n_agents, n_landmarks) for _ in range(n_rollout_threads)]
    num_in = 4 + 2 * n_landmarks + 2 * (n_agents - 1)
    policies = [mlp_network(num_in, 2).to(device) for _ in range(n_agents)]
    critics = [mlp_network(n_agents * (num_in + 2), 1).to(device) for _ in range(n_agents)]
    policy_optimizers = [torch.optim.Adam(p.parameters(), lr=0.001) for p in policies]
    critic_optimizers = [torch.optim.Adam(c.parameters(), lr=0.001) for c in critics]
    buffer: deque[tuple[Array, Array, float, Array]] = deque(maxlen=20_000)
    while not run.stopping:
        obs = np.array([env.reset() for env in envs])
        for policy in policies:
            policy.to("cpu")
        for _ in range(episode_length):
            with torch.no_grad():
                torch_obs = torch.from_numpy(obs).float()
                torch_actions = [torch.tanh(policies[i](torch_obs[:, i])) for i in range(n_agents)]
            actions = torch.stack(torch_actions, 1).numpy() + 0.1 * np.random.randn(len(envs), n_agents, 2)
            results = [env.step(list(a)) for env, a in zip(envs, actions, strict=True)]
            next_obs = np.array([result[0] for result in results])
            for i, result in enumerate(results):
                buffer.append((obs[i], actions[i], result[1], next_obs[i]))
            obs = next_obs
        for policy in policies:
            policy.to(device)
        o, a, r, o2 = (
            torch.tensor(np.array(part)).float().to(device)
            for part in zip(*random.sample(buffer, min(256, len(buffer))), strict=True)
        )
        for i in range(n_agents):
            with torch.no_grad():
                target_acs = torch.stack([torch.tanh(policies[j](o2[:, j])) for j in range(n_agents)], 1)
                trgt_vf_in = torch.cat([o2.flatten(1), target_acs.flatten(1)], 1)
                target_value = r + 0.95 * critics[i](trgt_vf_in)[:, 0]
            vf_in = torch.cat([o.flatten(1), a.flatten(1)], 1)
            vf_loss = F.mse_loss(critics[i](vf_in)[:, 0], target_value)
            critic_optimizers[i].zero_grad()
            vf_loss.backward()
            critic_optimizers[i].step()
            all_pol_acs = list(a.unbind(1))
            all_pol_acs[i] = torch.tanh(policies[i](o[:, i]))
            pol_loss = -critics[i](torch.cat([o.flatten(1), *all_pol_acs], 1)).mean()
            policy_optimizers[i].zero_grad()
            pol_loss.backward()
            policy_optimizers[i].step()
        run.log(loss=vf_loss, samples=len(o))


# Evolution
class BipedalEnv:
    """A hull over a terrain with a lidar, in Python."""

    LIDAR_RAYS, LIDAR_RANGE = 16, 4.0

    def reset(self) -> list[float]:
        self.terrain = [math.sin(i * 0.7) * 0.2 + random.uniform(-0.1, 0.1) for i in range(200)]
        self.x, self.y, self.vx, self.vy, self.angle = 2.0, 1.2, 0.0, 0.0, 0.0
        return self.observe()

    def lidar(self, ray: int) -> float:
        slope = 1.5 * ray / self.LIDAR_RAYS
        dx, dy = math.sin(slope), -math.cos(slope)
        for k in range(1, 121):  # here
            d = self.LIDAR_RANGE * k / 120  # here
            i = int(self.x + dx * d)  # here
            frac = self.x + dx * d - i  # here
            if self.y + dy * d < self.terrain[i] * (1 - frac) + self.terrain[i + 1] * frac:  # here
                return d / self.LIDAR_RANGE  # here
        return 1.0

    def observe(self) -> list[float]:
        rays = [self.lidar(ray) for ray in range(self.LIDAR_RAYS)]  # here
        return [self.vx, self.vy, self.angle, self.y, *rays]

    def step(self, action: list[float]) -> tuple[list[float], float, bool]:
        for _ in range(10):
            ground = self.terrain[int(self.x)]  # here
            lift = max(0.0, 1.0 - (self.y - ground)) * 20  # here
            self.vx += 0.02 * (action[0] - 0.2 * self.vx)  # here
            self.vy += 0.02 * (lift + action[1] - 9.8 - 0.5 * self.vy)  # here
            self.angle += 0.02 * (action[2] - self.angle)  # here
            self.x = min(max(self.x + 0.02 * self.vx, 1.0), 190.0)  # here
            self.y = min(max(self.y + 0.02 * self.vy, -1.0), 3.0)  # here
        return self.observe(), self.vx - 0.01 * abs(self.angle), self.y < -0.5


class PolicyNets(nn.Module):
    """The policies of a population. Their weights are rows of one matrix."""

    SIZES = (20 * 24, 24, 24 * 3, 3)

    def forward(self, weights: Tensor, x: Tensor) -> Tensor:
        w1, b1, w2, b2 = weights.split(self.SIZES, dim=1)
        hidden = torch.tanh(torch.baddbmm(b1[:, None], x[:, None], w1.view(-1, 20, 24)))
        return torch.tanh(torch.baddbmm(b2[:, None], hidden, w2.view(-1, 24, 3)))[:, 0]


@labelled(gpu="env-bound", cpu="env-bound", helpers=(BipedalEnv,))
def evolution_of_a_walker(run: hoptui.Run, device: str) -> None:
    """In the manner of evolution strategies for BipedalWalker: a population is rolled out, and ranked."""
    sigma, lr, population, horizon = 0.1, 0.05, 16, 40
    policy, envs = PolicyNets(), [BipedalEnv() for _ in range(population)]

    def rollout(weights: Tensor) -> list[float]:
        fitness = [0.0] * population
        obs = [env.reset() for env in envs]
        for _ in range(horizon):
            actions = policy(weights, torch.tensor(obs, device=device)).tolist()
            for i, env in enumerate(envs):
                obs[i], reward, _ = env.step(actions[i])
                fitness[i] += reward
        return fitness

    with torch.no_grad():
        theta = 0.1 * torch.randn(sum(PolicyNets.SIZES), device=device)
        while not run.stopping:
            epsilons = torch.randn(population, len(theta), device=device)
            rewards = rollout(theta + sigma * epsilons)
            ranks = torch.tensor(rewards, device=device).argsort().argsort().float()
            shaped = ranks / (population - 1) - 0.5
            theta = theta + lr / (population * sigma) * (shaped @ epsilons)
            run.log(loss=-sum(rewards) / population, samples=population * horizon)
