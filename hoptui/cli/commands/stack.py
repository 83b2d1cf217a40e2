"""`hoptui stack`: show where the ranks of a run are now."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
from cyclopts import Parameter

from hoptui.cli.commands.where import OLD_DAEMON
from hoptui.cli.support import jobs, nccl_ras
from hoptui.cli.support.options import Json, Run
from hoptui.cli.support.snapshot import NodeSnapshot, look
from hoptui.cli.support.terminal import MISSING, OK, Fail, dump, say
from hoptui.client.session import RefusedError
from hoptui.domain.jobs import JobState, line_groups
from hoptui.domain.stack_groups import StackGroup, grouped, usual_stack
from hoptui.domain.stacks import Stack, StackFrame, without_phases
from hoptui.node.processes import process_state
from hoptui.presentation import numbers, stacks
from hoptui.presentation.sentences.jobs import line_group_text
from hoptui.presentation.vocabulary import hung
from hoptui.protocol.messages import RankState, RunState

FRESH_S = 10.0
"""Older samples do not say where a thread is now."""
PY_SPY_S = 10.0
"""How long py-spy may take for a process."""


class RankStack(NamedTuple):
    """Where a rank is: by `source` (`samples`, `py-spy`, or "" if that is not known), so many seconds ago.
    `state` is the letter of its process, `thread` the kernel's number of the thread that trains (0: unknown).
    """

    rank: int
    pid: int
    state: str
    thread: int = 0
    source: str = ""
    age_s: float | None = None
    stack: Stack = ()


class StackReport(NamedTuple):
    """The ranks of a run, those with equal stacks as groups, and the answer of NCCL if there is one.

    `job` is the state of the run on all its nodes, None if it has one node. `whole` is whether all ranks were
    asked for.
    """

    run: RunState
    ranks: list[RankStack]
    groups: list[StackGroup]
    nccl: Any
    job: JobState | None
    whole: bool


def stack(
    run: Run,
    /,
    *,
    rank: Annotated[int | None, Parameter(help="Show only this process of the run.")] = None,
    json: Json = False,
) -> int:
    """Show where the ranks of a run are now, equal stacks as one group, the odd one first.

    The stacks are the newest samples. A rank without recent ones is read by py-spy, if that is installed.
    Of a hung run of several ranks, NCCL is asked which of them have begun fewer collectives.
    Exit code 3 if no stack is known.
    """
    found = stacks_of(run, rank)
    if json:
        dump(as_json(found))
    else:
        _show(found)
        if found.nccl is not None:
            for each in nccl_ras.uneven(found.nccl, {each.pid: each.rank for each in found.ranks}):
                say(numbers.clean(stacks.uneven_text(each.collective, each.ranks)))
            say("NCCL answers on this node: --json has its communicators and what they count")
    return OK if found.groups else MISSING


def stacks_of(name: str, rank: int | None = None) -> StackReport:
    """Where the ranks of a run on this node are, or one of them.

    Raises:
        Fail: no such run or rank lives; exit code 3.
    """
    with look(readings=False) as seen:
        run = seen.find_living(name)
        processes = (RankState(rank=run.rank, pid=run.pid, thread=run.thread), *run.ranks)
        wanted = [each for each in processes if rank in (None, each.rank)]
        if not wanted:
            words = ["stack", run.name, "--rank", str(rank)]
            if rank is not None and (away := jobs.elsewhere(seen.job(run), rank, words)):
                raise Fail(away, MISSING)
            known = ", ".join(str(each.rank) for each in processes)
            raise Fail(f"{numbers.clean(run.name)} has no rank {rank} on this node, only {known}", MISSING)
        ranks = _ranks(seen, run.run, wanted)
        hangs = hung(seen.store.vital(run.run))
        job = seen.job(run)
    groups = grouped({each.rank: each.stack for each in ranks if each.stack})
    nccl = nccl_ras.status() if run.world > 1 and hangs else None
    return StackReport(run, ranks, groups, nccl, job, rank is None)


def _ranks(seen: NodeSnapshot, run: str, processes: Iterable[RankState]) -> list[RankStack]:
    """Return the stack of each of these processes."""
    try:
        sampled = {each.rank: each.samples for each in seen.session.stacks(run, FRESH_S)}
    except RefusedError as error:
        raise Fail(OLD_DAEMON if error.code == "unsupported" else str(error), MISSING) from None
    now = seen.store.now()
    found = []
    for rank, pid, thread in ((each.rank, each.pid, each.thread) for each in processes):
        state = process_state(pid)
        if rank in sampled:
            age_s = max(0.0, (now - sampled[rank].ended) / 1e9)
            stack = usual_stack(sampled[rank])
            found.append(RankStack(rank, pid, state, thread, "samples", age_s, stack))
        else:
            asked = py_spy(pid, thread) if state not in ("", "Z") else ()
            source, asked_s = ("py-spy", 0.0) if asked else ("", None)
            found.append(RankStack(rank, pid, state, thread, source, asked_s, asked))
    return found


def py_spy(pid: int, thread: int = 0) -> Stack:
    """Return the stack of a thread by py-spy, which does not stop the process. `thread` is the kernel's
    number of it, 0 stands for the main thread. Empty if py-spy is not installed, may not read the process,
    takes too long, or finds no such thread."""
    program = py_spy_program()
    if program is None:
        return ()
    try:
        done = subprocess.run(
            [program, "dump", "--nonblocking", "--json", "--pid", str(pid)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PY_SPY_S,
            check=True,
        )
        found = next(each for each in msgspec.json.decode(done.stdout) if _is_thread(each, thread))
        frames = [
            StackFrame(str(each["filename"]), str(each["name"]), int(each["line"]))
            for each in found["frames"]
        ]
    except (OSError, subprocess.SubprocessError, msgspec.MsgspecError, ValueError, LookupError):
        return ()
    except (StopIteration, TypeError, AttributeError):  # the format of another version
        return ()
    return tuple(reversed(frames))


def py_spy_program() -> str | None:
    """Return where py-spy is: on the path, or beside this Python, whose environment may not be active."""
    return shutil.which("py-spy") or shutil.which("py-spy", path=Path(sys.executable).parent)


def _is_thread(found: dict[str, Any], thread: int) -> bool:
    """Whether this is the thread with a number of the kernel, or for 0 the main thread."""
    return found.get("os_thread_id") == thread if thread else found.get("thread_name") == "MainThread"


def as_json(found: StackReport) -> dict[str, Any]:
    """The stacks of a run as `--json` shows them."""
    run, ranks, groups = found.run, found.ranks, found.groups
    return {
        "run": run.run,
        "name": run.name,
        "world": run.world,
        "groups": [
            {
                "ranks": group.ranks,
                "kind": group.kind,
                "file": group.place.file,
                "line": group.place.line,
                "function": group.place.function,
                "inside": group.inside,
                "stack": [
                    {"file": frame.file, "line": frame.line, "function": frame.function}
                    for frame in without_phases(group.stack)
                ],
            }
            for group in groups
        ],
        "ranks": [
            {
                "rank": each.rank,
                "pid": each.pid,
                "process": each.state or None,
                "thread": each.thread or None,
                "source": each.source or None,
                "age_s": each.age_s,
            }
            for each in ranks
        ],
        "nccl": found.nccl,
        "elsewhere": jobs.ranks_elsewhere(found.job) if found.whole else [],
    }


def _show(found: StackReport) -> None:
    run, ranks, groups = found.run, found.ranks, found.groups
    known = {each.rank: each for each in ranks}
    for group in groups:
        text = stacks.group_text(
            group.ranks, len(group.ranks), run.world, group.kind, group.place, group.inside
        )
        first = known[group.ranks[0]]
        say(f"{numbers.clean(text)} ({_source(first)})")
        for frame in without_phases(group.stack):
            say(f"    {numbers.clean(f'{frame.file}:{frame.line} {frame.function}')}")
    for each in ranks:
        if not each.stack:
            say(_unknown(run, each))
    if not found.whole:
        return
    elsewhere = line_groups(found.job) if found.job is not None else []
    for who, hosts, line, waits in elsewhere:
        say(line_group_text(who, len(who), hosts, len(hosts), line, waits=waits))
    if away := run.world - len(run.ranks) - 1 - sum(len(group.ranks) for group in elsewhere):
        say(f"{numbers.counted(away, 'rank')} not known on this node")


def _source(found: RankStack) -> str:
    if found.source == "samples":
        return f"samples of the last {FRESH_S:.0f} s, {numbers.duration(found.age_s)} old"
    return "by py-spy, now"


def _unknown(run: RunState, found: RankStack) -> str:
    if found.state in ("T", "t", "D", "Z", ""):
        return stacks.silent_text(found.rank, run.world, found.state)
    who = f"rank {found.rank}" if run.world > 1 else "the run"
    how = "py-spy did not get its stack" if py_spy_program() else "pip install 'hoptui[stack]' reads it"
    return f"{who} has sent no stack samples for {FRESH_S:.0f} s; {how}"
