"""Terminal programs measured: a stand-in that draws, one that ends by itself, and one that is not there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import rivals
from benchmarks.measure import Bench, Terminal
from tests.golden import Golden

DRAWS = """
import sys, time
for i in range(10_000):
    print(f"\\x1b[H\\x1b[2KSM %  {i % 100:3d}   612 W   iteration {i}\\r\\n\\x1b[2Kenv steps/s",
          end="", flush=True)
    time.sleep(0.05)
"""
BLANK = """
import sys, time
print("\\x1b]0;blank\\x07\\x1b[?1049h\\x1b[2J", end="", flush=True)
time.sleep(60)
"""


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    tools = {
        "draws": [sys.executable, "-c", DRAWS],
        "ends": ["echo", "No GPU to monitor."],  # an interpreter may take longer to start than is watched
        "blank": [sys.executable, "-c", BLANK],
        "PufferLib": ["no-such-program"],
    }
    monkeypatch.setattr(rivals, "TOOLS", tools)
    for name, value in {
        "OPENINGS": 2,
        "OPENING_S": 0.5,
        "PATIENCE_S": 1.0,
        "SLICES": 2,
        "SLICE_S": 0.2,
    }.items():
        monkeypatch.setattr(rivals, name, value)
    return Bench(tmp_path)


def test_what_draws_is_measured(node: Bench) -> None:
    found = rivals.measure(node, "draws")
    assert found["ran"]
    assert found["rss_mib"]["min"] > 1
    assert found["kb_per_s"]["n"] == 2
    assert found["first_frame_s"]["n"] == 2
    assert found["shows"] == ["SM active", "power", "training's throughput"]
    assert found["screen"][0].startswith("SM %")


def test_what_ends_or_is_not_there_is_told_so(node: Bench, golden: Golden) -> None:
    found = {name: rivals.measure(node, name) for name in ("ends", "blank", "PufferLib")}
    assert [rival["ran"] for rival in found.values()] == [False] * 3
    assert [rival.get("last_words") for rival in found.values()] == [["No GPU to monitor."], [], None]
    assert "no-such-program" in found["PufferLib"]["why"]
    golden("".join(f"{name}: {rival['why']}\n" for name, rival in found.items()))


def test_signs_are_not_found_in_other_words() -> None:
    assert rivals.shows(["now 3 running", "(pid 4121) began", "a small tensorless w"]) == ["tensor cores"]
    assert rivals.shows(["GPU-Util 98%", " PID  USER  GPU-MEM", "Power 612W / 700W"]) == [
        "GPU busy",
        "power",
        "processes",
    ]


def test_what_is_shown_is_read_between_frames() -> None:
    terminal = object.__new__(Terminal)
    terminal.columns, terminal.rows = 40, 4
    terminal.written = [(0.1 * i, b"\x1b[Hiteration %3d" % i) for i in range(10)]
    torn = [(0.53, b"\x1b[Hiteration 9"), (0.531, b"99"), (0.532, b"\x1b[Hiteration   5")]
    terminal.written = sorted([*terminal.written, *torn])
    seen = [
        (round(at, 2), int(found[1])) for at, found in terminal.shown(r"iteration +(\d+)", 0.25, every_s=0.1)
    ]
    assert seen == [(0.25, 2), (0.35, 3), (0.45, 4), (0.55, 5), (0.65, 6), (0.75, 7), (0.85, 8)]
