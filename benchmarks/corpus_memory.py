"""Host memory of `hoptui train lm` by size of the corpus: a run on the CPU with the smallest model.

`python -m benchmarks.corpus_memory [--text-mb 600] [--bin-gb 50] [--no-bpe] [--quick]`. The cases run one
after another: text of 1 MB, then the large one read for the first time, once more from the cache, and with a
limit, each as bytes and as byte pairs; then a `.bin` file of tokens that takes no space on the disk. Each
case is held against the text of 1 MB with the same tokenizer.

Memory is read from /proc every few milliseconds: the peak of the resident set, of its anonymous part, and of
the part that is backed by files. The kernel's own peak (VmHWM) stands beside them. The trainer resets that
one before its first step, so it counts from there.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import report, tell

EVERY_S = 0.01
LIMIT_S = 900.0
TARGET_MB = 300.0
FIELDS = ("VmRSS", "RssAnon", "RssFile", "VmHWM")
FILE_BYTES = 10_000
LM = ("lm", "--device", "cpu", "--threads", "1", "--preset", "tiny", "--json")
STEPS = ("--iterations", "6", "--evaluate-every", "6", "--batch-tokens", "2048")
TOKENIZERS = {"bytes": ("--tokenizer", "bytes"), "bpe": ("--tokenizer", "bpe", "--vocab-size", "8192")}


def write_texts(folder: Path, megabytes: int) -> Path:
    """A folder of texts of made-up words."""
    folder.mkdir()
    draw = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlucmfwypvbgk"))
    words = np.array(
        ["".join(draw.choice(letters, size)) for size in draw.integers(2, 12, 30_000)], dtype=object
    )
    frequent = 1 / np.arange(1, len(words) + 1)
    for number in range(megabytes * 1_000_000 // FILE_BYTES):
        drawn = draw.choice(words, FILE_BYTES // 6, p=frequent / frequent.sum())
        lines = (" ".join(drawn[start : start + 12]) for start in range(0, len(drawn), 12))
        (folder / f"{number:05d}.txt").write_text("\n".join(lines)[: FILE_BYTES - 1] + "\n")
    return folder


def peaks(arguments: Sequence[str], cache: Path) -> dict[str, Any]:
    """Run the trainer; the peaks of its memory in MB, and how long it took.

    Raises:
        RuntimeError: it failed; the text is what it said.
    """
    environment = {**os.environ, "HOPTUI": "off", "XDG_CACHE_HOME": str(cache), "OMP_NUM_THREADS": "1"}
    began, most = time.monotonic(), dict.fromkeys(FIELDS, 0)
    with subprocess.Popen(
        [sys.executable, "-m", "hoptui_trainer", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        while child.poll() is None:
            for name, value in _status(child.pid):
                most[name] = max(most[name], value)
            if time.monotonic() - began > LIMIT_S:
                child.kill()
            time.sleep(EVERY_S)
        out, error = child.communicate()
    if child.returncode:
        raise RuntimeError(f"{' '.join(arguments)}: exit status {child.returncode}\n{error[-2000:]}")
    return {
        **{f"{name}_mb": round(value / 1e6, 1) for name, value in most.items()},
        "seconds": round(time.monotonic() - began, 2),
        "loss": json.loads(out.splitlines()[-1])["loss"],
    }


def _status(pid: int) -> Iterator[tuple[str, int]]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        name, _, value = line.partition(":")
        if name in FIELDS:
            yield name, int(value.split()[0]) * 1024


def above(found: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
    """A case with how far its peaks are above another's."""
    more = {name: round(found[f"{name}_mb"] - base[f"{name}_mb"], 1) for name in ("VmRSS", "RssAnon")}
    return {**found, "above_1_mb": more}


def main(arguments: Sequence[str] = ()) -> dict[str, Any]:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.corpus_memory")
    parser.add_argument("--text-mb", type=int, default=600, help="MB of text")
    parser.add_argument("--bin-gb", type=float, default=50.0, help="GB of ready tokens")
    parser.add_argument("--no-bpe", action="store_true", help="bytes alone: byte pairs take a minute or more")
    parser.add_argument("--quick", action="store_true", help="try the mechanics; keeps no result")
    given = parser.parse_args(list(arguments))
    text_mb, bin_gb = (8, 0.1) if given.quick else (given.text_mb, given.bin_gb)
    tokenizers = {name: TOKENIZERS[name] for name in TOKENIZERS if not (name == "bpe" and given.no_bpe)}
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="hoptui-corpus-") as where:
        folder = Path(where)
        small, large = write_texts(folder / "small", 1), write_texts(folder / "large", text_mb)
        for name, tokenizer in tokenizers.items():
            case = (*LM, *STEPS, *tokenizer)
            everything = (*case, "--corpus-mb", "0", "--corpus", str(large))
            base = tell(f"{name}, 1 MB", peaks((*case, "--corpus", str(small)), folder / "cache"))
            found[f"{name}, 1 MB"] = base
            for label, options in {
                f"{text_mb} MB, first": everything,
                f"{text_mb} MB, cached": everything,
                f"{text_mb} MB, --corpus-mb 20": (*case, "--corpus-mb", "20", "--corpus", str(large)),
            }.items():
                measured = above(peaks(options, folder / "cache"), base)
                found[f"{name}, {label}"] = tell(f"{name}, {label}", measured)
        tokens = folder / "tokens.bin"
        with tokens.open("wb") as file:
            file.truncate(int(bin_gb * 1e9) // 2 * 2)
        ready = (*LM, *STEPS, "--corpus-mb", "0", "--corpus", str(tokens))
        measured = above(peaks(ready, folder / "cache"), found["bytes, 1 MB"])
        found[f"ready, {bin_gb:g} GB"] = tell(f"ready, {bin_gb:g} GB", measured)
    worst = max(case["above_1_mb"]["VmRSS"] for case in found.values() if "above_1_mb" in case)
    figures = {
        "unit": "MB",
        "cases": found,
        "worst_above_1_mb": worst,
        "met": {f"at most {TARGET_MB:g} MB above a corpus of 1 MB": worst <= TARGET_MB},
    }
    if given.quick:
        print(json.dumps(figures), flush=True)
        return figures
    return report("corpus_memory", figures)


if __name__ == "__main__":
    main(sys.argv[1:])
