"""How a viewer puts the parts of an output together."""

from __future__ import annotations

from hoptui.domain.outputs import PAGE_BYTES, TAIL_BYTES, OutputPart, OutputTail, StreamName
from hoptui.domain.terminal_text import plain
from hoptui.model.outputs import FoundOutput, OutputText, last_lines
from hoptui.protocol.messages import RunOutput


def part(data: bytes, start: int = 0, end: int = 0, source: str = "a") -> OutputPart:
    end = end or start + len(data)
    return OutputPart(
        stream="output", origin="file", source=source, path="/log", start=start, end=end, data=data
    )


def add(text: OutputText, *parts: OutputPart) -> tuple[FoundOutput, bool]:
    return text.add(RunOutput(id=1, run="r", parts=parts, ranks=(0,)))


def lines(found: FoundOutput) -> list[str]:
    return [plain(line) for line in found.streams[0].lines]


def test_pages_continue_each_other() -> None:
    text = OutputText()
    found, more = add(text, part(b"one\ntw", end=12))
    assert (lines(found), more, text.since) == (["one", "tw"], True, {"a": 6})
    found, more = add(text, part(b"o\nfive", start=6))
    assert (lines(found), more) == (["one", "two", "five"], False)
    assert not found.streams[0].missing
    assert found.streams[0].open


def test_a_gap_begins_anew_with_a_whole_line_and_says_so() -> None:
    text = OutputText()
    add(text, part(b"one\n"))
    found, _ = add(text, part(b"rest\nnew\n", start=1000))
    assert lines(found) == ["new"]
    assert found.streams[0].missing


def test_another_file_begins_anew() -> None:
    text = OutputText()
    add(text, part(b"old\n"))
    found, _ = add(text, part(b"new\n", source="b"))
    assert lines(found) == ["new"]
    assert text.since == {"b": 4}


def test_a_stream_that_is_not_read_is_named() -> None:
    found, _ = add(OutputText(), OutputPart(stream="stderr", origin="terminal"))
    assert (found.streams[0].stream, found.streams[0].origin) == ("stderr", "terminal")


def test_a_tail_keeps_the_newest_bytes_in_pages() -> None:
    tail = OutputTail()
    for number in range(6):
        tail.add(part(bytes([number]) * PAGE_BYTES, start=number * PAGE_BYTES))
    assert (tail.start, tail.end) == (2 * PAGE_BYTES, 6 * PAGE_BYTES)
    assert tail.end - tail.start == TAIL_BYTES
    assert tail.page(0) == (2 * PAGE_BYTES, bytes([2]) * PAGE_BYTES)
    assert tail.page(tail.end) == (tail.end, b"")
    tail.add(part(b"x", start=tail.end + 5))
    assert tail.page(0)[1] == b"x", "a gap begins anew"


def test_the_last_lines_are_those_of_stderr_without_empty_ones() -> None:
    def written(name: StreamName, data: bytes) -> OutputPart:
        return OutputPart(stream=name, origin="file", source=name, path="/log", end=len(data), data=data)

    found, _ = add(OutputText(), written("stdout", b"loss 0.4\n"), written("stderr", b"one\n\ntwo\n \n"))
    assert last_lines(found, 1) == ("two",)
    assert last_lines(found, 9) == ("one", "two")
    quiet, _ = add(OutputText(), written("stdout", b"loss 0.4\n"), written("stderr", b"\n"))
    assert last_lines(quiet, 1) == ("loss 0.4",)
    assert last_lines(None, 1) == last_lines(FoundOutput(), 1) == ()
