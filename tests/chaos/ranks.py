"""An audited run of two processes: `python -m tests.chaos.ranks RANK FD LEDGER HZ NUMBER`."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.audited_run import AuditedRun
from tests.sdk.two_ranks import SocketRanks

if __name__ == "__main__":
    _, _, ledger, hz, number = sys.argv[1:]
    AuditedRun(Path(ledger), "ranks", int(number), SocketRanks()).train(float(hz))
