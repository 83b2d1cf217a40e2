"""An audited run of two processes: `python -m tests.chaos.ranks RANK FOLDER LEDGER HZ NUMBER`."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.audited_run import AuditedRun
from tests.sdk.two_ranks import FolderStore

if __name__ == "__main__":
    rank, folder, ledger, hz, number = sys.argv[1:]
    AuditedRun(Path(ledger), "ranks", int(number), FolderStore(Path(folder), int(rank))).train(float(hz))
