"""Scripts that know nothing of hoptui, and how the tests start them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hoptui.protocol import messages
from tests.conftest import RawViewer, until

IDLE = """
def idle():
    import os, time
    quiet = 0
    while quiet < 20:
        time.sleep(0.001)
        stats = [open(f"/proc/self/task/{task}/stat").read() for task in os.listdir("/proc/self/task")]
        states = [stat.rpartition(")")[2].split()[0] for stat in stats if "(pt_gloo_runloop)" in stat]
        quiet = 0 if "R" in states else quiet + 1
"""
"""Wait for the threads of Gloo. PyTorch aborts or hangs if one frees a tensor as the interpreter exits."""
LOOP = (
    IDLE
    + """
import hashlib, os, sys, time
import torch
from torch.utils.data import DataLoader, TensorDataset

def weights(model):
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()

def main(steps, pause, workers):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    data = TensorDataset(torch.randn(100, 8), torch.randn(100, 1))
    several = "RANK" in os.environ or "SLURM_PROCID" in os.environ
    if several:
        if "RANK" in os.environ:
            torch.distributed.init_process_group("gloo")
        else:
            store = torch.distributed.FileStore(f"{sys.argv[0]}.store", int(os.environ["SLURM_NTASKS"]))
            torch.distributed.init_process_group("gloo", store=store, rank=int(os.environ["SLURM_PROCID"]),
                                                 world_size=int(os.environ["SLURM_NTASKS"]))
        model = torch.nn.parallel.DistributedDataParallel(model)
        rank, sampler = torch.distributed.get_rank(), torch.utils.data.DistributedSampler(data)
    else:
        rank, sampler = 0, None
    loader = DataLoader(data, batch_size=16, shuffle=sampler is None, sampler=sampler,
                        num_workers=workers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step / 100))
    done, rates = 0, []
    over = torch.zeros(1)
    while done < steps and not over:
        for x, y in loader:
            loss = ((model(x) - y) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            rates.append(scheduler.base_lrs[0])
            done += 1
            time.sleep(pause)
            if done == steps:
                break
        over += os.path.exists(f"{sys.argv[0]}.end")
        if several:
            torch.distributed.all_reduce(over)
    if several:
        idle()
        torch.distributed.destroy_process_group()
    changes = [i for i in range(1, len(rates)) if rates[i] != rates[i - 1]]
    line = f"rank {rank}: {weights(model)} {torch.rand(1).item()} {loss.item()} {changes}\\n"
    os.write(1, line.encode())  # at once: the ranks share the output

def two_tasks(steps):
    tasks = []
    for rank in "01":
        tasks.append(os.fork())
        if not tasks[-1]:
            os.environ.update(SLURM_PROCID=rank, SLURM_LOCALID=rank, SLURM_NTASKS="2")
            main(steps, 0.0, 1)
            sys.exit()
    assert [os.waitpid(task, 0)[1] for task in tasks] == [0, 0]

if __name__ == "__main__":
    if "each" in sys.argv:
        two_tasks(30)
        main(100, 0.0, 0)
        main(30, 0.0, 2)
    if "short" in sys.argv:
        main(100, 0.0, 0)
    if "long" in sys.argv:
        main(100000, 0.01, 0)
"""
)
"""Argument `each`: two ranks as those of srun, then without and with DataLoader workers. `short`: 100
steps. `long`: until `<script>.end` exists."""


HEAD = """
import hashlib, os, sys
import torch
torch.manual_seed(0)
torch.set_num_threads(1)

def weights(model):
    own = (p.detach().cpu().numpy().tobytes() for p in model.parameters())
    # one write: torchrun switches the buffers of its processes off
    sys.stdout.write(f"weights {hashlib.sha256(b''.join(own)).hexdigest()} {torch.rand(1).item()}\\n")

data = torch.utils.data.TensorDataset(torch.randn(128, 8), torch.randn(128, 1))
"""
"""The head of a script: `data`, and `weights`, which prints those of a model and a random number."""


def script(folder: Path, text: str = LOOP, name: str = "train.py") -> Path:
    """Write a script into a folder."""
    path = folder / name
    path.write_text(text)
    return path


def run_command(*words: str | Path) -> list[str]:
    """The command line of `hoptui run`."""
    return [sys.executable, "-m", "hoptui", "run", *map(str, words)]


def finished(child: subprocess.Popen[str], seconds: float = 120.0) -> tuple[int, str, str]:
    """Wait for the end of a process. Return its exit code and what it printed on stdout and stderr."""
    out, err = child.communicate(timeout=seconds)
    return child.returncode, out, err


def live_run(viewer: RawViewer, name: str, pid: int = 0) -> messages.RunState:
    """The run of this name (and process), once it has passed some boundaries and has the knob `lr`."""
    found = until(
        lambda: next(
            (r for r in viewer.state().runs if r.name == name and r.knobs and pid in (0, r.pid)), None
        ),
        seconds=60,
        what=name,
    )
    assert "lr" in {each.spec.name for each in found.knobs}
    until(lambda: viewer.vital(found.run).step > 2, what="some iterations")
    return found
