"""Trainings on sounds: recordings of rooms, voices, fingerprints of tracks, stems of songs, and codecs."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hoptui
from benchmarks.labelled.catalogue import AdapterRun, labelled


def phase_vocoder(spectrum: Any, rate: float, hop: int) -> Any:
    """Stretch a spectrum in time, frame by frame, as librosa does it."""
    bins, frames = spectrum.shape
    advance = np.linspace(0, np.pi * hop, bins)
    phase = np.angle(spectrum[:, 0])
    padded = np.pad(spectrum, [(0, 0), (0, 2)])
    steps = np.arange(0, frames, rate)
    stretched = np.empty((bins, len(steps)), spectrum.dtype)
    for t, step in enumerate(steps):
        columns = padded[:, int(step) : int(step) + 2]  # here
        alpha = step % 1.0
        size = (1 - alpha) * np.abs(columns[:, 0]) + alpha * np.abs(columns[:, 1])  # here
        stretched[:, t] = size * np.exp(1j * phase)  # here
        turned = np.angle(columns[:, 1]) - np.angle(columns[:, 0]) - advance  # here
        turned -= 2 * np.pi * np.round(turned / (2 * np.pi))  # here
        phase += advance + turned  # here
    return stretched  # here


def filter_bank(bins: int, bands: int) -> Any:
    """Return triangles over the bins, wider for higher ones."""
    edges = np.geomspace(2, bins - 1, bands + 2)
    at = np.arange(bins)[:, None]
    rising, falling = (at - edges[:-2]) / np.diff(edges)[:-1], (edges[2:] - at) / np.diff(edges)[1:]
    return np.maximum(0, np.minimum(rising, falling)).astype(np.float32)


class Augmented:
    """Turns recordings to features, at another speed each time."""

    def __init__(self, window: int = 1024, hop: int = 256, bands: int = 64, frames: int = 128) -> None:
        self.window, self.hop, self.frames = np.hanning(window), hop, frames
        self.bank = filter_bank(window // 2 + 1, bands)
        self.rng = np.random.default_rng(0)

    def features(self, wave: Any) -> Any:
        """Return the energies of the bands of a recording."""
        slices = np.lib.stride_tricks.sliding_window_view(wave, len(self.window))[:: self.hop]
        spectrum = np.fft.rfft(slices * self.window).T  # here
        stretched = phase_vocoder(spectrum, self.rng.uniform(0.85, 1.15), self.hop)  # here
        energy = np.log(np.abs(stretched).T.astype(np.float32) @ self.bank + 1e-4)
        return np.resize(energy, (self.frames, energy.shape[1]))

    def __call__(self, batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        heard = [self.features(np.asarray(wave, np.float64)) for wave in batch["audio"]]  # here
        return {"input_values": heard, "labels": batch["label"]}


@labelled(
    gpu="data-bound",
    cpu="data-bound",
    needs=("transformers", "accelerate", "datasets"),
    adapter=True,
    helpers=(phase_vocoder, Augmented),
)
def ast_on_household_sounds(run: AdapterRun, device: str) -> None:
    """An audio spectrogram transformer under the Trainer. `with_transform` stretches each recording in time.

    A recording of 3.5 seconds has 215 frames. A frame takes ten operations of NumPy on 513 bins, among them
    three for angles and one for exponents: more than 60 microseconds, so more than 13 ms a recording, and
    more than 100 ms for a batch of 8. The transformer has 2 layers of width 48 and 32 patches: less than 20
    ms with what the Trainer does beside it.
    """
    from datasets import Dataset
    from transformers import ASTConfig, ASTForAudioClassification, Trainer, TrainingArguments

    from hoptui.integrations.transformers import HoptuiCallback

    rng = np.random.default_rng(1)
    seconds = np.arange(56_000) / 16_000
    waves = [
        (np.sin(2 * np.pi * rng.uniform(80, 900) * seconds) + 0.1 * rng.standard_normal(56_000)).tolist()
        for _ in range(24)
    ]
    sounds = Dataset.from_dict({"audio": waves, "label": [n % 6 for n in range(24)]})
    config = ASTConfig(
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=96,
        num_mel_bins=64,
        max_length=128,
        frequency_stride=16,
        time_stride=16,
        num_labels=6,
    )
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            output_dir=folder,
            max_steps=run.iterations,
            per_device_train_batch_size=8,
            learning_rate=3e-4,
            use_cpu=device == "cpu",
            remove_unused_columns=False,
            report_to=[],
            disable_tqdm=True,
            save_strategy="no",
            logging_steps=25,
        )
        trainer = Trainer(
            model=ASTForAudioClassification(config),
            args=args,
            train_dataset=sounds.with_transform(Augmented()),
            callbacks=[HoptuiCallback(run.name)],
        )
        trainer.train()


def maximum_path(scores: list[list[float]]) -> list[int]:
    """Return the letter of each frame on the best path that goes through all letters, one after another."""
    letters, frames = len(scores), len(scores[0])
    best = [scores[0][0]] + [float("-inf")] * (letters - 1)
    came = []
    for t in range(1, frames):  # here
        moved, new = [False] * letters, best[:]  # here
        for n in range(max(0, letters - frames + t), min(letters, t + 1)):  # here
            stay, move = best[n], best[n - 1] if n else float("-inf")  # here
            moved[n] = move > stay  # here
            new[n] = (move if move > stay else stay) + scores[n][t]  # here
        best = new  # here
        came.append(moved)  # here
    path = [letters - 1]
    for moved in reversed(came):  # here
        path.append(path[-1] - moved[path[-1]])  # here
    return path[::-1]  # here


class TextEncoder(nn.Module):
    """Gives each letter the mean of its sound, and how long it lasts."""

    def __init__(self, letters: int, width: int, bands: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(letters, width)
        self.conv = nn.Conv1d(width, width, 5, padding=2)
        self.mean, self.duration = nn.Linear(width, bands), nn.Linear(width, 1)

    def forward(self, text: Tensor) -> tuple[Tensor, Tensor]:
        h = self.conv(self.embed(text).transpose(1, 2)).relu().transpose(1, 2)
        return self.mean(h), self.duration(h)[..., 0]


@labelled(gpu="host-bound", cpu="host-bound", helpers=(maximum_path,))
def voices_in_the_manner_of_glow_tts(run: hoptui.Run, device: str) -> None:
    """Letters are aligned to frames at each step, without the extension that Glow-TTS compiles for that.

    48 letters and 200 frames are 7400 cells that can be reached, each of more than 0.15 microseconds in
    Python: more than 1.1 ms, with the lists more than 1.3 ms. 80 utterances take more than 100 ms. The
    scores, a convolution with a width of 32 and the step need less than 25 ms.
    """
    batch, letters, frames, bands = 80, 48, 200, 20
    encoder = TextEncoder(50, 32, bands).to(device)
    optimizer = torch.optim.Adam(encoder.parameters(), lr=2e-4, betas=(0.9, 0.98))
    texts = torch.randint(0, 50, (512, letters), device=device)
    sounds = torch.randn(50, bands, device=device)[texts].repeat_interleave(5, 1)[:, :frames]
    while not run.stopping:
        at = torch.randint(0, 512, (batch,), device=device)
        mel = sounds[at] + 0.3 * torch.randn(batch, frames, bands, device=device)
        mean, log_duration = encoder(texts[at])
        with torch.no_grad():
            score = mean @ mel.transpose(1, 2) - 0.5 * mean.square().sum(-1, keepdim=True)
        paths = [maximum_path(rows) for rows in score.tolist()]  # here
        path = torch.tensor(paths, device=device)
        aligned = mean.gather(1, path[..., None].expand(-1, -1, bands))
        duration = F.one_hot(path, letters).sum(1)
        loss = F.mse_loss(aligned, mel) + F.mse_loss(log_duration, duration.clamp(min=1).float().log())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=batch)


class TrackFingerprints(nn.Module):
    """An encoder of timm for pieces of spectra, and a bank with the fingerprints of all tracks."""

    def __init__(self, tracks: int, width: int) -> None:
        super().__init__()
        import timm

        self.encoder = timm.create_model("lcnet_035", in_chans=1, num_classes=width)
        self.bank: Tensor
        self.register_buffer("bank", F.normalize(torch.randn(tracks, width)))

    def forward(self, pieces: Tensor, tracks: Tensor) -> Tensor:
        found = F.normalize(self.encoder(pieces))
        others = torch.randint(0, len(self.bank), (512,), device=pieces.device)
        positive = (found * self.bank[tracks]).sum(-1, keepdim=True)
        logits = torch.cat([positive, found @ self.bank[others].T], 1) / 0.1
        self.bank[tracks] = F.normalize(0.9 * self.bank[tracks] + 0.1 * found.detach())
        return F.cross_entropy(logits, torch.zeros_like(tracks))


@labelled(gpu="save-bound", cpu="save-bound", needs=("timm",))
def timm_fingerprints_of_tracks(run: hoptui.Run, device: str) -> None:
    """Fingerprints of tracks are learned in the manner of timm's `train.py`, with `--recovery-interval 1`.

    The bank of 450 000 fingerprints with 128 numbers is 230 MB, and timm's saver writes it with the weights
    at each batch: more than 90 ms at 2.5 GB/s. lcnet_035 with 4 pieces of 32 x 32 numbers needs less than 35
    ms, and on a GPU less than 15 ms.
    """
    from timm.utils import CheckpointSaver

    model = TrackFingerprints(450_000, 128).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9, nesterov=True)
    with tempfile.TemporaryDirectory() as output:
        saver = CheckpointSaver(
            model=model, optimizer=optimizer, checkpoint_dir=output, recovery_dir=output, max_history=1
        )
        epoch = updates = 0
        while not run.stopping:
            pieces = torch.randn(4, 1, 32, 32, device=device)
            tracks = torch.randint(0, 450_000, (4,), device=device)
            loss = model(pieces, tracks)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            saver.save_recovery(epoch, batch_idx=updates % 1000)  # here
            updates += 1
            epoch = updates // 1000
            run.log(loss=loss.item(), samples=4)


class MaskOfBands(nn.Module):
    """Finds how much of each band of a mix belongs to each stem."""

    def __init__(self, window: int, stems: int) -> None:
        super().__init__()
        self.window, self.stems, bins = window, stems, window // 2 + 1
        self.rnn = nn.GRU(bins, 128, batch_first=True)
        self.masks = nn.Linear(128, stems * bins)

    def forward(self, mix: Tensor) -> Tensor:
        window = torch.hann_window(self.window, device=mix.device)
        spectrum = torch.stft(mix, self.window, window=window, return_complex=True)
        h, _ = self.rnn(spectrum.abs().transpose(1, 2))
        masks = self.masks(h).sigmoid().unflatten(-1, (self.stems, -1)).permute(0, 2, 3, 1)
        separated = torch.istft(
            (masks * spectrum[:, None]).flatten(0, 1), self.window, window=window, length=mix.shape[-1]
        )
        stems: Tensor = separated.unflatten(0, (len(mix), self.stems))
        return stems


@labelled(gpu="transfer-bound")
def stems_of_long_songs(run: hoptui.Run, device: str) -> None:
    """The stems of whole songs go to the GPU, and pieces of five seconds are cut there.

    A song of 5 minutes has 4 stems of two channels at 44 100 Hz: 423 MB. The four of a batch are 1.7 GB: more
    than 80 ms, as pageable memory gives less than 20 GB/s. A recurrent layer over 860 frames of cuDNN, the
    transforms and the step on 4 x 220 500 numbers need less than 25 ms.
    """
    rate, piece = 44_100, 220_500
    songs: list[dict[str, Tensor]] = [
        {stem: torch.full((2, 300 * rate), 0.01 * n) for stem in ("drums", "bass", "vocals", "other")}
        for n in range(6)
    ]
    model = MaskOfBands(1024, 4).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    while not run.stopping:
        pieces = []
        for n in torch.randperm(len(songs))[:4].tolist():
            song = {stem: wave.to(device) for stem, wave in songs[n].items()}  # here
            start = int(torch.randint(0, 300 * rate - piece, ()))
            pieces.append(torch.stack([wave[:, start : start + piece].mean(0) for wave in song.values()]))
        stems = torch.stack(pieces)
        stems = stems + 0.1 * torch.randn_like(stems)
        loss = F.l1_loss(model(stems.sum(1)), stems)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=4)


class CodecModel(nn.Module):
    """A Llama of transformers over the codes of a neural codec, with several codes for each frame."""

    def __init__(self, books: int, codes: int, **sizes: Any) -> None:
        super().__init__()
        from transformers import LlamaConfig, LlamaModel

        config = LlamaConfig(vocab_size=8, use_cache=False, attn_implementation="sdpa", **sizes)
        self.llama = LlamaModel(config)
        self.embed = nn.ModuleList(nn.Embedding(codes, config.hidden_size) for _ in range(books))
        self.heads = nn.ModuleList(nn.Linear(config.hidden_size, codes, bias=False) for _ in range(books))

    def forward(self, codes: Tensor) -> Tensor:
        x = torch.stack([embed(codes[:, n]) for n, embed in enumerate(self.embed)]).sum(0)
        h = self.llama(inputs_embeds=x[:, :-1]).last_hidden_state
        losses = [
            F.cross_entropy(head(h).flatten(0, 1).float(), codes[:, n, 1:].flatten())
            for n, head in enumerate(self.heads)
        ]
        return torch.stack(losses).mean()


@labelled(gpu="compute-bound power-limited", cpu="healthy", needs=("transformers",))
def music_of_codec_tokens(run: hoptui.Run, device: str) -> None:
    """Music is modelled as codes of a codec by a wide Llama in bf16.

    On a GPU: 5 layers of width 4096 have 1 billion weights. 6 x 1 billion x 16 x 1024 frames are 98 TFLOP:
    more than 100 ms at 989 TFLOPS, and some 150 ms at what is reached. Activations of 16 384 x 4096 numbers
    in bf16 are 134 MB, and twice that where the norms use fp32. With gradients a layer reads or writes less
    than 26 GB: 130 GB in all, less than 35 ms. SGD on 2 GB of weights takes less than 3 ms. On the CPU: 3
    layers of width 192 and 4 x 128 frames.
    """
    cpu = device == "cpu"
    batch, frames, books, codes = (4, 128, 4, 256) if cpu else (16, 1024, 4, 1024)
    sizes = {"hidden_size": 192, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 512}
    if not cpu:
        sizes = {
            "hidden_size": 4096,
            "num_hidden_layers": 5,
            "num_attention_heads": 32,
            "intermediate_size": 11_008,
        }
    model = CodecModel(books, codes, **sizes).to(device, torch.float32 if cpu else torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10_000)
    songs = torch.randint(0, codes, (256, books, frames + 1), device=device)
    while not run.stopping:
        loss = model(songs[torch.randint(0, 256, (batch,), device=device)])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        scheduler.step()
        run.log(loss=loss.item(), tokens=batch * frames)
