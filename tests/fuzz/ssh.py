"""Other machines: places that a user types, and what ssh and the other node print.

An input is lines. The first one is a place, the second one hoptui's command there. Each other line starts
with the stream that it comes from: `o` is the output, `e` the errors, `x` the exit code; anything else is
time.
"""

from __future__ import annotations

import contextlib
import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random

from hoptui.client import tunnel
from hoptui.client.target import BadPlace, Place, is_path, parse
from hoptui.client.tunnel import Tunnel
from hoptui.protocol.messages import PROTOCOL
from tests.fuzz.harness import Broken, Harness
from tests.fuzz.mutation import mutated_bytes, mutated_list

WORD = f'{{"protocol":{PROTOCOL},"version":"0.1.0","user":"ana"}}'.encode()
PLACES = (
    b"ssh://gpu07", b"ssh://ana@gpu07:2222/ppo", b"ssh://[2001:db8::7]:22/ppo",
    b"ssh://ana@lab@gpu07/a%20b", b"local/ppo", b"ssh://-oProxyCommand=x", b"ssh://ana:secret@gpu07",
    b"ppo", b"./run.hoptui", b"ssh://gpu07:65536", b"ssh://[::1", b"ssh://h%00", b"SSH://a@",
    b"ssh://%5b%5d", b"ssh://a\xe2\x80\xaeb", b"ssh://\xd9\xa1:\xd9\xa2",
)  # fmt: skip
LINES = (
    b"o" + WORD, b"o" + WORD.replace(b'1"', b'9"'),
    b'o{"protocol":999999999999999999999,"version":"x","user":"y"}', b"o\x1b[2J",
    b'o{"protocol":2,"version":"","user":""}', b"oLast login", b"e\x1b]0;x\x07", b"x255", b"x0", b"x2",
    b"x126", b"x127", b"x-9", b"ePermission denied (publickey).", b"eHost key verification failed.",
    b"ehoptui: usage", b"t", b"e", b"eopen failed: administratively prohibited",
    b"ebash: hoptui: not found", b"o" + b"[" * 3000, b"o{}", b"onull",
)  # fmt: skip
COMMANDS = (b"hoptui", b"~/bin/hoptui", b"/opt/a b/hoptui", b"$(x)", b"-x", b"")
LONGEST_REASON = 1000


class Ssh:
    """A process whose output is in the input."""

    def __init__(self, words: Sequence[str]) -> None:
        self.waits_on: list[int] = []
        self.words = list(words)
        self.said: list[str] = []
        self.errors = ""
        self.ended_with: int | None = None

    def lines(self) -> list[str]:
        said, self.said = self.said, []
        return said

    def code(self) -> int | None:
        return self.ended_with

    def end(self) -> None: ...


class Other(Harness):
    """Connections to another machine."""

    name, unit = "ssh", "connections"

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="hoptui-fuzz-")

    def close(self) -> None:
        self._directory.cleanup()

    def seeds(self) -> list[bytes]:
        of_places = [b"\n".join((place, b"hoptui", *LINES[:1])) for place in PLACES]
        of_lines = [
            b"\n".join((PLACES[0], COMMANDS[i % len(COMMANDS)], line)) for i, line in enumerate(LINES)
        ]
        return [*of_places, *of_lines]

    def mutated(self, data: bytes, random: Random) -> bytes:
        lines = data.split(b"\n")
        match random.randrange(4):
            case 0:
                lines[0] = mutated_bytes(random.choice((lines[0], *PLACES)), random, 500)
            case 1:
                lines[2:] = mutated_list(lines[2:], random, LINES)[-20:]
            case 2 if len(lines) > 2:
                at = random.randrange(2, len(lines))
                lines[at] = lines[at][:1] + mutated_bytes(lines[at][1:], random)
            case _:
                lines[1:2] = [random.choice((*COMMANDS, mutated_bytes(COMMANDS[1], random, 500)))]
        return b"\n".join(lines)

    def run(self, data: bytes) -> int:
        typed, hoptui, *lines = [*data.split(b"\n"), b""][: max(2, data.count(b"\n") + 1)]
        try:
            place = parse(typed.decode(errors="surrogateescape"))
        except BadPlace as error:
            told = str(error)
            if "\n" in told or (b":secret@" in typed and ":secret@" in told):
                raise Broken(f"this is no sentence for a terminal: {error!r}") from error
            place = Place("gpu07")
        is_path(place.run)
        if not place.remote:
            place = Place("gpu07", run=place.run)
        _connect(place, Path(self._directory.name), hoptui.decode(errors="surrogateescape"), lines)
        return 1


def _connect(place: Place, directory: Path, hoptui: str, lines: Sequence[bytes]) -> None:
    started: list[Ssh] = []

    def spawn(words: Sequence[str]) -> Ssh:
        started.append(Ssh(words))
        return started[-1]

    way = Tunnel(place, directory, hoptui=hoptui, spawn=spawn)
    now = 0.0
    try:
        way.open(now)
        _check_words(started[-1].words, place)
        for line in lines:
            ssh = started[-1]
            kind, text = line[:1], line[1:].decode(errors="replace")
            if kind == b"o":
                ssh.said.append(text)
            elif kind == b"e":
                ssh.errors = (ssh.errors + text + "\n")[-tunnel.MOST_ERRORS :]
            elif kind == b"x":
                with contextlib.suppress(ValueError):
                    ssh.ended_with = max(-64, min(255, int(text)))
            now += 1.0 + 40.0 * (kind not in b"oex")
            way.poll(now)
            tunnel.forbidden(place, ssh.errors)
            if len(way.reason) > LONGEST_REASON or "\n" in way.reason:
                raise Broken(f"a reason is not one line: {way.reason[:200]!r}")
            if way.state == "refused":
                way.again(now)
    finally:
        way.close()


def _check_words(words: Sequence[str], place: Place) -> None:
    """The place and the command stay one argument each, whatever they hold."""
    split = words.index("--")
    if words[split + 1] != place.destination or len(words) != split + 3 or place.destination.startswith("-"):
        raise Broken(f"the place becomes an option: {words}")
    there = shlex.split(words[-1])
    if there[1:3] != ["daemon", "forward"] or len(there) != 4:
        raise Broken(f"the command of the other node is another one: {words[-1]!r}")
