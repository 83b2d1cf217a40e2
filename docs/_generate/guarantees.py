"""What hoptui guarantees, and the tests that show it: tables of pages, made from the markers of the tests.

A test of a guarantee has the marker `@pytest.mark.guarantee("key")`, the key of one in `GUARANTEES`.
`python -m docs._generate.guarantees` writes the tables of `PAGES`.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from docs._generate import markers
from docs._generate.markers import ROOT

PAGES = (ROOT / "docs/internals/reliability.md", ROOT / "SECURITY.md")
"""The pages with tables. A table is between `<!-- guarantees: SECTION -->` and `<!-- end -->`."""
COMMAND = "python -m docs._generate.guarantees"
_BLOCK = re.compile(r"(?s)(<!-- guarantees: (\S+) -->\n).*?(<!-- end -->)")


class Guarantee(NamedTuple):
    """What happens, or the part that is protected; and what holds then."""

    key: str
    failure: str
    promise: str


GUARANTEES: dict[str, tuple[Guarantee, ...]] = {
    "training": (
        Guarantee("daemon-killed", "the daemon is killed",
                  "training goes on, another daemon starts, and the recording has every row"),
        Guarantee("daemon-hangs", "the daemon hangs",
                  "the run keeps a bounded number of rows, and its exit does not wait"),
        Guarantee("no-daemon", "no daemon can be started", "the run logs one warning and trains"),
        Guarantee("link-fails", "the link thread of a run fails",
                  "it switches itself off after five errors in a row, and training goes on"),
        Guarantee("setter-raises", "the setter of a knob raises",
                  "the previous value is restored, and the command has failed with the reason"),
        Guarantee("rank-fails", "a change fails on one rank", "it is undone on all ranks"),
        Guarantee("viewer-gone", "a viewer is killed or suspended",
                  "runs and other viewers notice nothing, and a suspended viewer continues"),
        Guarantee("pause-lease", "the viewer that paused a run is gone",
                  "the run goes on when the lease ends"),
        Guarantee("forked-child", "a training process forks",
                  "the child sends nothing, holds no connection, waits for no lock and is not sampled"),
        Guarantee("exit-in-store", "a process exits while its ranks communicate",
                  "its exit waits for the call of the store, so that the interpreter does not abort"),
        Guarantee("exit-beside-gloo", "a process exits while a thread of Gloo holds a tensor",
                  "its exit waits for that thread, at most half a second: PyTorch would abort or hang"),
        Guarantee("read-stack", "a stack is read while the training goes on",
                  "no garbage is collected meanwhile in Python 3.11, so that the process does not crash"),
        Guarantee("second-process", "another process uses the id of a live run",
                  "it becomes a run of its own"),
    ),
    "faults": (
        Guarantee("unreadable-recording", "a recording is damaged, or a link to nowhere",
                  "it is left aside with a line in `daemon.log`, and every other recording is read"),
        Guarantee("failed-job", "a write or a query fails",
                  "the others are done, and the state of the node shows the number and the last error"),
        Guarantee("archive-ends", "the thread of the archive ends",
                  "live values and commands go on, and the reason is shown"),
        Guarantee("thread-ends", "a thread of the daemon or of a run ends by an error",
                  "the rest goes on; `hoptui doctor`, `hoptui ls` and the dashboard show the error"),
        Guarantee("history-shown", "history is not being kept",
                  "`hoptui doctor`, `hoptui ls`, `hoptui daemon status` and the dashboard show why"),
        Guarantee("problem-of-run", "the recording of one run cannot be written",
                  "its problem stays until that recording is written again"),
        Guarantee("full-disk", "the disk is full",
                  "the reason is shown, what waits is kept and bounded, and is written when there is room"),
        Guarantee("disk-unread", "the disk cannot be read when rows arrive",
                  "they wait, and are written once it is known which of them the recording has"),
        Guarantee("full-at-start-or-end", "the disk is full when a run starts or ends",
                  "the recording is opened or closed later, with everything that came"),
        Guarantee("lost-counted", "the disk takes no data for longer than memory lasts",
                  "items on disk + items counted as missing = items that came"),
        Guarantee("part-raises", "a diagnosis, a measurement or the tuner raises",
                  "it is logged and left out for a while, and no row is lost"),
        Guarantee("sampler-hangs", "a driver call does not return",
                  "the sampler is replaced, the GPU is left out, and the others are read"),
        Guarantee("sockets-removed", "the sockets, the lock or the directory are removed",
                  "they are made again, and there is one daemon"),
        Guarantee("few-descriptors", "file descriptors run out",
                  "new connections are refused with a reason, and existing ones go on"),
        Guarantee("bad-messages", "a peer sends anything else than a message",
                  "it gets an error, and others notice nothing"),
    ),
    "outcomes": (
        Guarantee("change-written", "the daemon is killed after a change took effect",
                  "the change is on disk at once, not with the next flush"),
        Guarantee("shown-when-written", "the daemon and the run are killed just after an outcome was shown",
                  "the outcome is on disk"),
        Guarantee("marked-unsaved", "the disk is full or slow",
                  "an outcome is shown after 0.2 s with the mark `not on disk yet`, until it is there"),
        Guarantee("acknowledged-written", "the daemon is killed between a write and the acknowledgement",
                  "a final outcome is acknowledged to its run when it is shown"),
        Guarantee("outcomes-again", "a daemon follows a killed one",
                  "it gets every outcome that the run remembers, with the command if it does not know it"),
    ),
    "clock": (
        Guarantee("clock-ahead", "the clock is ahead when the daemon starts",
                  "at most a day beyond the newest recording is believed, and nothing is deleted"),
        Guarantee("clock-jumps", "the wall clock jumps", "it is believed after a day"),
        Guarantee("node-off", "the node was off", "at most a day of that time is believed at once"),
        Guarantee("old-live-run", "the recording of a live run looks old", "the run is restored"),
        Guarantee("bad-clock-file", "`clock.json` is damaged", "it counts as missing"),
    ),
    "values": (
        Guarantee("number-range", "a number is out of range", "the message is refused with an error"),
        Guarantee("future-stamp", "a stamp is in the future", "the time of arrival is used"),
        Guarantee("value-survives", "a knob reads back any value, such as NaN",
                  "the value survives the wire, JSON, SQLite and a restart, or the command has failed"),
        Guarantee("unwritable", "no file can hold a row, an event or a command",
                  "it is left out and counted, and the rest is written"),
        Guarantee("damaged-rows", "a recording has damaged rows", "new rows are written"),
        Guarantee("rows-counted", "memory for rows is full",
                  "rows that came in = rows kept + rows counted as dropped"),
    ),
    "delivery": (
        Guarantee("final-stage", "a run ends before it answered a command",
                  "the command is `unknown` if the run may have applied it, and else `voided`"),
        Guarantee("full-socket", "a socket takes no message",
                  "the message waits in order, or its sender knows that it was refused"),
        Guarantee("bounded-commands", "too many commands are open", "further ones are refused"),
        Guarantee("answer-size", "an answer is larger than its receiver takes",
                  "it comes in pages, each of which continues where the one before ended"),
        Guarantee("run-size", "a run declares more than a message holds",
                  "descriptions, units, then knobs are left out, and the run's log and an event say so"),
    ),
    "files": (
        Guarantee("hostile-file", "a recording has another schema, or content that takes time or memory",
                  "it is refused with one sentence, in bounded time and memory"),
        Guarantee("hostile-writer", "a writer opens a file with another schema", "the file is not touched"),
        Guarantee("endless-statement", "a statement does not end",
                  "it is stopped after 1 s of CPU time"),
        Guarantee("decompression", "a block is larger without compression than allowed",
                  "nothing larger is made"),
        Guarantee("any-input", "a message, a file, a setting, an argument or the output of ssh is anything",
                  "the documented error, within 1 s of CPU time ([fuzzing](fuzzing.md))"),
        Guarantee("cell-type", "a cell has another type, or a number is out of range",
                  "the file is reported as damaged"),
    ),
    "releases": (
        Guarantee("other-release", "daemon, runs and viewers are of two neighbouring releases",
                  "runs are seen and steered, and each release reads the recordings of the other"),
        Guarantee("newer-words", "a peer or a recording has a word that only a newer hoptui knows",
                  "it is shown as `unknown: WORD`, and all else as ever"),
    ),
    "security": (
        Guarantee("private-directory", "sockets, lock, log",
                  "a directory of mode 0700 that belongs to you; a symlink, another owner or other modes "
                  "are refused"),
        Guarantee("socket-mode", "socket files", "bound under umask 0177"),
        Guarantee("peer-user", "who connects",
                  "the kernel reports user and process (`SO_PEERCRED`); every other user id is refused "
                  "and logged"),
        Guarantee("peer-author", "who sent a command",
                  "user and process id come from the kernel, never from the message"),
        Guarantee("private-recordings", "recordings",
                  "a directory of mode 0700 that belongs to you, files of mode 0600; else it is refused by "
                  "the daemon, the command line and runs"),
        Guarantee("written-files", "files that commands write",
                  "made beside the target under a random name (`O_EXCL`, `O_NOFOLLOW`), synced, renamed; "
                  "`gpus --csv` appends to the file that you name"),
        Guarantee("message-limits", "messages",
                  "size is checked before decoding: 1 MiB, and 64 KiB from a viewer; malformed messages "
                  "are answered with an error"),
        Guarantee("no-network", "network",
                  "nothing listens on TCP unless you start the Prometheus endpoint or `hoptui serve`; a "
                  "training process listens nowhere"),
        Guarantee("ssh-line", "other machines",
                  "your own `ssh`, in batch mode, without agent and X11 forwarding; a socket under a random "
                  "name in a directory of mode 0700"),
        Guarantee("browser-gate", "browser",
                  "loopback only, a token that opens once, an unguessable path, checks of `Host` and "
                  "`Origin`, read-only unless you add `--steer`"),
        Guarantee("clean-text", "terminal",
                  "control and bidi characters are removed from names and texts before they reach the "
                  "terminal, escaped in `--json`, and replaced in data that is printed on a terminal; files "
                  "and pipes get data as they are"),
        Guarantee("declared-only", "commands",
                  "a run carries out only what it has declared, within its bounds"),
        Guarantee("read-only", "`--read-only`", "no knob, no command and no signal is sent"),
    ),
}  # fmt: skip
"""The guarantees by section. The section `security` lists the parts that are protected."""

HEADS = {"security": ("part", "protection", "tests")}
HEAD = ("failure", "guarantee", "tests")


@functools.cache
def marked(root: Path = ROOT) -> Mapping[str, Sequence[str]]:
    """The tests of each key: the paths of files and the names of functions, in order."""
    found = defaultdict[str, list[str]](list)
    for marker in markers.marked("guarantee", root):
        found[str(marker.arguments[0])].append(marker.test)
    return dict(found)


def fill(page: str) -> str:
    """The page with its tables as they should be.

    Raises:
        KeyError: a table is of a section that does not exist.
    """
    found = marked()
    return _BLOCK.sub(lambda block: f"{block[1]}\n{_table(block[2], found)}\n\n{block[3]}", page)


def sections(page: str) -> list[str]:
    """The sections of the tables of a page."""
    return [block[2] for block in _BLOCK.finditer(page)]


def _table(section: str, found: Mapping[str, Sequence[str]]) -> str:
    rows = [
        (
            guarantee.failure,
            guarantee.promise,
            ", ".join(f"`{test}`" for test in found.get(guarantee.key, ())),
        )
        for guarantee in GUARANTEES[section]
    ]
    lines = [HEADS.get(section, HEAD), ("---",) * 3, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    for place in PAGES:
        place.write_text(fill(place.read_text()))
